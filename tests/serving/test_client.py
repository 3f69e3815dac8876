"""query.py: an answer a line, in order, whatever the server does meanwhile; nothing lost, nothing twice."""

import errno
import fcntl
import functools
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import grpc
import pytest
from served import Faulty, Service, free_port, running, running_grpc, wait_for
from stranger import ROOT, module_of

from kbert.command_line import explain, parse
from kbert.serving import client as client_module
from kbert.serving.answers import AnswerFile
from kbert.serving.asking import in_order
from kbert.serving.batching import Batcher, Limits
from kbert.serving.client import Client, Patience, Unavailable
from kbert.serving.models import Models
from kbert.serving.server import Metrics, new_application

LONG = "x" * 1000  # which the model refuses


@pytest.fixture(scope="module")
def models(versions, tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    (folder / "capitals").mkdir()
    (folder / "capitals" / "1").symlink_to(versions / "1", target_is_directory=True)
    models = Models(folder)
    models.look()
    return models


def new_server(models) -> Faulty:
    return Faulty(new_application(models, Batcher(Limits()), Metrics(), body_bytes=100_000))


@pytest.fixture(scope="module")
def rest(models):
    """kbert's server over REST, with faults to be given."""
    server, port = new_server(models), free_port()
    server.url = f"http://127.0.0.1:{port}"
    with running(server, port):
        yield server


@pytest.fixture(scope="module")
def service(models):
    """The same model over gRPC."""
    service, port = Service(models), free_port()
    service.url = f"grpc://127.0.0.1:{port}"
    with running_grpc(service, port):
        yield service


@pytest.fixture
def server(rest):
    rest.faults.clear()
    rest.asked = rest.under_way = rest.most = 0
    return rest


@pytest.fixture
def over_grpc(service):
    service.faults.clear()
    service.asked = 0
    return service


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def query(url: str, *words: str) -> None:
    """Runs recipes/query.py in this process."""
    module = module_of("query")
    words = ("--url", url, "--model", "capitals", "--pause", "0.01", *words)
    module.main(**parse(module.main, words, "query.py"))


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


def test_texts_of_the_command_line_have_an_answer_a_line_and_a_summary(server, capsys):
    texts = ["été", "", "日本 \u2028 🎉", 'two\nlines "quoted"\t{']
    query(server.url, "--text", *texts)
    out, err = capsys.readouterr()
    assert [json.loads(line) for line in out.split("\n")[:-1]] == [answer(text) for text in texts]
    assert '"ÉTÉ"' in out and "日本" in out
    assert err.count("\n") == 1 and err.startswith("4 inputs, 0 errors, ") and "1 requests, 0 retries, p50 " in err


@pytest.mark.parametrize("kind", ["rest", "grpc"])
def test_2000_lines_are_answered_in_order_by_parallel_requests(server, over_grpc, here, capsys, kind):
    asked = server if kind == "rest" else over_grpc
    texts = write_lines(here / "lines.txt", 2000)
    asked.faults.extend([0.3, 0, 0.2, 0, 0.1])
    query(asked.url, "--input", "lines.txt", "--output", "answers.jsonl")
    assert read(here / "answers.jsonl") == [answer(text) for text in texts]
    assert asked.asked == 63 and (kind == "grpc" or asked.most == 4)
    err = capsys.readouterr().err
    assert err.startswith("2000 inputs, 0 errors") and "63 requests, 0 retries" in err


@pytest.mark.parametrize(
    ("flags", "content", "expected"),
    [
        ("", b"", []),
        ("", b"\n", [answer("")]),
        ("", b"\xef\xbb\xbfa\r\n\r\n b \n\nc", [answer(text) for text in ("a", "", " b ", "", "c")]),
        ("--batch-size 1 --parallel 1", b"a\nb\n", [answer("a"), answer("b")]),
        ("--version 1", b"a\n", [answer("a")]),
        ("--signature pairs --format tsv", b"a\tb\n\t\n\"\t'\n", [{"pair": pair} for pair in ("a+b", "+", "\"+'")]),
        ("--signature pairs --format tsv --columns text_b text_a", b"b\ta\n", [{"pair": "a+b"}]),
        ("--signature pairs --format jsonl", b'{"text_b": "b", "text_a": "\\u00e9\\n"}\n', [{"pair": "é\n+b"}]),
        ("--signature sums --format jsonl", b'{"x": [1, 2.5]}\n{"x": [0, 0.1]}\n', [{"sum": 3.5}, {"sum": 0.1}]),
        (
            # Lists of different lengths are no batch, and are asked each on its own.
            "--signature endings --format jsonl",
            b'{"context": "a", "endings": ["b", "c"]}\n{"context": "d", "endings": ["e"]}\n',
            [{"all": "ab|c"}, {"all": "de"}],
        ),
        ("--format jsonl", b'{"text": {"b64": "w6k="}}\n', [answer("é")]),
    ],
)
def test_lines_of_every_format_are_answered_alike_over_both(
    server, over_grpc, here, monkeypatch, capsys, flags, content, expected
):
    answers = []
    for url in (server.url, over_grpc.url):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))
        query(url, "--input", "-", *flags.split())
        answers.append(capsys.readouterr().out)
    assert [json.loads(line) for line in answers[0].split("\n")[:-1]] == expected
    assert answers[0] == answers[1]


