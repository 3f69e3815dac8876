"""The models of a folder, <name>/<version>/: the highest version of each that can be loaded answers.

A new version is loaded beside the one that answers and takes its place when it has; requests under way end on the one
they began with. A version that cannot be loaded is named in the log and tried again when its files change.
"""

import json
import logging
import os
import threading
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from google.protobuf import json_format
from tensorflow.core.protobuf import saved_model_pb2

from kbert.serving import litert, warm_up
from kbert.serving.folders import looks_of, versions_in
from kbert.serving.rest import Refused, Tensor
from kbert.text.plain import PlainRow

LOG = logging.getLogger("kbert.serving")
# States of TensorFlow Serving's ModelVersionStatus.
LOADING, AVAILABLE, END = "LOADING", "AVAILABLE", "END"


def load_text_ops() -> None:
    """The tokenizer's ops, without the package that brings them: it imports Keras, which is slower than any model."""
    package = find_spec("tensorflow_text")
    if package is None:
        raise ModuleNotFoundError("No module named 'tensorflow_text'", name="tensorflow_text")
    for library in sorted(Path(package.origin).parent.glob("python/*/*.so")):
        tf.load_op_library(str(library))


load_text_ops()


class Signature(NamedTuple):
    """What a version answers under a name.

    inputs, outputs: their Tensors by name. padding: of the outputs whose rows are filled up to the longest, of what
    there are so many (outputs of one kind have as many), and with what, or None. call: arrays by name -> the same.
    """

    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    padding: dict
    call: Callable

    @property
    def is_batched(self) -> bool:
        """Whether rows of several requests can be asked together: each has its own answers, but for the padding."""
        as_long = [tensor for tensor in self.inputs.values() if None in tensor.shape[1:]]
        filled = [name for name in self.outputs if self.long_axes(name)]
        return self.has_rows and not as_long and all(name in self.padding for name in filled)

    def long_axes(self, output: str) -> list[int]:
        """The axes of an output that may be of any length, beside that of the rows."""
        return [axis for axis, size in enumerate(self.outputs[output].shape) if axis and size is None]

    @property
    def has_rows(self) -> bool:
        """Whether the first dimension of every input and output is that of the rows."""
        return all(tensor.shape[:1] == (None,) for tensor in (*self.inputs.values(), *self.outputs.values()))


class Version:
    """One version of a model, loaded from <name>/<version>/: `signatures` by name; `about`, what export says of it."""

    def __init__(self, folder: str | os.PathLike):
        folder = Path(folder)
        if not folder.name.isdecimal():
            raise ValueError(f"{folder}: expected <name>/<version>, the version a number")
        self.name, self.number = folder.resolve().parent.name, int(folder.name)
        self.loaded = tf.saved_model.load(str(folder))
        extra = folder / "assets.extra"
        padding = read_json(extra / "padding.json")
        self.signature_defs = signature_defs(folder)
        self.about = {"labels": read_lines(extra / "labels.txt"), "config": read_json(extra / "bert_config.json")}
        self.signatures = {
            signature: signature_of(function, padding.get(signature, {}))
            for signature, function in self.loaded.signatures.items()
        }
        if not self.signatures:
            raise ValueError("it has no signature")
        alone = {}
        packers = getattr(self.loaded, "packers", {})
        if packers and not tf.config.list_physical_devices("GPU"):  # which is faster
            of_row, plain = litert.LiteRT(folder / litert.FILE), lambda *texts: None
            path = folder / litert.PLAIN_FILE
            if path.exists() or litert.digest_of(path).exists():  # not for every tokenizer
                plain = PlainRow.from_json(litert.read_with_digest(path))
            alone = {name: alone_by(of_row, plain, packer, self.signatures[name]) for name, packer in packers.items()}
        for signature, inputs in warm_up.read(folder):
            self.signatures[signature].call(inputs)
            if signature in alone:
                alone[signature].call(inputs)
        self.signatures |= alone

    def signature(self, name: str) -> Signature:
        if name not in self.signatures:
            raise Refused(400, f"signature {name} is not there; {self.name} has {', '.join(sorted(self.signatures))}")
        return self.signatures[name]


