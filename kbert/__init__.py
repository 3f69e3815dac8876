"""kbert: raw text to a pre-trained BERT, to a task model, to a SavedModel that answers.

`import kbert` loads neither Keras nor TensorFlow; each public name loads its own module on first use.
It asks TensorFlow for oneDNN on every x86 CPU (`kbert.environment`), which counts if it is imported first.
"""

import os
from importlib import import_module

from kbert import environment as _environment  # noqa: F401, which has to come before TensorFlow

_MODULES = {
    "BertConfig": "kbert.config",
    "WordPiece": "kbert.text.wordpiece",
    "pretraining_dataset": "kbert.text.pretraining_data",
    "Bert": "kbert.model.bert",
    "BertPretrainer": "kbert.model.pretraining",
    "BertClassifier": "kbert.model.fine_tuning",
    "BertRegressor": "kbert.model.fine_tuning",
    "BertTagger": "kbert.model.fine_tuning",
    "BertSpanPredictor": "kbert.model.fine_tuning",
    "BertMultipleChoice": "kbert.model.fine_tuning",
    "BertFeatures": "kbert.model.features",
    "save": "kbert.model_directory",
    "load": "kbert.model_directory",
    "export": "kbert.serving.export",
}
__all__ = sorted(_MODULES)

if os.environ.get("TF_USE_LEGACY_KERAS", "0").lower() not in ("", "0", "false"):
    raise ImportError("TF_USE_LEGACY_KERAS asks for Keras 2 and kbert needs Keras 3: unset TF_USE_LEGACY_KERAS")


def __getattr__(name: str):
    if name not in _MODULES:
        raise AttributeError(f"module 'kbert' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
