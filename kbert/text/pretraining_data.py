"""Corpus -> batches, in an order and with draws that depend on the seed alone.

    corpus -> blocks, permuted -> groups of 32 -> tokens -> pairs, permuted -> rows -> masks -> batches

Each group of blocks (see walk.py) is one unit of work: its instances are shuffled among themselves, packed and masked
together.
"""

from collections.abc import Callable
from dataclasses import dataclass

import tensorflow as tf

from kbert.text import draws, masking, sentence_pairs
from kbert.text.documents import PLAIN_TEXT, Corpus, CorpusFormat
from kbert.text.masking import Masking
from kbert.text.packing import Spans, pack_spans, special_ids, truncated_lengths
from kbert.text.tokens import TextTokens
from kbert.text.walk import START, Walk

GROUP_BLOCKS = 32  # about 3 MB of text: thousands of instances to shuffle, and a bound on memory
# What a group is made from: epoch, numbers of blocks, instances to skip.
GROUP = [tf.TensorSpec([], tf.int64), tf.TensorSpec([None], tf.int64), tf.TensorSpec([], tf.int64)]
OBJECTIVES = ("mlm+nsp", "mlm", "left-to-right")


@dataclass(frozen=True)
class InstanceRule:
    """What one pre-training instance is.

    objectives: mlm+nsp (pairs), mlm (one full segment, no next sentence), left-to-right (the same, every next token
    predicted). max_predictions: P; None is what a full sequence needs. short_sequences: the share of documents, or of
    the blocks of long ones, with a shorter target.
    """

    sequence_length: int = 128
    max_predictions: int | None = None
    objectives: str = "mlm+nsp"
    short_sequences: float = 0.1
    masking: Masking = Masking()

    def __post_init__(self):
        if not 8 <= self.sequence_length <= 512:
            raise ValueError(f"sequence_length {self.sequence_length}; expected 8 to 512")
        if self.objectives not in OBJECTIVES:
            raise ValueError(f"objectives {self.objectives!r}; expected one of {', '.join(OBJECTIVES)}")
        if self.max_predictions is not None and not 1 <= self.max_predictions <= self.sequence_length:
            raise ValueError(
                f"max_predictions {self.max_predictions}; expected 1 to the sequence length {self.sequence_length}"
            )
        if self.objectives == "left-to-right" and (self.max_predictions, self.masking) != (None, Masking()):
            told = "every token is predicted from those before it, and none is hidden"
            raise ValueError(f"objectives {self.objectives!r}: {told}; expected no masking and no max_predictions")
        if not 0 <= self.short_sequences <= 1:
            raise ValueError(f"short_sequences {self.short_sequences}; expected a share between 0 and 1")

    @property
    def next_sentence(self) -> bool:
        return self.objectives == "mlm+nsp"

    @property
    def predictions(self) -> int:
        """P, the predictions per sequence."""
        if self.objectives == "left-to-right":
            return self.sequence_length - 1
        # 15% rounded up: the release's 20 at length 128 and 77 at 512.
        return self.max_predictions or -int(-self.masking.rate * self.sequence_length // 1)

    @property
    def share_lost(self) -> float:
        """The share of a full sequence's predictions that P cuts off."""
        needed = self.masking.predictions(self.sequence_length)
        return 0.0 if self.objectives == "left-to-right" else max(0.0, 1 - self.predictions / needed)


def pretraining_dataset(
    files,
    tokenizer,
    *,
    batch_size: int = 256,
    seed: int = 1,
    epochs: int | None = None,
    corpus_format: CorpusFormat = PLAIN_TEXT,
    cache: str | None = None,
    **rule,
) -> tf.data.Dataset:
    """Batches for pre-training from plain text files, folders and globs; `rule` takes the fields of InstanceRule.

    One element is one batch: input_ids, input_mask, segment_ids int32 [B, S]; masked_lm_positions, masked_lm_ids
    int32 and masked_lm_weights float32 [B, P]; with next sentence prediction next_sentence_labels int32 [B], 1 =
    random; data_position int64 [3], where the next batch begins. All batches are full; epochs=None is endless.
    Source: the paper, section 3.1 and appendix A; create_pretraining_data.py of the release.
    """
    corpus = Corpus(files, corpus_format, cache)
    return corpus_dataset(corpus, tokenizer, InstanceRule(**rule), batch_size, seed=seed, epochs=epochs)


def corpus_dataset(
    corpus: Corpus,
    tokenizer,
    rule: InstanceRule,
    batch_size: int,
    *,
    seed: int = 1,
    epochs: int | None = None,
    position: tuple[int, int, int] = START,
    tokens=None,
) -> tf.data.Dataset:
    """The batches of a corpus from `position` (epoch, group, offset) on; see pretraining_dataset.

    tokens: where token ids come from, TextTokens or CachedTokens. Raises ValueError as group_maker does.
    """
    walk = Walk(corpus.counts["blocks"], GROUP_BLOCKS, seed, epochs, position)
    return walk.batches(group_maker(corpus, tokenizer, rule, seed, tokens), batch_size)


def group_maker(corpus: Corpus, tokenizer, rule: InstanceRule, seed: int, tokens=None) -> Callable:
    """A function of one graph: epoch int64, numbers of blocks int64 [n], instances to skip int64 -> a group's features.

    Raises ValueError where one document leaves no other one for a random B.
    """
    if rule.next_sentence and corpus.counts["documents"] < 2:
        raise ValueError(
            f"corpus {corpus.names[0]}: holds one document, so there is no other document for a random B; expected at "
            f"least 2 (a blank line or the end of a file ends a document), or objectives mlm"
        )
    instances = _GroupMaker(corpus, tokenizer, rule, seed, tokens or TextTokens(corpus, tokenizer)).instances
    return tf.function(instances, input_signature=GROUP, autograph=False)


class _GroupMaker:
    """Blocks -> the instances of one group, as rows."""

    def __init__(self, corpus: Corpus, tokenizer, rule: InstanceRule, seed: int, tokens):
        self.tokenizer, self.rule, self.tokens = tokenizer, rule, tokens
        self.documents = corpus.counts["documents"]
        room = rule.sequence_length - (3 if rule.next_sentence else 2)
        self.pair_rule = sentence_pairs.Rule(room, seed, rule.short_sequences)

    def instances(self, epoch: tf.Tensor, numbers: tf.Tensor, skip: tf.Tensor) -> dict:
        """Features [n, ...] of the blocks `numbers` in one epoch, without the first `skip` instances."""
        text = self.tokens.blocks(numbers)
        make = sentence_pairs.sentence_pairs if self.rule.next_sentence else sentence_pairs.segments
        pairs = make(text, self.pair_rule, epoch)
        tokens = text.tokens
        if self.rule.next_sentence:
            tokens, pairs = self._with_random_b(tokens, pairs)
        order = tf.argsort(tf.bitcast(draws.bits(pairs.keys, "order"), tf.int64))[skip:]
        pairs = tf.nest.map_structure(lambda values: tf.gather(values, order), pairs)
        return self._rows(tokens, pairs)

    def _with_random_b(self, tokens, pairs):
        """Reads the random second sentences and sets b to them."""
        rows = tf.where(pairs.is_random)[:, 0]
        random = tf.nest.map_structure(lambda values: tf.gather(values, rows), pairs)
        other, spans = self.tokens.from_places(*sentence_pairs.random_places(random, self.documents), random.wanted)
        starts = spans.starts + tf.size(tokens, tf.int64)
        b = Spans(
            *(
                tf.tensor_scatter_nd_update(old, rows[:, None], new)
                for old, new in zip(pairs.b, (starts, spans.lengths), strict=True)
            )
        )
        # A document may end in sentences without a token (control characters only); there is no pair to make of them.
        filled = b.lengths > 0
        pairs = tf.nest.map_structure(lambda values: tf.boolean_mask(values, filled), pairs._replace(b=b))
        return tf.concat([tokens, other], 0), pairs

    def _rows(self, tokens, pairs) -> dict:
        a, b, keys = pairs.a, pairs.b, pairs.keys
        if self.rule.next_sentence:
            a, b = (
                _shortened(span, length, keys, purpose)
                for span, length, purpose in zip(
                    (a, b),
                    truncated_lengths(a.lengths, b.lengths, self.pair_rule.room),
                    ("front_a", "front_b"),
                    strict=True,
                )
            )
        features = pack_spans(
            tokens, a, b if self.rule.next_sentence else None, self.rule.sequence_length, special_ids(self.tokenizer)
        )
        if self.rule.objectives == "left-to-right":
            return masking.next_tokens(features)
        features = masking.masked(features, keys, self.rule.masking, self.rule.predictions, self.tokenizer)
        if self.rule.next_sentence:
            features["next_sentence_labels"] = tf.cast(pairs.is_random, tf.int32)
        return features


def _shortened(span: Spans, length: tf.Tensor, keys: tf.Tensor, purpose: str) -> Spans:
    """Takes tokens off, each from the front or the back with equal chance."""
    front = draws.count_ones(keys, purpose, span.lengths - length)
    return Spans(span.starts + front, length)
