"""The matrix products of a piece of work in every form that TensorFlow has for them."""

import itertools
import time

from products import timed
from worker import serve

REPETITIONS = 3


def prepare(job):
    from kbert.command_line import import_tensorflow

    import_tensorflow()
    import tensorflow as tf

    def random(shape):
        return tf.cast(tf.random.normal(shape), job["precision"])

    def seconds(function, left, right):
        function(left, right)
        taken = []
        for _ in range(REPETITIONS):
            begin = time.perf_counter()
            function(left, right)._numpy()  # waits, and copies nothing
            taken.append(time.perf_counter() - begin)
        return min(taken)

    def form(left_across, right_across, xla):
        def multiply(left, right):
            return tf.matmul(left, right, transpose_a=left_across, transpose_b=right_across)

        name = f"{'XLA' if xla else 'TensorFlow'}{', left across' * left_across}{', right across' * right_across}"
        return name, (left_across, right_across, tf.function(multiply, autograph=False, jit_compile=xla))

    forms = dict(itertools.starmap(form, itertools.product((False, True), repeat=3)))
    return {"versions": f"tensorflow {tf.__version__}"}, lambda: timed(job["products"], forms, random, seconds)


serve(prepare)
