"""What a model computes between its matrix products, and the products with kernels and of the loss, without a state.

Each is called through a `piece`: `directly`, or as a step does that has ways of its own for them
(kbert/training/pieces.py).
"""

import math

import keras
from keras import ops

from kbert.model.dropout import dropped

CUBIC, STEEPNESS = 0.044715, (8 / math.pi) ** 0.5


def gelu_tanh(x):
    """The release's GELU. In this form, of some ten, TensorFlow for CPUs computes it within the product before it."""
    cubed = ops.multiply(ops.multiply(CUBIC, x), ops.square(x))
    likely = ops.tanh((2 / math.pi) ** 0.5 * (x + cubed))
    return ops.multiply(x, ops.multiply(0.5, 1 + likely))


def gelu_logit(x):
    """gelu_tanh is x * sigmoid(this): 0.5 + 0.5 tanh(z) is sigmoid(2 z), in one pass instead of three, with half the
    error.
    """
    return x * (CUBIC * STEEPNESS * (x * x) + STEEPNESS)


def gelu_logit_slope(x):
    return 3 * CUBIC * STEEPNESS * (x * x) + STEEPNESS


ACTIVATIONS = {
    "gelu_tanh": gelu_tanh,
    "gelu_erf": lambda x: ops.gelu(x, approximate=False),
    "relu": ops.relu,
    "tanh": ops.tanh,
    "linear": lambda x: x,
}


def directly(function, inputs, others=(), **constants):
    """function(*inputs, *others, **constants), of which `others` need no gradient."""
    return function(*inputs, *others, **constants)


def affine(x, kernel, bias):  # [T, N], [N, M], [M] -> [T, M]
    return ops.add(ops.matmul(x, kernel), bias)


def masked_softmax(scores, mask):  # [B, A, N, S], [B, 1, 1 or N, S] -> [B, A, N, S], float32
    return ops.softmax(ops.cast(scores, "float32") + ops.cast(mask, "float32"))


def attention_weights(scores, mask, seed=None, *, rate):
    return dropped(ops.cast(masked_softmax(scores, mask), scores.dtype), seed, rate)


def normed_sum(x, change, gamma, beta, seed=None, *, rate, epsilon):
    """LayerNorm(x + dropout(change)): what ends each half of a layer, [..., H]."""
    x = x + dropped(change, seed, rate)
    exact, gamma, beta = (ops.cast(one, "float32") for one in (x, gamma, beta))
    # Keras multiplies before it subtracts the mean: two passes more, and a fourth more error where that is not 0.
    centred = exact - ops.mean(exact, axis=-1, keepdims=True)
    scale = ops.rsqrt(ops.mean(ops.square(centred), axis=-1, keepdims=True) + epsilon)
    return ops.cast(centred * (scale * gamma) + beta, x.dtype)


def cross_entropy(logits, labels):
    """Negative log-likelihood of the labels, and 1.0 where no class is likelier, [..., K], [...] -> 2 x [...].

    One maximum serves both: each pass over the [B, P, V] logits of pre-training costs time in a small model.
    """
    labels = ops.cast(labels, "int32")[..., None]
    largest = ops.stop_gradient(ops.max(logits, axis=-1, keepdims=True))
    log_total = ops.log(ops.sum(ops.exp(logits - largest), axis=-1, keepdims=True)) + largest
    label_logit = ops.take_along_axis(logits, labels, axis=-1)
    correct = ops.cast(label_logit >= largest, "float32")
    return (log_total - label_logit)[..., 0], correct[..., 0]


def tied_logits(vectors, table, bias):  # [R, H], [V, H], [V] -> [R, V], float32
    if keras.backend.backend() == "jax":
        # A model's own call casts no variable there. On a GPU rows of other lengths are copied before each product.
        classes = table.shape[0]
        table = ops.pad(ops.cast(table, vectors.dtype), ((0, -classes % 64), (0, 0)))
        logits = ops.matmul(vectors, ops.transpose(table))[:, :classes]
    else:
        logits = ops.matmul(vectors, ops.transpose(table))
    return ops.add(ops.cast(logits, "float32"), bias)


def tied_cross_entropy(vectors, table, bias, labels):
    """cross_entropy of the tied_logits, [R, H], [V, H], [V], [R] -> 2 x [R]."""
    return cross_entropy(tied_logits(vectors, table, bias), labels)
