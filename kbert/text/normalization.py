"""Google's normalization of text, up to the splitting into words, as TensorFlow string ops without state.

The order is that of google-research/bert tokenization.py: undecodable bytes and control characters go; then, in
lower case, the text is lower-cased, decomposed (NFD) and loses its combining marks. Each step takes the rows that
need it out of the batch and puts them back: most text needs none but lower-casing.
"""

from collections.abc import Callable

import tensorflow as tf
import tensorflow_text as tf_text

MAX_CHARACTERS_PER_WORD = 200  # longer words are [UNK]: max_input_chars_per_word of tokenization.py

# Patterns of RE2. What is removed; surrogates in UTF-8 are undecodable, but RE2 does not mind them.
REMOVED = r"\x00-\x08\x0B\x0C\x0E-\x1F\x7F-\x{9F}\p{Cf}\x{FFFD}\x{D800}-\x{DFFF}"
ASCII_PUNCTUATION = r"!-/:-@\[-`{-~"
CHINESE = (
    r"\x{3400}-\x{4DBF}\x{4E00}-\x{9FFF}\x{F900}-\x{FAFF}"
    r"\x{20000}-\x{2A6DF}\x{2A700}-\x{2B73F}\x{2B740}-\x{2B81F}\x{2B820}-\x{2CEAF}\x{2F800}-\x{2FA1F}"
)
SEPARATOR = rf"[\t\n\r\p{{Z}}\p{{P}}{ASCII_PUNCTUATION}{CHINESE}]"

CLEAN_TEXT = f"[^{REMOVED}]*"
# Characters (ASCII capitals apart) that are their own lower case, have no accent and do not act on their neighbours.
PLAIN_TEXT = (
    r"[\t\n\r -~\x{A0}-\x{AC}\x{AE}-\x{BF}\x{D7}\x{DF}\x{E6}\x{F0}\x{F7}\x{F8}\x{FE}\x{153}"
    r"\x{2010}-\x{2027}\x{2030}-\x{205E}\x{20AC}\x{3000}-\x{3029}\x{3400}-\x{4DBF}\x{4E00}-\x{9FFF}\x{FF01}-\x{FF20}]*"
)
# Enough separators to tell that a text has no long word without counting its characters; there may be others.
_SEPARATORS = rf"\t\n\r {ASCII_PUNCTUATION}\x{{2010}}-\x{{2027}}\x{{3001}}\x{{3002}}\x{{4E00}}-\x{{9FFF}}\x{{FF0C}}"
_WORD = f"[^{_SEPARATORS}]{{0,{MAX_CHARACTERS_PER_WORD}}}"
SHORT_WORDS = f"(?:{_WORD}[{_SEPARATORS}])*{_WORD}"

# Removed characters of 1 to 4 bytes: no normalized text holds them, so they make a word that is unknown.
UNKNOWN_BY_LENGTH = [0x01, 0x80, 0xFFFD, 0xE0001]


def normalize(texts: tf.Tensor, lower_case: bool) -> tf.Tensor:
    """Normalized texts in valid UTF-8, string [B] -> string [B].

    What remains to be done is to split at whitespace, punctuation and Chinese characters. Words that are too long for
    any id but [UNK] are replaced by unknown characters of the same length in bytes.
    """
    if lower_case:
        # ASCII first: the op for Unicode takes "I" to a dotless i where the machine's language is Turkish.
        texts = _changed(tf.strings.lower(texts), PLAIN_TEXT, _without_accents)
    else:
        texts = _changed(texts, CLEAN_TEXT, _cleaned)
    return _changed(texts, SHORT_WORDS, _without_long_words)


def utf8_lengths(code_points: tf.Tensor) -> tf.Tensor:
    """Bytes of each character in UTF-8, int32 [C] -> int64 [C]."""
    return 1 + tf.add_n([tf.cast(code_points >= first, tf.int64) for first in (0x80, 0x800, 0x10000)])


def _changed(texts: tf.Tensor, unless: str, change: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
    rows = tf.where(~tf.strings.regex_full_match(texts, unless))
    return tf.tensor_scatter_nd_update(texts, rows, change(tf.gather_nd(texts, rows)))


def _cleaned(texts: tf.Tensor) -> tf.Tensor:
    texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="ignore")
    return tf.strings.regex_replace(texts, f"[{REMOVED}]+", "")


def _without_accents(texts: tf.Tensor) -> tf.Tensor:
    texts = _changed(texts, CLEAN_TEXT, _cleaned)
    texts = tf_text.normalize_utf8(tf.strings.lower(texts, encoding="utf-8"), "NFD")
    return tf.strings.regex_replace(texts, r"\p{Mn}+", "")


def _without_long_words(texts: tf.Tensor) -> tf.Tensor:
    characters = tf.strings.unicode_decode(texts, "UTF-8")
    code_points = characters.flat_values
    distinct, which = tf.unique(code_points)
    separates = tf.strings.regex_full_match(tf.strings.unicode_encode(distinct[:, None], "UTF-8"), SEPARATOR)
    separates = tf.gather(separates, which)
    # A word and the separator before it share a number, which grows at each separator and each row.
    word = tf.cumsum(tf.cast(separates, tf.int64)) + characters.value_rowids()
    length = tf.math.segment_sum(tf.cast(~separates, tf.int64), word)
    too_long = ~separates & (tf.gather(length, word) > MAX_CHARACTERS_PER_WORD)
    unknown = tf.gather(tf.constant(UNKNOWN_BY_LENGTH), utf8_lengths(code_points) - 1)
    characters = characters.with_flat_values(tf.where(too_long, unknown, code_points))
    return tf.strings.unicode_encode(characters, "UTF-8")
