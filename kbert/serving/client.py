"""A served model as its clients see it: its signatures, and rows answered over REST or gRPC, also if a server falters.

The APIs are TensorFlow Serving's; kbert's own server speaks the first. Over REST nothing here needs TensorFlow.
"""

import itertools
import random
import time
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import urlsplit

import numpy as np

from kbert.serving.rest import Refused, Tensor

# TensorFlow's names of the types that JSON can hold, and NumPy's.
KINDS = {"DT_STRING": "object", "DT_BOOL": "bool", "DT_HALF": "float16", "DT_FLOAT": "float32", "DT_DOUBLE": "float64"}
KINDS |= {f"DT_{sign}INT{bits}": f"{sign.lower()}int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)}
LONGEST_PAUSE = 30.0  # seconds


class Unavailable(ConnectionError):
    """No answer now, perhaps one later; is_busy: it is the server that says so."""

    def __init__(self, message: str, is_busy: bool = False):
        super().__init__(message)
        self.is_busy = is_busy


class Signature(NamedTuple):
    """What a model answers under a name: the Tensors that it takes, the names of what it gives; both sorted by name."""

    inputs: dict[str, Tensor]
    outputs: list[str]


class Patience(NamedTuple):
    """retries: of a request. pause: seconds before the first; each further pause is twice as long, but for a random
    part, so that clients that were refused together do not come back together."""

    retries: int = 6
    pause: float = 0.5


class Client:
    """Asks a model of a server, as `connect` gives one; `predict` may be called from any thread.

    `seconds`: of each request that was answered. `retried`: how many requests had to be sent again.
    """

    def __init__(self, server, patience: Patience | None = None, chance: random.Random | None = None):
        self.server, self.patience = server, patience or Patience()
        self.chance = chance or random.Random()
        self.signatures: dict[str, Signature] = {}
        self.seconds, self.retried = [], 0

    def describe(self) -> int:
        """Asks for the model's signatures and returns the number of the version that answers.

        Raises Unavailable at once if the server cannot be reached, and ValueError for a model that it does not have.
        """
        try:
            version, self.signatures = self._patiently(self.server.metadata)
        except Refused as refused:
            raise ValueError(f"{self.server.url}, model {self.server.model}: {refused.message}") from None
        return version

    def version(self) -> int:
        """The number of the version that answers now, asked for once; raises OSError or Refused where none does."""
        return self.server.metadata()[0]

    def signature(self, name: str) -> Signature:
        """The signature of that name; raises ValueError for one that is not there or does not answer rows."""
        if name not in self.signatures:
            there = ", ".join(sorted(self.signatures)) or "none"
            raise ValueError(f"signature {name} is not there; {self.server.model} has {there}")
        for input, tensor in self.signatures[name].inputs.items():
            if tensor is None or tensor.shape[:1] != (None,):
                raise ValueError(f"signature {name}: its input {input} has no rows, expected one for each line")
        return self.signatures[name]

    def predict(self, name: str, rows: list[dict]) -> list[dict]:
        """Rows, input name -> value each -> their answers, output name -> value each, as JSON has them.

        Raises Refused where the server will not answer these rows, Unavailable where it could not in all retries.
        """
        signature = self.signatures[name]
        columns = {input: [row[input] for row in rows] for input in signature.inputs}
        outputs = self._patiently(lambda: self._timed(self.server.predict, name, signature, columns))
        outputs = {signature.outputs[0]: outputs} if len(signature.outputs) == 1 else outputs
        for output in signature.outputs:
            values = outputs.get(output) if isinstance(outputs, dict) else None
            if not isinstance(values, list) or len(values) != len(rows):
                raise ValueError(f"signature {name}: its output {output} has not {len(rows)} rows, one for each line")
        return [{output: outputs[output][number] for output in signature.outputs} for number in range(len(rows))]

    def _timed(self, request: Callable, *arguments):
        begin = time.perf_counter()
        answer = request(*arguments)
        self.seconds.append(time.perf_counter() - begin)
        return answer

    def _patiently(self, request: Callable):
        """The request's answer, asked for again while there is none; a server never reached is not waited for."""
        for attempt in itertools.count():
            try:
                return request()
            except Unavailable as error:
                if attempt == self.patience.retries or not (self.signatures or error.is_busy):
                    raise
            self.retried += 1
            time.sleep(min(self.patience.pause * 2**attempt, LONGEST_PAUSE) * self.chance.uniform(0.5, 1))


def connect(url: str, model: str, version: int | None = None, timeout: float = 60.0, connections: int = 4):
    """The server at http://HOST:PORT, https://... (REST) or grpc://HOST:PORT, to be given to a Client.

    timeout: seconds that an answer may take. Raises ValueError for another address, ModuleNotFoundError where a package
    of the extra "serve" is missing.
    """
    try:
        parts = urlsplit(url)
        complete = parts.hostname and (parts.port or parts.scheme != "grpc")
    except ValueError as error:
        raise ValueError(f"{url}: {error}; expected http://HOST:PORT or grpc://HOST:PORT") from None
    if parts.scheme not in ("http", "https", "grpc") or not complete:
        raise ValueError(f"{url} is no address; expected http://HOST:PORT or grpc://HOST:PORT")
    if parts.query or "/v1/" in parts.path or (parts.scheme == "grpc" and parts.path.strip("/")):
        raise ValueError(f"{url}: expected the server's address alone; the model has an option of its own")
    if parts.scheme == "grpc":
        from kbert.serving.over_grpc import Grpc

        return Grpc(parts.netloc, model, version, timeout)
    from kbert.serving.over_rest import Rest

    return Rest(url.rstrip("/"), model, version, timeout, connections)


def signature_of(inputs: dict, outputs) -> Signature:
    """inputs: name -> (TensorFlow's name of the type, sizes with -1 for any, None where the rank is unknown)."""
    return Signature({name: tensor_of(*inputs[name]) for name in sorted(inputs)}, sorted(outputs))


def tensor_of(kind: str, sizes: list[int] | None) -> Tensor | None:
    """A Tensor, or None for one that rows in JSON cannot be made into."""
    if kind not in KINDS or sizes is None:
        return None
    return Tensor(np.dtype(KINDS[kind]), tuple(None if size < 0 else size for size in sizes))
