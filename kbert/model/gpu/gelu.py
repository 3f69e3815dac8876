"""GELU(hidden + bias) and its gradient, each in one pass over the vectors."""

import math

import jax
import jax.numpy as jnp
from jax.experimental import pallas

from kbert.model.between import gelu_logit, gelu_logit_slope
from kbert.model.gpu import programs

# Rows and columns of a program, and its warps: of some the fastest on an H200.
ROWS, COLUMNS, WARPS = 32, 256, 8


@jax.custom_vjp
def biased_gelu(hidden, bias):
    """gelu_tanh(hidden + bias), [T, I]."""
    return _gelu_forward(hidden, bias)[0]


def _gelu_forward(hidden, bias):
    grid, vectors, of_bias, _ = _specs_of_gelu(hidden)
    found = pallas.pallas_call(
        _gelu_kernel,
        grid=grid,
        in_specs=[vectors, of_bias],
        out_specs=vectors,
        out_shape=programs.like(hidden),
        **programs.options(WARPS),
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
        out_shape=[programs.like(hidden), jax.ShapeDtypeStruct((grid[0], hidden.shape[1]), "float32")],
        **programs.options(WARPS),
    )(hidden, bias, gradient)
    return of_hidden, jnp.sum(sums, axis=0).astype(bias.dtype)


biased_gelu.defvjp(_gelu_forward, _gelu_backward)


def columns(width: int) -> int:
    """Of so many as many as a program has."""
    return math.gcd(width, COLUMNS)


def _specs_of_gelu(hidden):
    rows, width = hidden.shape
    count = columns(width)
    return (
        (rows // ROWS, width // count),
        pallas.BlockSpec((ROWS, count), lambda i, j: (i, j)),
        pallas.BlockSpec((count,), lambda i, j: (j,)),
        pallas.BlockSpec((None, count), lambda i, j: (i, j)),
    )


def _likely(x):
    return 1 / (1 + jnp.exp(-gelu_logit(x)))


def _gelu_kernel(hidden, bias, output):
    x = hidden[...].astype("float32") + bias[...]
    output[...] = (x * _likely(x)).astype(output.dtype)


def _gelu_gradient_kernel(hidden, bias, gradient, of_hidden, of_bias):
    x = hidden[...].astype("float32") + bias[...]
    likely = _likely(x)
    density = likely * (1 - likely) * gelu_logit_slope(x)
    found = gradient[...] * (likely + x * density)
    of_hidden[...] = found.astype(of_hidden.dtype)
    of_bias[...] = jnp.sum(found, axis=0)
