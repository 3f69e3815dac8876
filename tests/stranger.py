"""A stranger's folder with small files of every kind, and recipes run in it."""

import importlib.util
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from small_corpus import text

from kbert.command_line import explain, parse
from kbert.training.run_directory import CLAIMED

ROOT = Path(__file__).parent.parent
# Later flags win, so that a command of the README stays itself and becomes small.
SMALLER = {
    "learn_vocabulary": "--size 300",
    "pretrain": "--size tiny --steps 4 --batch-size 8 --sequence-length 32 --run.evaluation-instances 16"
    " --run.final-evaluation-instances 16 --run.checkpoint-every 2 --run.no-xla",
    "export": "",
    "convert_weights": "",
    "fine_tune_glue": "--learning-rates 1e-3 --epochs 1 --batch-sizes 4 --sequence-length 32",
    "fine_tune_squad": "--epochs 2 --learning-rates 1e-3 --batch-sizes 4 --windows.sequence-length 64"
    " --windows.stride 16 --windows.question-length 10 --answers.n-best 5",
    "fine_tune_ner": "--epochs 1 --learning-rates 1e-3 --batch-sizes 4 --sequence-length 32",
    "fine_tune_swag": "--epochs 1 --learning-rates 1e-3 --batch-sizes 4 --sequence-length 32",
    "extract_features": "",
    "serve": "--no-access-log",
    "query": "",
    "plan": "--size tiny --batch-size 8 --no-measure --gflops 10",
    "benchmark": "--batch-size 2 --sequence-length 16 --predictions 2 --vocabulary-size 100 --turns.rounds 1",
}


FURTHER = (
    "python recipes/pretrain.py --start START --corpus books/heldout --held-out books/train --output OUT"
    f" {SMALLER['pretrain'].replace('--size tiny', '')}"
)


PRETRAIN = (
    "python recipes/pretrain.py --corpus books/train --held-out books/heldout --vocabulary vocab.txt --output OUT"
    f" {SMALLER['pretrain']}"
)


def readme_commands() -> list[str]:
    return re.findall(r"^python recipes/.*$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)


def recipe(command: str, folder: Path, **options) -> subprocess.CompletedProcess:
    """Runs `python recipes/<name>.py ...` in a folder."""
    words = shlex.split(command)
    script = ROOT / words[1]
    return subprocess.run([sys.executable, script, *words[2:]], cwd=folder, capture_output=True, text=True, **options)


def module_of(name: str):
    """A recipe as a module."""
    specification = importlib.util.spec_from_file_location(name, ROOT / "recipes" / f"{name}.py")
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module  # where dataclasses look for their types
    specification.loader.exec_module(module)
    return module


def call(command: str) -> None:
    """Runs `python recipes/<name>.py ...` in this process and folder, which saves the start of one."""
    _, script, *words = shlex.split(command)
    module = module_of(Path(script).stem)
    try:
        parse(module.main, words, Path(script).name)()
    finally:
        for file in list(CLAIMED.values()):  # as if this process had ended
            file.close()
        CLAIMED.clear()


def refuse(name: str, command: str, message: str) -> None:
    """Sees a recipe refuse what it is called with."""
    with pytest.raises((ValueError, OSError)) as refused:
        call(f"python recipes/{name}.py {command}")
    told = explain(refused.value, ROOT / "recipes")
    assert message in told, told
    assert not Path("not_tuned").exists()


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
