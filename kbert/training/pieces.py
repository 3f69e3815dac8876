"""What is between a model's matrix products in training: pieces that XLA compiles, as it does not the products.

TensorFlow's own products are faster than XLA's for CPUs where they are large (197 to 165 GFLOP/s on two cores, 4,096
rows of 768), and what is between them is slow unless it is fused. What a piece computes on the way, but for the loss,
is not kept for the gradient but computed again, which takes little time and saves a quarter of the memory of a Base
step.

Products with kernels have ways of their own too, for the gradient alone: in a step compiled whole they need none.

The pieces that take longest are written anew here, with their gradients, as XLA for CPUs is fast with them: attention's
softmax forward and backward in 8.4 ms instead of 14.5 (32 sequences of 128, 12 heads, two cores), LayerNorm in 6.9
instead of 13.0: 4% of a Base step. A step of Tiny or Mini takes 12% less time than compiled whole by XLA alone.

Within a compiled piece all is float32, whatever the products are in: XLA for CPUs is slow where it rounds to less.

Where batches are of any length, as in fine-tuning, all would be compiled for each. `uncompiled_piece` has what is fast
without, and compiles what dropout draws for few sizes: 10% off a step of a MiniLM on MRPC.
"""

import functools
import math
import os
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from kbert.model import between
from kbert.model.dropout import dropped, factors
from kbert.training import planning
from kbert.training.distribution import only_cpus


def are_faster(encoder) -> bool:
    """Whether they are for this Bert on the devices that there are, rather than the whole step compiled."""
    return planning.faster_in_pieces(encoder.recompute, on_gpu=not only_cpus())


def piece_of(in_pieces: bool, whole: bool):
    """The `piece` of a step that is compiled in pieces, or whole, or not at all."""
    set_xla_options()
    if in_pieces:
        return compiled_piece
    if not only_cpus():
        return between.directly
    return piece if whole else uncompiled_piece


XLA_OPTIONS = {
    # All of AVX-512's width rather than half of it, which takes 2% off a step of Base.
    "--xla_cpu_prefer_vector_width": "512",
    # Nothing by YNNPACK: XLA makes its programs when they first run, by a list that threads share without a lock, so
    # that a process ends where two compute the same at once (TensorFlow 2.21). A step takes as long without.
    "--xla_cpu_experimental_ynn_fusion_type": "",
}


def set_xla_options():
    """Before XLA first compiles, when it reads them; what the environment says of them already stays."""
    flags = os.environ.get("XLA_FLAGS", "")
    new = (f"{name}={value}" for name, value in XLA_OPTIONS.items() if name not in flags)
    os.environ["XLA_FLAGS"] = " ".join([flags, *new]).strip()


class Ways(NamedTuple):
    """How a function is computed.

    forward(inputs, others) -> its outputs, and what is kept for the gradient beside inputs and outputs.
    backward(inputs, others, outputs, kept, gradients) -> the gradients of the inputs.
    """

    forward: Callable
    backward: Callable


def compiled_piece(function, inputs, others=(), **constants):
    """function(*inputs, *others, **constants), of which `others` need no gradient, compiled."""
    return _computed(compiled(function, *sorted(constants.items())), inputs, others)


def piece(function, inputs, others=(), **constants):
    """The same within a graph that is compiled whole, where other functions need no help."""
    if function not in WAYS:
        return between.directly(function, inputs, others, **constants)
    return _computed(WAYS[function](function, constants), inputs, others)


DRAWN_AT_ONCE = 2**15  # or an eighth of a power of two: few sizes of draws occur, as XLA compiles each


def uncompiled_piece(function, inputs, others=(), **constants):
    """The same where shapes vary too much to compile it: two thirds of the time that functions take by themselves.

    XLA compiles what dropout draws alone, which else is two dozen operations.
    """
    if others and others[-1] is not None and "rate" in constants:
        others = (*others[:-1], _drawn_factors(inputs[0], others[-1], constants["rate"]))
    if function in UNCOMPILED:
        return _computed(UNCOMPILED[function](function, constants), inputs, others)
    return between.directly(function, inputs, others, **constants)


def _drawn_factors(x, seed, rate: float):
    return tf.ensure_shape(_drawn(tf.shape(x), seed, rate), x.shape)


