"""What the fine-tuning recipes share: which layers learn and how the weights move, as flags; a new head on a start."""

import itertools
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from kbert import lanes
from kbert.devices import DeviceRule
from kbert.devices import start as start_devices


@dataclass(frozen=True)
class LayerRule:
    """Which layers learn, and how much.

    Args:
        frozen: keep the embeddings and so many of the first layers as they are.
        reinitialized: draw so many of the last layers, and the pooler, anew.
        decay: each layer's learning rate as a share of that of the layer above it.
        dropout: before the output layer; by default as everywhere in the model, and none for spans.
    """

    frozen: int = 0
    reinitialized: int = 0
    decay: float = 1.0
    dropout: float | None = None


@dataclass(frozen=True)
class OptimizerRule:
    """How the weights move.

    Args:
        warmup: share of the steps.
        weight_decay: decoupled, not on biases and LayerNorm.
        clip_norm: limit of the gradients' global norm.
        bias_correction: correct Adam's moments for their start at zero; the release does not, and small sets then fail.
        xla: compile forward and backward with XLA: faster steps on a GPU, but a minute more at the start of each run.
        accumulation: parts that each batch is taken in, one after the other, where memory is short.
    """

    warmup: float = 0.1
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    bias_correction: bool = True
    xla: bool = False
    accumulation: int = 1

    def of_adam(self, layers: LayerRule) -> dict:
        """What BertAdam is made of beside its learning rate."""
        given = {name: getattr(self, name) for name in ("weight_decay", "clip_norm", "bias_correction")}
        return given | {"layer_decay": layers.decay}


def check_rules(layers: LayerRule, optimizer: OptimizerRule, seed: int, restarts: int) -> None:
    """Raises ValueError for a rule that no run can follow."""
    if restarts < 1:
        raise ValueError(f"--restarts {restarts}: expected at least 1")
    check_numbers(optimizer, seed)
    if seed + restarts > 2**32:
        raise ValueError(f"--seed {seed} and --restarts {restarts}: expected seeds up to {2**32 - 1}")
    if not 0 <= optimizer.warmup <= 1:
        raise ValueError(f"--optimizer.warmup {optimizer.warmup}: expected a share from 0 to 1")
    if not 0 < layers.decay <= 1:
        raise ValueError(f"--layers.decay {layers.decay}: expected a share above 0, up to 1")


def alike(optimizer, devices: DeviceRule) -> dict:
    """What all processes of a run do alike beside its settings, and may do otherwise when they go on with it."""
    return {"accumulation": optimizer.accumulation, "recompute": devices.recompute}


def check_numbers(optimizer, seed: int) -> None:
    """Raises ValueError for what no optimizer can do, and no seed be; the rule of a fine-tuning or of pre-training."""
    if not 0 <= seed < 2**32:
        raise ValueError(f"--seed {seed}: expected 0 to {2**32 - 1}")
    if not 0 < optimizer.clip_norm < float("inf"):
        raise ValueError(f"--optimizer.clip-norm {optimizer.clip_norm}: expected a number above 0")
    if not 0 <= optimizer.weight_decay < float("inf"):
        raise ValueError(f"--optimizer.weight-decay {optimizer.weight_decay}: expected a number, 0 or more")
    if optimizer.accumulation < 1:
        raise ValueError(f"--optimizer.accumulation {optimizer.accumulation}: expected at least 1")


