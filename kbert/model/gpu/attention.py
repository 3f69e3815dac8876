"""Attention in one kernel and its gradient in another: no [B, A, S, S] array is ever in memory."""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas
from jax.experimental.pallas import triton

from kbert.model.gpu import programs

# Queries and keys of a program, and its warps: of some the fastest on an H200.
AT_ONCE, WARPS = 64, 4


class Attention(NamedTuple):
    """B, S, A, D, queries and keys at a time, and the share dropped."""

    batch: int
    length: int
    heads: int
    width: int
    block: int
    rate: float


def attention(qkv, bias, mask, seed, heads: int, rate: float):
    """dropout(softmax(Q K^T + mask)) V, of the vectors of Q, K, V side by side, qkv [T, 3H] + bias [3H] -> [T, H].

    mask [B, 1, 1 or S, S] is added; seed: None where nothing is dropped.
    """
    batch, length = mask.shape[0], mask.shape[-1]
    width = qkv.shape[-1] // (3 * heads)
    block = math.gcd(length, AT_ONCE)
    what = Attention(batch, length, heads, width, block, 0.0 if seed is None else rate)
    qkv = jnp.reshape(qkv, (batch, length, 3, heads, width))
    bias = jnp.reshape(bias, (3, heads, width))
    return jnp.reshape(_attend(what, qkv, bias, mask[:, 0], programs.hashed(seed)), (batch * length, heads * width))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(what, qkv, bias, mask, hashed):
    return _attend_forward(what, qkv, bias, mask, hashed)[0]


def _attend_forward(what, qkv, bias, mask, hashed):
    found, log_totals = pallas.pallas_call(
        functools.partial(_attention_kernel, what),
        grid=_grid(what),
        in_specs=_specs_of_inputs(what, bias, mask),
        out_specs=[
            pallas.BlockSpec((None, what.block, None, what.width), lambda b, a, i: (b, i, a, 0)),
            pallas.BlockSpec((None, None, what.block), lambda b, a, i: (b, a, i)),
        ],
        out_shape=[
            jax.ShapeDtypeStruct((what.batch, what.length, what.heads, what.width), qkv.dtype),
            jax.ShapeDtypeStruct((what.batch, what.heads, what.length), "float32"),
        ],
        **programs.options(WARPS),
    )(qkv, bias, mask, hashed)
    return found, (qkv, bias, mask, hashed, found, log_totals)


def _attend_backward(what, kept, gradient):
    qkv, bias, mask, hashed, found, log_totals = kept
    # What a row of weights loses as they add up to 1: the sum of weights x their gradients, by the outputs.
    lost = jnp.sum(gradient.astype("float32") * found.astype("float32"), axis=-1).swapaxes(1, 2)  # [B, A, S]
    of_outputs = pallas.BlockSpec((None, what.length, None, what.width), lambda b, a, i: (b, 0, a, 0))
    of_rows = pallas.BlockSpec((None, None, what.length), lambda b, a, i: (b, a, 0))
    of_qkv = pallas.pallas_call(
        functools.partial(_attention_gradient_kernel, what),
        grid=_grid(what),
        in_specs=[*_specs_of_inputs(what, bias, mask), of_outputs, of_rows, of_rows],
        out_specs=pallas.BlockSpec((None, what.block, 3, None, what.width), lambda b, a, i: (b, i, 0, a, 0)),
        out_shape=jax.ShapeDtypeStruct(qkv.shape, qkv.dtype),
        **programs.options(WARPS),
    )(qkv, bias, mask, hashed, gradient, log_totals, lost)
    of_bias = jnp.sum(of_qkv, axis=(0, 1), dtype="float32").astype(bias.dtype)
    return of_qkv, of_bias, None, None


_attend.defvjp(_attend_forward, _attend_backward)


def _grid(what):
    return what.batch, what.heads, what.length // what.block


def _specs_of_inputs(what, bias, mask):  # of a head all of qkv [B, S, 3, A, D], of mask [B, 1 or S, S]
    return [
        pallas.BlockSpec((None, what.length, 3, None, what.width), lambda b, a, i: (b, 0, 0, a, 0)),
        pallas.BlockSpec((3, None, what.width), lambda b, a, i: (0, a, 0)),
        pallas.BlockSpec((None, *mask.shape[1:]), lambda b, a, i: (b, 0, 0)),
        pallas.BlockSpec((2,), lambda b, a, i: (0,)),
    ]


def _tools(what, qkv, bias, mask, hashed):
    """Functions of places, for the kernels: vectors of a part, masked scores, and dropout of what stands there."""
    head = pallas.program_id(0) * what.heads + pallas.program_id(1)

    def vectors(places, part):
        return qkv[places, part, :] + bias[part, :][None, :]

    def scores(rows, columns, query, key):
        masked = mask[0, columns][None, :] if mask.shape[0] == 1 else mask[rows, columns]
        return triton.dot(query, key, trans_b=True) + masked

    def dropped(rows, columns, weights):
        first = head * what.length + rows.start
        return programs.dropped(weights, first, columns.start, what.length, hashed, what.rate)

    return vectors, scores, dropped


def _attention_kernel(what, qkv, bias, mask, hashed, output, log_totals):
    vectors, scores, dropped = _tools(what, qkv, bias, mask, hashed)
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


def _attention_gradient_kernel(what, qkv, bias, mask, hashed, gradient, log_totals, lost, of_qkv):
    """Of a block of keys and values what all queries ask of them, of as many queries what they see."""
    vectors, scores, dropped = _tools(what, qkv, bias, mask, hashed)
    own, dtype = pallas.ds(pallas.program_id(2) * what.block, what.block), qkv.dtype
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
        of_qkv[:, part, :] = one.astype(dtype)
