"""Every command of the README runs, tiny, and what goes wrong ends with status 2 and one line."""

import importlib.util
import json
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from small_corpus import VOCABULARY, text

import kbert
from kbert.command_line import explain, parse
from kbert.weights import huggingface
from kbert.weights.by_name import without_heads

ROOT = Path(__file__).parent.parent
# Later flags win, so that a command of the README stays itself and becomes small.
SMALLER = {
    "learn_vocabulary": "--size 300",
    "pretrain": "--size tiny --steps 4 --batch-size 8 --sequence-length 32 --run.evaluation-instances 16"
    " --run.final-evaluation-instances 16 --run.checkpoint-every 2 --run.no-xla",
    "export": "",
    "convert_weights": "",
    "fine_tune_glue": "--learning-rates 1e-3 3e-4 --epochs 1 --restarts 2 --batch-sizes 4 --sequence-length 32",
    "fine_tune_squad": "--epochs 2 --learning-rates 1e-3 --batch-sizes 4 --windows.sequence-length 64"
    " --windows.stride 16 --windows.question-length 10 --answers.n-best 5",
    "fine_tune_ner": "--epochs 1 --learning-rates 1e-3 --batch-sizes 4 --sequence-length 32",
    "fine_tune_swag": "--epochs 1 --learning-rates 1e-3 --batch-sizes 4 --sequence-length 32",
    "extract_features": "--layers -1 -2",
}


def recipe(command: str, folder: Path, **options) -> subprocess.CompletedProcess:
    """Runs `python recipes/<name>.py ...` in a folder."""
    words = shlex.split(command)
    script = ROOT / words[1]
    return subprocess.run([sys.executable, script, *words[2:]], cwd=folder, capture_output=True, text=True, **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A stranger's folder with books in it."""
    folder = tmp_path_factory.mktemp("stranger")
    for split, count in (("train", 6), ("heldout", 3)):
        (folder / "books" / split).mkdir(parents=True)
        for number in range(count):
            (folder / "books" / split / f"{number}.txt").write_text(text(number + count, 3_000), encoding="utf-8")
    (folder / "glue" / "MRPC").mkdir(parents=True)
    for name, count in (("train", 12), ("dev", 8), ("test", 5)):
        lines = [f"{n % 2}\t{n}\t{n}\t{text(n, 40)}\t{text(n + n % 2, 40)}".replace("\n", " ") for n in range(count)]
        header = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
        (folder / "glue" / "MRPC" / f"{name}.tsv").write_text(header + "".join(f"{line}\n" for line in lines))
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    write_questions(folder)
    write_tags(folder)
    write_endings(folder)
    (folder / "lines.txt").write_text("".join(text(n, 40 * n).replace("\n", " ").strip() + "\n" for n in range(4)))
    return folder


def write_questions(folder: Path) -> None:
    """Small files of SQuAD's, v1.1 and v2.0, and answers to them."""
    paragraphs = []
    for number in range(6):
        passage = text(number, 300).replace("\n", " ").strip()
        answer = {"text": passage.split()[5], "answer_start": passage.index(passage.split()[5])}
        questions = [{"id": f"{number}-{n}", "question": text(n, 20).strip(), "answers": [answer]} for n in range(2)]
        paragraphs.append({"context": passage, "qas": questions})
    none = {"id": "none", "question": "what?", "answers": [], "is_impossible": True}
    files = {"v2": [*paragraphs[:5], {"context": "nothing here", "qas": [none]}]}
    files |= {"train-v1.1": paragraphs, "dev-v1.1": paragraphs, "moved": json.loads(json.dumps(paragraphs[:1]))}
    for question in files["moved"][0]["qas"]:
        question["answers"][0]["answer_start"] += 1
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps({"version": name, "data": [{"paragraphs": content}]}))
    right = {q["id"]: q["answers"][0]["text"] for p in paragraphs for q in p["qas"]}
    (folder / "right.json").write_text(json.dumps(right | {"none": ""}))
    (folder / "some.json").write_text(json.dumps(dict(list(right.items())[:6])))
    (folder / "odds.json").write_text(json.dumps(dict.fromkeys(right, -1.0) | {"none": 1.0}))


