"""benchmark.py on small work, without peers, and what it refuses."""

import importlib.util
import json
from pathlib import Path

import pytest
from small_corpus import text
from stranger import SMALLER, call, readme_commands, refuse

LONG = pytest.mark.long
NEEDS_JAX = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed: pip install jax")


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
        pytest.param("step --backend jax", marks=[LONG, NEEDS_JAX]),
        pytest.param("inference --model {start} --batch-size 1 --sequence-length 16", marks=LONG),
        pytest.param("serving --model {start} --texts {folder}/books/heldout/0.txt", marks=LONG),
        pytest.param("serving --model {start} --texts {folder}/books/heldout/0.txt --batch-size 3", marks=LONG),
        pytest.param(
            "data --corpus {folder}/books/train --vocabulary {folder}/vocab.txt --tokens 3000 --sequence-length 32"
            " --batch-size 8",
            marks=LONG,
        ),
        pytest.param(
            "fine_tuning --model {start} --task mrpc --data {folder}/glue/MRPC --epochs 1 --batch-size 4"
            " --precision bfloat16",
            marks=LONG,
        ),
        pytest.param(
            "fine_tuning --model {start} --task squad --data {folder} --epochs 1 --batch-size 4 --sequence-length 256"
            " --questions 8 --dev-questions 4",
            marks=LONG,
        ),
    ],
)
def test_other_work_is_done_in_turn(command, start, folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    smaller = SMALLER["benchmark"] if command.startswith("step") else "--turns.rounds 1"
    call(f"python recipes/benchmark.py {command.format(start=start, folder=folder)} {smaller} --turns.output out")
    told = rows(tmp_path / "out")
    assert told["kbert"]["rounds"][0]["seconds"] > 0
    is_of_one_row = command.startswith(("inference", "serving")) and "--batch-size 3" not in command
    assert ("kbert, LiteRT" in told) == is_of_one_row
    assert all(one["rounds"] or one["reason"].endswith(" is not installed") for one in told.values())
    if command.startswith("fine_tuning"):
        score, printed = "exact_match" if "squad" in command else "dev_f1", capsys.readouterr().out
        assert score in told["kbert"]["rounds"][0]["scores"] and score in printed
        assert ("bfloat16" if "bfloat16" in command else "float32") in printed


@LONG
def test_who_is_left_out_takes_no_part(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = ["keras-hub", "keras-hub, XLA", "transformers, compiled", "limit"]
    left_out = " ".join(f"'{name}'" for name in out)
    call(f"python recipes/benchmark.py step {SMALLER['benchmark']} --turns.without {left_out} --turns.output out")
    assert list(rows(tmp_path / "out")) == ["kbert", "transformers"]


@LONG
def test_a_step_grows_beside_the_arithmetic_and_a_plot_is_made_of_each(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    varied = "--lengths 32 --batch-sizes --layers 1 --hidden-sizes"
    base = "--sequence-length 16 --batch-size 2 --vocabulary-size 100"
    call(f"python recipes/benchmark.py growth {base} {varied} --turns.rounds 1 --turns.output out")
    assert {path.name for path in Path("out").glob("*.png")} == {"length.png", "L.png"}
    told = rows(tmp_path / "out")
    assert list(told) == ["length 16", "length 32", "L 2", "L 1"]
    assert all(one["rounds"][0]["seconds"] > 0 for one in told.values())


@LONG
def test_text_grows_from_an_eighth_to_all_of_a_corpus(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("\n\n".join(text(number, 300) for number in range(32)))
    flags = "--tokens 1000 --sequence-length 32 --batch-size 4 --turns.rounds 1 --turns.output out"
    command = f"data_growth --corpus text.txt --vocabulary {folder}/vocab.txt"
    call(f"python recipes/benchmark.py {command} {flags}")
    metrics = json.loads(Path("out/metrics.json").read_text())
    assert metrics["1/8 of the corpus, us/token"] == metrics["the corpus, arithmetic's us/token"] > 0
    assert metrics["the corpus, peak MB"] > 100 and Path("out/corpus.png").exists()


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
        ("step --turns.without torch", "--turns.without torch: expected names of keras-hub; keras-hub, XLA"),
        (
            "inference --turns.without kbert",
            "--turns.without kbert: expected names of kbert, XLA; kbert, LiteRT; trans",
        ),
        (
            "serving --texts t --model m --turns.without torch",
            "--turns.without torch: expected names of kbert, LiteRT; ONNX Runtime; limit",
        ),
        ("data --corpus c --vocabulary v --turns.without a", "--turns.without a: expected names of tensorflow-text"),
        (
            "fine_tuning --model m --task mrpc --data d --turns.without kbert",
            "--turns.without kbert: expected names of transformers",
        ),
        ("growth --turns.rounds 0", "--turns.rounds 0: expected at least 1"),
        ("growth --lengths 513", "sequence_length is 513, expected 8 to 512"),
        ("growth --batch-sizes 0", "batch_size is 0, expected a multiple, at least 1"),
        ("growth --layers 0", "num_hidden_layers is 0"),
        ("growth --hidden-sizes 100", "--hidden-sizes 100: expected multiples of 64, the size of a head"),
        ("growth --lengths 128 --batch-sizes --layers --hidden-sizes", "nothing varies: expected values of --lengths"),
        ("data_growth --corpus few.txt --vocabulary few.txt", "--corpus: 1 documents, expected at least 16"),
        ("step --sequence-length 513", "sequence_length is 513, expected 8 to 512"),
        ("inference --sequence-length 513", "--sequence-length 513: expected 2 to 512, the model's positions"),
        ("inference --sequence-length 1", "--sequence-length 1: expected 2 to 512, the model's positions"),
        ("inference --batch-size 0", "--batch-size 0: expected at least 1"),
        ("serving --texts t --model m --batch-size 0", "--batch-size 0: expected at least 1"),
        ("data --corpus c --vocabulary v --batch-size 0", "--batch-size 0: expected at least 1"),
        ("data_growth --corpus c --vocabulary v --batch-size 0", "--batch-size 0: expected at least 1"),
        ("fine_tuning --model m --task mrpc --data d --batch-size 0", "--batch-size 0: expected at least 1"),
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
