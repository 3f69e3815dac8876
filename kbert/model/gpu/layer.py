"""A Transformer layer in bfloat16 on a GPU under JAX: between its products are kernels (Pallas, Triton).

Attention: no [B, A, S, S] array is ever in memory. LayerNorm(x + dropout(change + bias)) and the release's GELU of
hidden + bias: one pass over the vectors; other activations are left to XLA. The masks of dropout are those of
kbert/model/dropout.py, so that a model learns with the same ones with and without the kernels. Of what is computed
little but the inputs is kept for the gradient; sums are float32. Shapes as in kbert/model/bert.py.

JAX has announced the end of Pallas's Triton; where it is gone, kbert/model/bert.py does without these modules.
"""

import math
import re

import jax
import keras
from keras import ops

from kbert.model.between import gelu_tanh
from kbert.model.gpu import gelu, normed_sum, programs
from kbert.model.gpu.attention import attention
from kbert.model.tokens import Rows

PRECISION = "bfloat16"  # float32 stays as it is elsewhere; float16 was not looked at
ROWS = math.lcm(normed_sum.ROWS, gelu.ROWS)
MOST_CHUNKS = 8  # of a width, which programs unroll


def device():
    """Where JAX computes."""
    chosen = jax.config.jax_default_device or jax.devices()[0]
    return jax.devices(chosen)[0] if isinstance(chosen, str) else chosen


def is_there() -> bool:
    return programs.INTERPRETED or device().platform == "gpu"


def runs_kernels() -> bool:
    """Whether it is an NVIDIA GPU that has bfloat16, and one: among several nothing would divide the kernels' work."""
    capability = str(getattr(device(), "compute_capability", ""))  # of AMD's a name
    recent = bool(re.fullmatch(r"\d+\.\d+", capability)) and float(capability) >= 8
    return programs.INTERPRETED or (is_there() and recent and keras.distribution.distribution() is None)


def can_compute(x, tokens: Rows) -> bool:
    """Whether `layer` can, of vectors [T, H] that stand in those rows."""
    if type(tokens) is not Rows or not isinstance(tokens.length, int) or not isinstance(x.shape[0], int):
        return False
    hidden, length = x.shape[-1], tokens.length
    fits = length % 16 == 0 and x.shape[0] % ROWS == 0 and hidden // tokens.heads in (16, 32, 64, 128)
    in_chunks = programs.chunk(hidden) >= 64 and hidden // programs.chunk(hidden) <= MOST_CHUNKS
    return x.dtype == PRECISION and fits and in_chunks and runs_kernels()


def layer(encoder_layer, x, mask, seeds):
    """What an EncoderLayer makes of x [T, H], with the seeds of its dropouts, None where nothing is dropped."""
    inner, rate = encoder_layer.self_attention, encoder_layer.dropout.rate
    kernel, bias = inner.kernels.of(inner.query, inner.key, inner.value)
    heads = inner.config.num_attention_heads
    context = attention(ops.matmul(x, kernel), bias, mask, seeds[0], heads, inner.dropout.rate)
    x = _ended(encoder_layer.attention_norm, x, context, inner.projection, seeds[1], rate)
    hidden, bias = _without_bias(encoder_layer.intermediate, x)
    if encoder_layer.activation is gelu_tanh and gelu.columns(hidden.shape[1]) >= 64:
        hidden = gelu.biased_gelu(hidden, bias)
    else:
        hidden = encoder_layer.activation(hidden + bias)
    return _ended(encoder_layer.feed_forward_norm, x, hidden, encoder_layer.projection, seeds[2], rate)


def _ended(norm, x, vectors, projection, seed, rate):
    gamma, beta = ops.convert_to_tensor(norm.gamma), ops.convert_to_tensor(norm.beta)
    options = {"rate": rate, "epsilon": norm.epsilon}
    return normed_sum.biased_normed_sum(x, *_without_bias(projection, vectors), gamma, beta, seed, **options)


def _without_bias(dense, vectors):
    """The product, and the bias."""
    return ops.matmul(vectors, dense.kernel), ops.convert_to_tensor(dense.bias)


def rows_of_few(table, numbers):
    """Rows of a table that has few, [K, H], [...] -> [..., H]; NaN for a number that it has not.

    Of ops.take the gradient is slow on a GPU under XLA: all that chose a row add to it one after the other.
    """
    chosen = ops.equal(numbers[..., None], ops.arange(table.shape[0], dtype=numbers.dtype))
    # The gradient's sums are float32, whatever the table is in.
    found = ops.sum(ops.cast(chosen, "float32")[..., None] * ops.cast(table, "float32"), axis=-2)
    return ops.cast(ops.where(ops.any(chosen, axis=-1, keepdims=True), found, float("nan")), table.dtype)
