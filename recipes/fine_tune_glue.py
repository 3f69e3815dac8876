"""Fine-tunes a BERT on a GLUE task or on a table of one's own, with the paper's search (sections 4.1 and A.3).

python recipes/fine_tune_glue.py --model runs/books --task mrpc --data glue/MRPC --output runs/mrpc
"""

import hashlib
import itertools
import json
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from kbert.command_line import run as start


@dataclass(frozen=True)
class LayerRule:
    """Which layers learn, and how much.

    Args:
        frozen: keep the embeddings and so many of the first layers as they are.
        reinitialized: draw so many of the last layers, and the pooler, anew.
        decay: each layer's learning rate as a share of that of the layer above it.
        dropout: before the output layer; by default as everywhere in the model.
        class_weights: weigh each class by how rare it is.
    """

    frozen: int = 0
    reinitialized: int = 0
    decay: float = 1.0
    dropout: float | None = None
    class_weights: Literal["equal", "balanced"] = "equal"


@dataclass(frozen=True)
class OptimizerRule:
    """How the weights move.

    Args:
        warmup: share of the steps.
        weight_decay: decoupled, not on biases and LayerNorm.
        clip_norm: limit of the gradients' global norm.
        bias_correction: correct Adam's moments for their start at zero; the release does not, and small sets then fail.
        xla: compile with XLA: faster steps, but a minute more at the start of each run.
    """

    warmup: float = 0.1
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    bias_correction: bool = True
    xla: bool = False


