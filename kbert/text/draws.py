"""Every random choice of the pipeline, as a function of (seed, epoch, document, ordinal) and of nothing else.

A key is 64 bits that stand for one thing (a document in an epoch, one instance); a draw is the `index`-th number of
that key's stream for one purpose. There is no state: element k of a corpus needs none of the k - 1 before it, the
same run twice is the same run, and two workers never draw alike. The mixing is the finalizer of SplitMix64 (Steele,
Lea and Flood 2014), in wrapping uint64 arithmetic, so that a test can state it again in plain Python.
"""

import numpy as np
import tensorflow as tf

GOLDEN_GAMMA = 0x9E3779B97F4A7C15  # 2^64 / the golden ratio, SplitMix64's increment
_NAMES = "target split is_random document sentence front_a front_b order choose replace token"
PURPOSES = {name: number for number, name in enumerate(_NAMES.split(), 1)}


def _constant(value: int) -> tf.Tensor:
    return tf.constant(np.uint64(value))


def _shifted(z: tf.Tensor, bits: int) -> tf.Tensor:
    return tf.bitwise.bitwise_xor(z, tf.bitwise.right_shift(z, _constant(bits)))


def mix(z: tf.Tensor) -> tf.Tensor:
    """Scrambles uint64 values one to one; shape and dtype stay."""
    z = _shifted(z, 30) * _constant(0xBF58476D1CE4E5B9)
    z = _shifted(z, 27) * _constant(0x94D049BB133111EB)
    return _shifted(z, 31)


def key(*parts: int | tf.Tensor) -> tf.Tensor:
    """The key of (part, part, ...), such as (seed, epoch, document): integers or tensors that broadcast -> uint64."""
    state = _constant(0)
    for part in parts:
        part = tf.cast(tf.cast(part, tf.int64), tf.uint64)
        state = mix(state + part + _constant(GOLDEN_GAMMA))
    return state


def bits(keys: tf.Tensor, purpose: str, index: tf.Tensor | int = 0) -> tf.Tensor:
    """64 random bits of each key for one purpose; `index` counts within it and broadcasts against `keys` -> uint64."""
    stream = mix(tf.bitwise.bitwise_xor(keys, _constant(PURPOSES[purpose] * GOLDEN_GAMMA % 2**64)))
    index = tf.cast(tf.cast(index, tf.int64), tf.uint64)
    return mix(stream + (index + _constant(1)) * _constant(GOLDEN_GAMMA))


def uniform(random_bits: tf.Tensor) -> tf.Tensor:
    """uint64 bits -> float64 in [0, 1), a multiple of 2^-53."""
    return tf.cast(tf.bitwise.right_shift(random_bits, _constant(11)), tf.float64) * 2.0**-53


def integer(random_bits: tf.Tensor, count: tf.Tensor | int) -> tf.Tensor:
    """uint64 bits -> int64 in [0, count); the excess of any value is below count * 2^-53."""
    return tf.cast(uniform(random_bits) * tf.cast(count, tf.float64), tf.int64)


def count_ones(keys: tf.Tensor, purpose: str, trials: tf.Tensor) -> tf.Tensor:
    """How many of the first `trials` bits of each key's stream are ones: keys uint64 [n], trials [n] -> int64 [n]."""
    trials = tf.cast(trials, tf.int64)
    words = (tf.reduce_max(tf.concat([trials, [0]], 0)) + 63) // 64
    index = tf.range(words)
    wanted = tf.clip_by_value(trials[:, None] - 64 * index[None, :], 0, 64)  # of each word's 64 bits, the lowest
    word = bits(keys[:, None], purpose, index[None, :])
    # A shift by 64 is undefined, so a word of which nothing is wanted is shifted by 63 and then blanked.
    kept = tf.bitwise.left_shift(word, tf.cast(tf.minimum(64 - wanted, 63), tf.uint64))
    ones = tf.cast(tf.raw_ops.PopulationCount(x=kept), tf.int64)
    return tf.reduce_sum(tf.where(wanted > 0, ones, 0), axis=1)
