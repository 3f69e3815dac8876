"""Text -> WordPiece ids in the TensorFlow graph, equal to Google's tokenizer, with offsets into the text."""

import hashlib
import os
import unicodedata
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from kbert.text.normalization import MAX_CHARACTERS_PER_WORD, normalize, utf8_lengths
from kbert.text.vocabulary import SPECIAL_TOKENS, checked, read


class WordPiece(tf.Module):
    """Google's BERT tokenizer (google-research/bert tokenization.py) for tf.data, eager calls and SavedModels.

    A literal "[MASK]" in a text is ordinary text, as there. All ops are stateless.

    Attributes: vocabulary, the pieces by id; vocab_size; lower_case; pad_id, unk_id, cls_id, sep_id, mask_id;
    continuation_pieces, bool [V], the pieces that begin with "##"; digest, a hash of pieces and lower_case. Raises
    ValueError as vocabulary.read does.
    """

    def __init__(self, vocabulary: str | os.PathLike | Sequence[str], lower_case: bool = True):
        """Takes a vocabulary file or the pieces themselves."""
        super().__init__()
        pieces = read(vocabulary) if isinstance(vocabulary, (str, os.PathLike)) else checked(vocabulary)
        self.vocabulary, self.vocab_size, self.lower_case = pieces, len(pieces), lower_case
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = map(pieces.index, SPECIAL_TOKENS)
        self.continuation_pieces = np.array([piece.startswith("##") for piece in pieces])
        self.digest = hashlib.sha256("\n".join([str(lower_case), *pieces]).encode()).hexdigest()
        bytes_per_word = 4 * MAX_CHARACTERS_PER_WORD
        model = tf_text.build_fast_wordpiece_model(_findable(pieces), bytes_per_word, "##", "[UNK]", False, False)
        # On the CPU, where the ops are: a GPU's copy would travel back at each call.
        with tf.device("CPU:0"):
            model = tf.constant(np.frombuffer(model, np.uint8))
        self._wordpieces = tf_text.FastWordpieceTokenizer(model_buffer=model, token_out_type=tf.int32)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def __call__(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Ids of the pieces, string [B] -> int32 [B, (pieces)]."""
        return self._wordpieces.tokenize(normalize(texts, self.lower_case))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def tokenize_with_offsets(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, ...]:
        """Ids, first and last + 1 byte, first and last + 1 character of each piece: string [B] -> five [B, (pieces)].

        Offsets (int64) are into the text as given. Characters are counted without undecodable bytes, as in
        text.decode("utf-8", "ignore"). Combining marks that accent stripping drops belong to the piece before them; a
        character that becomes several (Hangul in lower case) belongs to each piece that has a part of it.
        """
        normalized = normalize(texts, self.lower_case)
        ids, starts, ends = self._wordpieces.tokenize_with_offsets(normalized)
        rows = ids.value_rowids()
        row_starts = tf.gather(tf.cumsum(_byte_lengths(normalized), exclusive=True), rows)
        characters, character_bytes = tf.strings.unicode_decode_with_offsets(texts, "UTF-8", errors="ignore")
        lengths, dropped = self._normalized_lengths(characters.flat_values)
        character_ends = tf.cumsum(lengths)
        first = tf.searchsorted(character_ends, row_starts + starts.flat_values, side="right", out_type=tf.int64)
        last = tf.searchsorted(character_ends, row_starts + ends.flat_values - 1, side="right", out_type=tf.int64)
        last = tf.minimum(_before_next_kept(last, dropped), tf.gather(characters.row_splits, rows + 1) - 1)
        start_bytes = tf.gather(character_bytes.flat_values, first)
        end_bytes = tf.gather(character_bytes.flat_values + utf8_lengths(characters.flat_values), last)
        row_characters = tf.gather(characters.row_splits, rows)
        offsets = start_bytes, end_bytes, first - row_characters, last + 1 - row_characters
        return ids, *(ids.with_flat_values(values) for values in offsets)

    def _normalized_lengths(self, characters: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Bytes that remain of each character, and whether it is a mark of which none remains: int32 [C] -> two [C]."""
        distinct, which = tf.unique(characters)
        distinct = tf.strings.unicode_encode(distinct[:, None], "UTF-8")
        lengths = _byte_lengths(normalize(distinct, self.lower_case))
        dropped = (lengths == 0) & tf.strings.regex_full_match(distinct, r"\p{Mn}")
        return tf.gather(lengths, which), tf.gather(dropped, which)


def _byte_lengths(texts: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.strings.length(texts), tf.int64)


def _before_next_kept(places: tf.Tensor, dropped: tf.Tensor) -> tf.Tensor:
    """The last of the dropped characters that follow each place, or the place itself: int64 [T], bool [C] -> [T]."""
    kept = tf.concat([tf.where(~dropped)[:, 0], tf.shape(dropped, tf.int64)], 0)
    return tf.gather(kept, tf.searchsorted(kept, places, side="right")) - 1


def _findable(pieces: list[str]) -> list[str]:
    """The vocabulary as the op may look for it: it would find pieces across words that normalized text does not hold.

    They get a name with punctuation inside, which the op leaves out.
    """

    def holds(piece: str) -> bool:
        return not any(
            character.isspace()
            or character == "\N{REPLACEMENT CHARACTER}"
            or unicodedata.category(character) in ("Cc", "Cf")
            for character in piece
        )

    return [piece if holds(piece) else f"[\x01{number}]" for number, piece in enumerate(pieces)]