@pytest.mark.parametrize("output", [["--output", "o"], []], ids=["file", "standard output"])
def test_lines_of_a_pipe_are_answered_before_the_next_ones_come(server, here, monkeypatch, output):
    source, sink = os.pipe()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=open(source, "rb")))
    if not output:
        monkeypatch.setattr(sys, "stdout", open("o", "w"))
    asking = threading.Thread(target=query, args=(server.url, "--input", "-", "--batch-size", "1", *output))
    asking.start()
    with open(sink, "wb", buffering=0) as lines:
        for count, text in enumerate(("a", "b"), start=1):
            lines.write(text.encode() + b"\n")
            wait_for(lambda: (here / "o").exists() and len(read(here / "o")) == count)  # noqa: B023
    asking.join()
    assert read(here / "o") == [answer("a"), answer("b")]


@pytest.mark.parametrize("torn", [b"", b'{"length": 3, "upp', b'{"length": 0, "upper": "", "version": "1"}\n'])
def test_the_same_command_goes_on_and_ends_with_the_same_bytes(server, here, capsys, torn):
    write_lines(here / "lines.txt")
    query(server.url, "--input", "lines.txt", "--output", "whole")
    command = (server.url, "--input", "lines.txt", "--output", "answers")
    server.faults.extend([None, None, 500])
    said = refusal(*command, "--parallel", "1")
    assert said == "lines.txt, lines 65 to 96: HTTP status 500: as the test has it"
    assert len(read(here / "answers")) == 64
    with open(here / "answers", "ab") as file:
        file.write(torn)
    capsys.readouterr(), server.faults.clear()
    server.asked = 0
    query(*command)
    assert server.asked == 2 and capsys.readouterr().err.startswith("36 inputs, ")
    assert (here / "answers").read_bytes() == (here / "whole").read_bytes()
    query(*command)
    assert server.asked == 2 and "0 inputs" in (said := capsys.readouterr().err) and "100 were answered before" in said
    query(*command, "--batch-size", "7")
    assert server.asked == 2 and (here / "answers").read_bytes() == (here / "whole").read_bytes()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_process_leaves_whole_lines_and_goes_on(server, here, number):
    texts = write_lines(here / "lines.txt", 200)
    server.faults.extend([0.0] * 8 + [3.0] * 42)  # so that it is not done before it is interrupted
    command = [sys.executable, ROOT / "recipes" / "query.py", "--url", server.url, "--model", "capitals"]
    command += ["--input", "lines.txt", "--output", "answers", "--batch-size", "4", "--parallel", "2"]
    # Tests that run in the background of a shell would pass on that they ignore Ctrl-C.
    heed = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=heed)
    wait_for(lambda: (here / "answers").exists() and len(read(here / "answers")) >= 16)
    process.send_signal(number)
    said = process.communicate()[1]
    server.faults.clear()
    kept = read(here / "answers")
    assert 16 <= len(kept) < 200
    if number == signal.SIGINT:
        assert process.returncode == 130 and said.count("\n") == 1
        assert said == f"query.py: interrupted; {len(kept)} answers are there, the same command goes on with them\n"
    query(*map(str, command[3:4]), *command[6:])
    assert read(here / "answers") == [answer(text) for text in texts]