def start_runs(
    strategy: str, devices: DeviceRule, optimizer: OptimizerRule, tokens: int, learning_rates, batch_sizes, epochs
):
    """Prepares TensorFlow for runs of this grid before it computes anything; returns their tf.distribute.Strategy.

    tokens: of an example, at most. Raises ValueError for numbers that no run can be made of, and as devices.start does.
    """
    for name, values in (("learning-rates", learning_rates), ("batch-sizes", batch_sizes), ("epochs", epochs)):
        if not values or not all(0 < value < float("inf") for value in values) or len(set(values)) < len(values):
            raise ValueError(f"--{name} {' '.join(map(str, values))}: expected different numbers above 0")
    in_lanes = min(lanes.count(size // optimizer.accumulation, tokens, devices.recompute) for size in batch_sizes)
    replicas = start_devices(strategy, devices, os.environ.get("TF_CONFIG"), in_lanes)
    parts = replicas.num_replicas_in_sync * optimizer.accumulation
    for size in batch_sizes:
        if size % parts:
            raise ValueError(f"--batch-sizes {size}: replicas x accumulation, {parts}, does not divide it")
    return replicas


def check_rows(batch_sizes, encoded) -> None:
    """Raises ValueError for a batch that is larger than the training set, in rows: a long text may have several."""
    if max(batch_sizes) > len(encoded.lengths):
        raise ValueError(f"--batch-sizes {max(batch_sizes)}: there are {len(encoded.lengths)} training examples")


def check_length(sequence_length: int, start) -> None:
    """Raises ValueError for a length that the start, a model, has no positions for."""
    limit = start.config.max_position_embeddings
    if not 8 <= sequence_length <= limit:
        raise ValueError(f"sequence_length {sequence_length}; expected 8 to {limit}, the model's positions")


def tell_untrained(start, sequence_length: int) -> None:
    """Prints that a model was trained on shorter sequences, if it was."""
    from kbert import report

    if sequence_length > start.config.trained_length:
        told = (
            f"the model was trained on sequences of up to {start.config.trained_length} tokens, not {sequence_length}"
        )
        report.CONSOLE.print(f"{told}: its position vectors beyond that may be random", highlight=False, soft_wrap=True)


def start_of(
    model: str,
    lower_case: bool | None,
    sequence_length: int,
    head: Callable,
    layers: LayerRule,
    optimizer: OptimizerRule,
    devices: DeviceRule,
) -> tuple:
    """The tokenizer of a start, a function that makes the model of a run, and a run's settings: the start, the rules.

    The model is head(Bert, dropout=...) with the start's weights. A head that reads the pooled output gets a new pooler
    where the start has none, and that is printed; so is that the start was trained on shorter sequences. Raises
    ValueError for a length, layers and a dropout that the model cannot have.
    """
    from kbert import report
    from kbert.model.bert import Bert
    from kbert.model.fine_tuning import freeze, reinitialize
    from kbert.model_directory import load
    from kbert.weights.by_name import digest, take_over

    start, tokenizer = load(model, lower_case=lower_case)
    check_length(sequence_length, start)
    settings = {"start": digest(start), "vocabulary": tokenizer.digest, "precision": devices.precision}
    # What changes more than last bits and dropout's masks.
    settings |= {f"layers.{name}": value for name, value in asdict(layers).items()}
    settings |= {f"optimizer.{name}": value for name, value in asdict(optimizer).items() if name != "accumulation"}
    count = start.config.num_hidden_layers
    if min(layers.frozen, layers.reinitialized) < 0 or layers.frozen + layers.reinitialized > count:
        told = f"{layers.frozen} layers frozen and {layers.reinitialized} drawn anew"
        raise ValueError(f"{told}: expected at most the model's {count} together")
    config = replace(start.config, sequence_length=sequence_length)
    tell_untrained(start, sequence_length)
    options = {} if layers.dropout is None else {"dropout": layers.dropout}

    def new_model(config):
        model = head(Bert(config), **options)
        take_over(model, start, "bert/")
        reinitialize(model.bert, layers.reinitialized)
        freeze(model.bert, layers.frozen)
        model.bert.recompute = devices.recompute
        return model

    first = new_model(replace(config, pooler=True))  # refuses what the layers and the dropout cannot be
    if first.reads_pooled_output and not config.pooler:
        config = replace(config, pooler=True)
        report.CONSOLE.print("new, as the start has none: bert/pooler", highlight=False)
    return tokenizer, lambda: new_model(config), settings


def new_search(output: str, encoded, layers: LayerRule, optimizer: OptimizerRule, **given):
    """A Search on encoded training examples; given: settings, new_model, score, save, best_by, strategy."""
    from kbert.tasks.batches import COMPILED_MULTIPLE, MULTIPLE, training_batches
    from kbert.training.search import Search

    multiple = COMPILED_MULTIPLE if optimizer.xla else MULTIPLE

    def batches(trial, seed, begin):
        return training_batches(encoded, trial.batch_size, trial.epochs, seed, begin, multiple)

    given |= {"optimizer": optimizer.of_adam(layers), "warmup": optimizer.warmup, "xla": optimizer.xla}
    given |= {"accumulation": optimizer.accumulation, "seed": given["settings"]["seed"]}
    return Search(output=Path(output), batches=batches, **given)


def search_all(search, learning_rates, batch_sizes, epochs, restarts: int) -> dict:
    """Runs what is not run yet and prints the settings side by side; the best run's numbers and its name as `run`."""
    from kbert import report
    from kbert.training.search import Trial, summary

    grid = itertools.product(learning_rates, batch_sizes, epochs, range(restarts))
    trials = [Trial(*values) for values in grid]
    results = search.results(trials, show=lambda line: report.CONSOLE.print(line, highlight=False, soft_wrap=True))
    columns = ("", "mean", "standard deviation", "best", "runs")
    report.table(f"{search.best_by} of each setting", summary(results, search.best_by), columns)
    return search.best()
