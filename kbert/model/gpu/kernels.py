"""What the kernels share: how they are run, and dropout within them."""

import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import triton

from kbert.model.dropout import kept_from, keys

INTERPRETED = False  # by tests: without a GPU, slowly


def how(warps: int) -> dict:
    return {"compiler_params": triton.CompilerParams(num_warps=warps, num_stages=2), "interpret": INTERPRETED}


def like(x):
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def chunk(width: int) -> int:
    return math.gcd(width, 1024)


def hashed(seed):
    """What the kernels take for a seed, or for None."""
    return jnp.zeros(2, "int32") if seed is None else jnp.stack(keys(seed))


def dropped(x, first_row, first_column, width, hashed, rate):
    """x [rows, columns] times what dropout multiplies those places of an array with, whose rows are of that width."""
    if rate == 0:
        return x
    rows = (first_row + jnp.arange(x.shape[0])).astype("uint32")
    columns = (first_column + jnp.arange(x.shape[1])).astype("uint32")
    one, other = (hashed[number].astype("uint32") for number in (0, 1))
    bits = _mixed((one + rows * ((width + 1) // 2))[:, None] + (columns >> 1)[None, :], other)
    halves = lax.bitcast_convert_type(jnp.where((columns & 1 == 1)[None, :], bits, bits << 16), jnp.int32)
    return jnp.where(halves >= kept_from(rate) * 2**16, x * (1 / (1 - rate)), 0.0)


def _mixed(x, key):  # as in dropout.py, of unsigned numbers
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ key ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)
