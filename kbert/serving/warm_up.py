"""Requests that a server asks a new version before others may: the first of a kind is slow, as kernels are prepared.

TensorFlow Serving reads them from assets.extra/tf_serving_warmup_requests, TFRecords of its PredictionLog.
"""

from importlib.util import find_spec
from pathlib import Path

import tensorflow as tf

FILE = Path("assets.extra") / "tf_serving_warmup_requests"
SENTENCE = "The captain went down to the [MASK] and looked at the old town ."
WORDS = (2, 14, 60, 300)  # of the texts: short ones are most, and sequences grow in steps


def is_possible() -> bool:
    """Whether tensorflow-serving-api is here, whose messages the requests are."""
    return find_spec("tensorflow_serving") is not None


def texts_of(inputs: dict) -> list[dict]:
    """For each length a request: input -> list of one text, or of one list of texts, by the shape."""
    words = SENTENCE.split()
    requests = []
    for count in WORDS:
        text = " ".join((words * (count // len(words) + 1))[:count])
        shapes = {name: [None] if len(tensor.shape) == 1 else [None, None] for name, tensor in inputs.items()}
        requests.append({name: [text] if len(shape) == 1 else [[text, text]] for name, shape in shapes.items()})
    return requests


def write(folder: Path, functions: dict) -> None:
    """Writes requests for every signature on raw text; functions: signature -> concrete function."""
    from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

    (folder / FILE).parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(folder / FILE)) as file:
        for signature, function in functions.items():
            inputs = {spec.name: spec for spec in tf.nest.flatten(function.structured_input_signature)}
            if any(spec.dtype != tf.string for spec in inputs.values()):
                continue
            for texts in texts_of(inputs):
                request = predict_pb2.PredictRequest()
                request.model_spec.signature_name = signature
                for name, values in texts.items():
                    request.inputs[name].CopyFrom(tf.make_tensor_proto(values, tf.string))
                log = prediction_log_pb2.PredictionLog(predict_log=prediction_log_pb2.PredictLog(request=request))
                file.write(log.SerializeToString())


def read(folder: Path) -> list[tuple[str, dict]]:
    """Signature and inputs of each request; none where there is no such file."""
    if not (folder / FILE).exists():
        return []
    from tensorflow_serving.apis import prediction_log_pb2

    found = []
    for record in tf.data.TFRecordDataset(str(folder / FILE)).as_numpy_iterator():
        request = prediction_log_pb2.PredictionLog.FromString(record).predict_log.request
        inputs = {name: tf.make_ndarray(tensor) for name, tensor in request.inputs.items()}
        found.append((request.model_spec.signature_name, inputs))
    return found
