"""The recipes of the tasks, tiny: what they write, score and tell, and that no work is done twice."""

import json
import shlex
import signal
import subprocess
import sys

import numpy as np
import pytest
from small_corpus import text
from stranger import ROOT, SMALLER, call, recipe

import kbert
from kbert.tasks import batches, classification


def test_answers_are_scored_alone_under_the_official_names(folder, monkeypatch):
    monkeypatch.chdir(folder)
    command = "python recipes/fine_tune_squad.py --output scored --dev"
    for flags, expected in (
        ("dev-v1.1.json --predictions right.json", {"exact_match": 100.0, "f1": 100.0}),
        ("dev-v1.1.json --predictions some.json", {"exact_match": 50.0, "f1": 50.0}),
        ("v2.json --predictions right.json --null-odds odds.json --answers.threshold 0", {"exact": 100.0, "total": 11}),
        ("v2.json --predictions right.json --null-odds odds.json", {"NoAns_f1": 100.0, "best_f1_thresh": -1.0}),
    ):
        call(f"{command} {flags}")
        assert json.loads((folder / "scored" / "metrics.json").read_text()).items() >= expected.items()
    with pytest.raises(ValueError, match="scored alone: --epochs is there for training; expected none of it"):
        call(f"{command} dev-v1.1.json --predictions right.json --epochs 7")
    with pytest.raises(ValueError, match="scored alone: --answers is there for training"):
        call(f"{command} dev-v1.1.json --predictions right.json --answers.n-best 7")
    with pytest.raises(ValueError, match=r"3-0 has no prediction \(of 5 in all\)"):
        call(f"{command} v2.json --predictions some.json")


def test_a_bert_learns_to_answer_or_not_to_and_a_second_call_does_no_work(folder, start, monkeypatch):
    monkeypatch.chdir(folder)
    command = f"python recipes/fine_tune_squad.py --model {start} --train v2.json --dev v2.json --output squad_v2"
    command += f" {SMALLER['fine_tune_squad']}"
    call(command)
    output = folder / "squad_v2"
    answers = {path.stem: json.loads(path.read_text()) for path in output.glob("*.json")}
    passages = [p["context"] for p in json.loads((folder / "v2.json").read_text())["data"][0]["paragraphs"]]
    assert len(answers["predictions"]) == len(answers["null_odds"]) == 11
    found = list(answers["predictions"].values())
    assert all(any(answer in passage for passage in passages) for answer in found)
    best = [listed[0]["text"] for listed in answers["nbest_predictions"].values()]
    assert any(text for text in best + found), "something is answered"
    assert all(1 <= len(listed) <= 6 for listed in answers["nbest_predictions"].values())
    assert {"exact", "f1", "best_f1", "NoAns_exact", "threshold"} <= set(answers["metrics"])
    before = {path: path.stat().st_mtime_ns for path in output.rglob("*") if path.name != "metrics.json"}
    call(command)
    assert before == {path: path.stat().st_mtime_ns for path in output.rglob("*") if path in before}


def test_a_bilstm_learns_to_tag_words_in_their_documents(folder, start, monkeypatch):
    monkeypatch.chdir(folder)
    command = (
        f"python recipes/fine_tune_ner.py --model {start} --train train.conll --dev dev.conll --test dev.conll"
        " --output tagged --context document --head bilstm --features.lstm-units 8 --features.layers -1 -2"
        f" {SMALLER['fine_tune_ner']}"
    )
    call(command.replace("--test dev.conll", ""))
    assert not list((folder / "tagged").glob("test*"))
    trained = {path: path.stat().st_mtime_ns for path in (folder / "tagged").rglob("*.h5")}
    call(command)  # a finished search takes a test file, too
    assert trained and trained == {path: path.stat().st_mtime_ns for path in trained}
    assert {"dev_f1", "test_X_recall"} <= set(json.loads((folder / "tagged" / "metrics.json").read_text()))
    words = [line.split()[0] for line in (folder / "dev.conll").read_text().splitlines()[2:] if line]
    columns = [line.split() for line in (folder / "tagged" / "test.conll").read_text().splitlines() if line]
    assert [word for word, _, _ in columns] == words and {tag for _, _, tag in columns} <= {"O", "B-X", "I-X"}
    rows = [json.loads(line) for line in (folder / "tagged" / "dev.jsonl").read_text().splitlines()]
    assert [word for row in rows for word in row["words"]] == words
    model = kbert.load(folder / "tagged")[0]
    assert model.labels == ["O", "B-X", "I-X"] and type(model).__name__ == "BertLSTMTagger"


@pytest.mark.parametrize(
    ("flags", "shape"),
    [
        ("--layers 1 2 --unit piece", (2, 128)),
        ("--unit piece", (2, 128)),  # of the last four layers those that there are
        ("--layers 0 -1 --unit word --mix concatenation", (256,)),
        ("--layers 1 2 --unit mean --mix weighted_sum --weights 0.5 0.5", (128,)),
    ],
)
def test_features_of_every_line_are_written(folder, start, monkeypatch, flags, shape):
    monkeypatch.chdir(folder)
    call(f"python recipes/extract_features.py --model {start} --input lines.txt --output vectors.npz {flags}")
    with np.load(folder / "vectors.npz") as arrays:
        assert sorted(arrays.files) == sorted([str(n) for n in range(4)] + [f"{n}_tokens" for n in range(4)])
        assert all(arrays[str(n)].shape == (len(arrays[f"{n}_tokens"]), *shape) for n in range(4))
        words = (folder / "lines.txt").read_text().splitlines()[2].split()
        tokens = {"piece": None, "word": words, "mean": ["text"]}[flags.split("--unit ")[1].split()[0]]
        assert tokens is None or arrays["2_tokens"].tolist() == tokens


