"""Pieces of a model compiled by XLA, between matrix products that are not.

TensorFlow's own products are faster than XLA's for CPUs where they are large (197 to 165 GFLOP/s on two cores, 4,096
rows of 768), and what is between them is slow unless it is fused. What a piece computes on the way is not kept for the
gradient but computed again, which takes little time and saves a quarter of the memory of a Base step.
"""

import functools

import tensorflow as tf

from kbert.training import planning


def are_faster(bert) -> bool:
    """Whether they are for this Bert on the devices that there are, rather than the whole step compiled."""
    return planning.faster_in_pieces(bert.config, bert.recompute, on_gpu=not only_cpus())


def only_cpus() -> bool:
    return all(device.device_type == "CPU" for device in tf.config.list_logical_devices())


def compiled_piece(function, inputs, others=(), **constants):
    """function(*inputs, *others, **constants), of which `others` need no gradient."""
    forward, backward = compiled(function, *sorted(constants.items()))

    @tf.custom_gradient
    def call(*inputs):
        return forward(inputs, others), lambda *gradients: backward(inputs, others, gradients)

    return call(*(tf.convert_to_tensor(value) for value in inputs))


@functools.cache  # one for all models of a process: a search trains many, with the same shapes
def compiled(function, *constants: tuple):
    """The function and the gradients of its inputs, as graphs that XLA compiles, once for each shape."""
    constants = dict(constants)

    def forward(inputs, others):
        return function(*inputs, *others, **constants)

    def backward(inputs, others, gradients):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = forward(inputs, others)
        return tape.gradient(outputs, inputs, gradients if isinstance(outputs, tuple) else gradients[0])

    return tuple(tf.function(one, autograph=False, jit_compile=True) for one in (forward, backward))
