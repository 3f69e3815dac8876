"""What the tests of query.py share: the recipe in this process, and what it has answered."""

import json

import pytest
from served import Faulty
from stranger import ROOT, module_of

from kbert.command_line import explain, parse
from kbert.serving.batching import Batcher, Limits
from kbert.serving.server import Metrics, new_application


def new_server(models) -> Faulty:
    return Faulty(new_application(models, Batcher(Limits()), Metrics(), body_bytes=100_000))


def query(url: str, *words: str) -> None:
    """Runs recipes/query.py in this process."""
    module = module_of("query")
    words = ("--url", url, "--model", "capitals", "--pause", "0.01", *words)
    parse(module.main, words, "query.py")()


def refusal(url: str, *words: str) -> str:
    """The line with which it refuses."""
    with pytest.raises((ValueError, OSError)) as refused:
        query(url, *words)
    message = explain(refused.value, ROOT / "recipes")
    assert message and "\n" not in message
    return message


def answer(text: str) -> dict:
    return {"length": len(text), "upper": text.upper(), "version": "1"}


def read(file) -> list:
    """The answers of a file, every line of which must be whole."""
    content = file.read_bytes()
    assert content.endswith(b"\n") or not content
    return [json.loads(line) for line in content.decode().split("\n")[:-1]]


def write_lines(file, count: int = 100) -> list[str]:
    """Lines to ask, some of them empty, and none alike."""
    texts = ["" if number % 10 == 9 else f"line {number} été {'a' * (number % 40)}" for number in range(count)]
    file.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return texts
