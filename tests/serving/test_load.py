"""A server in a process of its own under load: many clients, versions that change, requests that make no sense."""

import asyncio
import dataclasses
import json
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import keras
import numpy as np
import pytest

from kbert.config import BertConfig
from kbert.model.bert import Bert
from kbert.model.fine_tuning import BertClassifier
from kbert.serving.export import export
from kbert.serving.questions import Classify
from kbert.text.wordpiece import WordPiece

SERVE = Path(__file__).parents[2] / "recipes" / "serve.py"
WORDS = [f"{first}{last}" for first in "bcdfghjklmnpqrst" for last in ("a", "en", "ing", "olo", "u")]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
LABELS = list("abcdefgh")
TOLERANCE = 1e-5  # rows of a batch are computed in other shapes than alone


@dataclasses.dataclass(frozen=True)
class Size:
    """Of a model, and of what it is asked; texts have 1 to `words` words, as many short ones as long ones.

    litert: whether LiteRT answers those that come alone.
    """

    layers: int
    hidden: int
    clients: int
    requests: int
    fuzzed: int
    words: int
    litert: bool


SMALL = Size(layers=1, hidden=32, clients=16, requests=400, fuzzed=2000, words=200, litert=True)
FULL = Size(layers=6, hidden=384, clients=64, requests=20_000, fuzzed=10_000, words=2000, litert=False)


@pytest.fixture(scope="module", params=[SMALL, pytest.param(FULL, marks=pytest.mark.long)], ids=["small", "full"])
def size(request):
    return request.param


@pytest.fixture(scope="module")
def asked(size, tmp_path_factory):
    """A folder with a classifier's version 1, texts, and the answer to each alone, [texts, labels]."""
    keras.utils.set_random_seed(1)
    config = BertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.hidden // 32,
        intermediate_size=4 * size.hidden,
        initializer_range=0.1,
    )
    model, tokenizer = BertClassifier(Bert(config), num_labels=len(LABELS)), WordPiece(VOCABULARY)
    model.labels = LABELS
    folder = tmp_path_factory.mktemp("served")
    export(model, tokenizer, folder / "mood", litert=size.litert)
    draw, classify = random.Random(1), Classify(model, tokenizer, LABELS)
    texts = [" ".join(draw.choices(WORDS, k=round(size.words ** draw.random()))) for _ in range(100)]
    answers = np.concatenate([classify([text])["probabilities"].numpy() for text in texts])
    distances = np.abs(answers[:, None] - answers[None]).max(axis=-1)
    assert np.median(distances) > 100 * TOLERANCE  # so that another's answer is noticed
    return folder, texts, answers


class Served:
    """recipes/serve.py in a process; `seconds` from its start to its first answer."""

    def __init__(self, folder, *flags):
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        begin = time.perf_counter()
        command = [sys.executable, SERVE, "--models", folder, "--port", self.port, "--no-access-log", *flags]
        self.process = subprocess.Popen([str(part) for part in command], stderr=subprocess.PIPE)
        while self.process.poll() is None and time.perf_counter() - begin < 300:
            try:
                [(status, _, self.first)] = asyncio.run(ask(self.port, [request_of("a")], clients=1))
                assert status == 200
                break
            except OSError:
                time.sleep(0.05)
        self.seconds = time.perf_counter() - begin

    def megabytes(self) -> float:
        return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{self.process.pid}/status").read_text())[1]) / 1024

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.kill()
        self.process.communicate()


def request_of(text: str) -> bytes:
    return http("POST", "/v1/models/mood:predict", json.dumps({"instances": [text]}).encode())


def http(method: str, path: str, body: bytes) -> bytes:
    return b"%s %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (
        method.encode(),
        path.encode(),
        len(body),
        body,
    )


async def ask(port: int, requests, clients: int, while_asked=None) -> list[tuple[int, bytes, float]]:
    """Status, body and seconds of each request; so many clients send one after the other, on connections they keep.

    `while_asked`, a coroutine function, runs beside them. Plain sockets: a client's work would slow what is measured.
    """
    answers, waiting = {}, iter(enumerate(requests))

    async def client():
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for number, request in waiting:
            begin = time.perf_counter()
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
            body = await reader.readexactly(int(length[1])) if length else b""
            answers[number] = int(head.split()[1]), body, time.perf_counter() - begin
            if b"connection: close" in head.lower():
                writer.close()
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()

    await asyncio.gather(*(client() for _ in range(clients)), *([while_asked()] if while_asked else []))
    return [answers[number] for number in range(len(answers))]


