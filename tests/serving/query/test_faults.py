"""query.py: what may pass is waited for; what does not ends it after the answers before it."""

import random
import shutil
import threading
import time
from types import SimpleNamespace

import grpc
import pytest
from asked import answer, new_server, query, read, refusal, write_lines
from served import Service, free_port, running, running_grpc, wait_for

from kbert.serving import client as client_module
from kbert.serving.asking import in_order
from kbert.serving.client import Client, Patience, Unavailable
from kbert.serving.models import Models


@pytest.mark.parametrize(
    "faults", [[503], [429, 503, 502, 504], ["reset"], [None, "reset", "reset"], [4.5]], ids=lambda faults: str(faults)
)
def test_what_may_pass_is_asked_again(server, here, capsys, faults):
    texts = write_lines(here / "lines.txt")
    server.faults.extend(faults)
    query(server.url, "--input", "lines.txt", "--output", "answers", "--timeout", "2" if faults == [4.5] else "60")
    assert read(here / "answers") == [answer(text) for text in texts]
    retries = len([fault for fault in faults if fault])
    assert f"4 requests, {retries} retries" in capsys.readouterr().err and server.asked == 4 + retries


@pytest.mark.parametrize("code", ["UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "CANCELLED", "late"])
def test_what_may_pass_is_asked_again_over_grpc(over_grpc, here, capsys, code):
    texts = write_lines(here / "lines.txt")
    over_grpc.faults.extend([4.5] if code == "late" else [grpc.StatusCode[code]] * 2)
    query(over_grpc.url, "--input", "lines.txt", "--output", "answers", "--timeout", "2" if code == "late" else "60")
    assert read(here / "answers") == [answer(text) for text in texts]
    assert f"4 requests, {1 if code == 'late' else 2} retries" in capsys.readouterr().err


def test_retries_have_an_end(server, over_grpc, here):
    server.faults.extend([503] * 3)
    said = refusal(server.url, "--text", "a", "b", "--retries", "2")
    assert said == (f"--text, lines 1 to 2: {server.url}: HTTP status 503: as the test has it; 2 retries did not help")
    assert server.asked == 3
    over_grpc.faults.append(grpc.StatusCode.UNAVAILABLE)
    said = refusal(over_grpc.url, "--text", "a", "--retries", "0")
    assert said == f"--text, line 1: {over_grpc.url}: UNAVAILABLE: as the test has it; 0 retries did not help"


def test_pauses_grow_twofold_by_chance_and_not_for_ever(monkeypatch):
    pauses = []
    monkeypatch.setattr(client_module.time, "sleep", pauses.append)

    def metadata():
        raise Unavailable("busy", is_busy=True)

    client = Client(SimpleNamespace(metadata=metadata), Patience(retries=9, pause=0.5), random.Random(1))
    with pytest.raises(Unavailable):
        client.describe()
    whole = [min(0.5 * 2**number, 30) for number in range(9)]
    assert all(most / 2 <= pause <= most for pause, most in zip(pauses, whole, strict=True))
    assert len({pause / most for pause, most in zip(pauses, whole, strict=True)}) == 9


@pytest.mark.parametrize("kind", ["rest", "grpc"])
def test_a_server_that_dies_and_returns_is_waited_for(models, here, kind):
    texts, port = write_lines(here / "lines.txt", 200), free_port()
    url = f"{'http' if kind == 'rest' else 'grpc'}://127.0.0.1:{port}"

    def serve():
        server = new_server(models) if kind == "rest" else Service(models)
        return server, running(server, port, dies=True) if kind == "rest" else running_grpc(server, port)

    server, block = serve()
    command = (url, "--input", "lines.txt", "--output", "answers", "--batch-size", "4", "--retries", "12")
    asking = threading.Thread(target=query, args=command)
    server.faults.extend([0.0] * 8 + [3.0] * 42)  # so that not all is answered before it dies
    with block:
        asking.start()
        wait_for(lambda: server.asked >= 8)
    time.sleep(0.3)
    assert asking.is_alive() and len(read(here / "answers")) < 200
    _, block = serve()
    with block:
        asking.join(120)
    assert read(here / "answers") == [answer(text) for text in texts]


def test_after_a_failure_nothing_more_is_asked():
    asked, found = [], []

    def answer(batch):
        asked.append(batch)
        if batch == 2:
            raise ValueError("the second")
        return -batch

    with pytest.raises(ValueError, match="the second"):
        for one in in_order(iter(range(1, 10)), answer, parallel=1):
            time.sleep(0.1)  # while the others might go on
            found.append(one)
    assert found == [(1, -1)] and asked == [1, 2]


def test_a_failure_to_read_is_raised_after_the_answers_before_it():
    def batches():
        yield from (1, 2, 3)
        raise OSError("the disk is gone")

    found = []
    with pytest.raises(OSError, match="the disk is gone"):
        for one in in_order(batches(), lambda batch: -batch, parallel=2):
            found.append(one)
    assert found == [(1, -1), (2, -2), (3, -3)]


def test_what_is_before_an_error_is_answered_first(server, here):
    (here / "lines.txt").write_bytes(b"a\n" * 40 + b"\xff\n" + b"a\n" * 200)
    server.faults.extend([0.2, 0])
    assert refusal(server.url, "--input", "lines.txt", "--output", "o", "--batch-size", "10").startswith(
        "lines.txt, line 41: byte 1: "
    )
    assert read(here / "o") == [answer("a")] * 40


def test_a_version_that_comes_meanwhile_is_told(versions, here, capsys):
    shutil.copytree(versions / "1", here / "served" / "capitals" / "1")
    models = Models(here / "served")
    models.look()
    server, port, comes = new_server(models), free_port(), threading.Event()
    server.faults.append(comes.is_set)
    with running(server, port):
        asking = threading.Thread(target=query, args=(f"http://127.0.0.1:{port}", "--text", "a"))
        asking.start()
        wait_for(lambda: server.asked)
        shutil.copytree(versions / "2", here / "served" / "capitals" / "2")
        models.look()
        comes.set()
        asking.join()
        query(f"http://127.0.0.1:{port}", "--text", "a", "--version", "2")
    err = capsys.readouterr().err
    assert err.count("version 1 answered first, and then another") == 1 and err.count("\n") == 3