def test_a_file_of_other_answers_is_not_written_to(server, here):
    write_lines(here / "lines.txt", 40)
    command = (server.url, "--input", "lines.txt", "--output")
    query(*command, "answers")
    before = (here / "answers").read_bytes()
    something_else = "answers has answers to something else: "
    (here / "others").write_text("mine\n")
    assert refusal(*command, "others") == "others is there already, without others.query.json; give another file"
    assert (here / "others").read_text() == "mine\n"
    assert refusal(*command, ".").startswith(". is there already and no file")
    assert refusal(*command, "nowhere/answers") == "No such file or directory: nowhere/answers"
    pairs = ("answers", "--signature", "pairs", "--format", "tsv")
    assert refusal(*command, *pairs).startswith(f"{something_else}signature is serving_default there and pairs now")
    noted = json.loads((here / "answers.query.json").read_text())
    (here / "answers.query.json").write_text(json.dumps(noted | {"version": 7}))
    assert refusal(*command, "answers").startswith(f"{something_else}version is 7 there and 1 now")
    (here / "answers.query.json").write_text(json.dumps(noted))
    with open(here / "answers") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        assert refusal(*command, "answers").startswith("answers: another process writes to it")
    (here / "lines.txt").write_text("other\n" * 40)
    assert refusal(*command, "answers").startswith(f"{something_else}input is ")
    assert before == (here / "answers").read_bytes()


def test_a_batch_that_does_not_fit_on_the_disk_is_not_begun(here):
    answers = AnswerFile("answers", {})
    answers.write(1, [{"number": 1}, {"number": 2}])
    whole = answers.file

    def write(content):
        if len(content) < 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return whole.write(content[:20])

    answers.file = SimpleNamespace(write=write)
    with pytest.raises(OSError, match="No space left on device: 'answers'"):
        answers.write(3, [{"number": 3}, {"number": 4}])
    assert read(here / "answers") == [{"number": 1}, {"number": 2}]


def test_fewer_lines_of_a_stream_than_answers_are_an_error(server, here, monkeypatch):
    for content in (b"a\nb\n", b"a\n"):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))
        if content == b"a\nb\n":
            query(server.url, "--input", "-", "--output", "answers")
    said = refusal(server.url, "--input", "-", "--output", "answers")
    assert said == "answers has 2 answers, standard input 1 lines; give another file"


@pytest.mark.parametrize(
    "faults", [[503], [429, 503, 502, 504], ["reset"], [None, "reset", "reset"], [2.5]], ids=lambda faults: str(faults)
)
def test_what_may_pass_is_asked_again(server, here, capsys, faults):
    texts = write_lines(here / "lines.txt")
    server.faults.extend(faults)
    query(server.url, "--input", "lines.txt", "--output", "answers", "--timeout", "1" if faults == [2.5] else "60")
    assert read(here / "answers") == [answer(text) for text in texts]
    retries = len([fault for fault in faults if fault])
    assert f"4 requests, {retries} retries" in capsys.readouterr().err and server.asked == 4 + retries