def write_tags(folder: Path) -> None:
    lines = ["-DOCSTART- O", ""]
    for number in range(10):
        words = text(number, 60 * (1 + number % 3)).split()
        lines += [f"{word} {('O', 'B-X', 'I-X')[place % 3]}" for place, word in enumerate(words)] + [""]
    for name in ("train", "dev"):
        (folder / f"{name}.conll").write_text("\n".join(lines))
    (folder / "iob1.conll").write_text("a O\nb I-X\n")


def write_endings(folder: Path) -> None:
    header = "video-id,sent1,sent2,gold-source,ending0,ending1,ending2,label\n"
    rows = [f'v,"{text(n, 30).strip()}",then,gold,one,"{text(n + 1, 20).strip()}",last,{n % 3}' for n in range(8)]
    for name in ("train", "val"):
        (folder / f"{name}.csv").write_text(header + "".join(row.replace("\n", " ") + "\n" for row in rows))
    (folder / "uneven.tsv").write_text("o\tx\ta\tb\t1\no\tx\ta\t0\n")


def readme_commands() -> list[str]:
    return re.findall(r"^python recipes/.*$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)


def test_every_command_of_the_readme_runs(folder):
    commands = readme_commands()
    assert len(commands) >= 3
    for command in commands:
        name = re.search(r"recipes/(\w+)\.py", command)[1]
        done = recipe(f"{command} {SMALLER[name]}", folder)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    metrics = json.loads((folder / "runs" / "books" / "metrics.json").read_text())
    assert {"held_out_masked_lm_loss", "held_out_next_sentence_accuracy", "baseline_masked_lm_loss"} <= set(metrics)
    assert (folder / "saved_models" / "books" / "1" / "saved_model.pb").exists()
    tuned = folder / "runs" / "mrpc"
    best = json.loads((tuned / "best.json").read_text())
    assert best.pop("run").startswith("rate-") and best == json.loads((tuned / "metrics.json").read_text())
    assert set(best) == {"dev_f1", "dev_accuracy"}
    assert len(list(tuned.glob("runs/*/metrics.json"))) == 4 and (tuned / "confusion_matrix.png").exists()
    assert (tuned / "MRPC.tsv").read_text().count("\n") == 6
    assert kbert.load(tuned)[0].labels == ["0", "1"]
    of = {
        name: json.loads((folder / "runs" / name / "metrics.json").read_text())
        for name in ("squad", "entities", "swag")
    }
    assert (
        set(of["squad"]) == {"exact_match", "f1"}
        and "dev_X_f1" in of["entities"]
        and set(of["swag"]) == {"dev_accuracy"}
    )
    answers = json.loads((folder / "runs" / "squad" / "predictions.json").read_text())
    assert len(answers) == 12 and all(answers.values())
    assert len((folder / "vectors.jsonl").read_text().splitlines()) == 4


FURTHER = (
    "python recipes/pretrain.py --start START --corpus books/heldout --held-out books/train --output OUT"
    f" {SMALLER['pretrain'].replace('--size tiny', '')}"
)


def test_pretraining_goes_on_from_a_trained_model_and_names_what_is_new(folder, start, tmp_path):
    trained, _ = kbert.load(start)
    command = FURTHER.replace("START", str(start)).replace("OUT", str(tmp_path / "further"))
    done = recipe(command + " --optimizer.learning-rate 1e-9 --steps 2", folder)
    assert done.returncode == 0, done.stderr
    new = done.stdout.partition("new, as the start has none: ")[2].split("\n")[0].split(", ")
    assert len(new) == 7 and {"masked_lm_bias", "next_sentence_dense/kernel"} <= set(new)
    further, _ = kbert.load(tmp_path / "further")
    for name in ("position_embeddings", "token_embeddings"):
        np.testing.assert_allclose(
            getattr(further.bert.embeddings, name), getattr(trained.bert.embeddings, name), atol=1e-5
        )
    done = recipe(command + " --sequence-length 512 --size tiny", folder)
    assert done.returncode == 2 and "--size tiny: the start" in done.stderr
    done = recipe(command + " --text.lower-case False", folder)
    assert done.returncode == 2 and "do_lower_case is True, and lower_case False was asked for" in done.stderr


PRETRAIN = (
    "python recipes/pretrain.py --corpus books/train --held-out books/heldout --vocabulary vocab.txt --output OUT"
    f" {SMALLER['pretrain']}"
)


def test_a_killed_run_ends_with_the_same_weights_to_the_bit_and_each_step_logged_once(folder):
    command = PRETRAIN + " --steps 12 --run.log-every 1"
    assert recipe(command.replace("OUT", "whole"), folder).returncode == 0
    words = shlex.split(command.replace("OUT", "killed"))
    process = subprocess.Popen(
        [sys.executable, ROOT / words[1], *words[2:]], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while not list((folder / "killed").glob("checkpoints/step-00000004.safetensors")):
        assert process.poll() is None, "the run ended before it could be killed"
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert recipe(command.replace("OUT", "killed"), folder).returncode == 0
    whole, killed = (
        load_file(folder / run / "checkpoints" / "step-00000012.safetensors") for run in ("whole", "killed")
    )
    assert whole.keys() == killed.keys()
    for name in whole:
        np.testing.assert_array_equal(whole[name], killed[name], name)


def test_ctrl_c_saves_and_says_how_to_go_on(folder):
    words = shlex.split(PRETRAIN.replace("OUT", "stopped") + " --steps 100000 --run.checkpoint-every 100000")
    process = subprocess.Popen(
        [sys.executable, ROOT / words[1], *words[2:]],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    for line in process.stdout:
        if "/100000" in line:
            break
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 2
    assert re.search(r"stopped after step \d+, saved in .*; the same command goes on from there", errors)
    assert list((folder / "stopped" / "checkpoints").glob("step-*.safetensors"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("--corpus nowhere", "corpus nowhere: no such file, folder or glob match"),
        ("--corpus empty", "corpus empty: holds no files; expected text files"),
        ("--corpus one.txt --text.documents file", "one.txt: holds one document, so there is no other document"),
        ("--corpus binary", "binary: byte 3: a zero byte: the file is binary"),
        ("--corpus latin.txt", "latin.txt: byte 3: 0xe9 is not valid UTF-8"),
        ("--vocabulary nomask.txt", r"\[MASK\]"),
        ("--sequence-length 7", "sequence_length 7; expected 8 to 512"),
        ("--sequence-length 513", "sequence_length 513; expected 8 to 512"),
        ("--batch-size 8 --optimizer.accumulation 3", "accumulation 3 does not divide it"),
        ("--strategy mirrored", "--strategy mirrored: expected one"),
        ("--steps many", "many"),
        ("--start runs/books", "--vocabulary vocab.txt: the start runs/books brings its own"),
        ("--output other", "run.json.*another run's settings: .*seed is 9 there and 1 now"),
        ("--output vocab.txt", "vocab.txt"),
    ],
)
def test_bad_input_ends_with_status_2_and_one_line(folder, change, message):
    (folder / "empty").mkdir(exist_ok=True)
    (folder / "one.txt").write_text(text(1, 2_000))
    (folder / "binary").write_bytes(b"ELF\0\1")
    (folder / "latin.txt").write_bytes("café. Next.".encode("latin-1"))
    (folder / "nomask.txt").write_text("\n".join(p for p in VOCABULARY if p != "[MASK]") + "\n")
    (folder / "other").mkdir(exist_ok=True)
    (folder / "other" / "run.json").write_text('{"seed": 9}')
    before = sorted(path for path in folder.rglob("*") if path.is_file() and "cache" not in path.parts)
    done = recipe(PRETRAIN.replace("OUT", "refused") + " " + change, folder)
    assert done.returncode == 2, done.stdout + done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("pretrain.py: ") and re.search(message, lines[0]), done.stderr
    after = sorted(path for path in folder.rglob("*") if path.is_file() and "cache" not in path.parts)
    assert before == after, "nothing is written or overwritten"


def test_a_folder_that_holds_something_is_not_written_into_and_a_format_without_a_place_is_refused(folder):
    (folder / "full").mkdir(exist_ok=True)
    (folder / "full" / "a").touch()
    done = recipe("python recipes/convert_weights.py --input books --output full", folder)
    assert (done.returncode, done.stderr) == (
        2,
        f"{CONVERT}--output full is there already and not empty; give another folder\n",
    )
    done = recipe("python recipes/convert_weights.py --input books --output new", folder)
    assert done.returncode == 2 and done.stderr.startswith(
        CONVERT + "books/bert_config.json is missing, expected a model"
    )


CONVERT = "convert_weights.py: "


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("--task mprc", "task 'mprc' is unknown; did you mean mrpc?"),
        ("--data glue", "glue/train.tsv is missing; expected the folder of a task"),
        ("--train own.csv", "--task mrpc and --train own.csv: expected one of them"),
        ("--sequence-length 600", "--sequence-length 600: expected 8 to 512, the model's positions"),
        ("--batch-sizes 64", "--batch-sizes 64: there are 12 training examples"),
        ("--learning-rates 1e-4 1e-4", "--learning-rates 0.0001 0.0001: expected different numbers above 0"),
        ("--model books", "books/bert_config.json is missing"),
        ("--layers.frozen 2 --layers.reinitialized 1", "expected at most the model's 2 together"),
        ("--layers.dropout 1", "dropout is 1.0, expected 0 up to"),
        ("--layers.decay 0", "--layers.decay 0.0: expected a share above 0, up to 1"),
        ("--optimizer.warmup 2", "--optimizer.warmup 2.0: expected a share from 0 to 1"),
        ("--reading.kind labels", "--reading.kind labels: the task mrpc brings its own"),
    ],
)
def test_fine_tuning_that_cannot_be_is_refused_before_it_begins(folder, start, monkeypatch, change, message):
    monkeypatch.chdir(folder)
    command = f"--model {start} --task mrpc --data glue/MRPC --batch-sizes 4 --output not_tuned {change}"
    refuse("fine_tune_glue", command, message)


def call(command: str) -> None:
    """Runs `python recipes/<name>.py ...` in this process and folder, which saves the start of one."""
    _, script, *words = shlex.split(command)
    specification = importlib.util.spec_from_file_location(Path(script).stem, ROOT / script)
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module  # where dataclasses look for their types
    specification.loader.exec_module(module)
    module.main(**parse(module.main, words, Path(script).name))


def refuse(name: str, command: str, message: str) -> None:
    """Sees a recipe refuse what it is called with."""
    with pytest.raises((ValueError, FileNotFoundError)) as refused:
        call(f"python recipes/{name}.py {command}")
    assert message in explain(refused.value, ROOT / "recipes")
    assert not Path("not_tuned").exists()


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
    assert all(any(answer in passage for passage in passages) for answer in answers["predictions"].values())
    assert all(1 <= len(listed) <= 6 for listed in answers["nbest_predictions"].values())
    assert {"exact", "f1", "best_f1", "NoAns_exact", "threshold"} <= set(answers["metrics"])
    before = {path: path.stat().st_mtime_ns for path in output.rglob("*") if path.name != "metrics.json"}
    call(command)
    assert before == {path: path.stat().st_mtime_ns for path in output.rglob("*") if path in before}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("--version 1.1 --dev v2.json", "v2.json, question none has no answer; expected one, as in version 1.1"),
        ("--train v2.json", "v2.json, question none has no answer; expected one, as in version 1.1"),
        ("--train moved.json", "moved.json, question 0-0: its answer is not where it is said to be, nor any other's"),
        ("--null-odds odds.json", "--null-odds odds.json: expected --predictions beside it"),
        ("--predictions right.json", "--predictions right.json is scored alone; expected one of them"),
        ("--windows.stride 4", "stride is 4, expected 8 to sequence_length"),
        ("--windows.sequence-length 600", "--sequence-length 600: expected 8 to 512, the model's positions"),
        ("--answers.longest 0", "--answers.longest 0: expected at least 1"),
        ("--answers.threshold 0", "--answers.threshold 0.0: version 1.1 has an answer to every question"),
    ],
)
def test_what_no_answers_can_be_learned_from_is_refused(folder, start, monkeypatch, change, message):
    monkeypatch.chdir(folder)
    refuse(
        "fine_tune_squad",
        f"--model {start} --train train-v1.1.json --dev dev-v1.1.json --batch-sizes 4 --output not_tuned {change}",
        message,
    )


