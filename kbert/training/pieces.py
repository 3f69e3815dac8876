"""Pieces of a model compiled by XLA, between matrix products that are not.

TensorFlow's own products are faster than XLA's for CPUs where they are large (197 to 165 GFLOP/s on two cores, 4,096
rows of 768), and what is between them is slow unless it is fused. What a piece computes on the way is not kept for the
gradient but computed again, which takes little time and saves a quarter of the memory of a Base step.
"""

import tensorflow as tf

from kbert.training import planning


def are_faster(bert) -> bool:
    """Whether they are for this Bert on the devices that there are, rather than the whole step compiled."""
    only_cpus = all(device.device_type == "CPU" for device in tf.config.list_logical_devices())
    return planning.faster_in_pieces(bert.config, bert.recompute, on_gpu=not only_cpus)


class CompiledPieces:
    """Called with a function, its inputs and others that need no gradient: function(*inputs, *others, **constants).

    A function with these constants is compiled once for each shape, forward and backward.
    """

    def __init__(self):
        self.made = {}

    def __call__(self, function, inputs, others=(), **constants):
        key = (function, *sorted(constants.items()))
        if key not in self.made:
            self.made[key] = compiled(function, constants)
        forward, backward = self.made[key]

        @tf.custom_gradient
        def call(*inputs):
            return forward(inputs, others), lambda *gradients: backward(inputs, others, gradients)

        return call(*(tf.convert_to_tensor(value) for value in inputs))


def compiled(function, constants: dict):
    """The function and the gradients of its inputs, as graphs that XLA compiles."""

    def forward(inputs, others):
        return function(*inputs, *others, **constants)

    def backward(inputs, others, gradients):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = forward(inputs, others)
        return tape.gradient(outputs, inputs, gradients if isinstance(outputs, tuple) else gradients[0])

    return tuple(tf.function(one, autograph=False, jit_compile=True) for one in (forward, backward))
