"""`[CLS] A [SEP] B [SEP]`: truncation, segment ids, padding (paper, section 3 and figure 2).

The one place that knows, but for plain.py, which lays out one row without TensorFlow.

position     0     1 .. a   a+1    a+2 .. a+b+1  a+b+2  ..
input_ids    [CLS] A        [SEP]  B             [SEP]  [PAD]
segment_ids  0     0        0      1             1      0
input_mask   1     1        1      1             1      0
"""

from typing import NamedTuple

import tensorflow as tf


class Spans(NamedTuple):
    """Stretches of one flat vector of token ids: where each starts and how many tokens it has, int64 [n] each."""

    starts: tf.Tensor
    lengths: tf.Tensor


class SpecialIds(NamedTuple):
    pad: int
    cls: int
    sep: int


def special_ids(tokenizer) -> SpecialIds:
    return SpecialIds(tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id)


def truncated_lengths(lengths_a: tf.Tensor, lengths_b: tf.Tensor, limit: int) -> tuple[tf.Tensor, tf.Tensor]:
    """The lengths left when tokens are taken one by one from the longer (on equal lengths from B) until both fit."""
    half = limit // 2
    kept_a = tf.minimum(lengths_a, tf.maximum(limit - lengths_b, limit - half))
    kept_b = tf.minimum(lengths_b, tf.maximum(limit - lengths_a, half))
    return kept_a, kept_b


def pack_spans(tokens: tf.Tensor, a: Spans, b: Spans | None, sequence_length: int, special: SpecialIds) -> dict:
    """Lays spans of `tokens` [T], which fit already, out as rows -> input_ids, input_mask, segment_ids int32 [n, S]."""
    specials = tf.constant([special.pad, special.cls, special.sep], tokens.dtype)
    pool = tf.concat([specials, tokens], 0)
    column = tf.range(tf.cast(sequence_length, tf.int32), dtype=tf.int32)[None, :]
    a_start, a_end = tf.cast(a.starts, tf.int32)[:, None], tf.cast(a.lengths, tf.int32)[:, None] + 1
    place = tf.where(column < a_end, a_start + (column + 2), 2)  # token t of `tokens` is at t + 3 of the pool
    place = tf.where(column == 0, 1, place)
    end = a_end  # of the last [SEP]
    if b is not None:
        end = a_end + tf.cast(b.lengths, tf.int32)[:, None] + 1
        b_offset = tf.cast(b.starts, tf.int32)[:, None] - a_end + 2
        place = tf.where((column > a_end) & (column < end), b_offset + column, place)
    mask = tf.cast(column <= end, tf.int32)
    ids = tf.gather(pool, place * mask)
    segment_ids = tf.cast(column > a_end, tf.int32) * mask
    return {"input_ids": tf.cast(ids, tf.int32), "input_mask": mask, "segment_ids": segment_ids}


def pack(tokens_a: tf.RaggedTensor, tokens_b: tf.RaggedTensor | None, sequence_length, special: SpecialIds) -> dict:
    """Packs one or two ragged [n, (tokens)], cut at the back to fit -> input_ids, input_mask, segment_ids [n, S]."""
    a = Spans(tokens_a.row_starts(), tokens_a.row_lengths())
    if tokens_b is None:
        a = Spans(a.starts, tf.minimum(a.lengths, tf.cast(sequence_length - 2, tf.int64)))
        return pack_spans(tokens_a.flat_values, a, None, sequence_length, special)
    lengths = truncated_lengths(a.lengths, tokens_b.row_lengths(), tf.cast(sequence_length - 3, tf.int64))
    tokens = tf.concat([tokens_a.flat_values, tokens_b.flat_values], 0)
    b_starts = tokens_b.row_starts() + tf.size(tokens_a.flat_values, tf.int64)
    return pack_spans(tokens, Spans(a.starts, lengths[0]), Spans(b_starts, lengths[1]), sequence_length, special)


def with_token_places(features: dict) -> dict:
    """Features and where their tokens are, `token_places` int32 [T]: a Bert then computes next to nothing for padding.

    Each row's first place counts as a token: no row is left without, and none has to do with another's tokens.
    """
    is_token = features["input_mask"] != 0
    is_token = tf.concat([tf.ones_like(is_token[..., :1]), is_token[..., 1:]], axis=-1)
    return features | {"token_places": tf.cast(tf.where(tf.reshape(is_token, [-1]))[:, 0], tf.int32)}
