"""A model as its task and its weights by name: what every format stores, and what it says of what does not fit."""

import hashlib
from collections.abc import Callable, Mapping

import keras
import numpy as np

from kbert.config import BertConfig
from kbert.model import fine_tuning
from kbert.model.bert import Bert
from kbert.model.features import BertLSTMTagger
from kbert.model.pretraining import BertPretrainer

HEADS = {**fine_tuning.HEADS, BertLSTMTagger.__name__: BertLSTMTagger}


def task_of(model: keras.Model) -> dict:
    """What a model is beside its config: the class and its arguments. Raises ValueError for a model of another kind."""
    if isinstance(model, BertPretrainer):
        return {"model": "BertPretrainer", **model.arguments}
    if type(model) in HEADS.values():
        return {"model": type(model).__name__, **model.arguments}
    raise ValueError(f"the model is a {type(model).__name__}, expected one of {', '.join(['BertPretrainer', *HEADS])}")


def new_model(config: BertConfig, task: dict, source) -> keras.Model:
    """The model of a task, with random weights; raises ValueError naming the source of a task that none has."""
    arguments = {name: value for name, value in task.items() if name != "model"}
    try:
        if task.get("model") == "BertPretrainer":
            return BertPretrainer(config, **arguments)
        return HEADS[task.get("model")](Bert(config), **arguments)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None
    except (KeyError, TypeError) as error:
        expected = f"a model of {', '.join(['BertPretrainer', *HEADS])} and its arguments"
        raise ValueError(f"{source}: {task} is no task ({error}); expected {expected}") from None


def named_weights(model: keras.Model) -> dict:
    """The weights by names that say where they are, the same whatever the Bert was part of before."""
    of_bert = {id(weight) for weight in model.bert.weights}
    names = {}
    for weight in model.weights:
        part = model.bert.name if id(weight) in of_bert else model.name
        rest = f"/{weight.path}".partition(f"/{part}/")[2]
        names[f"bert/{rest}" if id(weight) in of_bert else rest] = weight
    return names


def renamed(name: str, parts: dict[str, str]) -> str:
    """A name with the first of `parts` that it contains replaced by what stands there in another format."""
    ours = next((part for part in parts if part in name), None)
    return name.replace(ours, parts[ours]) if ours else name


def without_heads(model: keras.Model) -> BertPretrainer:
    """The Bert of a model, copied into a model of its own."""
    alone = BertPretrainer(model.config, masked_lm=False, next_sentence=False)
    take_over(alone, model)
    return alone


def take_over(model: keras.Model, start: keras.Model, part: str = "") -> list[str]:
    """Puts a model's weights into those of the same names of another; the names of the weights that are left new.

    part: what the names begin with; "bert/" leaves heads as they are. Raises ValueError for a weight of another shape.
    """
    given = {name: weight for name, weight in named_weights(start).items() if name.startswith(part)}
    left = []
    for name, weight in named_weights(model).items():
        if name not in given:
            left.append(name)
        elif given[name].shape != weight.shape:
            shapes = [tuple(one.shape) for one in (given[name], weight)]
            raise ValueError(f"{name} has the shape {shapes[0]}, expected {shapes[1]}")
        else:
            weight.assign(given[name])
    return left


def values_of(model: keras.Model, name_of: Callable = str, is_transposed: Callable = lambda name: False) -> dict:
    """The weights as arrays by a format's names: `name_of` gives them, `is_transposed` says which are stored so."""
    arrays = {name: keras.ops.convert_to_numpy(weight) for name, weight in named_weights(model).items()}
    return {name_of(name): array.T if is_transposed(name) else array for name, array in arrays.items()}


def digest(model: keras.Model) -> str:
    """A hash of a model's configuration, task and weights: the same in whatever format it came."""
    result = hashlib.sha256(repr([sorted(model.config.to_dict().items()), sorted(task_of(model).items())]).encode())
    for name, value in sorted(values_of(model).items()):
        result.update(name.encode())
        result.update(np.ascontiguousarray(value))
    return result.hexdigest()


def assign(
    model: keras.Model,
    values: Mapping[str, np.ndarray],
    path,
    name_of: Callable = str,
    is_transposed: Callable = lambda name: False,
) -> None:
    """Puts arrays by a format's names into a model; the model is left as it was unless every one fits.

    Raises ValueError with all names that are missing or no weight of the model, or the first with another shape.
    """
    weights = {name_of(name): (weight, is_transposed(name)) for name, weight in named_weights(model).items()}
    faults = {"missing": weights.keys() - values.keys(), "no weight of this model": values.keys() - weights.keys()}
    told = [
        f"{', '.join(sorted(names))} {'is' if len(names) == 1 else 'are'} {f}" for f, names in faults.items() if names
    ]
    if told:
        raise ValueError(f"{path}: {'; '.join(told)}; expected the weights that the configuration beside it describes")
    arrays = {name: values[name].T if transposed else values[name] for name, (_, transposed) in weights.items()}
    for name, (weight, transposed) in weights.items():
        if arrays[name].shape != tuple(weight.shape):
            expected = tuple(weight.shape)[::-1] if transposed else tuple(weight.shape)
            raise ValueError(f"{path}: {name} has the shape {values[name].shape}, expected {expected}")
    for name, (weight, _) in weights.items():
        weight.assign(arrays[name])
