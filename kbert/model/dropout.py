"""Dropout with masks that are a hash of (seed, draw, element).

XLA compiles TensorFlow's own generator for CPUs to code thirty times slower than this hash (118 ms against 3.8 for
eight masks of 524,288 elements on two busy cores), a tenth of a small BERT's step. The hash is a dozen integer
operations that XLA fuses with what uses the mask.
"""

import math

import keras
from keras import ops

GOLDEN_RATIO = 0x9E3779B9 - 2**32  # its fraction in 32 bits, for a second key that has nothing to do with the first


class Dropout(keras.layers.Layer):
    """Zeroes each element with probability `rate` in training and scales the others by 1 / (1 - rate).

    The mask is a function of `seed`, or of the next one of its own.
    """

    def __init__(self, rate: float, **options):
        super().__init__(**options)
        self.rate = rate
        self.supports_masking = True  # what an LSTM attaches goes through
        # A variable, [seed, number of draws]: a checkpoint that holds it resumes the same draws.
        with keras.name_scope(self.name, caller=self):
            self.seed_generator = keras.random.SeedGenerator(name="seed_generator")
        self.built = True

    def call(self, x, training=False, seed=None):
        return dropped(x, self.next_seed(training, seed), self.rate)

    def next_seed(self, training, seed=None):
        """What the next mask is a function of: `seed`, or of its own; None where nothing is dropped."""
        if not training or self.rate == 0:
            return None
        return self.seed_generator.next() if seed is None else seed


def dropped(x, seed, rate: float):
    """x with elements zeroed that `seed` chooses, the others scaled; x itself without a seed.

    In place of the seed may be its `factors`, where they were drawn before.
    """
    if seed is None:
        return x
    exact = ops.cast(x, "float32")  # in half precision the scale itself would be off by a thousandth
    if len(seed.shape) > 1:
        return ops.cast(exact * seed, x.dtype)
    return ops.cast(ops.where(survives(ops.shape(x), seed, rate), exact * (1 / (1 - rate)), 0.0), x.dtype)


def factors(shape, seed, rate: float):
    """What dropout multiplies an array of that shape with, float32.

    Those of an array whose last length is even are the first ones of any larger array's.
    """
    return ops.where(survives(shape, seed, rate), 1 / (1 - rate), 0.0)


def survives(shape, seed, rate: float):
    return random_shorts(shape, seed) >= kept_from(rate)


def kept_from(rate: float) -> int:
    """The least of the 65,536 random shorts that does not drop an element."""
    return round(rate * 2**16) - 2**15


def random_shorts(shape, seed):
    """Uniform int16 of that shape, two of them from each hash: half the work, and rates to the 65,536th."""
    *outer, length = shape
    pairs = random_bits((*outer, (length + 1) // 2, 1), seed)
    return ops.reshape(ops.view(pairs, "int16"), (*outer, -1))[..., :length]


def random_bits(shape, seed):
    """Uniform int32 of that shape, a function of the two numbers in `seed` alone."""
    first_key, second_key = keys(seed)
    # An element's number in the array, from the key on: TensorFlow would compute numbers that depend on shapes alone
    # before it compiles, and keep up to 10 MB a mask, several times, in the process.
    elements = first_key
    for axis, length in enumerate(shape):
        stride = math.prod(shape[axis + 1 :])
        numbers = stride * ops.arange(length, dtype="int32")
        elements = elements + ops.reshape(numbers, [length] + [1] * (len(shape) - axis - 1))
    return mixed(elements, second_key)


def keys(seed):
    """Two of an array's own, int32."""
    seed = ops.cast(seed, "int32")
    return mixed(seed[0] + mixed(seed[1])), mixed(seed[1] + mixed(seed[0] + GOLDEN_RATIO))


def mixed(x, key=0):
    """A bijection of the 32-bit integers that spreads each bit over all (constants by C. Wellons), altered by `key`."""
    x = ops.bitwise_xor(x, shifted(x, 16)) * 0x7FEB352D
    x = ops.bitwise_xor(ops.bitwise_xor(x, key), shifted(x, 15)) * (0x846CA68B - 2**32)
    return ops.bitwise_xor(x, shifted(x, 16))


def shifted(x, bits):
    """x >> bits, the sign bit taken for a digit."""
    return ops.bitwise_and(ops.right_shift(x, bits), 2 ** (32 - bits) - 1)
