"""A Transformer layer in half precision for a GPU under JAX: between its products are three kernels (Pallas, Triton).

Attention: no [B, A, S, S] array is ever in memory. LayerNorm(x + dropout(change + bias)) and GELU(hidden + bias): one
pass over the vectors. The masks of dropout are those of kbert/model/dropout.py, so that a model learns with the same
ones with and without the kernels. Of what is computed little but the inputs is kept for the gradient; sums are float32.
Shapes as in kbert/model/bert.py. A width is chunks of numbers, each a power of 2, as Triton knows no other.
"""

import jax
import keras
from keras import ops

from kbert.model.between import gelu_tanh
from kbert.model.gpu import kernels
from kbert.model.gpu.attention import attention
from kbert.model.gpu.gelu import ROWS, gelu
from kbert.model.gpu.normed_sum import normed_sum
from kbert.model.tokens import Rows

PRECISIONS = ("bfloat16",)  # float32 stays as it is elsewhere; float16 was not looked at


def know(x, tokens: Rows) -> bool:
    """Whether they know vectors of this kind, [T, H], that stand in those rows, and there is a GPU for them.

    Among several devices nothing would divide their work.
    """
    if not isinstance(tokens.length, int) or not isinstance(x.shape[0], int) or type(tokens) is not Rows:
        return False
    width = x.shape[-1] // tokens.heads
    fits = width in (16, 32, 64, 128) and tokens.length % 16 == 0 and x.shape[0] % ROWS == 0
    there = jax.default_backend() == "gpu" and keras.distribution.distribution() is None
    return str(x.dtype) in PRECISIONS and fits and kernels.chunk(x.shape[-1]) >= 64 and (kernels.INTERPRETED or there)


def layer(of, x, mask, heads: int, seeds):
    """What the EncoderLayer `of` makes of x [T, H], with the seeds of its dropouts, None where nothing is dropped."""
    attention_of = of.self_attention
    kernel, bias = attention_of.kernels.of(attention_of.query, attention_of.key, attention_of.value)
    context = attention(ops.matmul(x, kernel), bias, mask, seeds[0], heads, attention_of.dropout.rate)
    x = _ended(of.attention_norm, x, context, attention_of.projection, seeds[1], of.dropout.rate)
    hidden, bias = ops.matmul(x, of.intermediate.kernel), ops.convert_to_tensor(of.intermediate.bias)
    hidden = gelu(hidden, bias) if of.activation is gelu_tanh else of.activation(hidden + bias)
    return _ended(of.feed_forward_norm, x, hidden, of.projection, seeds[2], of.dropout.rate)


def _ended(norm, x, vectors, projection, seed, rate):
    change, bias = ops.matmul(vectors, projection.kernel), ops.convert_to_tensor(projection.bias)
    gamma, beta = ops.convert_to_tensor(norm.gamma), ops.convert_to_tensor(norm.beta)
    return normed_sum(x, change, bias, gamma, beta, seed, rate=rate, epsilon=norm.epsilon)