@pytest.mark.parametrize("code", ["UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "late"])
def test_what_may_pass_is_asked_again_over_grpc(over_grpc, here, capsys, code):
    texts = write_lines(here / "lines.txt")
    over_grpc.faults.extend([2.5] if code == "late" else [grpc.StatusCode[code]] * 2)
    query(over_grpc.url, "--input", "lines.txt", "--output", "answers", "--timeout", "1" if code == "late" else "60")
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
        server.faults.extend([0.1] * 50)
        return server, running(server, port, dies=True) if kind == "rest" else running_grpc(server, port)

    server, block = serve()
    command = (url, "--input", "lines.txt", "--output", "answers", "--batch-size", "4", "--retries", "12")
    asking = threading.Thread(target=query, args=command)
    with block:
        asking.start()
        wait_for(lambda: server.asked >= 8)
    time.sleep(0.3)
    assert asking.is_alive() and len(read(here / "answers")) < 200
    _, block = serve()
    with block:
        asking.join(20)
    assert read(here / "answers") == [answer(text) for text in texts]


@pytest.mark.parametrize("kind", ["rest", "grpc"])
def test_the_line_that_a_server_refuses_is_named_or_skipped(server, over_grpc, here, capsys, kind):
    asked = server if kind == "rest" else over_grpc
    texts = write_lines(here / "lines.txt")
    texts[41] = texts[77] = LONG
    (here / "lines.txt").write_text("".join(f"{text}\n" for text in texts))
    command = (asked.url, "--input", "lines.txt", "--output", "answers")
    said = refusal(*command)
    assert said.startswith("lines.txt, line 42: ") and "a text of 1000 characters" in said
    assert read(here / "answers") == [answer(text) for text in texts[:32]]
    assert asked.asked <= 1 + 3 * 11, "halves find it sooner than one line after the other"
    query(*command, "--skip-errors")
    found = read(here / "answers")
    errors = [number for number, one in enumerate(found) if one.keys() == {"error"}]
    assert errors == [41, 77] and all("a text of 1000 characters" in found[number]["error"] for number in errors)
    assert [one for one in found if "error" not in one] == [answer(text) for text in texts if text != LONG]
    assert "68 inputs, 2 errors" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "line", "message"),
    [
        ("", b"caf\xe9 au lait", "byte 4: invalid continuation byte, expected UTF-8"),
        ("--signature pairs --format tsv", b"a", "1 columns; expected 2 parted by tabs: text_a, text_b"),
        ("--signature pairs --format tsv", b"a\tb\tc", "3 columns; expected 2"),
        ("--signature pairs --format jsonl", b"", "expected a JSON object of text_a, text_b"),
        ("--signature pairs --format jsonl", b'{"text_a": "a"}', "got text_a; expected a JSON object of text_a, text"),
        ("--signature pairs --format jsonl", b'["a"]', 'got ["a"]; expected a JSON object of text_a, text_b'),
        ("--signature pairs --format jsonl", b'{"text_a": 1, "text_b": ""}', "text_a: 1 is no string"),
        ("--signature pairs --format jsonl", b'{"text_a": "\\ud800", "text_b": ""}', "text_a: "),
        ("--signature sums --format jsonl", b'{"x": [1]}', "x: expected float32 [?, 2], lists of equal lengths"),
    ],
)
def test_a_line_that_is_no_input_is_named_before_its_batch_is_sent(server, here, capsys, flags, line, message):
    good = {"pairs": {"tsv": b"a\tb", "jsonl": b'{"text_a": "a", "text_b": "b"}'}, "sums": {"jsonl": b'{"x": [1, 2]}'}}
    words = flags.split()
    right = good[words[1]][words[3]] if words else b"a"
    (here / "lines.txt").write_bytes(right + b"\n" + line + b"\n" + right + b"\n")
    command = (server.url, "--input", "lines.txt", *words)
    said = refusal(*command)
    assert said.startswith("lines.txt, line 2: ") and message in said and server.asked == 0
    query(*command, "--skip-errors")
    out = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(out) == 3 and "error" in out[1] and message in out[1]["error"] and server.asked == 1
    assert out[0] == out[2] and "error" not in out[0]


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
    server, port = new_server(models), free_port()
    server.faults.extend([1.0])
    with running(server, port):
        asking = threading.Thread(target=query, args=(f"http://127.0.0.1:{port}", "--text", "a"))
        asking.start()
        wait_for(lambda: server.asked)
        shutil.copytree(versions / "2", here / "served" / "capitals" / "2")
        models.look()
        asking.join()
        query(f"http://127.0.0.1:{port}", "--text", "a", "--version", "2")
    err = capsys.readouterr().err
    assert err.count("version 1 answered first, and then another") == 1 and err.count("\n") == 3


@pytest.mark.parametrize("kind", ["rest", "grpc"])
def test_a_request_that_is_too_large_is_asked_in_parts(server, over_grpc, here, capsys, kind):
    asked = server if kind == "rest" else over_grpc
    (here / "lines.txt").write_text(("y" * 900 + "\n") * 120)
    query(asked.url, "--input", "lines.txt", "--output", "answers", "--batch-size", "120")
    assert read(here / "answers") == [answer("y" * 900)] * 120
    assert "120 inputs, 0 errors" in capsys.readouterr().err and asked.asked <= 3


