"""What the GPU's programs share: how they are compiled, chunks of a width, and dropout within them."""

import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import triton

from kbert.model.dropout import kept_from, keys, mixed

INTERPRETED = False  # by tests: without a GPU, slowly


def options(warps: int) -> dict:
    return {"compiler_params": triton.CompilerParams(num_warps=warps, num_stages=2), "interpret": INTERPRETED}


def like(x):
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def chunk(width: int) -> int:
    """Of so many numbers as many as a program may have at once: Triton knows powers of 2 alone."""
    return math.gcd(width, 1024)


def hashed(seed):
    """The keys of a seed; of None some, which no one asks for."""
    return jnp.zeros(2, "int32") if seed is None else jnp.stack(keys(seed))


def dropped(x, first_row, first_column, width, hashed, rate):
    """x [rows, columns], what stands there in an array whose rows are of that width, after that array's dropout."""
    if rate == 0:
        return x
    rows, columns = first_row + jnp.arange(x.shape[0]), first_column + jnp.arange(x.shape[1])
    pairs = hashed[0] + rows[:, None] * ((width + 1) // 2) + (columns >> 1)[None, :]
    bits = mixed(pairs, hashed[1])
    # In the upper half of each the short of its own place, of the two that a hash has.
    bits = jnp.where((columns & 1 == 1)[None, :], bits, lax.shift_left(bits, jnp.int32(16)))
    return jnp.where(bits >= kept_from(rate) * 2**16, x * (1 / (1 - rate)), 0.0)
