"""The matrix products of a piece of work in every order of the factors, compiled by JAX."""

import itertools
import time

from products import timed
from worker import serve

REPETITIONS = 10


def prepare(job):
    import jax
    import jax.numpy as jnp

    numbers = jax.jit(jax.random.normal, static_argnums=(1, 2))

    def random(shape):
        # Several factors: of one alone a GPU would have in its cache what a step has to read.
        every = jax.random.split(jax.random.key(1), REPETITIONS)
        return [numbers(key, tuple(shape), job["precision"]) for key in every]

    def seconds(function, lefts, rights):
        jax.block_until_ready(function(lefts, rights))
        begin = time.perf_counter()
        jax.block_until_ready(function(lefts, rights))
        return (time.perf_counter() - begin) / REPETITIONS

    def form(left_across, right_across):
        def multiply(left, right):
            left = jnp.swapaxes(left, -1, -2) if left_across else left
            return left @ (jnp.swapaxes(right, -1, -2) if right_across else right)

        def every(lefts, rights):  # in one call: to begin one can take longer than a product
            return [multiply(*factors) for factors in zip(lefts, rights, strict=True)]

        name = f"JAX{', left across' * left_across}{', right across' * right_across}"
        return name, (left_across, right_across, jax.jit(every))

    forms = dict(itertools.starmap(form, itertools.product((False, True), repeat=2)))
    versions = f"jax {jax.__version__}, {jax.devices()[0].device_kind}"
    return {"versions": versions}, lambda: timed(job["products"], forms, random, seconds)


serve(prepare)
