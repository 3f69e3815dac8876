"""Groups of instances made by other processes, for accelerators that outrun the cores of their host.

A server is the training command with the same text and flags. It makes what the trainer would make, which has therefore
the same batches in the same order, and makes a group itself where its server does not answer. Not tf.data's service:
that keeps neither order nor place, and cannot run numpy_function, by which a corpus is read.
"""

import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable

import tensorflow as tf

rpc = tf.distribute.experimental.rpc
CALLS = 4  # to a server at a time, so that its cores have work
SECONDS = 60  # for a group, which takes a second or two
SECONDS_ALONE = 600  # in which a server that did not answer is not asked again
OPERATION = re.compile(r"\{\{.*?\}\}")
ABOUT = tf.TensorSpec([], tf.string)


def serve(instances: Callable, about: str, port: int, ready: Callable[[], None]) -> None:
    """Answers with `instances(epoch, numbers, skip)` until the process is told to end; calls `ready` when it can.

    instances: a tf.function, as group_maker gives it.
    about: what a trainer has to say alike, each time. Raises ValueError for a port that is taken.
    """

    def checked(said, epoch, numbers, skip):
        with tf.control_dependencies([tf.debugging.assert_equal(said, about, "it has other text or flags now")]):
            return instances(tf.identity(epoch), tf.identity(numbers), tf.identity(skip))

    try:
        socket.create_server(("", port)).close()  # as gRPC lets servers share one
    except OSError as error:
        raise ValueError(f"port {port}: {os.strerror(error.errno)}") from None
    try:
        server = rpc.Server.create("grpc", f"0.0.0.0:{port}")
        server.register("about", tf.function(lambda: tf.constant(about), input_signature=[], autograph=False))
        arguments = [ABOUT, *instances.input_signature]
        server.register("instances", tf.function(checked, input_signature=arguments, autograph=False))
        server.start()
    except tf.errors.OpError as error:
        raise ValueError(f"port {port}: {first_line(error)}") from None
    ready()
    threading.Event().wait()


def served(instances: Callable, about: str, address: str) -> list[Callable]:
    """`instances` by a server: functions of which each has one call at a time.

    Raises ValueError for a server that says another `about`. One that does not answer is named on standard error, now
    or later.
    """

    def tell(how_long: str, message: str):
        told = f"data server {address} does not answer, groups are made here {how_long}: {message}"
        print(" ".join(told.split()), file=sys.stderr, flush=True)

    try:
        client = rpc.Client.create("grpc", address, timeout_in_ms=1000 * SECONDS)
        theirs = client.call("about", output_specs=ABOUT).get_value().numpy().decode()
    except tf.errors.OpError as error:  # which shall not keep a run from going on
        tell("until the run is started again", first_line(error))
        return [instances] * CALLS
    if theirs != about:
        raise ValueError(f"data server {address} has other text or flags: {theirs}, expected {about}")
    local = instances.get_concrete_function()
    specs = tf.nest.map_structure(lambda value: tf.TensorSpec(value.shape, value.dtype), local.structured_outputs)
    alone_until = [0.0]

    def lost(message: bytes):
        alone_until[0] = time.monotonic() + SECONDS_ALONE
        tell(f"for {SECONDS_ALONE} s", message.decode())

    def call(epoch, numbers, skip):
        def made_here():
            return local(epoch, numbers, skip)

        def made_there():
            found = client.call("instances", [about, epoch, numbers, skip], specs)

            def instead():
                with tf.control_dependencies([tf.numpy_function(lost, [found.get_error()[1]], [])]):
                    return tf.nest.map_structure(tf.identity, made_here())

            return tf.cond(found.is_ok(), found.get_value, instead)

        is_there = tf.numpy_function(lambda: time.monotonic() >= alone_until[0], [], tf.bool)
        made = tf.cond(tf.ensure_shape(is_there, []), made_there, made_here)
        return tf.nest.map_structure(lambda value, spec: tf.ensure_shape(value, spec.shape), made, specs)

    return [call] * CALLS


def first_line(error: tf.errors.OpError) -> str:
    """What TensorFlow says, without the operation that it says it of."""
    return (OPERATION.sub("", error.message).strip().splitlines() or [type(error).__name__])[0]
