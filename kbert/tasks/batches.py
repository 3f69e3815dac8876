"""Examples -> batches of one of a few lengths, in an order that depends on the seed alone.

Sequences of like length go together, so that little is padding: each epoch is shuffled, cut into pools of batches,
each pool sorted by length and its batches shuffled. Batch k can be made without those before it.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from kbert import lanes
from kbert.tasks.examples import Example
from kbert.text.packing import pack, special_ids
from kbert.text.walk import prefetched

POOL = 50  # batches that are sorted together: enough for like lengths, few enough for a shuffle
MULTIPLE = 2  # every length is a multiple of it, so that few shapes occur and little is padding
INPUTS = ("input_ids", "input_mask", "segment_ids")
COMPILED_MULTIPLE = 16  # the same where XLA compiles the step for each length


class Encoded(NamedTuple):
    """Texts as token ids, ragged int32 [N, (pieces)], and how long each is packed, at most max_length."""

    tokens_a: tf.RaggedTensor
    tokens_b: tf.RaggedTensor | None
    targets: dict  # feature name -> [N, ...]
    lengths: np.ndarray
    max_length: int
    truncated: int
    tokenizer: object

    def packed(self, rows, length) -> dict:
        """Features [n, S] of the examples of these numbers, and their targets."""
        b = None if self.tokens_b is None else tf.gather(self.tokens_b, rows)
        features = pack(tf.gather(self.tokens_a, rows), b, length, special_ids(self.tokenizer))
        return features | {name: tf.gather(values, rows) for name, values in self.targets.items()}


def encode(examples: Sequence[Example], tokenizer, max_length: int, targets: dict | None = None) -> Encoded:
    """Tokenizes examples; counts those that are longer than max_length, which are cut at the back when packed.

    targets: label_ids or label_values, one for each example. Raises ValueError where some have a second text only.
    """
    pairs = {example.text_b is not None for example in examples}
    if len(pairs) > 1:
        raise ValueError(f"{examples[0].where}: some examples are pairs and some are not; expected one kind")
    tokens_a = tokenizer([example.text_a for example in examples])
    tokens_b = tokenizer([example.text_b for example in examples]) if pairs == {True} else None
    lengths = tokens_a.row_lengths().numpy() + 2
    if tokens_b is not None:
        lengths = lengths + tokens_b.row_lengths().numpy() + 1
    truncated = int((lengths > max_length).sum())
    targets = {name: tf.constant(values) for name, values in (targets or {}).items()}
    return Encoded(tokens_a, tokens_b, targets, np.minimum(lengths, max_length), max_length, truncated, tokenizer)


def plan(lengths: np.ndarray, batch_size: int, epoch: int, seed: int) -> np.ndarray:
    """The numbers of the examples of each full batch of an epoch, int64 [batches, B]; what is left over waits."""
    random = np.random.default_rng((seed, epoch))
    order = random.permutation(len(lengths))
    order = order[: len(order) // batch_size * batch_size]
    batches = []
    for start in range(0, len(order), POOL * batch_size):
        pool = order[start : start + POOL * batch_size]
        pool = pool[np.argsort(lengths[pool], kind="stable")].reshape(-1, batch_size)
        batches.append(random.permutation(pool))
    return random.permutation(np.concatenate(batches)) if batches else np.empty((0, batch_size), np.int64)


def rounded_length(encoded, rows, multiple: int = MULTIPLE) -> int:
    """How long the sequences of these numbers are packed together."""
    return min(-(-int(encoded.lengths[rows].max()) // multiple) * multiple, encoded.max_length)


def training_batches(encoded, batch_size: int, epochs: int, seed: int, start: int = 0, multiple: int = MULTIPLE):
    """All full batches of so many epochs, from batch number `start` on, of lengths that `multiple` divides.

    encoded: `lengths` [N], `max_length`, and `packed(numbers, length)`, features and targets of the sequences of these
    numbers; `Encoded`, or what another task has for it.
    """
    batches = np.concatenate([plan(encoded.lengths, batch_size, epoch, seed) for epoch in range(epochs)])
    lengths = np.array([rounded_length(encoded, rows, multiple) for rows in batches], np.int32)

    @tf.autograph.experimental.do_not_convert
    def make(rows, length):
        features = encoded.packed(rows, length)
        for values in features.values():  # which is lost on the way, and replicas share it out
            values.set_shape([batch_size, *values.shape[1:]])
        return features

    dataset = tf.data.Dataset.from_tensor_slices((batches[start:], lengths[start:]))
    return prefetched(dataset.map(make, num_parallel_calls=2, deterministic=True))


def in_order_of_length(encoded, call: Callable, batch_size: int = 64) -> Iterator[tuple[np.ndarray, object]]:
    """The numbers of every sequence, like lengths together, and call(the model's inputs, numbers), in lanes."""
    order = np.argsort(encoded.lengths, kind="stable")
    batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]

    def computed(rows):
        features = encoded.packed(rows, rounded_length(encoded, rows))
        return rows, call({name: features[name] for name in INPUTS}, rows)

    with ThreadPoolExecutor(lanes.there_are()) as pool:
        yield from pool.map(computed, batches)


def logits_of(model, encoded, batch_size: int = 64) -> np.ndarray:
    """The model's `logits` [N, ...] for every sequence, in their order."""
    rank = encoded.packed([0], encoded.max_length)[INPUTS[0]].shape.rank
    spec = dict.fromkeys(INPUTS, tf.TensorSpec([None] * rank, tf.int32))
    of_batch = tf.function(lambda features: model(features, training=False)["logits"], [spec], autograph=False)
    found = in_order_of_length(encoded, lambda features, rows: of_batch(features).numpy(), batch_size)
    rows, logits = zip(*found, strict=True)
    return np.concatenate(logits)[np.argsort(np.concatenate(rows))]
