"""The matrix products of a piece of work in every order of the factors, compiled by JAX."""

import itertools
import time

from products import timed
from worker import serve

REPETITIONS = 10


def prepare(job):
    import jax
    import jax.numpy as jnp

    def random(shape):
        return jnp.ones(shape, job["precision"])

    def seconds(function, left, right):
        function(left, right).block_until_ready()
        begin = time.perf_counter()
        for _ in range(REPETITIONS):
            result = function(left, right)
        result.block_until_ready()
        return (time.perf_counter() - begin) / REPETITIONS

    def form(left_across, right_across):
        def multiply(left, right):
            left = jnp.swapaxes(left, -1, -2) if left_across else left
            return left @ (jnp.swapaxes(right, -1, -2) if right_across else right)

        name = f"JAX{', left across' * left_across}{', right across' * right_across}"
        return name, (left_across, right_across, jax.jit(multiply))

    forms = dict(itertools.starmap(form, itertools.product((False, True), repeat=2)))
    versions = f"jax {jax.__version__}, {jax.devices()[0].device_kind}"
    return {"versions": versions}, lambda: timed(job["products"], forms, random, seconds)


serve(prepare)