# Runs a recipe and kills it when its second checkpoint is there.
DEADLY = """
import os, runpy, signal, sys
replace, written = os.replace, []
def deadly(source, target):
    replace(source, target)
    written.extend([target] if str(target).endswith(".safetensors") else [])
    if len(written) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
os.replace = deadly
sys.argv.pop(0)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_ones_own_files_are_learned_a_second_call_does_no_work_and_a_kill_changes_nothing(
    folder, start, monkeypatch, capsys
):
    monkeypatch.chdir(folder)
    (folder / "own").mkdir(exist_ok=True)
    for name, count in (("train", 24), ("dev", 8)):
        rows = [{"words": text(n, 60 * (1 + n % 3)), "kinds": ["good", "long"][: n % 3]} for n in range(count)]
        (folder / "own" / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "own" / "test.csv").write_text("words\n" + "".join(f'"a, b {n}"\n' for n in range(3)))
    command = (
        f"python recipes/fine_tune_glue.py --model {start} --output tuned --train own/train.jsonl --dev own/dev.jsonl"
        " --test own/test.csv --text-a words --label kinds --reading.kind labels --learning-rates 1e-3 --batch-sizes 4"
        " --epochs 1 --sequence-length 64 --layers.frozen 1 --layers.reinitialized 1 --layers.decay 0.9"
        " --layers.dropout 0.2 --optimizer.no-bias-correction --optimizer.warmup 0.2 --optimizer.weight-decay 0.1"
    )
    call(command)
    assert set(json.loads((folder / "tuned" / "metrics.json").read_text())) >= {"dev_micro_f1", "dev_macro_f1"}
    predictions = folder / "tuned" / "test_predictions.tsv"
    assert predictions.read_text().startswith("prediction\n") and predictions.read_text().count("\n") == 4
    trained, first = kbert.load(folder / "tuned")[0], kbert.load(start)[0]
    assert trained.multi_label and trained.labels == ["good", "long"] and trained.dropout.rate == 0.2
    layers = [[m.bert.encoder_layers[n].intermediate.kernel.numpy() for m in (first, trained)] for n in range(2)]
    assert [np.array_equal(*layer) for layer in layers] == [True, False]
    before = {path: path.stat().st_mtime_ns for path in (folder / "tuned").rglob("*") if path.name != "metrics.json"}
    call(command)
    assert before == {path: path.stat().st_mtime_ns for path in (folder / "tuned").rglob("*") if path in before}
    answers = predictions.read_bytes()
    predictions.unlink()
    call(command)
    assert predictions.read_bytes() == answers
    with pytest.raises(ValueError, match=r"layers\.decay is 0\.9 there and 0\.8 now"):
        call(f"{command} --layers.decay 0.8")

    # Batches of several lengths: 20 to 60 tokens.
    words = shlex.split(f"{command} --output killed_in_tuning")[1:]
    killed = subprocess.run(
        [sys.executable, "-c", DEADLY, ROOT / words[0], *words[1:]], cwd=folder, capture_output=True
    )
    assert killed.returncode == -signal.SIGKILL
    call(f"{command} --output killed_in_tuning")
    assert "6 steps, 2 of them done" in capsys.readouterr().out
    again = kbert.load(folder / "killed_in_tuning")[0]
    for one, other in zip(trained.weights, again.weights, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy(), one.path)


def test_the_answers_are_the_best_models_not_the_last_ones(folder, start, monkeypatch):
    monkeypatch.chdir(folder)
    marks, answered = iter([1.0, 0.0]), {}
    monkeypatch.setattr(classification.Problem, "scores", lambda *_: {"f1": next(marks), "accuracy": 0.0})
    monkeypatch.setattr(classification, "write_answers", lambda problem, task, logits, output: answered.update(logits))
    flags = SMALLER["fine_tune_glue"].replace("--learning-rates 1e-3", "--learning-rates 1e-3 1e-2")
    call(f"python recipes/fine_tune_glue.py --model {start} --task mrpc --data glue/MRPC --output of_best {flags}")
    best, tokenizer = kbert.load(folder / "of_best")
    problem = classification.of_task("mrpc", folder / "glue" / "MRPC")
    for name, examples in (problem.dev | problem.test).items():
        expected = batches.logits_of(best, batches.encode(examples, tokenizer, 32))
        np.testing.assert_allclose(answered[name], expected, atol=1e-5, err_msg=name)


@pytest.mark.long
@pytest.mark.parametrize("task", ["swag", "glue"])
def test_a_search_trains_on_replicas_in_parts_in_half_precision_with_less_memory(folder, start, task):
    flags = {
        "glue": "--task mrpc --data glue/MRPC --sequence-length 32",
        "swag": "--train train.csv --dev val.csv --sequence-length 32",
    }[task]
    command = (
        f"python recipes/fine_tune_{task}.py --model {start} {flags} --output on-replicas-{task} --learning-rates 1e-3"
        " --batch-sizes 8 --epochs 2 --strategy mirrored --devices.replicas 2 --optimizer.accumulation 2"
        " --devices.precision bfloat16 --devices.recompute"
    )
    done = recipe(command, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    metrics = json.loads((folder / f"on-replicas-{task}" / "metrics.json").read_text())
    assert 0 <= metrics["dev_accuracy"] <= 1
