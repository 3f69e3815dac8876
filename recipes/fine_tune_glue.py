"""Fine-tunes a BERT on a GLUE task or on a table of one's own, with the paper's search (sections 4.1 and A.3).

python recipes/fine_tune_glue.py --model runs/books --task mrpc --data glue/MRPC --output runs/mrpc

From MiniLM's weights (6 layers of 384) MRPC at 5e-5, one seed, took six and a half minutes on two cores (no AVX-512):
F1 85.9, accuracy 78.7.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kbert.command_line import run as start
from kbert.devices import DeviceRule, Strategy
from kbert.fine_tuning import (
    LayerRule,
    OptimizerRule,
    alike,
    check_rows,
    check_rules,
    new_search,
    search_all,
    start_of,
    start_runs,
)


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
class LossRule:
    """What the loss counts.

    Args:
        class_weights: weigh each class by how rare it is.
    """

    class_weights: Literal["equal", "balanced"] = "equal"


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
    strategy: Strategy = "one",
    seed: int = 1,
    reading: ReadingRule = ReadingRule(),
    loss: LossRule = LossRule(),
    layers: LayerRule = LayerRule(),
    optimizer: OptimizerRule = OptimizerRule(),
    devices: DeviceRule = DeviceRule(),
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
        strategy: one device; all GPUs of this machine, or parts of its CPU; those of several processes; a TPU.
        seed: of the first restart.
        reading: how files and vocabulary are read.
        loss: what the loss counts.
        layers: which layers learn, and how much.
        optimizer: how the weights move.
        devices: on what the runs train.
    """
    own = {"train": train, "dev": dev, "test": test, "text-a": text_a, "text-b": text_b, "label": label}
    problem = read_problem(task, data, own | {"reading.kind": reading.kind})
    check_rules(layers, optimizer, seed, restarts)
    if loss.class_weights != "equal" and problem.kind != "class":
        raise ValueError(f"--loss.class-weights {loss.class_weights}: expected classes, not {problem.kind}")
    # Not at the top, so that --help answers at once.
    import kbert
    from kbert import report
    from kbert.tasks.batches import logits_of
    from kbert.tasks.examples import digest
    from kbert.training.distribution import is_chief
    from kbert.training.run_directory import begin_run

    # Read: everything that can be refused is looked at before long work begins.
    replicas = start_runs(strategy, devices, optimizer, sequence_length, learning_rates, batch_sizes, epochs)
    of_start = (model, reading.lower_case, sequence_length)
    tokenizer, new_model, settings = start_of(*of_start, head_of(problem, loss), layers, optimizer, devices)
    encoded = encode_all(problem, tokenizer, sequence_length)
    check_rows(batch_sizes, encoded["train"])
    settings |= {"examples": digest(problem.labelled), "labels": problem.labels}
    settings |= {"metrics": problem.metrics, "kind": problem.kind}
    settings |= {"sequence_length": sequence_length, "seed": seed, "class_weights": loss.class_weights}
    begin_run(output, settings, replicas, alike(optimizer, devices))
    report.table("Fine-tuning", facts_of(problem, encoded))

    # Build, compile, fit and evaluate each run; the best on dev is saved as it is found.
    logits, of_best = {}, {}  # of dev: the last model's, and those of the best

    def score(trained):
        logits.update({name: logits_of(trained, encoded[name]) for name in problem.dev})
        found = {name: problem.scores(of, logits[name]) for name, of in problem.dev.items()}
        return {f"{name}_{metric}": value for name, of in found.items() for metric, value in of.items()}

    def save(best):
        kbert.save(best, tokenizer, output)
        of_best.update(logits)

    run = {"settings": settings, "new_model": new_model, "strategy": replicas, "save": save}
    best_by = f"{next(iter(problem.dev))}_{problem.metrics[0]}"
    search = new_search(output, encoded["train"], layers, optimizer, score=score, best_by=best_by, **run)
    best = search_all(search, learning_rates, batch_sizes, epochs, restarts)
    if not is_chief(replicas):
        return

    # Predict and tell.
    predict(problem, task, encoded, best, Path(output), of_best)
    report.finish(f"Best: {best.pop('run')}", output, best)


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


def head_of(problem, loss: LossRule):
    """Makes the task's model of a Bert."""
    import kbert
    from kbert.tasks.classification import balanced_weights

    if problem.kind == "number":
        return kbert.BertRegressor
    weights = None
    if loss.class_weights == "balanced":
        weights = balanced_weights(problem.targets(problem.train), len(problem.labels))

    def head(bert, **options):
        multi_label = problem.kind == "labels"
        model = kbert.BertClassifier(bert, len(problem.labels), multi_label, class_weights=weights, **options)
        model.labels = problem.labels
        return model

    return head


def predict(problem, task: str | None, encoded: dict, best: dict, output: Path, logits: dict) -> None:
    """Writes the best model's answers, unless they are there already; logits: those of its that are at hand."""
    import kbert
    from kbert.tasks.batches import logits_of
    from kbert.tasks.classification import answer_files, write_answers
    from kbert.tasks.examples import digest
    from kbert.training.search import to_json
    from kbert.whole_file import write_whole

    note = output / "predictions.json"
    made_of = {"best": best, "examples": digest({**problem.dev, **problem.test})}
    files = answer_files(problem, task, output)
    if not all(path.exists() for path in (note, *files)) or json.loads(note.read_bytes()) != made_of:
        others = [name for name in (*problem.dev, *problem.test) if name not in logits]
        trained = kbert.load(output)[0] if others else None
        logits = logits | {name: logits_of(trained, encoded[name]) for name in others}
        write_answers(problem, task, logits, output)
        write_whole(note, to_json(made_of))


if __name__ == "__main__":
    start(main)