def main(
    model: str,
    output: str,
    task: str | None = None,
    data: str | None = None,
    train: str | None = None,
    dev: str | None = None,
    test: str | None = None,
    text_a: str = "text",
    text_b: str | None = None,
    label: str = "label",
    kind: Literal["class", "labels", "number"] = "class",
    learning_rates: tuple[float, ...] = (5e-5, 4e-5, 3e-5, 2e-5),
    batch_sizes: tuple[int, ...] = (32,),
    epochs: tuple[int, ...] = (3,),
    restarts: int = 1,
    sequence_length: int = 128,
    lower_case: bool | None = None,
    seed: int = 1,
    layers: LayerRule = LayerRule(),
    optimizer: OptimizerRule = OptimizerRule(),
) -> None:
    """Fine-tunes a BERT on texts or pairs of texts: one run for each rate, batch size, number of epochs and restart.

    The best run on dev is the model in OUTPUT; predictions of the test files are beside it. The same command goes on
    where it stopped; finished runs are not done again.

    Args:
        model: a BERT to start from: a folder or a name, as convert_weights.py takes.
        output: folder of the search and of the best model.
        task: cola, sst-2, mrpc, sts-b, qqp, mnli, qnli, rte or wnli; or none, and --train and --dev.
        data: the task's folder, with train.tsv and dev.tsv as GLUE gives them.
        train: examples of one's own to learn from: .tsv (not quoted), .csv or .jsonl, with a header.
        dev: the same, to choose the best run by.
        test: the same without labels, to predict.
        text_a: name of the column of the text.
        text_b: name of the column of the second text, where there are pairs.
        label: name of the column of the label.
        kind: one of several classes, any number of labels (parted by commas), or a number.
        learning_rates: peaks to try.
        batch_sizes: to try.
        epochs: numbers of passes to try.
        restarts: runs of each setting, which differ in data order, output layer and dropout.
        sequence_length: tokens per text or pair; longer ones are cut at the back, and counted.
        lower_case: whether the vocabulary is an uncased one, where the model does not say.
        seed: of the first restart.
        layers: which layers learn, and how much.
        optimizer: how the weights move.
    """
    problem = read_problem(task, data, train, dev, (test, text_a, text_b, label, kind))
    check_flags(learning_rates, batch_sizes, epochs, restarts, len(problem.train))
    # Not at the top, so that --help answers at once.
    import kbert
    from kbert import report
    from kbert.tasks.batches import answers, encode, training_batches
    from kbert.training.checkpointing import check_settings
    from kbert.training.search import Search, Trial
    from kbert.weights.by_name import digest

    # Read: everything that can be refused is looked at before long work begins.
    first, tokenizer = kbert.load(model, lower_case=lower_case)
    if not 8 <= sequence_length <= first.config.max_position_embeddings:
        limit = first.config.max_position_embeddings
        raise ValueError(f"--sequence-length {sequence_length}: expected 8 to {limit}, the model's positions")
    new_model = new_model_of(first, problem, layers)
    new_model()
    sets = {"train": problem.train, **problem.dev}
    encoded = {name: encode(e, tokenizer, sequence_length, problem.targets(e)) for name, e in sets.items()}
    encoded |= {name: encode(e, tokenizer, sequence_length) for name, e in problem.test.items()}
    settings = {"start": digest(first), "vocabulary": tokenizer.digest, "examples": digest_of(problem)}
    settings |= {"sequence_length": sequence_length, "seed": seed}
    settings |= {f"layers.{name}": value for name, value in asdict(layers).items()}
    settings |= {f"optimizer.{name}": value for name, value in asdict(optimizer).items()}
    check_settings(output, settings)
    facts = {f"{name}: examples": len(one.lengths) for name, one in encoded.items()}
    facts |= {f"{name}: longer than {sequence_length}, cut": one.truncated for name, one in encoded.items()}
    report.table("Fine-tuning", facts | {"labels": ", ".join(problem.labels) or "a number"})

    # Build, compile, fit and evaluate each run; the best on dev is saved as it is found.
    def score(trained):
        found = {name: answers(trained, encoded[name], sequence_length)["logits"] for name in problem.dev}
        scores = {name: problem.scores(problem.dev[name], logits) for name, logits in found.items()}
        return {f"{name}_{metric}": value for name, of in scores.items() for metric, value in of.items()}

    search = Search(
        Path(output),
        settings,
        new_model,
        lambda trial, seed, begin: training_batches(
            encoded["train"], trial.batch_size, trial.epochs, seed, sequence_length, begin
        ),
        lambda trial: len(problem.train) // trial.batch_size * trial.epochs,
        score,
        lambda best: kbert.save(best, tokenizer, output),
        f"{next(iter(problem.dev))}_{problem.metrics[0]}",
        {
            "weight_decay": optimizer.weight_decay,
            "clip_norm": optimizer.clip_norm,
            "bias_correction": optimizer.bias_correction,
            "layer_decay": layers.decay,
        },
        optimizer.warmup,
        seed,
        optimizer.xla,
    )
    grid = itertools.product(learning_rates, batch_sizes, epochs, range(restarts))
    trials = [Trial(*values) for values in grid]
    new = not all(search.file(trial).exists() for trial in trials) or not (Path(output) / "metrics.json").exists()
    results = search.results(trials)

    # Predict and tell.
    if new:
        best, _ = kbert.load(output)
        names = [*problem.dev, *problem.test]
        logits = {name: answers(best, encoded[name], sequence_length)["logits"] for name in names}
        write_answers(problem, task, logits, Path(output))
    report.table(
        "Main score on dev", summary(results, search.best_by), ("", "mean", "standard deviation", "best", "runs")
    )
    report.finish("Best", output, search.best())


def check_flags(learning_rates, batch_sizes, epochs, restarts: int, examples: int) -> None:
    """Raises ValueError for numbers that no run can be made of."""
    for name, values in (("learning-rates", learning_rates), ("batch-sizes", batch_sizes), ("epochs", epochs)):
        if not values or min(values) <= 0 or len(set(values)) < len(values):
            raise ValueError(f"--{name} {' '.join(map(str, values))}: expected different numbers above 0")
    if restarts < 1:
        raise ValueError(f"--restarts {restarts}: expected at least 1")
    if max(batch_sizes) > examples:
        raise ValueError(f"--batch-sizes {max(batch_sizes)}: there are {examples} training examples")


