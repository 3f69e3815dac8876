"""One text at a time by LiteRT (TensorFlow Lite): it lays weights out for the CPU once, TensorFlow at each product.

The shorter the text, the more that counts. saved_models/README.md has figures.
"""

import contextlib
import hashlib
import threading
import warnings
from pathlib import Path

import numpy as np
import tensorflow as tf

from kbert.environment import cores

# In a SavedModel, beside the graphs.
FILE = Path("assets.extra") / "ids.tflite"
PLAIN_FILE = Path("assets.extra") / "plain.json"  # the arguments of PlainRow
ROW = tf.TensorSpec([1, None], tf.int32)


def as_litert(answer, bert) -> bytes:
    """A LiteRT model of `answer`, features -> a dict of tensors by a Bert, of one row without padding, of any length.

    Its one signature has input_ids and segment_ids, int32 [1, S], and these outputs. All has to be in float32.
    """

    def answer_of_row(input_ids, segment_ids):
        return answer({"input_ids": input_ids, "segment_ids": segment_ids, "input_mask": tf.ones_like(input_ids)})

    with gelu_whole(bert):
        function = tf.function(answer_of_row, input_signature=[ROW, ROW], autograph=False).get_concrete_function()
    root = tf.Module()
    root.weights = list(function.variables)  # which the function itself does not keep
    return tf.lite.TFLiteConverter.from_concrete_functions([function], root).convert()


@contextlib.contextmanager
def gelu_whole(bert):
    """Within it graphs are made whose GELU LiteRT's converter knows: one pass instead of nine, 3% of a short text."""
    layers = bert.encoder_layers if bert.config.hidden_act == "gelu_tanh" else []  # gelu_erf is known as it is
    former = [layer.activation for layer in layers]
    try:
        for layer in layers:
            layer.activation = lambda x: tf.nn.gelu(x, approximate=True)
        yield
    finally:
        for layer, activation in zip(layers, former, strict=True):
            layer.activation = activation


def write_with_digest(path: Path, content: bytes) -> None:
    """Writes a file, and its digest beside it."""
    path.write_bytes(content)
    digest_of(path).write_text(hashlib.sha256(content).hexdigest())


def read_with_digest(path: Path) -> bytes:
    """What `write_with_digest` wrote; raises ValueError for a file that is damaged."""
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != digest_of(path).read_text():
        raise ValueError(f"{path}: not as it was written")
    return content


def digest_of(path: Path) -> Path:
    return path.with_suffix(".sha256")


class LiteRT:
    """What `as_litert` made: called with input_ids and segment_ids, int32 [1, S], it returns a dict of arrays.

    May be used by many threads; they wait for each other. Raises ValueError for a file that is damaged.
    """

    def __init__(self, path: Path):
        # Read, not mapped, and looked at: a file that is damaged, or changed meanwhile, would end the process.
        model = read_with_digest(path)
        threads = tf.config.threading.get_intra_op_parallelism_threads() or cores()
        with warnings.catch_warnings():
            # A package of its own is to take the interpreter's place; it is as fast, and this one is here.
            warnings.filterwarnings("ignore", message=r"\s*Warning: tf.lite.Interpreter is deprecated")
            interpreter = tf.lite.Interpreter(model_content=model, num_threads=threads)
        self.call, self.lock = interpreter.get_signature_runner(), threading.Lock()
        self(*np.zeros([2, 1, 2], np.int32))  # the first call lays the weights out

    def __call__(self, input_ids, segment_ids) -> dict:
        with self.lock:
            return self.call(input_ids=input_ids, segment_ids=segment_ids)
