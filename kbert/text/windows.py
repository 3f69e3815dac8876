"""A passage of any length as windows that overlap (run_squad.py of the release), beside a question or alone.

window 0   [CLS] question [SEP] p0 p1 p2 p3 p4 p5 [SEP]
window 1   [CLS] question [SEP]          p3 p4 p5 p6 p7 p8 [SEP]      stride 3: the step from window to window

Shapes: Q passages, W windows of all of them, n of these, S sequence length.
"""

from typing import NamedTuple

import tensorflow as tf

from kbert.text.packing import Spans, SpecialIds, pack_spans

SPECIALS = 3  # [CLS] question [SEP] passage [SEP]
LEAST_STRIDE = 8  # each window is compared with all that it shares a token with


class WindowRule(NamedTuple):
    """How a passage is laid out: tokens a sequence, from window to window, and of a question, which is cut to that."""

    sequence_length: int = 384
    stride: int = 128
    question_length: int = 64

    def check(self, limit: int | None = None) -> None:
        """Raises ValueError for a rule whose windows cannot hold a passage, or hold more than the model's positions."""
        least = self.question_length + SPECIALS + 1
        if self.question_length < 1 or self.sequence_length < least:
            raise ValueError(
                f"sequence_length is {self.sequence_length}, expected at least {least}: "
                f"question_length {self.question_length}, {SPECIALS} special tokens and one of the passage"
            )
        if not LEAST_STRIDE <= self.stride <= self.sequence_length:
            raise ValueError(f"stride is {self.stride}, expected {LEAST_STRIDE} to sequence_length")
        if limit is not None and self.sequence_length > limit:
            raise ValueError(f"sequence_length is {self.sequence_length}, expected at most {limit}, the positions")


class Windows(NamedTuple):
    """Which passage each window is of, which tokens of it it holds, and where the first stands in it: int64 [W]."""

    passages: tf.Tensor
    starts: tf.Tensor
    lengths: tf.Tensor
    places: tf.Tensor


def windows(places, lengths, rule: WindowRule) -> Windows:
    """The windows of passages of some lengths, each after `places` tokens: int64 [Q], [Q]; an empty one has one too.

    places: 1 after [CLS], or 2 more than the question after [CLS] question [SEP].
    """
    room = rule.sequence_length - places - 1
    step = tf.minimum(room, rule.stride)
    counts = 1 + tf.maximum(lengths - room + step - 1, 0) // step
    passages = tf.repeat(tf.range(tf.size(counts, tf.int64)), counts)
    ordinals = tf.range(tf.size(passages, tf.int64)) - tf.gather(tf.cumsum(counts, exclusive=True), passages)
    starts = ordinals * tf.gather(step, passages)
    held = tf.minimum(tf.gather(room, passages), tf.gather(lengths, passages) - starts)
    return Windows(passages, starts, held, tf.gather(places, passages))


def pack_windows(questions, passages: tf.RaggedTensor, of: Windows, length, special: SpecialIds) -> dict:
    """Windows of passages, int32 [Q, (pieces)], beside questions or, where these are None, alone: features [W, S]."""
    held = Spans(tf.gather(passages.row_starts(), of.passages) + of.starts, of.lengths)
    if questions is None:
        return pack_spans(passages.flat_values, held, None, length, special)
    asked = Spans(*(tf.gather(values, of.passages) for values in (questions.row_starts(), questions.row_lengths())))
    tokens = tf.concat([questions.flat_values, passages.flat_values], 0)
    held = Spans(held.starts + tf.size(questions.flat_values, tf.int64), held.lengths)
    return pack_spans(tokens, asked, held, length, special)


def answer_places(of: Windows, rows, length, rule: WindowRule) -> tuple[tf.Tensor, tf.Tensor]:
    """Where in windows of these numbers an answer may begin and where it may end: int64 [n] -> two bool [n, S].

    It ends anywhere in the passage, and begins where no other window shows the token better: with more context on the
    side that has less of it, then with more tokens, then earlier.
    """
    own = Windows(*(tf.gather(values, rows) for values in of))
    tokens = tf.range(tf.cast(length, tf.int64)) + (own.starts - own.places)[:, None]  # by their number in the passage
    shown = context(own, tokens)
    begins = ends = shown >= 0
    last = tf.size(of.starts, tf.int64) - 1
    # Windows that are further apart share no token.
    for distance in range(1, rule.sequence_length // rule.stride + 1):
        for there, is_better in ((rows - distance, tf.greater_equal), (rows + distance, tf.greater)):
            other = Windows(*(tf.gather(values, tf.clip_by_value(there, 0, last)) for values in of))
            is_another = (there >= 0) & (there <= last) & (other.passages == own.passages)
            theirs = context(other, tokens)
            begins &= ~(is_another[:, None] & (theirs >= 0) & is_better(theirs, shown))
    return begins, ends


def context(of: Windows, tokens) -> tf.Tensor:
    """How much context windows show of tokens of their passages, [n], [n, S] -> int64 [n, S]; -1 outside of them.

    In hundredths: the tokens on the side that has less, and a hundredth for each token of the window.
    """
    left = tokens - of.starts[:, None]
    right = of.lengths[:, None] - 1 - left
    return tf.where((left >= 0) & (right >= 0), 100 * tf.minimum(left, right) + of.lengths[:, None], -1)
