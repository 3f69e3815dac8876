"""Classes, several labels and numbers: what is learned, answered, written and scored."""

import numpy as np
import pytest

from kbert.tasks import classification, pictures
from kbert.tasks.examples import Columns, Example


def write(path, rows: list[tuple]) -> str:
    path.write_text("text,other,label\n" + "".join(f'"{a}","{b}","{label}"\n' for a, b, label in rows))
    return str(path)


def problem(tmp_path, labels: list[str], dev: list[str], kind: str):
    train = write(tmp_path / "train.csv", [("a", "b", label) for label in labels])
    dev = write(tmp_path / "dev.csv", [("c", "d", label) for label in dev])
    return classification.of_files(train, dev, dev, Columns("text", "other", "label"), kind)


def test_classes_are_those_of_the_training_file(tmp_path):
    found = problem(tmp_path, ["no", "yes", "no"], ["yes"], "class")
    assert found.labels == ["no", "yes"] and list(found.dev) == ["dev"] and list(found.test) == ["test"]
    assert found.test["test"][0].label is None and found.train[0].text_b == "b"
    assert found.targets(found.train)["label_ids"].tolist() == [0, 1, 0]
    logits = np.array([[0.1, 2.0], [3.0, 1.0], [0.0, 1.0]])
    assert found.written(logits) == ["yes", "no", "yes"]
    assert found.scores(found.train, logits)["accuracy"] == 0
    assert set(found.scores(found.train, logits)) == {"accuracy", "macro_f1", "matthews_correlation"}


def test_a_label_unseen_in_training_is_named_with_its_line(tmp_path):
    found = problem(tmp_path, ["no", "yes"], ["yes", "maybe"], "class")
    with pytest.raises(ValueError, match=r"dev.csv, line 3: the label 'maybe' is unknown; expected no, yes"):
        found.targets(found.dev["dev"])


def test_several_labels_are_parted_by_commas(tmp_path):
    found = problem(tmp_path, ["red, blue", "green", "blue"], ["red"], "labels")
    assert found.labels == ["blue", "green", "red"]
    assert found.targets(found.train)["label_ids"].tolist() == [[1, 0, 1], [0, 1, 0], [1, 0, 0]]
    logits = np.array([[1.0, -1.0, 1.0], [-1.0, 1.0, -1.0], [-1.0, -1.0, -1.0]])
    assert found.written(logits) == ["blue,red", "green", ""]
    assert found.scores(found.train, logits)["micro_f1"] == pytest.approx(2 * 3 / (2 * 3 + 1))


def test_a_label_with_a_comma_is_none_of_several(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a", "label": ["New York, NY", "x"]}\n')
    with pytest.raises(ValueError, match="a.jsonl, line 1: the label 'New York, NY' has a comma"):
        classification.of_files(path, path, None, Columns("text", None, "label"), "labels")


def test_no_label_and_a_list_of_labels_are_labels_too(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a", "label": ["red", "blue"]}\n{"text": "b", "label": ""}\n{"text": "c", "label": []}\n')
    found = classification.of_files(path, path, None, Columns("text", None, "label"), "labels")
    assert found.targets(found.train)["label_ids"].tolist() == [[1, 1], [0, 0], [0, 0]] and found.test == {}


def test_a_number_is_a_number(tmp_path):
    found = problem(tmp_path, ["1.5", "3", "2"], ["1"], "number")
    assert found.labels == [] and found.targets(found.train)["label_values"].tolist() == [1.5, 3.0, 2.0]
    assert found.written(np.array([1.23456, 2.0, 1.5e-5])) == ["1.23456", "2", "1.5e-05"]
    assert found.scores(found.train, np.array([0.1, 0.9, 0.5])) == {
        "spearman": 1.0,
        "pearson": pytest.approx(0.99, abs=0.02),
    }


def test_balanced_weights_let_classes_count_alike():
    ids = np.int32([0, 0, 0, 1])
    weights = classification.balanced_weights({"label_ids": ids}, 2)
    totals = [weights[number] * (ids == number).sum() for number in range(2)]
    assert totals[0] == totals[1] and sum(totals) == len(ids)


def test_a_task_of_glue_is_a_problem(tmp_path):
    for name in ("train", "dev"):
        (tmp_path / f"{name}.tsv").write_text("sentence\tlabel\ngood \t1\nbad \t0\n")
    found = classification.of_task("sst-2", tmp_path)
    assert found.labels == ["0", "1"] and found.metrics == ("accuracy",) and found.test == {}
    assert found.train[0] == Example("good ", None, "1", f"{tmp_path}/train.tsv, line 2")


def test_the_confusion_matrix_is_a_picture_that_counts():
    one = pictures.confusion_matrix(np.array([0, 0, 1]), np.array([0, 1, 1]), ["no", "yes"])
    other = pictures.confusion_matrix(np.array([0, 0, 1]), np.array([0, 0, 1]), ["no", "yes"])
    assert one.dtype == np.uint8 and one.ndim == 3 and one.shape[2] == 3 and one.shape == other.shape
    assert (one != other).any()
    many = pictures.confusion_matrix(np.arange(300), np.arange(300), [f"$x_{n}$^" for n in range(300)])
    assert max(many.shape) < 3000
