"""query.py: what cannot be asked is said in one line, by name, before anything is asked."""

import json
import time

import pytest
from asked import answer, query, read, refusal, write_lines
from served import free_port, running

LONG = "x" * 1000  # which the model refuses


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
        ("--text a --batch-size 0", "--batch-size 0: expected a number above 0"),
        ("--text a --parallel 0", "--parallel 0: expected a number above 0"),
        ("--text a --timeout -0.5", "--timeout -0.5: expected a number above 0"),
        ("--text a --retries -1", "--retries -1: expected 0 or more"),
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
    assert message in refusal(server.url, "--pause", "600", *flags.split(), "--output", "answers")
    assert server.asked == 0 and not (here / "answers").exists() and time.monotonic() - begin < 300


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