@functools.partial(tf.function, autograph=False)  # of which there is one graph for all arrays of as many dimensions
def _drawn(shape, seed, rate: float):
    *outer, length = tf.unstack(shape)
    even = length + length % 2
    count = tf.reduce_prod([*outer, even])
    bits = tf.math.ceil(tf.math.log(tf.cast(tf.maximum(count, 1), tf.float32)) / math.log(2))
    step = tf.maximum(tf.cast(2 ** (bits - 3), tf.int32), DRAWN_AT_ONCE)
    places = tf.zeros([-(-count // step) * step], tf.int8)  # of which XLA takes the shape alone
    return tf.reshape(_draw(places, seed, rate)[:count], [*outer, even])[..., :length]


@functools.partial(tf.function, autograph=False, jit_compile=True)
def _draw(places, seed, rate: float):
    return factors(tf.unstack(tf.shape(places)), seed, rate)


def _computed(ways: Ways, inputs, others):
    @tf.custom_gradient
    def call(*inputs):
        outputs, kept = ways.forward(inputs, others)
        return outputs, lambda *gradients: ways.backward(inputs, others, outputs, kept, gradients)

    return call(*(tf.convert_to_tensor(value) for value in inputs))


@functools.cache  # one for all models of a process: a search trains many, with the same shapes
def compiled(function, *constants: tuple) -> Ways:
    """Its ways as graphs that XLA compiles, once for each shape; those that multiply have some for the rest."""
    found = IN_PIECES.get(function, ways)(function, dict(constants))
    if function in MULTIPLY:
        return found
    return Ways(*(tf.function(one, autograph=False, jit_compile=True) for one in found))


def ways(function, constants: dict) -> Ways:
    """A function by itself and by its gradient."""

    def forward(inputs, others):
        outputs = function(*(tf.cast(one, tf.float32) for one in inputs), *others, **constants)
        return tf.nest.map_structure(lambda one: tf.cast(one, inputs[0].dtype), outputs), ()

    def backward(inputs, others, outputs, kept, gradients):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs, _ = forward(inputs, others)
        return tape.gradient(outputs, inputs, gradients if isinstance(outputs, tuple) else gradients[0])

    return Ways(forward, backward)


def row_sums(x, weights=None):  # [..., N], [N] or None for 1 -> [..., 1]
    """XLA for CPUs adds the numbers of a row one after the other, but not in a product: a third of the time."""
    width = tf.shape(x)[-1] if x.shape[-1] is None else x.shape[-1]
    weights = tf.ones([width, 1], x.dtype) if weights is None else tf.expand_dims(weights, 1)
    if x.shape.rank == 2:
        return tf.matmul(x, weights)
    sums = tf.matmul(tf.reshape(x, [-1, width]), weights)
    return tf.reshape(sums, tf.concat([tf.shape(x)[:-1], [1]], 0))


def column_sums(x):  # [..., N] -> [N]; as a product XLA would fuse it with what makes x, column by column
    return tf.reduce_sum(x, axis=list(range(x.shape.rank - 1)))


def row_maxima(x):  # [..., N] -> [..., 1]
    """XLA compares the numbers of a row one after the other, but not halves of it; not where lengths are unknown."""
    while (x.shape[-1] or 0) > 16:
        half = (x.shape[-1] + 1) // 2  # of an odd number both hold the one in the middle
        x = tf.maximum(x[..., :half], x[..., -half:])
    return tf.reduce_max(x, axis=-1, keepdims=True)


def attention_ways(function, constants):
    """Of attention_weights: of the softmax each row's maximum and sum are kept."""
    rate = constants["rate"]

    def exponentials(scores, mask, largest=None):
        scores = tf.cast(scores, tf.float32) + tf.cast(mask, tf.float32)
        largest = row_maxima(scores) if largest is None else largest
        return tf.exp(scores - largest), largest

    def forward(inputs, others):
        (scores,), (mask, seed) = inputs, others
        found, largest = exponentials(scores, mask)
        inverse = 1 / row_sums(found)
        return tf.cast(dropped(found * inverse, seed, rate), scores.dtype), (largest, inverse)

    def backward(inputs, others, outputs, kept, gradients):
        (scores,), (mask, seed), (largest, inverse) = inputs, others, kept
        gradient = tf.cast(gradients[0], tf.float32)
        change = dropped(gradient, seed, rate) - row_sums(tf.cast(outputs, tf.float32) * gradient)
        return (tf.cast(exponentials(scores, mask, largest)[0] * inverse * change, scores.dtype),)

    return Ways(forward, backward)


def normed_sum_ways(function, constants):
    """Of normed_sum. Each row's mean and deviation are found again: without that XLA is slower."""
    rate, epsilon = constants["rate"], constants["epsilon"]

    def normed(x, change, seed):
        x = tf.cast(x, tf.float32) + dropped(tf.cast(change, tf.float32), seed, rate)
        width = x.shape[-1]
        centred = x - row_sums(x) / width
        scale = tf.math.rsqrt(row_sums(tf.square(centred)) / width + epsilon)
        return centred * scale, scale

    def forward(inputs, others):
        x, change, gamma, beta = inputs
        found, _ = normed(x, change, *others)
        return tf.cast(found * tf.cast(gamma, tf.float32) + tf.cast(beta, tf.float32), x.dtype), ()

    def backward(inputs, others, outputs, kept, gradients):
        x, change, gamma, beta = inputs
        found, scale = normed(x, change, *others)
        gradient, width = tf.cast(gradients[0], tf.float32), x.shape[-1]
        weights, by_element = tf.cast(gamma, tf.float32), gradient * found
        means = row_sums(gradient, weights) / width, row_sums(by_element, weights) / width
        of_sum = scale * (gradient * weights - means[0] - found * means[1])
        of_change = tf.cast(dropped(of_sum, *others, rate), change.dtype)
        of_gamma, of_beta = tf.cast(column_sums(by_element), gamma.dtype), tf.cast(column_sums(gradient), beta.dtype)
        return tf.cast(of_sum, x.dtype), of_change, of_gamma, of_beta

    return Ways(forward, backward)


def affine_ways(of_bias):
    """Of affine. of_bias: the outputs' gradient to that of the bias.

    A kernel that widens is turned for the gradient of what it multiplied, not just read across: in float32 22 instead
    of 30 ms (8,192 rows, 256 to 1,024), or 8 instead of 10 (300 rows, 768 to 3,072). Narrowing it makes no difference.
    """

    def ways(function, constants):
        def forward(inputs, others):
            return function(*inputs), ()

        def backward(inputs, others, outputs, kept, gradients):
            (x, kernel, _), (gradient,) = inputs, gradients
            if kernel.dtype == tf.float32 and kernel.shape[1] > kernel.shape[0]:
                of_x = tf.matmul(gradient, _turned(kernel))
            else:
                of_x = tf.matmul(gradient, kernel, transpose_b=True)
            return of_x, tf.matmul(x, gradient, transpose_a=True), of_bias(gradient)

        return Ways(forward, backward)

    return ways


def _turned(x):  # [N, M] -> [M, N]; a plain transposition TensorFlow would leave to the product after it
    return tf.reshape(tf.transpose(x[None], [0, 2, 1]), x.shape[::-1])


@functools.partial(tf.function, autograph=False, jit_compile=True, reduce_retracing=True)
def _sum_of_rows(gradient):
    """Half the time of TensorFlow's gradient of a bias."""
    return tf.cast(tf.reduce_sum(tf.cast(gradient, tf.float32), axis=0), gradient.dtype)


MANY_ROWS = 4  # for each of H numbers: of five it takes 4% off loss and gradient (256 wide), of 0.8 it adds 3% (768)


def tied_cross_entropy_ways(function, constants):
    """Of tied_cross_entropy: of each row of logits the exponentials are kept, [R, V], which are its softmax but for a
    factor. In the gradients' products that is left to rows of H, and what labels change too: a pass over [R, V] less.
    The bias's gradient is a row more of the table's. Of many rows the bias is a column more of a copied table, for
    vectors that have a 1 there, as to copy [V, H] then takes less than to add to [R, V].
    """

    def with_column(x, column):
        return tf.concat([x, column[:, None]], axis=1)

    def logits(vectors, table, bias):
        rows, hidden = vectors.shape
        if rows is None or rows < MANY_ROWS * hidden or vectors.dtype != tf.float32:
            return between.tied_logits(vectors, table, bias)
        return tf.matmul(with_column(vectors, tf.ones([rows])), with_column(table, bias), transpose_b=True)

    def forward(inputs, others):
        return _exponentials(logits(*inputs), tf.cast(others[0], tf.int32))

    def backward(inputs, others, outputs, kept, gradients):
        (vectors, table, bias), (exponentials, inverse) = inputs, kept
        labels, gradient = tf.cast(others[0], tf.int32)[:, None], gradients[0][:, None]
        factors = inverse * gradient
        if vectors.dtype != tf.float32:  # of a likelihood near 1 less 1 rounding would leave nothing
            rows = _softmax_gradient(exponentials, factors, labels, gradient)
            narrow = tf.cast(rows, vectors.dtype)
            of_table = tf.matmul(vectors, narrow, transpose_a=True)
            return tf.matmul(narrow, table), tf.transpose(of_table), tf.cast(tf.reduce_sum(rows, axis=0), bias.dtype)
        of_vectors = tf.matmul(exponentials, table) * factors - tf.gather(table, labels[:, 0]) * gradient
        of_both = tf.matmul(with_column(vectors * factors, factors[:, 0]), exponentials, transpose_a=True)  # [H + 1, V]
        of_table = tf.tensor_scatter_nd_sub(tf.transpose(of_both[:-1]), labels, vectors * gradient)
        return of_vectors, of_table, tf.tensor_scatter_nd_sub(of_both[-1], labels, gradient[:, 0])

    return Ways(forward, backward)


@functools.partial(tf.function, autograph=False, jit_compile=True)
def _exponentials(logits, labels):
    """cross_entropy of the logits; exp(logits - the largest of the row), and 1 / the row's sum of that."""
    largest = tf.reduce_max(logits, axis=-1, keepdims=True)
    found = tf.exp(logits - largest)
    total = row_sums(found)
    of_label = tf.gather(logits, labels[:, None], batch_dims=1)
    correct = tf.cast(of_label >= largest, tf.float32)
    return ((tf.math.log(total) + largest - of_label)[:, 0], correct[:, 0]), (found, 1 / total)


@functools.partial(tf.function, autograph=False, jit_compile=True)
def _softmax_gradient(exponentials, factors, labels, gradient):
    # Only there where the labels are: to compare each class with them takes as long as the rest.
    places = tf.concat([tf.range(tf.shape(labels)[0])[:, None], labels], axis=1)
    return tf.tensor_scatter_nd_sub(exponentials * factors, places, gradient[:, 0])


def gelu_ways(distribution, density):
    """Of a GELU, x * distribution(x): of each input that is kept, of many arrays otherwise.

    density(x, distribution(x)) is its derivative. In half precision, where half of it would be lost, nothing is kept.
    """

    def ways(function, constants):
        def forward(inputs, others):
            x = tf.cast(inputs[0], tf.float32)
            found = distribution(x)
            return tf.cast(x * found, inputs[0].dtype), found if inputs[0].dtype == tf.float32 else None

        def backward(inputs, others, outputs, kept, gradients):
            x, gradient = (tf.cast(one, tf.float32) for one in (inputs[0], gradients[0]))
            found = distribution(x) if kept is None else kept
            return (tf.cast(gradient * (found + x * density(x, found)), inputs[0].dtype),)

        return Ways(forward, backward)

    return ways


WAYS = {
    between.attention_weights: attention_ways,
    between.normed_sum: normed_sum_ways,
    between.tied_cross_entropy: tied_cross_entropy_ways,
}
IN_PIECES = WAYS | {between.affine: affine_ways(_sum_of_rows)}
MULTIPLY = {between.affine, between.tied_cross_entropy}  # have products, which are not compiled
UNCOMPILED = {
    between.affine: affine_ways(lambda gradient: tf.raw_ops.BiasAddGrad(out_backprop=gradient)),
    between.normed_sum: normed_sum_ways,
    between.ACTIVATIONS["gelu_tanh"]: gelu_ways(
        lambda x: tf.sigmoid(between.gelu_logit(x)),
        lambda x, found: found * (1 - found) * between.gelu_logit_slope(x),
    ),
    between.ACTIVATIONS["gelu_erf"]: gelu_ways(
        lambda x: 0.5 * tf.math.erf(x * 0.5**0.5) + 0.5,
        lambda x, found: tf.exp(-0.5 * tf.square(x)) * (2 * math.pi) ** -0.5,
    ),
}
