"""SavedModels that answer raw text, in the folders that TensorFlow Serving reads."""

import contextlib
import errno
import json
import os
import re
import shutil
import tempfile
from pathlib import Path

import keras
import tensorflow as tf

from kbert.model.kernels import weights_final
from kbert.serving import warm_up
from kbert.serving.folders import names_in, next_version
from kbert.serving.litert import FILE as LITERT_FILE
from kbert.serving.litert import PLAIN_FILE, as_litert, write_with_digest
from kbert.serving.passages import ChooseEnding, FindAnswer, TagWords
from kbert.serving.questions import Attention, Classify, Embed, FillBlanks, NextSentence, OfText, Regress

# Ops that call a function of the Python process they were made in: no server can.
PYTHON_OPS = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}


def export(model: keras.Model, tokenizer, directory: str | os.PathLike, litert: bool = False, **options) -> str:
    """Writes the next version of a SavedModel, `directory`/<number>, whole or not at all, and returns its path.

    What it answers is what the model's head is for (questions.py, passages.py); `options` are those of the class that
    answers: `k` of FillBlanks, `threshold` and more of FindAnswer. `litert` writes the weights once more, as LiteRT has
    them, by which kbert's server answers one text at a time, and the pieces of a WordPiece (plain.py). Raises
    ValueError for a model without a head (BertFeatures(model.bert) is one for its vectors), for a model or tokenizer
    that calls Python, and for `litert` with what answers no single texts or pairs, or in half precision.
    """
    directory = Path(directory)
    asked, functions = questions(model, tokenizer, **options), {}
    plain = None
    if litert:
        check_litert(asked[0])
        plain = asked[0].plain_row()
    root, of_row = tf.Module(), None
    with weights_final(model.bert), without_cudnn(model):
        for question in asked:
            functions |= {name: f.get_concrete_function() for name, f in question.signatures().items()}
        if litert:
            of_row = as_litert(asked[0].answer, model.bert)
            root.packers = {name: f.get_concrete_function() for name, f in asked[0].packers().items()}
        # The weights the graphs read and no more: no optimizer, no metrics, no dropout state.
        root.weights = list({id(v): v for function in functions.values() for v in function.variables}.values())
    for name, function in functions.items():
        if found := PYTHON_OPS & {node.op for node in nodes_of(function.graph.as_graph_def())}:
            raise ValueError(f"{name} calls Python ({', '.join(found)}), as no server can; expected TensorFlow's ops")

    directory.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=directory))
    try:
        tf.saved_model.save(root, unfinished, signatures=functions)
        write_extra(unfinished, model, asked, functions)
        if of_row is not None:
            write_with_digest(unfinished / LITERT_FILE, of_row)
        if plain is not None:
            write_with_digest(unfinished / PLAIN_FILE, plain.as_json())
        unfinished.chmod(0o755)  # a server may run as another user, whom mkdtemp shuts out
        return str(as_next_version(unfinished, directory))
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def check_litert(question) -> None:
    """Raises ValueError for a question on other than texts and pairs, and for products in half precision."""
    if not isinstance(question, OfText):
        kind = type(question.model).__name__
        expected = "a BertClassifier, a BertRegressor or a BertFeatures (--vectors.unit)"
        raise ValueError(f"--litert: the model is a {kind}, expected {expected}")
    if question.model.bert.compute_dtype != "float32":
        raise ValueError(f"--litert: the model computes in {question.model.bert.compute_dtype}, expected float32")


def check_name(name: str) -> None:
    """Raises ValueError for what no served model can be called."""
    if not re.fullmatch(r"[\w-][\w.-]*", name):
        raise ValueError(f"--name is {name!r}, expected letters, digits, '_', '-' and '.', no folders")


@contextlib.contextmanager
def without_cudnn(model):
    """Within it LSTMs are plain operations: on a machine with a GPU Keras puts cuDNN's in graphs, which no CPU runs."""
    lstms = [lstm for both in getattr(model, "lstms", ()) for lstm in (both.forward_layer, both.backward_layer)]
    former = [lstm.use_cudnn for lstm in lstms]
    try:
        for lstm in lstms:
            lstm.use_cudnn = False
        yield
    finally:
        for lstm, use in zip(lstms, former, strict=True):
            lstm.use_cudnn = use


def as_next_version(folder: Path, directory: Path) -> Path:
    """Gives a folder the next number; where another export takes that at the same time, the one after it."""
    while True:
        path = directory / str(next_version(directory))
        try:
            return folder.rename(path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise


def nodes_of(graph) -> list:
    """The nodes of a GraphDef and of the functions in it."""
    return [*graph.node, *(node for function in graph.library.function for node in function.node_def)]


def write_extra(folder: Path, model, asked: list, functions: dict) -> None:
    """What a server or a reader may want beside the graph: assets.extra is what TensorFlow Serving leaves alone.

    bert_config.json, labels.txt, padding.json (what fills rows up, by signature and output), and warm-up requests
    where tensorflow-serving-api is installed.
    """
    extra = folder / "assets.extra"
    extra.mkdir()
    model.config.to_json(extra / "bert_config.json")
    if labels := getattr(model, "labels", None):
        (extra / "labels.txt").write_text("".join(f"{label}\n" for label in labels), encoding="utf-8")
    padding = {name: filled for question in asked for name, filled in getattr(question, "padding", {}).items()}
    (extra / "padding.json").write_text(json.dumps(padding, indent=1) + "\n")
    if warm_up.is_possible():
        warm_up.write(folder, functions)


def models_config(folder: str | os.PathLike) -> str:
    """TensorFlow Serving's models.config for all models of a folder, which it finds as /models."""
    names = [name for name in names_in(Path(folder)) if next_version(Path(folder) / name) > 1]
    configs = [f'  config {{ name: "{n}" base_path: "/models/{n}" model_platform: "tensorflow" }}\n' for n in names]
    return f"model_config_list {{\n{''.join(configs)}}}\n"


def questions(model, tokenizer, **options) -> list:
    """What a model can be asked; raises ValueError for one that knows nothing of the kind."""
    return [*questions_of_head(model, tokenizer, **options), Attention(model, tokenizer)]


def questions_of_head(model, tokenizer, **options) -> list:
    given = {"model": model, "tokenizer": tokenizer, **options}
    match type(model).__name__:
        case "BertPretrainer" if "masked_lm_loss" in model.loss_names:
            pairs = [NextSentence(model, tokenizer)] if "next_sentence_loss" in model.loss_names else []
            return [FillBlanks(**given), *pairs]
        case "BertPretrainer" if "next_sentence_loss" in model.loss_names and not options:
            return [NextSentence(**given)]
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
    kind, what = type(model).__name__, f" for {', '.join(options)}" if options else ""
    raise ValueError(f"model is a {kind} without a head that is asked{what}, expected kbert's, or a BertFeatures")