class Models:
    """The models of a folder that is looked through every `seconds`; one version of each answers."""

    def __init__(self, folder, seconds: float = 1.0):
        self.folder, self.seconds = Path(folder), seconds
        self.served: dict[str, Version] = {}
        self.states: dict[tuple[str, int], tuple[str, str]] = {}  # state and why, of every version that is known
        self.seen: dict[tuple[str, int], tuple] = {}  # what the files of a version that failed looked like
        self.stopped = threading.Event()

    def version(self, name: str, number: int | None = None) -> Version:
        """The version that answers; Refused with status 404 if there is none, or another number is asked for."""
        version = self.served.get(name)
        if version is None or number not in (None, version.number):
            asked = f"Latest({name})" if number is None else f"Specific({name}, {number})"
            there = f"{name} has version {version.number}" if version else f"there are {self.names() or 'no models'}"
            raise Refused(404, f"Servable not found for request: {asked}; {there}")
        return version

    def names(self) -> str:
        return ", ".join(sorted(self.served))

    def status(self, name: str, number: int | None = None) -> list[dict]:
        """The state of each version that is known, as ModelVersionStatus has it; the highest first."""
        states = self.states  # `look` may put others in their place
        known = sorted((n for model, n in states if model == name and number in (None, n)), reverse=True)
        if not known:
            asked = f"name: {name}" if number is None else f"name: {name}, version: {number}"
            raise Refused(404, f"Could not find any versions of model {asked}")
        found = []
        for n in known:
            state, why = states[name, n]
            status = {"error_code": "UNKNOWN" if why else "OK", "error_message": why}
            found.append({"version": str(n), "state": state, "status": status})
        return found

    def watch(self) -> threading.Thread:
        """Begins to look through the folder again and again, until `stopped` is set."""

        def watch():
            while not self.stopped.wait(self.seconds):
                try:
                    self.look()
                except Exception:  # whatever it is, a later version is to be found
                    LOG.exception("the folder %s cannot be looked through, tried again", self.folder)

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        return thread

    def look(self) -> None:
        """Loads what is new and drops what is gone."""
        found = versions_in(self.folder)
        for name, numbers in found.items():
            self._look_at(name, numbers)
        for name in self.served.keys() - found.keys():
            LOG.info("model %s: its folder is gone, dropped", name)
        # Other threads read these: they are replaced, never changed.
        self.served = {name: version for name, version in self.served.items() if name in found}
        there = {(name, number) for name, numbers in found.items() for number in numbers}
        there |= {(name, version.number) for name, version in self.served.items()}
        self.states = {key: state for key, state in self.states.items() if key in there}

    def _look_at(self, name: str, numbers: list[int]) -> None:
        current = self.served.get(name)
        for number in sorted(numbers, reverse=True):
            if current is not None and number == current.number:
                break
            folder = self.folder / name / str(number)
            if self._load(name, number, folder):
                if current is not None:
                    self._note(name, current.number, END)
                break
        # The one that answers stays in memory where its files go before there is another.

    def _load(self, name: str, number: int, folder: Path) -> bool:
        looks = looks_of(folder)
        if self.seen.get((name, number)) == looks:
            return False
        self.seen[name, number] = looks
        self._note(name, number, LOADING)
        try:
            version = Version(folder)
        except Exception as error:  # whatever TensorFlow makes of half a file
            why = " ".join(str(error).split())[:300] or type(error).__name__
            LOG.error("model %s, version %d cannot be loaded and is left out: %s", name, number, why)
            self._note(name, number, END, why)
            return False
        self.served = {**self.served, name: version}
        self._note(name, number, AVAILABLE)
        del self.seen[name, number]
        LOG.info("model %s, version %d answers", name, number)
        return True

    def _note(self, name: str, number: int, state: str, why: str = "") -> None:
        self.states = {**self.states, (name, number): (state, why)}


def signature_of(function, padding: dict) -> Signature:
    inputs = {name: tensor_of(spec) for name, spec in function.structured_input_signature[1].items()}
    outputs = {name: tensor_of(spec) for name, spec in function.structured_outputs.items()}

    def call(columns: dict) -> dict:
        answers = function(**{name: tf.constant(columns[name], tf_type(tensor)) for name, tensor in inputs.items()})
        return {name: answers[name].numpy() for name in outputs}

    return Signature(inputs, outputs, padding, call)


def alone_by(of_row, plain, packer, signature: Signature) -> Signature:
    """A signature whose rows that come alone are packed, by `plain` or else by `packer`, and answered by `of_row`.

    Several are as before. plain: a PlainRow. packer: texts by name -> features.
    """
    names = sorted(signature.inputs)  # A before B: a SavedModel tells them in any order

    def packed(columns: dict) -> list:
        found = packer(**{name: tf.constant(columns[name], tf.string) for name in names})
        # TensorFlow would take a millisecond to cut them.
        found = {name: values.numpy() for name, values in found.items()}
        length = found["input_mask"].sum()
        return [found[name][:, :length] for name in ("input_ids", "segment_ids")]

    packed({name: [""] for name in names})  # the first time takes longer

    def call(columns: dict) -> dict:
        asked = [columns[name] for name in names]
        if {len(column) for column in asked} != {1} or any(isinstance(column, (str, bytes)) for column in asked):
            return signature.call(columns)
        row = plain(*(next(iter(column)) for column in asked))
        answers = of_row(*(packed(columns) if row is None else row))
        return {name: answers[name] for name in signature.outputs}  # in their order

    return signature._replace(call=call)


def tensor_of(spec: tf.TensorSpec) -> Tensor:
    dtype = np.dtype(object) if spec.dtype == tf.string else np.dtype(spec.dtype.as_numpy_dtype)
    return Tensor(dtype, tuple(spec.shape.as_list()))


def tf_type(tensor: Tensor) -> tf.DType:
    return tf.string if tensor.dtype.kind == "O" else tf.as_dtype(tensor.dtype)


def read_json(path: Path) -> dict:
    return json.loads(path.read_bytes()) if path.exists() else {}


def read_lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []


def signature_defs(folder: Path) -> dict:
    """The SignatureDef of each signature in JSON, as the file of the graph has them."""
    content = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())
    [graph] = content.meta_graphs
    how = {"preserving_proto_field_name": True, "always_print_fields_with_no_presence": True}
    return {name: json_format.MessageToDict(signature, **how) for name, signature in graph.signature_def.items()}


def metadata(version: Version) -> dict:
    """What TensorFlow Serving says of a model: its signatures, as GetModelMetadataResponse has them."""
    spec = {"name": version.name, "signature_name": "", "version": str(version.number)}
    return {"model_spec": spec, "metadata": {"signature_def": {"signature_def": version.signature_defs}}}
