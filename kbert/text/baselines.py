"""What a model that reads no context reaches on the same held-out batches: the lines that training has to pass."""

import os
from collections.abc import Iterable

import numpy as np
import tensorflow as tf

from kbert.text.documents import Corpus
from kbert.text.tokens import TextTokens


def token_counts(corpus: Corpus, tokenizer, seed: int = 1, blocks: int = 128) -> np.ndarray:
    """How often each piece occurs in the corpus, or in so many random blocks of it (about 100 KB each) -> int64 [V]."""
    numbers = np.random.default_rng(seed).permutation(corpus.counts["blocks"])[:blocks]
    tokens = TextTokens(corpus, tokenizer)

    @tf.autograph.experimental.do_not_convert
    def count(number):
        return tf.math.bincount(tokens.blocks(number[None]).tokens, minlength=tokenizer.vocab_size, dtype=tf.int64)

    counted = tf.data.Dataset.from_tensor_slices(np.sort(numbers)).map(count, num_parallel_calls=os.cpu_count())
    return sum(counted.as_numpy_iterator(), np.zeros(tokenizer.vocab_size, np.int64))


def baselines(counts: np.ndarray, batches: tf.data.Dataset) -> dict[str, float]:
    """Both numbers below on the same batches, by the name of the metric that has to pass them."""
    numbers = {"masked_lm_loss": unigram_loss(counts, batches)}
    if "next_sentence_labels" in batches.element_spec:
        numbers["next_sentence_accuracy"] = majority_share(batches)
    return numbers


def unigram_loss(counts: np.ndarray, batches: Iterable[dict]) -> float:
    """The masked-LM loss, in nats, of always predicting the pieces' frequencies (add-one smoothed)."""
    negative_log = -np.log((counts + 1) / (counts.sum() + len(counts)))
    total = weight = 0.0
    for batch in batches:
        weights = np.asarray(batch["masked_lm_weights"])
        total += float((negative_log[np.asarray(batch["masked_lm_ids"])] * weights).sum())
        weight += float(weights.sum())
    return total / weight


def majority_share(batches: Iterable[dict]) -> float:
    """The next-sentence accuracy of always giving the more frequent label."""
    labels = np.concatenate([np.asarray(batch["next_sentence_labels"]) for batch in batches])
    return float(max(labels.mean(), 1 - labels.mean()))
