"""Fine-tunes a BERT on a GLUE task or on a table of one's own, with the paper's search (sections 4.1 and A.3).

python recipes/fine_tune_glue.py --model runs/books --task mrpc --data glue/MRPC --output runs/mrpc
"""

import hashlib
import itertools
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from kbert.command_line import run as start


@dataclass(frozen=True)
class ReadingRule:
    """How files and vocabulary are read.

    Args:
        kind: of one's own label: one of several classes, any number of labels (parted by commas), or a number.
        lower_case: whether the vocabulary is an uncased one, where the model does not say.
    """

    kind: Literal["class", "labels", "number"] | None = None
    lower_case: bool | None = None


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
    text_a: str | None = None,
    text_b: str | None = None,
    label: str | None = None,
    learning_rates: tuple[float, ...] = (5e-5, 4e-5, 3e-5, 2e-5),
    batch_sizes: tuple[int, ...] = (32,),
    epochs: tuple[int, ...] = (3,),
    restarts: int = 1,
    sequence_length: int = 128,
    seed: int = 1,
    reading: ReadingRule = ReadingRule(),
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
        text_a: name of the column of the text; by default text.
        text_b: name of the column of the second text, where there are pairs.
        label: name of the column of the label; by default label.
        learning_rates: peaks to try.
        batch_sizes: to try.
        epochs: numbers of passes to try.
        restarts: runs of each setting, which differ in data order, output layer and dropout.
        sequence_length: tokens per text or pair; longer ones are cut at the back, and counted.
        seed: of the first restart.
        reading: how files and vocabulary are read.
        layers: which layers learn, and how much.
        optimizer: how the weights move.
    """
    own = {"train": train, "dev": dev, "test": test, "text-a": text_a, "text-b": text_b, "label": label}
    problem = read_problem(task, data, own | {"reading.kind": reading.kind})
    check_flags(learning_rates, batch_sizes, epochs, restarts, len(problem.train))
    check_rules(layers, optimizer, seed, problem.kind)
    # Not at the top, so that --help answers at once.
    import kbert
    from kbert import report
    from kbert.tasks.batches import logits_of
    from kbert.training.checkpointing import check_settings
    from kbert.training.search import Search, Trial, summary
    from kbert.weights.by_name import digest

    # Read: everything that can be refused is looked at before long work begins.
    first, tokenizer = kbert.load(model, lower_case=reading.lower_case)
    check_length(sequence_length, first.config.max_position_embeddings)
    new_model = new_model_of(first, problem, layers)
    new_model()  # refuses what the layers and the dropout cannot be
    encoded = encode_all(problem, tokenizer, sequence_length)
    settings = {"start": digest(first), "vocabulary": tokenizer.digest, "examples": digest_of(problem.labelled)}
    settings |= {"labels": problem.labels, "metrics": problem.metrics, "kind": problem.kind}
    settings |= {"sequence_length": sequence_length, "seed": seed}
    settings |= {f"layers.{name}": value for name, value in asdict(layers).items()}
    settings |= {f"optimizer.{name}": value for name, value in asdict(optimizer).items()}
    check_settings(output, settings)
    report.table("Fine-tuning", facts_of(problem, encoded))

    # Build, compile, fit and evaluate each run; the best on dev is saved as it is found.
    def score(trained):
        found = {name: problem.scores(of, logits_of(trained, encoded[name])) for name, of in problem.dev.items()}
        return {f"{name}_{metric}": value for name, of in found.items() for metric, value in of.items()}

    search = Search(
        output=Path(output),
        settings=settings,
        new_model=new_model,
        batches=batches_of(encoded["train"], optimizer.xla),
        score=score,
        save=lambda best: kbert.save(best, tokenizer, output),
        best_by=f"{next(iter(problem.dev))}_{problem.metrics[0]}",
        optimizer=adam_of(optimizer, layers),
        warmup=optimizer.warmup,
        seed=seed,
        xla=optimizer.xla,
    )
    grid = itertools.product(learning_rates, batch_sizes, epochs, range(restarts))
    results = search.results([Trial(*values) for values in grid])

    # Predict and tell.
    best = search.best()
    predict(problem, task, encoded, best, Path(output))
    columns = ("", "mean", "standard deviation", "best", "runs")
    report.table(f"{search.best_by} of each setting", summary(results, search.best_by), columns)
    report.finish(f"Best: {best.pop('run')}", output, best)


def check_flags(learning_rates, batch_sizes, epochs, restarts: int, examples: int) -> None:
    """Raises ValueError for numbers that no run can be made of."""
    for name, values in (("learning-rates", learning_rates), ("batch-sizes", batch_sizes), ("epochs", epochs)):
        if not values or min(values) <= 0 or len(set(values)) < len(values):
            raise ValueError(f"--{name} {' '.join(map(str, values))}: expected different numbers above 0")
    if restarts < 1:
        raise ValueError(f"--restarts {restarts}: expected at least 1")
    if max(batch_sizes) > examples:
        raise ValueError(f"--batch-sizes {max(batch_sizes)}: there are {examples} training examples")


def check_rules(layers: LayerRule, optimizer: OptimizerRule, seed: int, kind: str) -> None:
    """Raises ValueError for a rule that no run can follow."""
    if not 0 <= optimizer.warmup <= 1:
        raise ValueError(f"--optimizer.warmup {optimizer.warmup}: expected a share from 0 to 1")
    if not 0 < layers.decay <= 1:
        raise ValueError(f"--layers.decay {layers.decay}: expected a share above 0, up to 1")
    if seed < 0:
        raise ValueError(f"--seed {seed}: expected 0 or more")
    if layers.class_weights != "equal" and kind != "class":
        raise ValueError(f"--layers.class-weights {layers.class_weights}: expected kind class, not {kind}")


def read_problem(task: str | None, data: str | None, own: dict):
    """The examples of a task or of one's own files; raises ValueError for flags of the one that go with the other."""
    from kbert.tasks import classification
    from kbert.tasks.examples import Columns

    if (task is None) == (own["train"] is None):
        raise ValueError(f"--task {task} and --train {own['train']}: expected one of them")
    if task is not None:
        for name, value in own.items():
            if value is not None:
                raise ValueError(
                    f"--{name} {value}: the task {task} brings its own; expected --train instead of --task"
                )
        if data is None:
            raise ValueError(f"--data is missing: expected the folder of {task}")
        return classification.of_task(task, data)
    if data is not None:
        raise ValueError(f"--data {data}: that is for --task; expected --train, --dev and --test alone")
    if own["dev"] is None:
        raise ValueError("--dev is missing: expected a file to choose the best run by")
    columns = Columns(own["text-a"] or "text", own["text-b"], own["label"] or "label")
    return classification.of_files(own["train"], own["dev"], own["test"], columns, own["reading.kind"] or "class")


