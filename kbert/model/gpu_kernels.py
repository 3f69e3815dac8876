"""A Transformer layer in half precision for a GPU under JAX: between its products are three kernels (Pallas, Triton).

Attention: no [B, A, S, S] array is ever in memory. LayerNorm(x + dropout(change + bias)): one pass over the vectors.
GELU(hidden + bias): likewise. They draw the masks of dropout as kbert/model/dropout.py does, so that a model learns with
the same masks with and without them, and of what they compute keep little but their inputs for the gradient. Sums are
float32. Shapes as in kbert/model/bert.py; a width is chunks of numbers, a power of 2 as Triton knows no other.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import keras
from jax import lax
from jax.experimental import pallas
from jax.experimental.pallas import triton
from keras import ops

from kbert.model.between import gelu_tanh
from kbert.model.dropout import kept_from, keys
from kbert.model.tokens import Rows

PRECISIONS = ("bfloat16",)  # float32 stays as it is elsewhere; float16 was not looked at
INTERPRETED = False  # by tests: without a GPU, slowly
# What was fastest on an H200: queries and keys of a program, rows of LayerNorm, rows and columns of GELU; and warps.
AT_ONCE, ATTENTION_WARPS = 64, 4
NORM_ROWS, NORM_WARPS = 8, 8
GELU_ROWS, GELU_COLUMNS, GELU_WARPS = 32, 256, 8


def know(x, tokens: Rows) -> bool:
    """Whether they know vectors of this kind, [T, H], that stand in those rows, and there is a GPU for them.

    Among several devices nothing would divide their work.
    """
    if not isinstance(tokens.length, int) or not isinstance(x.shape[0], int) or type(tokens) is not Rows:
        return False
    width = x.shape[-1] // tokens.heads
    fits = width in (16, 32, 64, 128) and tokens.length % 16 == 0 and x.shape[0] % GELU_ROWS == 0
    there = jax.default_backend() == "gpu" and keras.distribution.distribution() is None
    return str(x.dtype) in PRECISIONS and fits and _chunk(x.shape[-1]) >= 64 and (INTERPRETED or there)


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


def _how(warps):
    return {"compiler_params": triton.CompilerParams(num_warps=warps, num_stages=2), "interpret": INTERPRETED}


def _like(x):
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def _chunk(width):
    return math.gcd(width, 1024)


def _hashed(seed):
    return jnp.zeros(2, "int32") if seed is None else jnp.stack(keys(seed))


class Attention(NamedTuple):
    """B, S, A, D, queries and keys at a time, and the share dropped."""

    batch: int
    length: int
    heads: int
    width: int
    block: int
    rate: float


def attention(joined, bias, mask, seed, heads: int, rate: float):
    """dropout(softmax(Q K^T + mask)) V, of the vectors of Q, K, V side by side, joined [T, 3H] + bias [3H] -> [T, H].

    mask [B, 1, 1 or S, S] is added; seed: None where nothing is dropped.
    """
    batch, length = mask.shape[0], mask.shape[-1]
    width = joined.shape[-1] // (3 * heads)
    block = math.gcd(length, AT_ONCE)
    what = Attention(batch, length, heads, width, block, 0.0 if seed is None else rate)
    joined = jnp.reshape(joined, (batch, length, 3, heads, width))
    bias = jnp.reshape(bias, (3, heads, width))
    return jnp.reshape(_attend(what, joined, bias, mask[:, 0], _hashed(seed)), (batch * length, heads * width))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(what, joined, bias, mask, hashed):
    return _attend_forward(what, joined, bias, mask, hashed)[0]


def _attend_forward(what, joined, bias, mask, hashed):
    found, log_totals = pallas.pallas_call(
        functools.partial(_attention_kernel, what),
        grid=_grid(what),
        in_specs=_specs_of_inputs(what, bias, mask),
        out_specs=[
            pallas.BlockSpec((None, what.block, None, what.width), lambda b, a, i: (b, i, a, 0)),
            pallas.BlockSpec((None, None, what.block), lambda b, a, i: (b, a, i)),
        ],
        out_shape=[
            jax.ShapeDtypeStruct((what.batch, what.length, what.heads, what.width), joined.dtype),
            jax.ShapeDtypeStruct((what.batch, what.heads, what.length), "float32"),
        ],
        **_how(ATTENTION_WARPS),
    )(joined, bias, mask, hashed)
    return found, (joined, bias, mask, hashed, found, log_totals)


def _attend_backward(what, kept, gradient):
    joined, bias, mask, hashed, found, log_totals = kept
    # What a row of weights loses as they add up to 1: the sum of weights x their gradients, by the outputs.
    lost = jnp.sum(gradient.astype("float32") * found.astype("float32"), axis=-1).swapaxes(1, 2)  # [B, A, S]
    of_outputs = pallas.BlockSpec((None, what.length, None, what.width), lambda b, a, i: (b, 0, a, 0))
    of_rows = pallas.BlockSpec((None, None, what.length), lambda b, a, i: (b, a, 0))
    of_joined = pallas.pallas_call(
        functools.partial(_attention_gradient_kernel, what),
        grid=_grid(what),
        in_specs=[*_specs_of_inputs(what, bias, mask), of_outputs, of_rows, of_rows],
        out_specs=pallas.BlockSpec((None, what.block, 3, None, what.width), lambda b, a, i: (b, i, 0, a, 0)),
        out_shape=jax.ShapeDtypeStruct(joined.shape, joined.dtype),
        **_how(ATTENTION_WARPS),
    )(joined, bias, mask, hashed, gradient, log_totals, lost)
    of_bias = jnp.sum(of_joined, axis=(0, 1), dtype="float32").astype(bias.dtype)
    return of_joined, of_bias, None, None


_attend.defvjp(_attend_forward, _attend_backward)


def _grid(what):
    return what.batch, what.heads, what.length // what.block


def _specs_of_inputs(what, bias, mask):  # of a head all of joined [B, S, 3, A, D], of mask [B, 1 or S, S]
    return [
        pallas.BlockSpec((None, what.length, 3, None, what.width), lambda b, a, i: (b, 0, 0, a, 0)),
        pallas.BlockSpec((3, None, what.width), lambda b, a, i: (0, a, 0)),
        pallas.BlockSpec((None, *mask.shape[1:]), lambda b, a, i: (b, 0, 0)),
        pallas.BlockSpec((2,), lambda b, a, i: (0,)),
    ]


def _tools(what, joined, bias, mask, hashed):
    """Functions of places, for the kernels: vectors of a part, masked scores, and dropout of what stands there."""
    head = pallas.program_id(0) * what.heads + pallas.program_id(1)

    def vectors(places, part):
        return joined[places, part, :] + bias[part, :][None, :]

    def scores(rows, columns, query, key):
        masked = mask[0, columns][None, :] if mask.shape[0] == 1 else mask[rows, columns]
        return triton.dot(query, key, trans_b=True) + masked

    def dropped(rows, columns, weights):
        first = head * what.length + rows.start
        return _dropped(weights, first, columns.start, what.length, hashed, what.rate)

    return vectors, scores, dropped


def _attention_kernel(what, joined, bias, mask, hashed, output, log_totals):
    vectors, scores, dropped = _tools(what, joined, bias, mask, hashed)
    rows = pallas.ds(pallas.program_id(2) * what.block, what.block)
    query = vectors(rows, 0)

    def look_at(number, so_far):
        largest, total, found = so_far
        columns = pallas.ds(number * what.block, what.block)
        seen = scores(rows, columns, query, vectors(columns, 1))
        now = jnp.maximum(largest, jnp.max(seen, axis=1))
        weights, shrunk = jnp.exp(seen - now[:, None]), jnp.exp(largest - now)
        total = total * shrunk + jnp.sum(weights, axis=1)
        weights = dropped(rows, columns, weights).astype(query.dtype)
        return now, total, found * shrunk[:, None] + triton.dot(weights, vectors(columns, 2))

    nothing = jnp.full((what.block,), -jnp.inf, "float32"), jnp.zeros((what.block,), "float32")
    nothing = (*nothing, jnp.zeros((what.block, what.width), "float32"))
    largest, total, found = lax.fori_loop(0, what.length // what.block, look_at, nothing)
    output[...] = (found / total[:, None]).astype(output.dtype)
    log_totals[...] = largest + jnp.log(total)


def _attention_gradient_kernel(what, joined, bias, mask, hashed, gradient, log_totals, lost, of_joined):
    """Of a block of keys and values what all queries ask of them, of as many queries what they see."""
    vectors, scores, dropped = _tools(what, joined, bias, mask, hashed)
    own, dtype = pallas.ds(pallas.program_id(2) * what.block, what.block), joined.dtype
    zeros = jnp.zeros((what.block, what.width), "float32")

    def between(rows, columns):
        """Of queries and keys the weights after dropout and the gradient of the scores; the vectors and a gradient."""
        query, key, of_context = vectors(rows, 0), vectors(columns, 1), gradient[rows, :]
        weights = jnp.exp(scores(rows, columns, query, key) - log_totals[rows][:, None])
        of_weights = dropped(rows, columns, triton.dot(of_context, vectors(columns, 2), trans_b=True))
        of_scores = weights * (of_weights - lost[rows][:, None])
        return dropped(rows, columns, weights).astype(dtype), of_scores.astype(dtype), query, key, of_context

    def asked_by(number, so_far):
        of_key, of_value = so_far
        weights, of_scores, query, _, of_context = between(pallas.ds(number * what.block, what.block), own)
        of_key = of_key + triton.dot(of_scores, query, trans_a=True)
        return of_key, of_value + triton.dot(weights, of_context, trans_a=True)

    def looks_at(number, of_query):
        _, of_scores, _, key, _ = between(own, pallas.ds(number * what.block, what.block))
        return of_query + triton.dot(of_scores, key)

    blocks = what.length // what.block
    of_key, of_value = lax.fori_loop(0, blocks, asked_by, (zeros, zeros))
    of_query = lax.fori_loop(0, blocks, looks_at, zeros)
    for part, one in enumerate((of_query, of_key, of_value)):
        of_joined[:, part, :] = one.astype(dtype)


class Norm(NamedTuple):
    """The share dropped, and the epsilon."""

    rate: float
    epsilon: float


def normed_sum(x, change, bias, gamma, beta, seed, *, rate: float, epsilon: float):
    """LayerNorm(x + dropout(change + bias)), [T, H]; seed: None where nothing is dropped."""
    chunk = _chunk(x.shape[-1])
    vectors = [jnp.reshape(one, (-1, x.shape[-1] // chunk, chunk)) for one in (x, change)]
    parameters = [jnp.reshape(one, (-1, chunk)) for one in (bias, gamma, beta)]
    how = Norm(0.0 if seed is None else rate, epsilon)
    return jnp.reshape(_norm(how, *vectors, *parameters, _hashed(seed)), x.shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _norm(how, x, change, bias, gamma, beta, hashed):
    return _norm_forward(how, x, change, bias, gamma, beta, hashed)[0]


def _norm_forward(how, x, change, bias, gamma, beta, hashed):
    grid, vectors, parameters, of_hash, _ = _specs_of_norm(x)
    found = pallas.pallas_call(
        functools.partial(_norm_kernel, how),
        grid=grid,
        in_specs=[vectors, vectors, parameters, parameters, parameters, of_hash],
        out_specs=vectors,
        out_shape=_like(x),
        **_how(NORM_WARPS),
    )(x, change, bias, gamma, beta, hashed)
    return found, (x, change, bias, gamma, hashed)


def _norm_backward(how, kept, gradient):
    x, change, bias, gamma, hashed = kept
    grid, vectors, parameters, of_hash, of_program = _specs_of_norm(x)
    sums = jax.ShapeDtypeStruct((*grid, 3, *gamma.shape), "float32")
    of_x, of_change, sums = pallas.pallas_call(
        functools.partial(_norm_gradient_kernel, how),
        grid=grid,
        in_specs=[vectors, vectors, parameters, parameters, of_hash, vectors],
        out_specs=[vectors, vectors, of_program],
        out_shape=[_like(x), _like(x), sums],
        **_how(NORM_WARPS),
    )(x, change, bias, gamma, hashed, gradient)
    of_bias, of_gamma, of_beta = jnp.sum(sums, axis=0)
    return of_x, of_change, of_bias.astype(bias.dtype), of_gamma, of_beta, None


_norm.defvjp(_norm_forward, _norm_backward)


def _specs_of_norm(x):
    rows, parts, chunk = x.shape
    return (
        (rows // NORM_ROWS,),
        pallas.BlockSpec((NORM_ROWS, parts, chunk), lambda i: (i, 0, 0)),
        pallas.BlockSpec((parts, chunk), lambda i: (0, 0)),
        pallas.BlockSpec((2,), lambda i: (0,)),
        pallas.BlockSpec((None, 3, parts, chunk), lambda i: (i, 0, 0, 0)),
    )


def _normed(how, x, change, bias, hashed):
    """The chunks of (rows of the sum - its mean) * scale, [NORM_ROWS, chunk] each, the scale, dropout of a chunk."""
    _, parts, chunk = x.shape
    first = pallas.program_id(0) * NORM_ROWS

    def dropped(part, values):
        return _dropped(values, first, part * chunk, parts * chunk, hashed, how.rate)

    changes = [change[:, part, :].astype("float32") + bias[part, :] for part in range(parts)]
    sums = [x[:, part, :] + dropped(part, one) for part, one in enumerate(changes)]
    mean = _row_mean(sums)
    centred = [one - mean for one in sums]
    scale = lax.rsqrt(_row_mean([one * one for one in centred]) + how.epsilon)
    return [one * scale for one in centred], scale, dropped


def _row_mean(chunks):  # [NORM_ROWS, 1]
    return sum(jnp.sum(one, axis=1) for one in chunks)[:, None] / (len(chunks) * chunks[0].shape[1])


def _norm_kernel(how, x, change, bias, gamma, beta, hashed, output):
    for part, one in enumerate(_normed(how, x, change, bias, hashed)[0]):
        output[:, part, :] = (one * gamma[part, :] + beta[part, :]).astype(output.dtype)


def _norm_gradient_kernel(how, x, change, bias, gamma, hashed, gradient, of_x, of_change, sums):
    found, scale, dropped = _normed(how, x, change, bias, hashed)
    asked = [gradient[:, part, :].astype("float32") for part in range(len(found))]
    weighted = [one * gamma[part, :] for part, one in enumerate(asked)]
    mean, by_found = _row_mean(weighted), _row_mean([one * other for one, other in zip(weighted, found, strict=True)])
    for part, (one, normed) in enumerate(zip(weighted, found, strict=True)):
        of_sum = scale * (one - mean - normed * by_found)
        changed = dropped(part, of_sum)
        of_x[:, part, :], of_change[:, part, :] = of_sum.astype(of_x.dtype), changed.astype(of_change.dtype)
        for number, rows in enumerate((changed, asked[part] * normed, asked[part])):  # of bias, gamma, beta
            sums[number, part, :] = jnp.sum(rows, axis=0)


@jax.custom_vjp
def gelu(hidden, bias):
    """gelu_tanh(hidden + bias), [T, I]."""
    return _gelu_forward(hidden, bias)[0]


def _gelu_forward(hidden, bias):
    grid, vectors, of_bias, _ = _specs_of_gelu(hidden)
    found = pallas.pallas_call(
        _gelu_kernel,
        grid=grid,
        in_specs=[vectors, of_bias],
        out_specs=vectors,
        out_shape=_like(hidden),
        **_how(GELU_WARPS),
    )(hidden, bias)
    return found, (hidden, bias)


def _gelu_backward(kept, gradient):
    hidden, bias = kept
    grid, vectors, of_bias, of_program = _specs_of_gelu(hidden)
    of_hidden, sums = pallas.pallas_call(
        _gelu_gradient_kernel,
        grid=grid,
        in_specs=[vectors, of_bias, vectors],
        out_specs=[vectors, of_program],
        out_shape=[_like(hidden), jax.ShapeDtypeStruct((grid[0], hidden.shape[1]), "float32")],
        **_how(GELU_WARPS),
    )(hidden, bias, gradient)
    return of_hidden, jnp.sum(sums, axis=0).astype(bias.dtype)


gelu.defvjp(_gelu_forward, _gelu_backward)


def _specs_of_gelu(hidden):
    columns = math.gcd(hidden.shape[1], GELU_COLUMNS)
    return (
        (hidden.shape[0] // GELU_ROWS, hidden.shape[1] // columns),
        pallas.BlockSpec((GELU_ROWS, columns), lambda i, j: (i, j)),
        pallas.BlockSpec((columns,), lambda i, j: (j,)),
        pallas.BlockSpec((None, columns), lambda i, j: (i, j)),
    )


# 0.5 + 0.5 tanh(z) is 1 / (1 + exp(-2 z)).
STEEPNESS = (8 / math.pi) ** 0.5


def _likely(x):
    return 1 / (1 + jnp.exp(-STEEPNESS * x * (1 + 0.044715 * x * x)))


def _gelu_kernel(hidden, bias, output):
    x = hidden[...].astype("float32") + bias[...]
    output[...] = (x * _likely(x)).astype(output.dtype)


def _gelu_gradient_kernel(hidden, bias, gradient, of_hidden, of_bias):
    x = hidden[...].astype("float32") + bias[...]
    likely = _likely(x)
    density = likely * (1 - likely) * STEEPNESS * (1 + 3 * 0.044715 * x * x)
    found = gradient[...] * (likely + x * density)
    of_hidden[...] = found.astype(of_hidden.dtype)
    of_bias[...] = jnp.sum(found, axis=0)


def _dropped(x, first_row, first_column, width, hashed, rate):
    """x [rows, columns] times what dropout multiplies those places of an array with, whose rows are of that width."""
    if rate == 0:
        return x
    rows, columns = ((jnp.arange(size) + first).astype("uint32") for size, first in zip(x.shape, (first_row, first_column)))
    one, other = (hashed[number].astype("uint32") for number in (0, 1))
    bits = _mixed((one + rows * ((width + 1) // 2))[:, None] + (columns >> 1)[None, :], other)
    halves = lax.bitcast_convert_type(jnp.where((columns & 1 == 1)[None, :], bits, bits << 16), jnp.int32)
    return jnp.where(halves >= kept_from(rate) * 2**16, x * (1 / (1 - rate)), 0.0)


def _mixed(x, key):  # as in dropout.py, of unsigned numbers
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ key ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)
