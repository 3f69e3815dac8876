"""Text -> words parted by white space, and words -> pieces, at least one each."""

from collections.abc import Sequence

import tensorflow as tf
import tensorflow_text as tf_text


def pieces_of_words(words: Sequence[str], tokenizer, most: int) -> tf.RaggedTensor:
    """The first `most` pieces of each word, int32 [words, (pieces)]; [UNK] for a word of which nothing is left."""
    pieces = tokenizer(tf.convert_to_tensor(words, tf.string))[:, :most]
    is_empty = tf.cast(pieces.row_lengths() == 0, tf.int64)
    unknown = tf.fill([tf.reduce_sum(is_empty)], tf.constant(tokenizer.unk_id, pieces.dtype))
    return tf.concat([pieces, tf.RaggedTensor.from_row_lengths(unknown, is_empty)], axis=1)


def words_of(texts: tf.Tensor) -> tuple[tf.RaggedTensor, ...]:
    """The words of texts, first and last + 1 byte, first and last + 1 character of each: [B] -> five [B, (words)].

    Words are strings, the others int64. Characters are counted without undecodable bytes, as WordPiece counts them.
    """
    words, *offsets = tf_text.WhitespaceTokenizer().tokenize_with_offsets(texts)
    starts, ends = (tf.cast(values, tf.int64) for values in offsets)
    characters = tf.strings.unicode_decode_with_offsets(texts, "UTF-8", errors="ignore")[1]  # their bytes, [B, (chars)]
    # Of all texts in one line, each after the ones before it.
    widths = tf.cast(tf.strings.length(texts), tf.int64) + 1
    shifts = tf.cumsum(widths, exclusive=True)
    line = characters.flat_values + tf.gather(shifts, characters.value_rowids())

    def character(places):
        rows = places.value_rowids()
        found = tf.searchsorted(line, places.flat_values + tf.gather(shifts, rows), out_type=tf.int64)
        return places.with_flat_values(found - tf.gather(characters.row_starts(), rows))

    return words, starts, ends, character(starts), character(ends)
