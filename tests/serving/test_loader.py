"""A program without Python answers with an export as Python does: what TensorFlow Serving does, less the network.

The program, loader.c, is compiled against the headers and libraries of the installed TensorFlow.
"""

import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

LONG = "ab c.d zq, e " * 20  # many windows of 32 positions
# What every signature is asked, by the name of the input: four of each.
ASKED = {
    "text": ["ab [MASK] cd [MASK].", "", f"{LONG}[MASK]", "é\u0301 \xff 日本 [MASK] \0 Ⅻ ﬁ [mask]\U0001f600"],
    "text_a": ["ab c", "", LONG, "日本 é"],
    "text_b": ["d", "x", LONG, ""],
    "question": ["a b", "é?", "", "zz " * 30],
    "passage": [LONG, "日本 ab\u0301 c. é", "c d", ""],
    "context": ["ab", "", LONG, "é"],
    "endings": [["c", "d e"], ["", "日本"], ["a", LONG], ["\xff", "x"]],
    "input_ids": [[2, 5, 4, 3, 0], [2, 6, 40, 7, 3], [2, 9, 3, 0, 0], [2, 4, 4, 4, 3]],
    "input_mask": [[1, 1, 1, 1, 0], [1] * 5, [1, 1, 1, 0, 0], [1] * 5],
    "segment_ids": [[0] * 5, [0, 0, 1, 1, 1], [0] * 5, [0] * 5],
    "masked_lm_positions": [[2, 0], [1, 4], [0, 0], [3, 1]],
}


@pytest.fixture(scope="session")
def loader(tmp_path_factory) -> Path:
    """The compiled program."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        pytest.skip("needs a C compiler: there is no cc, gcc or clang")
    source, program = Path(__file__).with_name("loader.c"), tmp_path_factory.mktemp("loader") / "loader"
    folder = Path(tf.sysconfig.get_lib())
    libraries = [path for name in ("cc", "framework") for path in sorted(folder.glob(f"libtensorflow_{name}.*"))]
    # The usual linker takes four times as long over the symbols of a gigabyte.
    faster = ["-fuse-ld=gold"] if shutil.which("ld.gold") else []
    command = [compiler, "-I", tf.sysconfig.get_include(), source, *libraries, f"-Wl,-rpath,{folder}", *faster]
    run = subprocess.run([*command, "-o", program], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return program


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


def inputs_of(definition) -> dict[str, tf.Tensor]:
    """What a signature is asked, by the names of its inputs."""
    inputs = {}
    for name, info in definition.inputs.items():
        value = tf.constant(ASKED[name], info.dtype)
        is_of_endings = len(info.tensor_shape.dim) > value.shape.rank  # ids, [B, N, S]
        inputs[name] = tf.stack([value, value[::-1]], axis=1) if is_of_endings else value
    return inputs


def test_a_program_without_python_answers_as_python_does(loader, exports, ops_lib):
    requests, asked = [], []
    for head, exported in exports.items():
        definitions = exported.meta_graph().signature_def
        assert set(exported.in_python) == {name for name in definitions if not name.startswith("__")}
        for signature, function in exported.in_python.items():
            definition = definitions[signature]
            inputs = inputs_of(definition)
            in_graph = {definition.inputs[name].name: value for name, value in inputs.items()}
            requests.append(request(exported.path, in_graph, [info.name for info in definition.outputs.values()]))
            asked.append((head, signature, function(**inputs), list(definition.outputs)))
    for (head, signature, expected, names), found in zip(asked, answers_of(loader, ops_lib, requests), strict=True):
        assert not isinstance(found, str), f"{head}, {signature}: {found}"
        for name, value in zip(names, found, strict=True):
            message = f"{head}, {signature}, {name}"
            expected_value = expected[name].numpy()
            assert (value.shape, value.dtype) == (expected_value.shape, expected_value.dtype), message
            if value.dtype.kind == "f":
                np.testing.assert_allclose(value, expected_value, atol=1e-5, err_msg=message)
            else:
                assert value.tolist() == expected_value.tolist(), message


def test_what_needs_python_or_other_ops_is_not_answered(loader, exports, ops_lib, tmp_path):
    signature = [tf.TensorSpec([None], tf.string, name="text")]
    root = tf.Module()
    root.serve = tf.function(lambda text: {"it": tf.numpy_function(str, [text], tf.string)}, signature)
    tf.saved_model.save(root, tmp_path, signatures=root.serve)
    names = {"serving_default_text:0": tf.constant(["a"])}
    (why,) = answers_of(loader, ops_lib, [request(str(tmp_path), names, ["StatefulPartitionedCall:0"])])
    assert "No OpKernel was registered to support Op 'PyFunc'" in why
    others = [library for library in ops_lib if library.stem != "_normalize_ops"]
    with pytest.raises(ChildProcessError, match="Op type not registered 'NormalizeUTF8'"):
        answers_of(loader, others, [request(exports["regressor"].path, {}, [])])
