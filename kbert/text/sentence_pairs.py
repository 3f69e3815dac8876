"""Documents -> pairs (A, B, is B random), by BERT's rule; or full segments where there is no next sentence to predict.

What would happen if an instance began at sentence i depends on i alone: how many sentences reach the target length,
where A ends, whether B is random and, then, that the sentences after A are put back. So it is computed for every
sentence at once, and the instances of a document are the chain that starts at its first sentence:

    sentence    0     1     2     3     4     5     6     7
    next        2     3     3     6     6     7     8     8      -> instances begin at 0, 2, 3 and 6
"""

from typing import NamedTuple

import tensorflow as tf

from kbert.text import draws
from kbert.text.packing import Spans


class Rule(NamedTuple):
    """What making instances depends on beside the text. room: tokens of A and B together; seed; short_sequences: the
    probability that a piece of text is cut to a shorter target."""

    room: int
    seed: int
    short_sequences: float


class Text(NamedTuple):
    """Tokenized sentences of a group of blocks. A piece is a document, or the part of a long one that lies in a block.

    tokens int32 [T]; cumulative int64 [N + 1], the tokens before each sentence; sentence_ids int64 [N], numbers in
    the corpus; piece_starts int64 [D + 1], the first sentence of each piece; documents int64 [D], the document each
    belongs to.
    """

    tokens: tf.Tensor
    cumulative: tf.Tensor
    sentence_ids: tf.Tensor
    piece_starts: tf.Tensor
    documents: tf.Tensor


class Pairs(NamedTuple):
    """n instances. a, b: spans of Text.tokens (b is meant where not is_random); keys uint64, document int64,
    wanted int64: the tokens that a random B is to reach."""

    keys: tf.Tensor
    documents: tf.Tensor
    a: Spans
    b: Spans
    is_random: tf.Tensor
    wanted: tf.Tensor


def target_lengths(text: Text, rule: Rule, epoch: tf.Tensor) -> tf.Tensor:
    """The length that the instances of each piece aim at, drawn once per epoch -> int64 [D].

    The release draws once per document. Books are documents too long for that: one book in ten makes a third of all
    instances then, all of one length, and a model learns the book rather than the sentence.
    """
    keys = draws.key(rule.seed, epoch, text.documents, tf.gather(text.sentence_ids, text.piece_starts[:-1]))
    short = draws.uniform(draws.bits(keys, "target", 0)) < rule.short_sequences
    shorter = 2 + draws.integer(draws.bits(keys, "target", 1), max(rule.room - 1, 1))
    return tf.where(short, shorter, tf.cast(rule.room, tf.int64))


def sentence_pairs(text: Text, rule: Rule, epoch: tf.Tensor) -> Pairs:
    """BERT's pairs over a group of blocks (paper, appendix A.1; the release's create_pretraining_data.py)."""
    sentences = tf.size(text.sentence_ids, tf.int64)
    piece = tf.repeat(tf.range(tf.size(text.documents)), text.piece_starts[1:] - text.piece_starts[:-1])
    document, piece_end = tf.gather(text.documents, piece), tf.gather(text.piece_starts[1:], piece)
    begin = tf.range(sentences)
    tokens_before = text.cumulative[:-1]
    keys = draws.key(rule.seed, epoch, document, text.sentence_ids)

    target = tf.gather(target_lengths(text, rule, epoch), piece)
    end = tf.minimum(tf.searchsorted(text.cumulative, tokens_before + target, out_type=tf.int64), piece_end)
    gathered = end - begin
    a_end = begin + 1 + draws.integer(draws.bits(keys, "split"), tf.maximum(gathered - 1, 1))
    is_random = (gathered == 1) | (draws.uniform(draws.bits(keys, "is_random")) < 0.5)
    following = tf.where(is_random, a_end, end)

    chosen = _chain(text.piece_starts, tf.where(following < piece_end, following, sentences))
    middle, end = tf.gather(text.cumulative, a_end), tf.gather(text.cumulative, end)
    a = Spans(tokens_before, middle - tokens_before)
    pairs = Pairs(keys, document, a, Spans(middle, end - middle), is_random, target - a.lengths)
    return tf.nest.map_structure(lambda values: tf.gather(values, chosen), pairs)


def _chain(piece_starts: tf.Tensor, following: tf.Tensor) -> tf.Tensor:
    """The sentences reached from the first of each piece by following [N] up to its end (N), in order -> int64 [n]."""
    sentences = tf.size(following, tf.int64)
    following = tf.concat([following, [sentences]], 0)
    # Pieces advance side by side, so that there are as many steps as the longest of them has instances.
    reached = tf.TensorArray(tf.int64, size=0, dynamic_size=True, element_shape=[None], infer_shape=False)
    _, reached = tf.while_loop(
        lambda places, reached: tf.size(places) > 0,
        lambda places, reached: _step(places, reached, following, sentences),
        [piece_starts[:-1], reached],
        shape_invariants=[tf.TensorShape([None]), None],
    )
    return tf.sort(reached.concat())


def _step(places, reached, following, sentences):
    reached = reached.write(reached.size(), places)
    places = tf.gather(following, places)
    return tf.boolean_mask(places, places < sentences), reached


def segments(text: Text, rule: Rule, epoch: tf.Tensor) -> Pairs:
    """Each document cut into full segments, one after the other: no B, nothing random, nothing left out."""
    first = tf.gather(text.cumulative, text.piece_starts[:-1])
    length = tf.gather(text.cumulative, text.piece_starts[1:]) - first
    target = target_lengths(text, rule, epoch)
    counts = (length + target - 1) // target
    piece = tf.repeat(tf.range(tf.size(text.documents)), counts)
    ordinal = tf.ragged.range(counts).flat_values
    first, length, target, document = (tf.gather(x, piece) for x in (first, length, target, text.documents))
    first_sentence = tf.gather(tf.gather(text.sentence_ids, text.piece_starts[:-1]), piece)
    a = Spans(first + ordinal * target, tf.minimum(target, length - ordinal * target))
    nothing = tf.zeros_like(first)
    keys = draws.key(rule.seed, epoch, document, first_sentence, ordinal)
    return Pairs(keys, document, a, Spans(nothing, nothing), tf.zeros_like(nothing, tf.bool), nothing)


def random_places(pairs: Pairs, documents: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Where each random B begins: another one of that many documents, int64 [n], and how far into it, [n] in [0, 1)."""
    other = draws.integer(draws.bits(pairs.keys, "document"), documents - 1)
    other += tf.cast(other >= pairs.documents, tf.int64)
    return other, draws.uniform(draws.bits(pairs.keys, "sentence"))
