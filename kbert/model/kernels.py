"""Kernels side by side: joined at each call while they learn, once where they do not change any more."""

import contextlib

import keras
from keras import ops


class Kernels:
    """Kernels and biases of layers side by side, [H, nH] and [nH]: one product is faster than several.

    The layers keep variables of their own, so that each is initialized, loaded and decayed on its own.
    """

    def __init__(self, scales: dict[str, float]):
        self.scales, self.kept = scales, {}  # by a layer's name, and by several

    def of(self, *layers):
        names = tuple(layer.name for layer in layers)
        if names in self.kept:
            return self.kept[names]
        parts = zip(*(self.scaled(layer) for layer in layers), strict=True)
        return tuple(ops.concatenate(some, axis=-1) for some in parts)

    def scaled(self, layer):
        scale = self.scales.get(layer.name)
        return (layer.kernel, layer.bias) if scale is None else (layer.kernel * scale, layer.bias * scale)


@contextlib.contextmanager
def weights_final(bert):
    """Within it graphs are made whose weights do not change: kernels are side by side in them already.

    Putting them there takes a tenth of the time of a short text. A graph made here goes on with today's weights where
    the model has others. Yields the variables that it reads, which somebody has to keep as long as the graph.
    """
    attentions = [layer.self_attention for layer in bert.encoder_layers]
    try:
        for one in attentions:
            for layers in ((one.query, one.key, one.value), (one.query,), (one.key, one.value)):
                kept = (keras.Variable(value, trainable=False) for value in one.kernels.of(*layers))
                one.kernels.kept[tuple(layer.name for layer in layers)] = tuple(kept)
        yield [kept for one in attentions for some in one.kernels.kept.values() for kept in some]
    finally:
        for one in attentions:
            one.kernels.kept.clear()
