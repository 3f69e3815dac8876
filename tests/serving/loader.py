"""What loader.c reads and writes, from Python's side."""

import struct
import subprocess
from pathlib import Path

import numpy as np
import tensorflow as tf


def text(value: str | bytes) -> bytes:
    value = value.encode() if isinstance(value, str) else value
    return struct.pack("q", len(value)) + value


def tensor(value: tf.Tensor) -> bytes:
    head = struct.pack(f"{2 + value.shape.rank}q", value.dtype.as_datatype_enum, value.shape.rank, *value.shape)
    content = value.numpy()
    return head + (b"".join(map(text, content.flat)) if value.dtype == tf.string else content.tobytes())


def request(path: str, inputs: dict, outputs: list[str]) -> bytes:
    """One request as loader.c reads it; inputs: name in the graph -> tensor. outputs: names in the graph."""
    given = b"".join(text(name) + tensor(value) for name, value in inputs.items())
    asked = b"".join(map(text, outputs))
    return text(path) + struct.pack("q", len(inputs)) + given + struct.pack("q", len(outputs)) + asked


class Answers:
    """The program's answers one after the other: a list of arrays, or a text that says why there are none."""

    def __init__(self, content: bytes):
        self.content, self.place = content, 0

    def next(self) -> list[np.ndarray] | str:
        count = self._number()
        return self._bytes(self._number()).decode() if count < 0 else [self._tensor() for _ in range(count)]

    def _tensor(self) -> np.ndarray:
        dtype, rank = tf.as_dtype(self._number()), self._number()
        shape = [self._number() for _ in range(rank)]
        if dtype == tf.string:
            texts = [self._bytes(self._number()) for _ in range(np.prod(shape, dtype=int))]
            return np.array(texts, object).reshape(shape)
        size = dtype.size * np.prod(shape, dtype=int)
        return np.frombuffer(self._bytes(size), dtype.as_numpy_dtype).reshape(shape)

    def _number(self) -> int:
        return struct.unpack("q", self._bytes(8))[0]

    def _bytes(self, size: int) -> bytes:
        self.place += size
        assert self.place <= len(self.content), "the answers end too soon"
        return self.content[self.place - size : self.place]


def answers_of(loader: Path, libraries: list[Path], requests: list[bytes]) -> list:
    """An answer to each request; raises ChildProcessError with what the program says if a model cannot be loaded."""
    process = subprocess.run([loader, *libraries], input=b"".join(requests), capture_output=True)
    if process.returncode:
        raise ChildProcessError(process.stderr.decode())
    answers = Answers(process.stdout)
    found = [answers.next() for _ in requests]
    assert answers.place == len(answers.content)
    return found