def read_problem(task: str | None, data: str | None, train: str | None, dev: str | None, rest: tuple):
    """The examples of a task or of one's own files; raises ValueError unless one of both is asked for."""
    from kbert.tasks import classification

    if (task is None) == (train is None):
        raise ValueError(f"--task {task} and --train {train}: expected one of them")
    if task is None:
        if dev is None:
            raise ValueError("--dev is missing: expected a file to choose the best run by")
        return classification.of_files(train, dev, *rest)
    if data is None:
        raise ValueError(f"--data is missing: expected the folder of {task}")
    return classification.of_task(task, data)


def digest_of(problem) -> str:
    """A hash of what is learned and chosen by, wherever it lies."""
    content = [[example[:3] for example in examples] for examples in (problem.train, *problem.dev.values())]
    return hashlib.sha256(json.dumps([content, problem.labels, problem.kind]).encode()).hexdigest()


def new_model_of(first, problem, layers: LayerRule):
    """A function that makes the model of a run: the start's weights and a new output layer."""
    from dataclasses import replace

    import kbert
    from kbert.model.fine_tuning import freeze, reinitialize
    from kbert.tasks.classification import balanced_weights
    from kbert.weights.by_name import named_weights

    config = replace(first.config, pooler=True)
    weights = None
    if layers.class_weights == "balanced" and problem.kind != "number":
        weights = balanced_weights(problem.targets(problem.train), len(problem.labels))
    given = {name: weight.numpy() for name, weight in named_weights(first).items() if name.startswith("bert/")}

    def new_model():
        bert = kbert.Bert(config)
        if problem.kind == "number":
            model = kbert.BertRegressor(bert, dropout=layers.dropout)
        else:
            options = {"multi_label": problem.kind == "labels", "class_weights": weights, "dropout": layers.dropout}
            model = kbert.BertClassifier(bert, len(problem.labels), **options)
            model.labels = problem.labels
        for name, weight in named_weights(model).items():
            if name in given:
                weight.assign(given[name])
        reinitialize(bert, layers.reinitialized)
        freeze(bert, layers.frozen)
        return model

    return new_model


def write_answers(problem, task: str | None, logits: dict, output: Path) -> None:
    """Predictions of the test files, as GLUE's server takes them, and the confusion matrix of dev as a picture."""
    import tensorflow as tf

    from kbert.tasks import glue
    from kbert.tasks.pictures import confusion_matrix
    from kbert.whole_file import write_whole

    for name in problem.test:
        written = problem.written(logits[name])
        if task:
            content = glue.submission(glue.task_named(task), written)
        else:
            content = "".join(f"{line}\n" for line in ["prediction", *written])
        write_whole(output / f"{name}.tsv", content.encode())
        print(f"{output / name}.tsv: {len(written)} predictions")
    if problem.kind == "class":
        name = next(iter(problem.dev))
        truth = problem.targets(problem.dev[name])["label_ids"]
        pixels = confusion_matrix(truth, problem.answers(logits[name]), problem.labels)
        write_whole(output / "confusion_matrix.png", tf.io.encode_png(pixels).numpy())
        with tf.summary.create_file_writer(str(output / "logs" / "best")).as_default(0):
            tf.summary.image("dev/confusion matrix", pixels[None])


def summary(results: dict, best_by: str) -> dict:
    """Mean, standard deviation and best of each setting's restarts."""
    rows = {}
    for setting in dict.fromkeys(trial.setting for trial in results):
        values = [numbers[best_by] for trial, numbers in results.items() if trial.setting == setting]
        deviation = statistics.stdev(values) if len(values) > 1 else 0.0
        rows[setting] = (statistics.mean(values), deviation, max(values), len(values))
    return rows


if __name__ == "__main__":
    start(main)