def test_a_refusal_that_is_every_lines_stops(server):
    server.faults.append(404)
    said = refusal(server.url, "--text", "a", "b", "--skip-errors")
    assert said == "--text, lines 1 to 2: HTTP status 404: as the test has it" and server.asked == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("", "expected --text or --input, one of them"),
        ("--text a --input b", "expected --text or --input, one of them"),
        ("--text a --batch-size 0", "expected numbers above 0"),
        ("--text a --parallel 0", "expected numbers above 0"),
        ("--text a --timeout 0", "expected numbers above 0"),
        ("--text a --retries -1", "--retries: 0 or more"),
        ("--input nowhere.txt", "No such file or directory: nowhere.txt"),
        ("--text a --signature pairs", "--format text: expected one input, there are text_a (string [?]), text_b (str"),
        ("--text a --signature sums", "--format text: expected inputs of one text each, there are x (float32 [?, 2])"),
        ("--text a --signature endings --format tsv", "--format tsv: expected inputs of one text each"),
        ("--text a --signature pairs --format tsv --columns text_a", "expected --format tsv and all inputs once: "),
        ("--text a --columns text", "--columns text: expected --format tsv"),
        ("--text a --url 127.0.0.1:8501", "127.0.0.1:8501 is no address; expected http://HOST:PORT or grpc://HOST:PO"),
        ("--text a --url http://a:b", "expected http://HOST:PORT"),
        ("--text a --url grpc://a", "grpc://a is no address"),
        ("--text a --url http://a:1/v1/models/b:predict", "expected the server's address alone"),
        ("--text a --url http://127.0.0.1:9", "http://127.0.0.1:9: "),
        ("--text a --url grpc://127.0.0.1:9", "grpc://127.0.0.1:9: UNAVAILABLE: "),
    ],
)
def test_what_cannot_be_asked_is_refused_before_anything_is(server, here, flags, message):
    begin = time.monotonic()
    assert message in refusal(server.url, "--pause", "30", *flags.split(), "--output", "answers")
    assert server.asked == 0 and not (here / "answers").exists() and time.monotonic() - begin < 15


@pytest.mark.parametrize("kind", ["rest", "grpc"])
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--model none", ", model none: "),
        ("--version 2", "Servable not found for request: Specific(capitals, 2); capitals has version 1"),
        ("--signature no", "signature no is not there; capitals has endings, pairs, serving_default, sums"),
    ],
)
def test_what_a_server_does_not_have_is_refused_before_anything_is_asked(server, over_grpc, here, kind, flags, message):
    asked = server if kind == "rest" else over_grpc
    assert message in refusal(asked.url, "--text", "a", *flags.split(), "--output", "answers")
    assert asked.asked == 0 and not (here / "answers").exists()


@pytest.mark.parametrize("body", [b"<html>", b'{"error": "no"}', b"[1]", b'{"metadata": {"signature_def": 3}}'])
def test_a_server_of_something_else_is_told_apart(body):
    async def application(scope, receive, send):
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": body})

    port = free_port()
    with running(application, port):
        assert "expected TensorFlow Serving's REST API" in refusal(f"http://127.0.0.1:{port}", "--text", "a")


def test_over_rest_no_framework_is_loaded_and_a_bar_is_for_terminals(server, here):
    write_lines(here / "lines.txt")
    code = "import runpy, sys; runpy.run_path(sys.argv[0], run_name='__main__')"
    code += "; print(sorted({'tensorflow', 'keras', 'grpc'} & set(sys.modules)))"
    words = [str(ROOT / "recipes" / "query.py"), "--url", server.url, "--model", "capitals", "--input", "lines.txt"]
    command = [sys.executable, "-c", f"import sys; sys.argv = {[*words, '--output', 'answers']}; {code}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("100 inputs")
    terminal, theirs = os.openpty()
    done = subprocess.run([sys.executable, *words], stdout=subprocess.PIPE, stderr=theirs)
    shown = os.read(terminal, 100_000).decode()
    assert "Asking" in shown and "100%" in shown and "100 inputs" in shown
    assert done.stdout == (here / "answers").read_bytes()


def test_a_reader_that_leaves_ends_it_quietly(server, here):
    texts = write_lines(here / "lines.txt", 5000)
    recipe = f"{sys.executable} {ROOT / 'recipes' / 'query.py'} --url {server.url} --model capitals --input lines.txt"
    script = f"set -o pipefail; {recipe} | head -1 > first"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (141, "") and read(here / "first") == [answer(texts[0])]
