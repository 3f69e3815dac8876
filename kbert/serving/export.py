"""SavedModels that answer raw text, in the folders that TensorFlow Serving reads."""

import os
import shutil
import tempfile
from pathlib import Path

import keras
import tensorflow as tf

from kbert.serving.passages import ChooseEnding, FindAnswer, TagWords
from kbert.serving.questions import Classify, Embed, FillBlanks, NextSentence, Regress


def export(model: keras.Model, tokenizer, directory: str | os.PathLike, **options) -> str:
    """Writes the next version of a SavedModel, `directory`/<number>, whole or not at all, and returns its path.

    What it answers is what the model's head is for (questions.py, passages.py); `options` are those of the class that
    answers: `k` of FillBlanks, `threshold` and more of FindAnswer. Raises ValueError for a model without a head;
    BertFeatures(model.bert) is one for its vectors.
    """
    directory = Path(directory)
    functions = {}
    for question in questions(model, tokenizer, **options):
        functions |= {name: f.get_concrete_function() for name, f in question.signatures().items()}
    root = tf.Module()
    # The weights the graphs read and no more: no optimizer, no metrics, no dropout state.
    root.weights = list({id(v): v for function in functions.values() for v in function.variables}.values())

    directory.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=directory))
    try:
        tf.saved_model.save(root, unfinished, signatures=functions)
        unfinished.chmod(0o755)  # a server may run as another user, whom mkdtemp shuts out
        path = directory / str(next_version(directory))
        unfinished.rename(path)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return str(path)


def next_version(directory: str | os.PathLike) -> int:
    """One more than the highest number among the names in the directory; 1 in an empty one."""
    return 1 + max((int(entry.name) for entry in Path(directory).iterdir() if entry.name.isdecimal()), default=0)


def questions(model, tokenizer, **options) -> list:
    """What a model can be asked; raises ValueError for one that knows nothing of the kind."""
    given = {"model": model, "tokenizer": tokenizer, **options}
    match type(model).__name__:
        case "BertPretrainer" if "masked_lm_loss" in model.loss_names:
            pairs = [NextSentence(model, tokenizer)] if "next_sentence_loss" in model.loss_names else []
            return [FillBlanks(**given), *pairs]
        case "BertClassifier":
            return [Classify(**given, labels=getattr(model, "labels", None))]
        case "BertRegressor":
            return [Regress(**given)]
        case "BertSpanPredictor":
            return [FindAnswer(**given)]
        case "BertTagger" | "BertLSTMTagger":
            return [TagWords(**given, labels=getattr(model, "labels", None))]
        case "BertMultipleChoice":
            return [ChooseEnding(**given)]
        case "BertFeatures":
            return [Embed(**given)]
    kind = type(model).__name__
    raise ValueError(f"model is a {kind} without a head that is asked, expected one of kbert's, or a BertFeatures")
