"""Who takes part in each kind of work, in a table; kbert first, with whom the others are compared."""

from collections.abc import Sequence
from typing import NamedTuple

from kbert.benchmark.rounds import System, first_with

OURS = "kbert"


class Participant(NamedTuple):
    """A script of systems/, the modules it needs, what its job has beside the others', its environment."""

    script: str
    modules: tuple[str, ...] = ()
    job: dict = {}
    environment: dict = {}


def on(backend: str) -> dict:
    return {"KERAS_BACKEND": backend}


ONNX = ("onnxruntime", "onnxscript", "torch")
TORCH = ("transformers", "torch")
STEP = {
    OURS: Participant("step_kbert", environment=on("tensorflow")),
    "keras-hub": Participant("step_keras_hub", ("keras_hub",), {"xla": False}),
    "keras-hub, XLA": Participant("step_keras_hub", ("keras_hub",), {"xla": True}),
    "transformers": Participant("step_transformers", TORCH, {"compiled": False}),
    "transformers, compiled": Participant("step_transformers", TORCH, {"compiled": True}),
    "limit": Participant("limit"),
}
STEP_ON_JAX = STEP | {
    OURS: Participant("step_kbert_jax", environment=on("jax")),
    "limit": Participant("limit_jax"),
}
INFERENCE = {
    OURS: Participant("inference_kbert", job={"xla": False}),
    "kbert, XLA": Participant("inference_kbert", job={"xla": True}),  # where all rows are of one length
    "kbert, LiteRT": Participant("inference_litert"),  # where there is one row
    "transformers": Participant("inference_transformers", TORCH),
    "ONNX Runtime": Participant("inference_onnxruntime", ONNX),
    "limit": Participant("limit"),
}
SERVING = {
    OURS: Participant("answers_kbert"),
    "kbert, LiteRT": Participant("answers_litert"),  # where there is one text
    "ONNX Runtime": Participant("answers_onnxruntime", ONNX),
    "limit": Participant("limit"),
}
DATA = {
    OURS: Participant("data_kbert"),
    "tensorflow-text, tokens alone": Participant("data_tensorflow_text"),
    "tokenizers, tokens alone": Participant("data_tokenizers", ("tokenizers",)),
}
FINE_TUNING = {
    OURS: Participant("fine_tuning_kbert"),
    "transformers": Participant("fine_tuning_transformers", TORCH),
    "limit": Participant("limit"),
}
ANSWERING = FINE_TUNING | {"transformers": Participant("questions_transformers", TORCH)}


def those(known: dict[str, Participant], without: Sequence[str]) -> dict[str, Participant]:
    """All but some; raises ValueError for a name that is not there, and for kbert's."""
    others = [name for name in known if name != OURS]
    for name in without:
        if name not in others:
            raise ValueError(f"--turns.without {name}: expected names of {'; '.join(others)}")
    return {name: one for name, one in known.items() if name not in without}


def systems(known: dict[str, Participant], job: dict, interpreters: Sequence[str]) -> list[System]:
    """Each in the first interpreter that has its modules, in this one where none has, with the job of all."""
    return [
        System(name, one.script, job | one.job, first_with(one.modules, interpreters), one.environment)
        for name, one in known.items()
    ]
