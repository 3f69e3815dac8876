"""Texts or pairs with a class, any number of labels, or a number each: a task of GLUE, or files of one's own."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from kbert.tasks import glue
from kbert.tasks.examples import Columns, Example, label_ids, label_names, label_values, read
from kbert.tasks.pictures import confusion_matrix
from kbert.whole_file import write_whole

METRICS = {
    "class": ("accuracy", "macro_f1", "matthews_correlation"),
    "labels": ("micro_f1", "macro_f1", "accuracy"),
    "number": ("spearman", "pearson"),
}


class Problem(NamedTuple):
    """What is learned and how it is judged.

    train; dev and test by name (test without labels); kind: class, labels or number; labels: names, none for a number;
    metrics: of which the first decides; left_out: where the rows stand that a task of GLUE has without all columns.
    """

    train: list[Example]
    dev: dict[str, list[Example]]
    test: dict[str, list[Example]]
    kind: str
    labels: list[str]
    metrics: tuple[str, ...]
    left_out: list[str] = []

    @property
    def labelled(self) -> dict[str, list[Example]]:
        """The sets with labels, by name."""
        return {"train": self.train, **self.dev}

    def targets(self, examples: Sequence[Example]) -> dict:
        """label_ids int32 [N] or (labels) [N, K], or label_values float32 [N]. Raises ValueError with file and line."""
        if self.kind == "number":
            return {"label_values": np.float32(label_values(examples))}
        if self.kind == "class":
            return {"label_ids": np.int32(label_ids(examples, self.labels))}
        parts = [parted(example) for example in examples]
        ids = np.zeros((len(examples), len(self.labels)), np.int32)
        for row, labels in enumerate(parts):
            ids[row, label_ids(labels, self.labels)] = 1
        return {"label_ids": ids}

    def answers(self, logits: np.ndarray) -> np.ndarray:
        """What is answered, in the form of the targets: [N, K] or [N] -> [N] or [N, K]."""
        match self.kind:
            case "class":
                return logits.argmax(axis=-1)
            case "labels":
                return (logits > 0).astype(np.int32)
        return logits

    def scores(self, examples: Sequence[Example], logits: np.ndarray) -> dict[str, float]:
        truth = next(iter(self.targets(examples).values()))
        return glue.scores(self.metrics, truth, self.answers(logits))

    def written(self, logits: np.ndarray) -> list[str]:
        """The answers as they stand in a file."""
        answers = self.answers(logits)
        match self.kind:
            case "class":
                return [self.labels[number] for number in answers]
            case "labels":
                return [",".join(self.labels[number] for number in np.flatnonzero(row)) for row in answers]
        return [f"{number:.7g}" for number in answers]


def of_task(name: str, folder) -> Problem:
    """A task of GLUE; raises ValueError or FileNotFoundError for another name and for missing files."""
    task = glue.task_named(name)
    left_out = []
    train, dev = glue.train_examples(task, folder, left_out), glue.dev_examples(task, folder, left_out)
    kind = "class" if task.labels else "number"
    return Problem(train, dev, glue.test_examples(task, folder), kind, list(task.labels), task.metrics, left_out)


def of_files(train, dev, test, columns: Columns, kind: str) -> Problem:
    """Files of one's own (test None: there is none); the labels are those of the training file."""
    several = kind == "labels"
    examples = read(train, columns, several)
    labels = []
    if kind == "class":
        labels = label_names(examples)
    elif kind == "labels":
        labels = label_names([one for example in examples for one in parted(example)])
    tests = {"test": read(test, columns._replace(label=None))} if test else {}
    return Problem(examples, {"dev": read(dev, columns, several)}, tests, kind, labels, METRICS[kind])


def parted(example: Example) -> list[Example]:
    """One example for each of the labels, which commas part."""
    labels = [part.strip() for part in example.label.split(",")]
    return [example._replace(label=label) for label in labels if label]


def balanced_weights(targets: dict, classes: int) -> list[float]:
    """A weight for each class, such that all classes count alike and the mean over the examples is 1."""
    counts = np.bincount(targets["label_ids"], minlength=classes)
    return (counts.sum() / (classes * np.maximum(counts, 1))).tolist()


def answer_files(problem: Problem, task: str | None, output: Path) -> list[Path]:
    """Where write_answers puts the predictions of the test files, and the confusion matrix of classes."""
    files = [output / (f"{name}.tsv" if task else f"{name}_predictions.tsv") for name in problem.test]
    return files + ([output / "confusion_matrix.png"] if problem.kind == "class" else [])


def write_answers(problem: Problem, task: str | None, logits: dict, output: Path) -> None:
    """Predictions of the test files, as GLUE's server takes them, and the confusion matrix of dev as a picture."""
    files = answer_files(problem, task, output)
    for name, path in zip(problem.test, files, strict=False):
        written = problem.written(logits[name])
        content = "".join(f"{line}\n" for line in ["prediction", *written])
        write_whole(path, (glue.submission(glue.task_named(task), written) if task else content).encode())
        print(f"{path}: {len(written)} predictions")
    if problem.kind == "class":
        name = next(iter(problem.dev))
        truth = problem.targets(problem.dev[name])["label_ids"]
        pixels = confusion_matrix(truth, problem.answers(logits[name]), problem.labels)
        write_whole(files[-1], tf.io.encode_png(pixels).numpy())
        shutil.rmtree(output / "logs" / "best", ignore_errors=True)
        with tf.summary.create_file_writer(str(output / "logs" / "best")).as_default(0):
            tf.summary.image("dev/confusion matrix", pixels[None])