def test_a_bilstm_learns_to_tag_words_in_their_documents(folder, start, monkeypatch):
    monkeypatch.chdir(folder)
    command = (
        f"python recipes/fine_tune_ner.py --model {start} --train train.conll --dev dev.conll --test dev.conll"
        " --output tagged --context document --head bilstm --features.lstm-units 8 --features.layers -1 -2"
    )
    call(f"{command} {SMALLER['fine_tune_ner']}")
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


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "fine_tune_ner",
            "--dev iob1.conll",
            "iob1.conll, line 2: I-X between O and its end is no IOB2; expected scheme IOB1",
        ),
        (
            "fine_tune_ner",
            "--reading.tag 2",
            "train.conll, line 3: 'Don O' has 2 columns; expected at least 3, not empty",
        ),
        ("fine_tune_ner", "--features.lstm-layers 1", "--features is what a BiLSTM reads; expected --head bilstm"),
        (
            "fine_tune_ner",
            "--head bilstm --features.layers 3",
            "layer 3 is not there, expected 0 (the embeddings) to 2",
        ),
        ("fine_tune_swag", "--dev uneven.tsv", "uneven.tsv, line 2: 1 endings; expected 2, as in the first row"),
        ("fine_tune_swag", "--batch-sizes 16", "--batch-sizes 16: there are 8 training examples"),
        ("extract_features", "--layers 3", "layer 3 is not there, expected 0 (the embeddings) to 2, or -2 to -1"),
        ("extract_features", "--output v.txt", "--output v.txt: expected a file that ends in .jsonl, .npz, .tfrecord"),
        ("extract_features", "--weights 1", "expected weights with a weighted_sum, and only there"),
        (
            "extract_features",
            "--layers 1 --mix weighted_sum --weights 1 2",
            "--weights has 2 numbers, expected one for",
        ),
        ("extract_features", "--input nowhere.txt", "No such file or directory: nowhere.txt"),
    ],
)
def test_what_these_recipes_cannot_do_is_refused(folder, start, monkeypatch, name, change, message):
    monkeypatch.chdir(folder)
    files = {
        "fine_tune_ner": "--train train.conll --dev dev.conll --output not_tuned --batch-sizes 4",
        "fine_tune_swag": "--train train.csv --dev val.csv --output not_tuned --batch-sizes 4",
        "extract_features": "--input lines.txt --output not_tuned.npz --layers 1",
    }
    refuse(name, f"--model {start} {files[name]} {change}", message)


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


