"""Servers in a thread of the tests' process: REST by uvicorn, and TensorFlow Serving's gRPC API over kbert's Models."""

import asyncio
import contextlib
import socket
import struct
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import grpc
import tensorflow as tf
import uvicorn
from google.protobuf import json_format
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from kbert.serving.models import metadata
from kbert.serving.rest import Refused


def free_port() -> int:
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return tried.getsockname()[1]


def wait_for(condition) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@contextlib.contextmanager
def running(application, port: int, dies: bool = False):
    """Serves an application until the end of the block, where it stops, or dies without a word to its clients."""
    # Settings of logging would close what pytest has put in the place of standard error.
    settings = {"log_config": None, "log_level": "critical", "access_log": False, "timeout_graceful_shutdown": 0}
    server = uvicorn.Server(uvicorn.Config(application, host="127.0.0.1", port=port, **settings))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        wait_for(lambda: server.started or not thread.is_alive())
        assert server.started
        yield
    finally:
        if dies:
            server.servers[0].get_loop().call_soon_threadsafe(hang_up, server)
        server.should_exit, server.force_exit = True, dies
        thread.join(20)


def hang_up(server):
    for one in server.servers:
        one.close()
    for connection in server.server_state.connections:
        connection.transport.abort()


class Faulty:
    """An application whose answers to predict have the next of `faults`, while there is one.

    A number of 100 or more is answered as a status, a smaller one is so many seconds late, a function as late as it is
    false, "reset" resets the connection; None is no fault. `asked` counts them, `most` is how many were under way at
    once.
    """

    def __init__(self, application):
        self.application, self.faults, self.asked, self.under_way, self.most = application, deque(), 0, 0, 0

    async def __call__(self, scope, receive, send):
        if scope["type"] == "http" and scope["path"].endswith(":predict"):
            self.asked += 1
            fault = self.faults.popleft() if self.faults else None
            if fault == "reset":
                connection = send.__self__.transport
                now = struct.pack("ii", 1, 0)
                connection.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, now)
                connection.abort()
                return
            if isinstance(fault, int) and fault >= 100:
                await send({"type": "http.response.start", "status": fault, "headers": []})
                await send({"type": "http.response.body", "body": b'{"error": "as the test has it"}'})
                return
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            while callable(fault) and not fault():
                await asyncio.sleep(0.01)
            await asyncio.sleep(0 if callable(fault) else fault or 0)
            self.under_way -= 1
        await self.application(scope, receive, send)


class Service(prediction_service_pb2_grpc.PredictionServiceServicer):
    """TensorFlow Serving's gRPC API; a fault is a status code, or seconds that an answer is late."""

    def __init__(self, models):
        self.models, self.faults, self.asked = models, deque(), 0

    def GetModelMetadata(self, request, context):
        told = metadata(self._version(request, context))
        signatures = json_format.ParseDict(
            told["metadata"]["signature_def"], get_model_metadata_pb2.SignatureDefMap(), ignore_unknown_fields=True
        )
        response = get_model_metadata_pb2.GetModelMetadataResponse()
        response.model_spec.version.value = int(told["model_spec"]["version"])
        response.metadata["signature_def"].Pack(signatures)
        return response

    def Predict(self, request, context):
        self.asked += 1
        fault = self.faults.popleft() if self.faults else 0
        if isinstance(fault, grpc.StatusCode):
            context.abort(fault, "as the test has it")
        time.sleep(fault)
        signature = self._version(request, context).signature(request.model_spec.signature_name)
        try:
            outputs = signature.call({name: tf.make_ndarray(tensor) for name, tensor in request.inputs.items()})
        except tf.errors.InvalidArgumentError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, error.message)
        response = predict_pb2.PredictResponse()
        for name, values in outputs.items():
            response.outputs[name].CopyFrom(tf.make_tensor_proto(values))
        return response

    def _version(self, request, context):
        number = request.model_spec.version.value if request.model_spec.HasField("version") else None
        try:
            return self.models.version(request.model_spec.name, number)
        except Refused as refused:
            context.abort(grpc.StatusCode.NOT_FOUND, refused.message)


@contextlib.contextmanager
def running_grpc(service, port: int):
    server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.max_receive_message_length", 100_000)])
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(service, server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    try:
        yield
    finally:
        server.stop(0).wait(20)
