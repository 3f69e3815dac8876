"""LayerNorm(x + dropout(change + bias)) and its gradient, each in one pass over the vectors."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas

from kbert.model.gpu import programs

# Rows of a program, and its warps: of some the fastest on an H200.
ROWS, WARPS = 8, 8


class Norm(NamedTuple):
    """The share dropped, and the epsilon."""

    rate: float
    epsilon: float


def biased_normed_sum(x, change, bias, gamma, beta, seed, *, rate: float, epsilon: float):
    """LayerNorm(x + dropout(change + bias)), [T, H]; seed: None where nothing is dropped."""
    chunk = programs.chunk(x.shape[-1])
    vectors = [jnp.reshape(one, (-1, x.shape[-1] // chunk, chunk)) for one in (x, change)]
    parameters = [jnp.reshape(one, (-1, chunk)) for one in (bias, gamma, beta)]
    norm = Norm(0.0 if seed is None else rate, epsilon)
    return jnp.reshape(_norm(norm, *vectors, *parameters, programs.hashed(seed)), x.shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _norm(norm, x, change, bias, gamma, beta, hashed):
    return _norm_forward(norm, x, change, bias, gamma, beta, hashed)[0]


def _norm_forward(norm, x, change, bias, gamma, beta, hashed):
    grid, vectors, parameters, of_hash, _ = _specs_of_norm(x)
    found = pallas.pallas_call(
        functools.partial(_norm_kernel, norm),
        grid=grid,
        in_specs=[vectors, vectors, parameters, parameters, parameters, of_hash],
        out_specs=vectors,
        out_shape=programs.like(x),
        **programs.options(WARPS),
    )(x, change, bias, gamma, beta, hashed)
    return found, (x, change, bias, gamma, hashed)


def _norm_backward(norm, kept, gradient):
    x, change, bias, gamma, hashed = kept
    grid, vectors, parameters, of_hash, of_program = _specs_of_norm(x)
    sums = jax.ShapeDtypeStruct((*grid, 3, *gamma.shape), "float32")
    of_x, of_change, sums = pallas.pallas_call(
        functools.partial(_norm_gradient_kernel, norm),
        grid=grid,
        in_specs=[vectors, vectors, parameters, parameters, of_hash, vectors],
        out_specs=[vectors, vectors, of_program],
        out_shape=[programs.like(x), programs.like(x), sums],
        **programs.options(WARPS),
    )(x, change, bias, gamma, hashed, gradient)
    of_bias, of_gamma, of_beta = jnp.sum(sums, axis=0)
    return of_x, of_change, of_bias.astype(bias.dtype), of_gamma, of_beta, None


_norm.defvjp(_norm_forward, _norm_backward)


def _specs_of_norm(x):
    rows, parts, chunk = x.shape
    return (
        (rows // ROWS,),
        pallas.BlockSpec((ROWS, parts, chunk), lambda i: (i, 0, 0)),
        pallas.BlockSpec((parts, chunk), lambda i: (0, 0)),
        pallas.BlockSpec((2,), lambda i: (0,)),
        pallas.BlockSpec((None, 3, parts, chunk), lambda i: (i, 0, 0, 0)),
    )


def _normed(norm, x, change, bias, hashed):
    """The chunks of (rows of the sum - its mean) * scale, [ROWS, chunk] each, the scale, dropout of a chunk."""
    _, parts, chunk = x.shape
    first = pallas.program_id(0) * ROWS

    def dropped(part, values):
        return programs.dropped(values, first, part * chunk, parts * chunk, hashed, norm.rate)

    changes = [change[:, part, :].astype("float32") + bias[part, :] for part in range(parts)]
    sums = [x[:, part, :] + dropped(part, one) for part, one in enumerate(changes)]
    mean = _row_mean(sums)
    centred = [one - mean for one in sums]
    scale = lax.rsqrt(_row_mean([one * one for one in centred]) + norm.epsilon)
    return [one * scale for one in centred], scale, dropped


def _row_mean(chunks):  # [ROWS, 1]
    return sum(jnp.sum(one, axis=1) for one in chunks)[:, None] / (len(chunks) * chunks[0].shape[1])


def _norm_kernel(norm, x, change, bias, gamma, beta, hashed, output):
    for part, one in enumerate(_normed(norm, x, change, bias, hashed)[0]):
        output[:, part, :] = (one * gamma[part, :] + beta[part, :]).astype(output.dtype)


def _norm_gradient_kernel(norm, x, change, bias, gamma, hashed, gradient, of_x, of_change, sums):
    found, scale, dropped = _normed(norm, x, change, bias, hashed)
    asked = [gradient[:, part, :].astype("float32") for part in range(len(found))]
    weighted = [one * gamma[part, :] for part, one in enumerate(asked)]
    mean, by_found = _row_mean(weighted), _row_mean([one * other for one, other in zip(weighted, found, strict=True)])
    for part, (one, normed) in enumerate(zip(weighted, found, strict=True)):
        of_sum = scale * (one - mean - normed * by_found)
        changed = dropped(part, of_sum)
        of_x[:, part, :], of_change[:, part, :] = of_sum.astype(of_x.dtype), changed.astype(of_change.dtype)
        for number, rows in enumerate((changed, asked[part] * normed, asked[part])):  # of bias, gamma, beta
            sums[number, part, :] = jnp.sum(rows, axis=0)