def check(answers, numbers, expected) -> None:
    """Every request was answered, each with its own text's probabilities."""
    for number, (status, body, _) in zip(numbers, answers, strict=True):
        assert status == 200, body
        [row] = json.loads(body)["predictions"]
        np.testing.assert_allclose(row["probabilities"], expected[number], atol=TOLERANCE)
        assert row["label"] == LABELS[np.argmax(row["probabilities"])]


@pytest.fixture(scope="module")
def served(asked, tmp_path_factory):
    """A server of a copy of the model; SIGTERM ends it in the end."""
    folder = tmp_path_factory.mktemp("models")
    shutil.copytree(asked[0], folder, dirs_exist_ok=True)
    with Served(folder, "--seconds", "0.2") as served:
        yield served
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(timeout=300) in (0, -signal.SIGTERM)


def test_under_load_every_request_gets_its_own_answer_while_versions_change(asked, served, size):
    _, texts, expected = asked
    mood, draw, numbers, memory, changed = served.folder / "mood", random.Random(2), [], [], []

    def requests():
        while len(numbers) < size.requests or not changed:
            numbers.append(draw.randrange(len(texts)))
            if len(numbers) % (size.requests // 4) == 0:
                memory.append(served.megabytes())
            yield request_of(texts[numbers[-1]])

    async def status():
        [(_, body, _)] = await ask(served.port, [http("GET", "/v1/models/mood", b"")], clients=1)
        return {one["version"]: one["state"] for one in json.loads(body)["model_version_status"]}

    async def until(version, state):
        while (await status()).get(version) != state:
            await asyncio.sleep(0.05)

    async def change():
        (mood / "3").mkdir()
        (mood / "3" / "saved_model.pb").write_bytes((mood / "1" / "saved_model.pb").read_bytes()[:5000])
        await until("3", "END")
        await asyncio.to_thread(shutil.copytree, mood / "1", mood / "2")
        await until("2", "AVAILABLE")
        shutil.rmtree(mood / "1")
        await until("1", None)
        changed.append("1 to 2")

    begin = time.perf_counter()
    answers = asyncio.run(ask(served.port, requests(), size.clients, change))
    seconds = time.perf_counter() - begin
    check(answers, numbers, expected)
    assert asyncio.run(status()) == {"2": "AVAILABLE", "3": "END"}
    half, nearly_all = np.percentile([taken for _, _, taken in answers], [50, 99])
    print(
        f"\n{len(numbers)} requests, {size.clients} clients: {len(numbers) / seconds:.1f} a second, p50 {half:.3f} s, "
        f"p99 {nearly_all:.3f} s; MB after each quarter of them {', '.join(f'{one:.0f}' for one in memory)}; first "
        f"answer after {served.seconds:.1f} s"
    )
    # In the first half it becomes as much as the most that batches of any lengths need at once.
    assert memory[-1] < 1.1 * memory[1] + 20


def fuzzed(draw: random.Random) -> bytes:
    """A request that is a little or very wrong."""
    body = {"instances": [wrong(draw) for _ in range(draw.randrange(4))]}
    match draw.randrange(8):
        case 0:
            body = {"inputs": draw.choice([{"text": wrong(draw)}, wrong(draw), {"text": ["a"], "more": wrong(draw)}])}
        case 1:
            body = {draw.choice(["instances", "inputs", "signature_name", "", "\0"]): wrong(draw) for _ in range(3)}
        case 2:
            body |= {"signature_name": draw.choice(["ids", "pairs", "none", "serving_default", None, 3, []])}
        case 3:
            rows = {"input_ids": wrong(draw, [1, 2]), "input_mask": wrong(draw, [1, 1]), "segment_ids": [0, 0]}
            body = {"signature_name": "ids", "instances": [rows]}
        case 4:
            body = {"signature_name": "pairs", "instances": [{"text_a": wrong(draw, "a"), "text_b": wrong(draw, "b")}]}
    content = json.dumps(body, ensure_ascii=draw.random() < 0.5).encode("utf-8", "surrogatepass")
    if draw.random() < 0.3:  # bytes lost, doubled or changed
        at = draw.randrange(len(content) + 1)
        content = content[:at] + draw.choice([b"", b"\xff", b"\0", b"[" * 2000, content[at:] * 2, b"1e999"])
    path = "/v1/models/mood:predict" if draw.random() < 0.8 else draw.choice(WRONG_PATHS)
    return http(draw.choice(["POST"] * 9 + ["GET", "PUT", "DELETE"]), path, content)


WRONG_PATHS = [
    "/v1/models/mood/versions/1:predict",
    "/v1/models/mood/versions/99999999999999999999:predict",
    "/v1/models/mood/versions/-1:predict",
    "/v1/models/%00:predict",
    "/v1/models/..%2f..%2fetc:predict",
    "/v1/models/mood/metadata",
    "/v1/models/" + "m" * 5000,
    "/v1/models//versions//:predict",
    "/%ff%fe",
    "/",
]


def wrong(draw: random.Random, otherwise="the old town"):
    """A value that a careless or an evil client might send."""
    numbers = [-1, 0, 5, 10**6, 2**31, 2**63, 10**400, 1.5, -1e308, float("nan"), float("inf")]
    texts = ["", "\0", "\ud800", "é" * 600, "\u202e\u200b", "a " * 900, "[MASK] [SEP] [CLS]", "\x07\x1b[31m", "𝔘" * 40]
    bases = [{"b64": "AP8="}, {"b64": "?"}, {"b64": 3}, {"text": "a"}, {}, [], [[[]]], None, True, otherwise]
    return draw.choice([otherwise, draw.choice(numbers), draw.choice(texts), draw.choice(bases), [draw.choice(texts)]])


def test_requests_that_make_no_sense_are_refused_and_harm_nobody(asked, served, size):
    _, texts, expected = asked
    draw, statuses, memory = random.Random(3), [], []
    for _ in range(2):
        requests = (fuzzed(draw) for _ in range(size.fuzzed // 2))
        statuses += [status for status, _, _ in asyncio.run(ask(served.port, requests, clients=8))]
        memory.append(served.megabytes())
    check(asyncio.run(ask(served.port, map(request_of, texts), clients=2)), range(len(texts)), expected)
    counts = {status: statuses.count(status) for status in sorted(set(statuses))}
    print(
        f"\n{len(statuses)} fuzzed requests: {counts}; {memory[0]:.0f} MB after half of them, {memory[1]:.0f} after all"
    )
    assert counts.keys() <= {200, 400, 404, 405, 413} and counts[200] > 0 and counts[400] > len(statuses) / 10
    assert memory[1] < 1.1 * memory[0] + 50


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.parametrize("size", [FULL], ids=["full"], indirect=True)
def test_batches_make_short_requests_faster_and_long_ones_no_slower(asked, size):
    folder, texts, expected = asked
    draw = random.Random(4)
    short = [request_of(" ".join(draw.choices(WORDS, k=draw.randint(1, 14)))) for _ in range(3000)]
    mix = [request_of(text) for text in draw.choices(texts, k=600)]
    seconds = {}
    with Served(folder) as together, Served(folder, "--batch.rows", "1") as alone:
        for served in (together, alone):
            print(f"\nfirst answer after {served.seconds:.1f} s, in {1000 * served.first:.0f} ms")
            assert served.seconds < 30  # 5 on two cores without other tests
            few = asyncio.run(ask(served.port, [request_of("a")] * 50, clients=1))
            assert served.first < 3 * np.median([taken for _, _, taken in few])
        for _ in range(5):
            for name, served in (("together", together), ("alone", alone)):
                for kind, requests in (("short", short), ("mix", mix)):
                    begin = time.perf_counter()
                    answers = asyncio.run(ask(served.port, requests, size.clients))
                    seconds.setdefault((kind, name), []).append(time.perf_counter() - begin)
                    assert {status for status, _, _ in answers} == {200}
    for kind, least in (("short", 1.5), ("mix", 0.95)):
        pairs = zip(seconds[kind, "alone"], seconds[kind, "together"], strict=True)
        ratio = float(np.median([one / other for one, other in pairs]))
        print(f"\n{kind}: {ratio:.2f} times as fast in batches; seconds {seconds[kind, 'together']}")
        assert ratio >= least