def check_length(sequence_length: int, limit: int) -> None:
    if not 8 <= sequence_length <= limit:
        raise ValueError(f"--sequence-length {sequence_length}: expected 8 to {limit}, the model's positions")


def encode_all(problem, tokenizer, sequence_length: int) -> dict:
    """The token ids of every set of examples, with the targets of those that have labels."""
    from kbert.tasks.batches import encode

    encoded = {
        name: encode(of, tokenizer, sequence_length, problem.targets(of)) for name, of in problem.labelled.items()
    }
    return encoded | {name: encode(of, tokenizer, sequence_length) for name, of in problem.test.items()}


def facts_of(problem, encoded: dict) -> dict:
    """What was read, and what of it is cut or left out."""
    facts = {f"{name}: examples": len(one.lengths) for name, one in encoded.items()}
    facts |= {f"{name}: longer than {one.max_length}, cut": one.truncated for name, one in encoded.items()}
    facts |= {"incomplete rows left out": len(problem.left_out)} if problem.left_out else {}
    return facts | {"labels": ", ".join(problem.labels) or "a number"}


def batches_of(train, xla: bool):
    """The batches of a run, from any one on."""
    from kbert.tasks.batches import COMPILED_MULTIPLE, MULTIPLE, training_batches

    multiple = COMPILED_MULTIPLE if xla else MULTIPLE
    return lambda trial, seed, begin: training_batches(train, trial.batch_size, trial.epochs, seed, begin, multiple)


def adam_of(optimizer: OptimizerRule, layers: LayerRule) -> dict:
    """What the rules say of BertAdam."""
    rule = asdict(optimizer)
    of_adam = {name: rule[name] for name in ("weight_decay", "clip_norm", "bias_correction")}
    return of_adam | {"layer_decay": layers.decay}


def digest_of(sets: dict) -> str:
    """A hash of examples by the names of their sets, wherever their files lie."""
    content = {name: [example[:3] for example in examples] for name, examples in sets.items()}
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def new_model_of(first, problem, layers: LayerRule):
    """A function that makes the model of a run: the start's weights and a new output layer."""
    from dataclasses import replace

    import kbert
    from kbert.model.fine_tuning import freeze, reinitialize
    from kbert.tasks.classification import balanced_weights
    from kbert.weights.by_name import take_over, without_heads

    layer_count = first.config.num_hidden_layers
    if layers.frozen + layers.reinitialized > layer_count:
        told = f"{layers.frozen} layers frozen and {layers.reinitialized} drawn anew"
        raise ValueError(f"{told}: expected at most the model's {layer_count} together")
    config, weights = replace(first.config, pooler=True), None
    if not first.config.pooler:
        print("new, as the start has none: bert/pooler")
    if layers.class_weights == "balanced":
        weights = balanced_weights(problem.targets(problem.train), len(problem.labels))
    encoder = without_heads(first)

    def new_model():
        bert = kbert.Bert(config)
        if problem.kind == "number":
            model = kbert.BertRegressor(bert, dropout=layers.dropout)
        else:
            options = {"multi_label": problem.kind == "labels", "class_weights": weights, "dropout": layers.dropout}
            model = kbert.BertClassifier(bert, len(problem.labels), **options)
            model.labels = problem.labels
        take_over(model, encoder)
        reinitialize(bert, layers.reinitialized)
        freeze(bert, layers.frozen)
        return model

    return new_model


def predict(problem, task: str | None, encoded: dict, best: dict, output: Path) -> None:
    """Writes the best model's answers, unless they are there already."""
    import kbert
    from kbert.tasks.batches import logits_of
    from kbert.tasks.classification import write_answers
    from kbert.training.search import to_json
    from kbert.whole_file import write_whole

    note = output / "predictions.json"
    made_of = {"best": best, "examples": digest_of({**problem.dev, **problem.test})}
    if not note.exists() or json.loads(note.read_bytes()) != made_of:
        trained, _ = kbert.load(output)
        logits = {name: logits_of(trained, encoded[name]) for name in [*problem.dev, *problem.test]}
        write_answers(problem, task, logits, output)
        write_whole(note, to_json(made_of))


if __name__ == "__main__":
    start(main)
