"""A model asked over TensorFlow Serving's gRPC API."""

import json

import grpc
import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow_serving.apis import get_model_metadata_pb2, predict_pb2, prediction_service_pb2_grpc

from kbert.serving.client import Signature, Unavailable, signature_of
from kbert.serving.rest import Refused, array_of, write_answer

UNAVAILABLE = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,  # by a server that stops: nobody cancels here
)
# The HTTP statuses that TensorFlow Serving has for them: one way to treat a refusal.
STATUSES = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.FAILED_PRECONDITION: 400,
    grpc.StatusCode.OUT_OF_RANGE: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
}
# Messages of any size, as over REST; a server that has come back is found soon.
OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)


class Grpc:
    """One model at grpc://HOST:PORT; may be used by many threads at once."""

    def __init__(self, address: str, model: str, version: int | None, timeout: float):
        self.url, self.model, self.version, self.timeout = f"grpc://{address}", model, version, timeout
        self.channel = grpc.insecure_channel(address, options=OPTIONS)
        self.service = prediction_service_pb2_grpc.PredictionServiceStub(self.channel)

    def metadata(self) -> tuple[int, dict[str, Signature]]:
        """The version that answers, and its signatures by name."""
        request = self._addressed(get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"]))
        told = self._ask(self.service.GetModelMetadata, request)
        found = get_model_metadata_pb2.SignatureDefMap()
        told.metadata["signature_def"].Unpack(found)
        signatures = {
            name: signature_of({key: (kind_of(info), sizes_of(info)) for key, info in one.inputs.items()}, one.outputs)
            for name, one in found.signature_def.items()
            if one.inputs  # TensorFlow's __saved_model_init_op has none
        }
        return told.model_spec.version.value, signatures

    def predict(self, name: str, signature: Signature, columns: dict[str, list]):
        """The values of the outputs by name, or of the only one, as REST has them; columns: a value for each row."""
        request = self._addressed(predict_pb2.PredictRequest())
        request.model_spec.signature_name = name
        for input, values in columns.items():
            array = array_of(values, signature.inputs[input], input)
            request.inputs[input].CopyFrom(tf.make_tensor_proto(array))
        told = self._ask(self.service.Predict, request)
        outputs = {output: tf.make_ndarray(told.outputs[output]) for output in sorted(told.outputs)}
        return json.loads(write_answer(outputs, rows=False))["outputs"]

    def close(self) -> None:
        self.channel.close()

    def _addressed(self, request):
        request.model_spec.name = self.model
        if self.version is not None:
            request.model_spec.version.value = self.version
        return request

    def _ask(self, method, request):
        try:
            return method(request, timeout=self.timeout)
        except grpc.RpcError as error:
            code, message = error.code(), " ".join((error.details() or "").split())
            if "larger than max" in message:  # is RESOURCE_EXHAUSTED, too, and does not pass
                raise Refused(413, message) from None
            if code in UNAVAILABLE:
                is_busy = code == grpc.StatusCode.RESOURCE_EXHAUSTED
                raise Unavailable(f"{self.url}: {code.name}: {message}", is_busy) from None
            raise Refused(STATUSES.get(code, 500), f"{code.name}: {message}") from None


def kind_of(info) -> str:
    return types_pb2.DataType.Name(info.dtype)


def sizes_of(info) -> list[int] | None:
    shape = info.tensor_shape
    return None if shape.unknown_rank else [dim.size for dim in shape.dim]
