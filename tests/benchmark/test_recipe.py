"""benchmark.py on small work, without peers, and what it refuses."""

import json

import pytest
from stranger import SMALLER, call, readme_commands, refuse

LONG = pytest.mark.long


def rows(folder) -> dict:
    return {line["name"]: line for line in map(json.loads, (folder / "rounds.jsonl").read_text().splitlines())}


@LONG
def test_sentences_of_any_length_are_encoded_in_turn(start, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = folder / "books" / "heldout" / "0.txt"
    call(
        f"python recipes/benchmark.py inference --model {start} --texts {texts} --batch-size 4"
        " --turns.rounds 2 --turns.output out"
    )
    told = rows(tmp_path / "out")
    assert len(told["kbert"]["rounds"]) == len(told["limit"]["rounds"]) == 2
    assert told["transformers"]["rounds"] or told["transformers"]["reason"].endswith(" is not installed")
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["kbert, times kbert's"] == 1 and metrics["kbert, tokens/s"] > 0
    assert metrics["kbert, of the limit"] == pytest.approx(metrics["limit, ms"] / metrics["kbert, ms"])


@pytest.mark.parametrize(
    "command",
    [
        *(pytest.param(one.partition(".py ")[2], marks=LONG) for one in readme_commands() if "benchmark.py" in one),
        pytest.param("step --backend jax", marks=LONG),
        pytest.param("serving --model {start} --texts {folder}/books/heldout/0.txt --batch-size 3", marks=LONG),
        pytest.param(
            "data --corpus {folder}/books/train --vocabulary {folder}/vocab.txt --tokens 3000 --sequence-length 32"
            " --batch-size 8",
            marks=LONG,
        ),
        pytest.param(
            "fine_tuning --model {start} --task mrpc --data {folder}/glue/MRPC --epochs 1 --batch-size 4", marks=LONG
        ),
    ],
)
def test_other_work_is_done_in_turn(command, start, folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    smaller = SMALLER["benchmark"] if command.startswith("step") else "--turns.rounds 1"
    call(f"python recipes/benchmark.py {command.format(start=start, folder=folder)} {smaller} --turns.output out")
    told = rows(tmp_path / "out")
    assert told["kbert"]["rounds"][0]["seconds"] > 0
    assert all(one["rounds"] or one["reason"].endswith(" is not installed") for one in told.values())
    if command.startswith("fine_tuning"):
        assert "dev_f1" in told["kbert"]["rounds"][0]["scores"] and "dev_f1" in capsys.readouterr().out


@LONG
def test_a_document_ends_where_it_is_said_to(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.txt").write_text("a first line\n\nanother one\n\nand a third\n" * 100)
    command = f"data --corpus book.txt --vocabulary {folder}/vocab.txt --tokens 100 --sequence-length 32 --batch-size 2"
    call(f"python recipes/benchmark.py {command} --turns.rounds 1")
    refuse("benchmark", f"{command} --documents file", "holds one document, so there is no other document")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("step --turns.rounds 0", "--turns.rounds 0: expected at least 1"),
        (
            "step --turns.peers nowhere/python",
            "--turns.peers nowhere/python: no such file; expected an environment's python",
        ),
        ("step --sequence-length 513", "sequence_length is 513, expected 8 to 512"),
        ("inference --texts lines.txt", "--texts lines.txt: expected --model, whose vocabulary has their tokens"),
        ("inference --texts lines.txt --model m", "--texts lines.txt: no such file; expected one text a line"),
        ("inference --texts few.txt --model {start}", "few.txt: 1 lines with text, expected at least 32"),
        ("data --corpus nowhere --vocabulary v.txt", "nowhere: no such file or folder"),
        ("data --corpus few.txt --vocabulary few.txt --tokens 0", "--tokens 0: expected at least 1"),
        ("data --corpus tsv --vocabulary few.txt", "--corpus tsv: holds no .txt files; expected some"),
    ],
)
def test_what_cannot_be_measured_is_refused(flags, message, start, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "few.txt").write_text("one\n\n")
    (tmp_path / "tsv").mkdir()
    (tmp_path / "tsv" / "few.tsv").write_text("one\n\n")
    refuse("benchmark", flags.format(start=start), message)