def test_ones_own_files_are_learned_a_second_call_does_no_work_and_a_kill_changes_nothing(folder, start):
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
    done = recipe(command, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(json.loads((folder / "tuned" / "metrics.json").read_text())) >= {"dev_micro_f1", "dev_macro_f1"}
    predictions = folder / "tuned" / "test_predictions.tsv"
    assert predictions.read_text().startswith("prediction\n") and predictions.read_text().count("\n") == 4
    trained, first = kbert.load(folder / "tuned")[0], kbert.load(start)[0]
    assert trained.multi_label and trained.labels == ["good", "long"] and trained.dropout.rate == 0.2
    layers = [[m.bert.encoder_layers[n].intermediate.kernel.numpy() for m in (first, trained)] for n in range(2)]
    assert [np.array_equal(*layer) for layer in layers] == [True, False]
    before = {path: path.stat().st_mtime_ns for path in (folder / "tuned").rglob("*") if path.name != "metrics.json"}
    assert recipe(command, folder).returncode == 0
    assert before == {path: path.stat().st_mtime_ns for path in (folder / "tuned").rglob("*") if path in before}
    done = recipe(f"{command} --layers.decay 0.8", folder)
    assert done.returncode == 2 and "layers.decay is 0.9 there and 0.8 now" in done.stderr

    # Batches of several lengths: 20 to 60 tokens.
    words = shlex.split(f"{command} --output killed_in_tuning")[1:]
    killed = subprocess.run(
        [sys.executable, "-c", DEADLY, ROOT / words[0], *words[1:]], cwd=folder, capture_output=True
    )
    assert killed.returncode == -signal.SIGKILL
    done = recipe(f"{command} --output killed_in_tuning", folder)
    assert done.returncode == 0 and "6 steps, 2 of them done" in done.stdout, done.stdout + done.stderr
    again = kbert.load(folder / "killed_in_tuning")[0]
    for one, other in zip(trained.weights, again.weights, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy(), one.path)


def test_the_encoder_goes_to_every_format_and_back(folder, start, tmp_path):
    first = kbert.load(start)[0]
    # Google's format has always a pooler, and so has this start.
    for format in ("google", "keras_hub"):
        command = f"python recipes/convert_weights.py --input {start} --output {tmp_path / format} --to {format}"
        done = recipe(f"{command} --encoder-only --lower-case True", folder)
        assert done.returncode == 0, done.stderr
        found = kbert.load(tmp_path / format)[0]
        for one, other in zip(found.bert.weights, first.bert.weights, strict=True):
            np.testing.assert_array_equal(one, other)
    done = recipe(f"python recipes/convert_weights.py --input {start} --output new --lower-case False", folder)
    assert done.returncode == 2 and "do_lower_case is True, and lower_case False was asked for" in done.stderr


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """An encoder without heads, as a folder of Hugging Face's."""
    path = tmp_path_factory.mktemp("start")
    trained = kbert.BertPretrainer(kbert.BertConfig.from_size("tiny", vocab_size=len(VOCABULARY)))
    huggingface.write(without_heads(trained), kbert.WordPiece(VOCABULARY), path)
    return path


@pytest.mark.parametrize("objectives", ["mlm", "left-to-right"])
def test_the_ablations_without_next_sentences_are_trained(folder, objectives):
    output = f"ablation-{objectives}"
    done = recipe(f"{PRETRAIN.replace('OUT', output)} --objectives {objectives}", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    metrics = json.loads((folder / output / "metrics.json").read_text())
    assert "held_out_masked_lm_loss" in metrics and not [name for name in metrics if "next_sentence" in name]
    assert kbert.load(folder / output)[0].config.causal == (objectives == "left-to-right")


def test_a_small_p_is_warned_about_with_the_share_lost(folder):
    done = recipe(PRETRAIN.replace("OUT", "cut") + " --masking.max-predictions 2 --steps 1", folder)
    assert done.returncode == 0 and "2 predictions a sequence cut off 60% of a full one's" in done.stdout


@pytest.mark.long
def test_the_quickstart_goes_from_installed_packages_to_filled_blanks(folder):
    done = recipe("python recipes/quickstart.py --steps 3 --fine-tuning-steps 10", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Blanks filled in" in done.stdout
    metrics = json.loads((folder / "runs" / "quickstart" / "metrics.json").read_text())
    assert {"held_out_masked_lm_loss", "accuracy, pre-trained", "accuracy, from scratch"} <= set(metrics)
    assert (folder / "saved_models" / "quickstart" / "1" / "saved_model.pb").exists()
