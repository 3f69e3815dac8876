"""query.py: an answer a line, in order, nothing lost and nothing twice, whatever interrupts it."""

import errno
import fcntl
import functools
import io
import json
import os
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
from asked import answer, query, read, refusal, write_lines
from served import wait_for
from stranger import ROOT

from kbert.serving.answers import AnswerFile


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
