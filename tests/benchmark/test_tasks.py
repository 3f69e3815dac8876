"""The fine-tunings that are compared: what each is given, and how the answers of others are scored."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from small_corpus import VOCABULARY

import kbert
from kbert.benchmark import tasks
from kbert.benchmark.rounds import System, in_turn
from kbert.tasks import squad


@pytest.fixture(scope="module")
def tokenizer():
    return kbert.WordPiece(VOCABULARY)


@pytest.fixture
def answering(folder, tokenizer, tmp_path):
    return tasks.of_squad(folder, tmp_path, tokenizer, 200, 5, 3)


def test_kberts_recipe_gets_what_the_job_says(tmp_path):
    recipe = tmp_path / "recipe.py"  # whose scores are its flags
    recipe.write_text(
        "import json, pathlib, sys\n"
        "flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))\n"
        "folder = pathlib.Path(flags['--output'])\n"
        "folder.mkdir()\n"
        "(folder / 'metrics.json').write_text(json.dumps(flags))\n"
    )
    job = {"recipe": str(recipe), "folder": "start", "flags": ["--task", "mrpc"], "precision": "bfloat16"}
    job |= {"learning_rates": 1e-4, "batch_sizes": 8, "epochs": 2}
    (result,) = in_turn([System("kbert", "fine_tuning_kbert", job)], rounds=1)
    flags = result.rounds[0]["scores"]
    assert flags.pop("--output") and flags == {
        "--model": "start",
        "--task": "mrpc",
        "--learning-rates": "0.0001",
        "--batch-sizes": "8",
        "--epochs": "2",
        "--devices.precision": "bfloat16",
    }


def test_files_of_these_names_are_left_out_and_the_others_are_the_same(tmp_path):
    data, folder = tmp_path / "glue", tmp_path / "job"
    for path in (data, folder):
        path.mkdir()
    for name in ("train.tsv", "dev.tsv", "test.tsv"):
        (data / name).write_text(name)
    links = Path(tasks.without(["test.tsv"], data, folder))
    assert {path.name: path.read_text() for path in links.iterdir()} == {n: n for n in ("train.tsv", "dev.tsv")}


def test_both_learn_from_the_same_questions_and_answer_the_same(answering, folder, tmp_path):
    told = json.loads((tmp_path / "examples.json").read_text())
    flags = dict(zip(*[iter(answering.job["flags"])] * 2, strict=True))
    assert flags["--windows.sequence-length"] == "200" and answering.job["sequence_length"] == 200
    for name, count in (("train", 5), ("dev", 3)):
        read, version = squad.read(flags[f"--{name}"])
        assert version == "1.1" and len(read) == count
        assert [[one.id, one.text, one.passage, one.answers[0], one.starts[0]] for one in read] == told[name]
    every = [one.id for one in squad.read(folder / "dev-v1.1.json")[0]]
    assert [row[0] for row in told["dev"]] == every[:3]  # and of train some that are drawn
    assert [row[0] for row in told["train"]] != every[:5]


def test_the_tokens_of_questions_are_those_of_their_windows(answering, tokenizer, tmp_path):
    read = squad.read(tmp_path / "train.json")[0]
    asked, passages = (tokenizer([getattr(one, name) for one in read]) for name in ("text", "passage"))
    lengths = asked.row_lengths() + passages.row_lengths() + 3  # [CLS] and two [SEP]; each fits into a window
    assert answering.lengths == lengths.numpy().tolist() and max(answering.lengths) <= 200


def test_answers_of_others_are_scored(answering, tmp_path):
    right = {row[0]: row[3] for row in json.loads((tmp_path / "examples.json").read_text())["dev"]}
    assert answering.scores({"answers": right}) == {"exact_match": 100.0, "f1": 100.0}
    first = next(iter(right))
    assert answering.scores({"answers": right | {first: "x"}})["exact_match"] == pytest.approx(200 / 3)


def test_logits_of_others_are_scored(folder, tokenizer, tmp_path):
    shutil.copytree(folder / "glue" / "MRPC", tmp_path / "MRPC")
    chosen = tasks.of_glue("mrpc", tmp_path / "MRPC", tmp_path, tokenizer, 20)
    told = json.loads(Path(chosen.job["examples"]).read_text())
    assert len(told["train"]) == len(chosen.lengths) and max(chosen.lengths) == 20
    targets = np.array([row[2] for row in told["dev"]])
    right = np.stack([1 - targets, targets], axis=1)
    assert chosen.scores({"logits": right.tolist()})["accuracy"] == 1
    assert chosen.scores({"logits": (1 - right).tolist()})["accuracy"] == 0


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ((0, 3), "--questions 0: expected 1 to 12, those of train-v1.1.json"),
        ((13, 3), "--questions 13: expected 1 to 12"),
        ((5, 13), "--dev-questions 13: expected 1 to 12, those of dev-v1.1.json"),
    ],
)
def test_questions_that_are_not_there_are_refused(counts, message, folder, tokenizer, tmp_path):
    with pytest.raises(ValueError, match=message):
        tasks.of_squad(folder, tmp_path, tokenizer, 200, *counts)


def test_windows_that_cannot_overlap_are_refused(folder, tokenizer, tmp_path):
    with pytest.raises(ValueError, match="--sequence-length 195: expected at least 196"):
        tasks.of_squad(folder, tmp_path, tokenizer, 195, 5, 3)
