"""A model directory: a model and its tokenizer in files that can be read without kbert.

bert_config.json       the BertConfig
vocab.txt              the pieces by id
tokenizer_config.json  {"do_lower_case": true}
model.weights.h5       one HDF5 dataset per weight, no optimizer
task.json              only beside what is not a BertPretrainer with both heads: {"model": ..., its arguments}
labels.txt             only for a classifier whose `labels` are set: the classes' names by number, one a line
"""

import io
import json
from pathlib import Path

import h5py
import keras

from kbert.config import BertConfig
from kbert.model.bert import Bert
from kbert.model.fine_tuning import BertClassifier
from kbert.model.pretraining import BertPretrainer
from kbert.whole_file import write_whole

FILES = ("bert_config.json", "vocab.txt", "tokenizer_config.json", "model.weights.h5")


def save(model: keras.Model, tokenizer, directory) -> None:
    """Writes a model directory; each file is there whole or, if anything fails, as it was before.

    Raises ValueError if model and tokenizer do not have the same vocabulary size.
    """
    pieces, expected = tokenizer.vocab_size, model.config.vocab_size
    if pieces != expected:
        raise ValueError(f"the tokenizer has {pieces} pieces, expected {expected}, the model's vocab_size")
    task = task_of(model)
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    model.config.to_json(directory / "bert_config.json")
    write(directory / "vocab.txt", lines(tokenizer.vocabulary))
    write(directory / "tokenizer_config.json", to_json({"do_lower_case": tokenizer.lower_case}))
    write(directory / "task.json", to_json(task) if task else None)
    labels = getattr(model, "labels", None)
    write(directory / "labels.txt", lines(labels) if labels else None)
    write(directory / "model.weights.h5", weights_file(model))


def load(directory) -> tuple:
    """The model and the tokenizer of a model directory.

    Raises FileNotFoundError or ValueError naming the file if one is missing, damaged, or does not fit the others.
    """
    from kbert.text.wordpiece import WordPiece  # TensorFlow, which load_model does without

    directory = checked(directory)
    config = BertConfig.from_json(directory / "bert_config.json")
    lower_case = read_json(directory / "tokenizer_config.json").get("do_lower_case")
    if not isinstance(lower_case, bool):
        raise ValueError(
            f"{directory / 'tokenizer_config.json'}: do_lower_case is {lower_case!r}, expected true or false"
        )
    tokenizer = WordPiece(directory / "vocab.txt", lower_case=lower_case)
    if tokenizer.vocab_size != config.vocab_size:
        raise ValueError(
            f"{directory / 'vocab.txt'} has {tokenizer.vocab_size} pieces, expected the {config.vocab_size} of "
            f"vocab_size in {directory / 'bert_config.json'}"
        )
    return load_model(directory), tokenizer


def load_model(directory) -> keras.Model:
    """The model of a model directory, on any Keras backend; raises as `load` does."""
    directory = checked(directory)
    config = BertConfig.from_json(directory / "bert_config.json")
    task = read_json(directory / "task.json") if (directory / "task.json").exists() else {"model": "BertPretrainer"}
    model = new_model(config, task, directory / "task.json")
    read_weights(model, directory / "model.weights.h5")
    if (directory / "labels.txt").exists():
        model.labels = (directory / "labels.txt").read_text(encoding="utf-8").split("\n")[:-1]
        if len(model.labels) != task.get("num_labels"):
            raise ValueError(
                f"{directory / 'labels.txt'} has {len(model.labels)} lines, expected the {task.get('num_labels')} of "
                f"num_labels in {directory / 'task.json'}"
            )
    return model


def task_of(model) -> dict | None:
    """What task.json says of a model; None for the usual pre-trained one."""
    if isinstance(model, BertClassifier):
        return {"model": "BertClassifier", "num_labels": model.num_labels}
    if isinstance(model, BertPretrainer):
        return None if model.next_sentence else {"model": "BertPretrainer", "next_sentence": False}
    raise ValueError(f"the model is a {type(model).__name__}, expected a BertPretrainer or BertClassifier")


def new_model(config: BertConfig, task: dict, path) -> keras.Model:
    match task:
        case {"model": "BertPretrainer"}:
            return BertPretrainer(config, next_sentence=task.get("next_sentence", True))
        case {"model": "BertClassifier", "num_labels": int(num_labels)}:
            return BertClassifier(Bert(config), num_labels=num_labels)
    raise ValueError(f"{path} says {task}, expected BertPretrainer, or BertClassifier and its num_labels, as the model")


def named_weights(model) -> dict:
    """The weights by names that say where they are, the same whatever the Bert was part of before."""
    of_bert = {id(weight) for weight in model.bert.weights}
    names = {}
    for weight in model.weights:
        part = model.bert.name if id(weight) in of_bert else model.name
        rest = f"/{weight.path}".partition(f"/{part}/")[2]
        names[f"bert/{rest}" if id(weight) in of_bert else rest] = weight
    return names


def weights_file(model) -> bytes:
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        for name, weight in named_weights(model).items():
            file[name] = weight.numpy()
    return content.getvalue()


def read_weights(model, path) -> None:
    """Puts a weights file into a model; raises ValueError naming the weight that is missing, too much, or misshapen."""
    weights, found = named_weights(model), {}
    try:
        with h5py.File(path) as file:
            file.visititems(
                lambda name, item: found.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None
            )
    except (OSError, RuntimeError) as error:
        raise ValueError(f"{path} is damaged or no HDF5 file ({error})") from None
    for name in sorted(found.keys() ^ weights.keys()):
        fault = "no weight of this model" if name in found else "missing"
        raise ValueError(f"{path}: {name} is {fault}; expected the weights of the model in bert_config.json")
    for name, weight in weights.items():
        if found[name].shape != tuple(weight.shape):
            raise ValueError(f"{path}: {name} has the shape {found[name].shape}, expected {tuple(weight.shape)}")
        weight.assign(found[name])


def checked(directory) -> Path:
    directory = Path(directory)
    if not directory.is_dir():
        raise FileNotFoundError(f"{directory} is no folder, expected a model directory with {', '.join(FILES)}")
    for name in FILES:
        if not (directory / name).exists():
            raise FileNotFoundError(
                f"{directory / name} is missing, expected a model directory with {', '.join(FILES)}"
            )
    return directory


def read_json(path) -> dict:
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}: {error}, expected JSON") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: the JSON is a {type(content).__name__}, expected an object")
    return content


def to_json(content: dict) -> bytes:
    return json.dumps(content, indent=2).encode() + b"\n"


def lines(texts) -> bytes:
    return "".join(f"{text}\n" for text in texts).encode()


def write(path, content: bytes | None) -> None:
    """Writes a file, or removes it if there is nothing to write."""
    if content is None:
        path.unlink(missing_ok=True)
    else:
        write_whole(path, content)
