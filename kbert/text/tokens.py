"""A corpus -> the token ids of its blocks, and of places in other documents for random second sentences."""

import atexit
import gc

import numpy as np
import tensorflow as tf

from kbert.text.documents import Corpus
from kbert.text.packing import Spans
from kbert.text.sentence_pairs import Text

BYTES_PER_TOKEN = 6  # the first guess of how much text a random B needs; four times as much wherever it was too little


@atexit.register
def end_iterators():
    """Ends those that a script still has, in a variable or in the traceback of what stopped it.

    A thread that the end of Python finds in a function of Python's never returns, and TensorFlow, which ends iterators
    after Python, would wait for it forever.
    """
    kinds = set(tf.data.Iterator.__subclasses__())
    for found in gc.get_objects():
        if type(found) in kinds:  # of half a million objects, in half the time of isinstance
            found._iterator_resource = None


def graph_read(function, inputs, dtypes):
    # stateful=False: a map over stateful functions runs one element at a time when ops are to be deterministic.
    outputs = tf.numpy_function(function, inputs, dtypes, stateful=False)
    for output in outputs:
        output.set_shape([None])
    return outputs


class TextTokens:
    """Token ids straight from the text of a corpus."""

    def __init__(self, corpus: Corpus, tokenizer):
        self.corpus, self.tokenizer = corpus, tokenizer

    def blocks(self, numbers: tf.Tensor) -> Text:
        """The sentences of some blocks, int64 [G] -> Text."""
        sentences, *places = graph_read(self._read_blocks, [numbers], [tf.string, tf.int64, tf.int64, tf.int64])
        return without_empty_sentences(self.tokenizer(sentences), *places)

    def from_places(self, documents: tf.Tensor, depths: tf.Tensor, wanted: tf.Tensor) -> tuple[tf.Tensor, Spans]:
        """Whole sentences from a place in each document on, until `wanted` tokens or its end: [m] x 3 -> tokens, spans.

        documents int64; depths float64 in [0, 1), the share of the document's sentences before the place; wanted int64.
        """
        wanted = tf.maximum(wanted, 1)

        def read_more(pending, budget, tokens, starts, lengths):
            part = [tf.gather(values, pending) for values in (documents, depths, wanted)]
            strings, splits, exhausted = graph_read(
                self._read_places, [part[0], part[1], part[2] * budget], [tf.string, tf.int64, tf.bool]
            )
            pieces = self.tokenizer(strings)
            begin = tf.gather(pieces.row_splits, splits[:-1])
            stop = tf.searchsorted(pieces.row_splits, begin + part[2], out_type=tf.int64)
            stop = tf.gather(pieces.row_splits, tf.minimum(stop, splits[1:]))
            places = pending[:, None]
            starts = tf.tensor_scatter_nd_update(starts, places, begin + tf.size(tokens, tf.int64))
            lengths = tf.tensor_scatter_nd_update(lengths, places, stop - begin)
            pending = tf.boolean_mask(pending, (stop - begin < part[2]) & ~exhausted)
            return pending, budget * 4, tf.concat([tokens, pieces.flat_values], 0), starts, lengths

        count = tf.size(documents, tf.int64)
        nothing = tf.zeros([count], tf.int64)
        start = (tf.range(count), tf.constant(BYTES_PER_TOKEN, tf.int64), tf.zeros([0], tf.int32), nothing, nothing)
        vector = tf.TensorShape([None])
        _, _, tokens, starts, lengths = tf.while_loop(
            lambda pending, *rest: tf.size(pending) > 0,
            read_more,
            start,
            shape_invariants=(vector, tf.TensorShape([]), vector, vector, vector),
        )
        return tokens, Spans(starts, lengths)

    def _read_blocks(self, numbers: np.ndarray):
        runs, *places = block_places(self.corpus, numbers)
        return np.asarray([sentence for run in runs for sentence in self.corpus.text(*run)], object), *places

    def _read_places(self, documents: np.ndarray, depths: np.ndarray, budget: np.ndarray):
        starts = self.corpus.sentences
        first, end = first_sentences(self.corpus, documents, depths)
        stop = np.clip(np.searchsorted(starts, starts[first] + budget), first + 1, end)
        runs = [None] * len(first)
        for place in np.argsort(first).tolist():  # in the files' order, so that each is opened once
            runs[place] = self.corpus.text(first[place], stop[place])
        sentences = [sentence for run in runs for sentence in run]
        splits = np.concatenate([[0], np.cumsum(stop - first)]).astype(np.int64)
        return np.asarray(sentences, object), splits, stop == end


def block_places(corpus: Corpus, numbers: np.ndarray):
    """Blocks -> the run of sentences each is; sentence ids; first sentence and document of each piece (see Text)."""
    runs = [(int(corpus.blocks[number]), int(corpus.blocks[number + 1])) for number in numbers]
    ids, piece_starts, documents, count = [], [], [], 0
    for first, last in runs:
        begun = np.searchsorted(corpus.documents, first, "right") - 1
        inside = np.arange(begun, np.searchsorted(corpus.documents, last, "left"))
        piece_starts.append(np.maximum(corpus.documents[inside], first) - first + count)
        documents.append(inside)
        ids.append(np.arange(first, last))
        count += last - first
    piece_starts.append([count])
    return runs, *(np.concatenate(part).astype(np.int64) for part in (ids, piece_starts, documents))


def without_empty_sentences(
    tokens: tf.RaggedTensor, ids: tf.Tensor, piece_starts: tf.Tensor, documents: tf.Tensor
) -> Text:
    """Leaves out the sentences, and then the pieces, that hold no token: control characters and the like."""
    kept = tokens.row_lengths() > 0
    cumulative = tf.concat([[0], tf.boolean_mask(tokens.row_splits[1:], kept)], 0)
    kept_before = tf.concat([[0], tf.cumsum(tf.cast(kept, tf.int64))], 0)
    piece_starts = tf.gather(kept_before, piece_starts)
    begun = piece_starts[1:] > piece_starts[:-1]
    piece_starts = tf.concat([tf.boolean_mask(piece_starts[:-1], begun), piece_starts[-1:]], 0)
    return Text(
        tokens.flat_values, cumulative, tf.boolean_mask(ids, kept), piece_starts, tf.boolean_mask(documents, begun)
    )


def first_sentences(corpus: Corpus, documents: np.ndarray, depths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The sentence at a depth in [0, 1) of each document, and the document's end."""
    begin, end = corpus.documents[documents], corpus.documents[documents + 1]
    return begin + (depths * (end - begin)).astype(np.int64), end
