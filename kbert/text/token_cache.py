"""The token ids of a corpus on disk, so that the second epoch need not tokenize: made once, read at any place.

Two files: every token in order (uint16, or int32 for a vocabulary over 65,536), and where each sentence's begin.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from kbert.text.documents import Corpus
from kbert.text.packing import Spans
from kbert.text.sentence_pairs import Text
from kbert.text.tokens import block_places, first_sentences, graph_read, without_empty_sentences


class CachedTokens:
    """Token ids from the cache folder, made there first where they are missing or the corpus, the vocabulary or
    lower-casing changed. Serves what tokens.TextTokens serves, with the same result."""

    def __init__(
        self, corpus: Corpus, tokenizer, cache: str, progress: Callable[[int, int], None] = lambda done, total: None
    ):
        self.corpus = corpus
        self.dtype = np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.int32)
        made_from = json.dumps([corpus.digest, tokenizer.digest])
        folder = os.path.join(cache, f"tokens-{hashlib.blake2b(made_from.encode(), digest_size=12).hexdigest()}")
        if not self._is_whole(folder):
            shutil.rmtree(folder, ignore_errors=True)
            self._write(folder, tokenizer, progress)
        self.offsets = np.memmap(os.path.join(folder, "offsets.int64"), np.int64, "r")
        self._file = open(os.path.join(folder, "tokens"), "rb", buffering=0)

    def _is_whole(self, folder: str) -> bool:
        try:
            before = 8 * self.corpus.counts["sentences"]
            end = np.fromfile(os.path.join(folder, "offsets.int64"), np.int64, offset=before)
            return (end * self.dtype.itemsize).tolist() == [os.path.getsize(os.path.join(folder, "tokens"))]
        except (OSError, ValueError):
            return False

    def _write(self, folder: str, tokenizer, progress: Callable[[int, int], None]) -> None:
        blocks = self.corpus.counts["blocks"]
        os.makedirs(os.path.dirname(folder), exist_ok=True)
        with tempfile.TemporaryDirectory(dir=os.path.dirname(folder), prefix="tokenizing-") as scratch:
            inside = os.path.join(scratch, "tokens")
            os.mkdir(inside)
            with (
                open(os.path.join(inside, "tokens"), "wb") as tokens,
                open(os.path.join(inside, "offsets.int64"), "wb") as offsets,
            ):
                offsets.write(np.int64([0]).tobytes())
                total = 0
                for done, (ids, splits) in enumerate(self._tokenized(tokenizer, blocks), 1):
                    tokens.write(ids.astype(self.dtype).tobytes())
                    offsets.write((splits[1:] + total).tobytes())
                    total += len(ids)
                    progress(done, blocks)
                for file in (tokens, offsets):
                    file.flush()
                    os.fsync(file.fileno())
            if not os.path.exists(folder):
                os.rename(inside, folder)

    def _tokenized(self, tokenizer, blocks: int):
        def read(number):
            first, last = int(self.corpus.blocks[number]), int(self.corpus.blocks[number + 1])
            return (np.asarray(self.corpus.text(first, last), object),)

        @tf.autograph.experimental.do_not_convert
        def tokenize(number):
            tokens = tokenizer(graph_read(read, [number], [tf.string])[0])
            return tokens.flat_values, tokens.row_splits

        dataset = tf.data.Dataset.range(blocks).map(tokenize, num_parallel_calls=os.cpu_count(), deterministic=True)
        return dataset.as_numpy_iterator()

    def blocks(self, numbers: tf.Tensor) -> Text:
        """The sentences of some blocks, int64 [G] -> Text."""
        tokens, splits, *places = graph_read(self._read_blocks, [numbers], [tf.int32] + 4 * [tf.int64])
        return without_empty_sentences(tf.RaggedTensor.from_row_splits(tokens, splits, validate=False), *places)

    def from_places(self, documents: tf.Tensor, depths: tf.Tensor, wanted: tf.Tensor) -> tuple[tf.Tensor, Spans]:
        """Whole sentences from places in documents on, until `wanted` tokens or their end: [m] x 3 -> tokens, spans."""
        tokens, starts, lengths = graph_read(
            self._read_places, [documents, depths, wanted], [tf.int32, tf.int64, tf.int64]
        )
        return tokens, Spans(starts, lengths)

    def _read_blocks(self, numbers: np.ndarray):
        runs, *places = block_places(self.corpus, numbers)
        lengths = np.concatenate([np.diff(self.offsets[first : last + 1]) for first, last in runs])
        tokens = [self._read(self.offsets[first], self.offsets[last]) for first, last in runs]
        return np.concatenate(tokens).astype(np.int32), np.concatenate([[0], np.cumsum(lengths)]), *places

    def _read_places(self, documents: np.ndarray, depths: np.ndarray, wanted: np.ndarray):
        first, end = first_sentences(self.corpus, documents, depths)
        begin = self.offsets[first]
        stop = self.offsets[np.minimum(np.searchsorted(self.offsets, begin + np.maximum(wanted, 1)), end)]
        tokens = [self._read(*place) for place in zip(begin.tolist(), stop.tolist(), strict=True)]
        lengths = stop - begin
        return np.concatenate([*tokens, []]).astype(np.int32), np.cumsum(lengths) - lengths, lengths

    def _read(self, begin: int, end: int) -> np.ndarray:
        size = self.dtype.itemsize
        return np.frombuffer(os.pread(self._file.fileno(), (end - begin) * size, begin * size), self.dtype)
