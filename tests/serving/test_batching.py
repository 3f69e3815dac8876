"""Requests that are computed together get each its own answer, the one that they would have had alone."""

import threading

import numpy as np
import pytest

from kbert.serving import batching
from kbert.serving.batching import Batcher, Limits
from kbert.serving.models import Signature
from kbert.serving.rest import Refused, Tensor

STRING = np.dtype(object)
SECONDS = 60  # that a test waits for what is there in a moment


def texts(*values: str) -> dict:
    return {"text": np.array([value.encode() for value in values], object)}


class Words:
    """Answers texts with their words and their number; notes the batches that it saw.

    held: the first batch has begun, and ends when the test says so.
    """

    def __init__(self, held: bool = False):
        self.batches, self.begun, self.goes_on = [], threading.Event(), threading.Event()
        if not held:
            self.goes_on.set()
        inputs = {"text": Tensor(STRING, (None,))}
        outputs = {"words": Tensor(STRING, (None, None)), "count": Tensor(np.dtype("int64"), (None,))}
        self.signature = Signature(inputs, outputs, {"words": ("words", "")}, self)

    def __call__(self, inputs):
        rows = [text.decode().split() for text in inputs["text"]]
        self.batches.append([" ".join(row) for row in rows])
        self.begun.set()
        assert self.goes_on.wait(SECONDS)
        if any("fail" in row for row in rows):
            raise RuntimeError("a word that fails")
        width = max((len(row) for row in rows), default=0) + 1  # filled up even where nothing is
        words = [[word.encode() for word in row] + [b""] * (width - len(row)) for row in rows]
        return {
            "words": np.array(words, object).reshape(len(rows), width),
            "count": np.array([len(row) for row in rows], np.int64),
        }


def asked(batcher, words, *values):
    answers = batcher.submit(words.signature, texts(*values)).result(SECONDS)
    return answers["words"].tolist(), answers["count"].tolist()


def test_a_request_alone_is_answered_at_once_without_what_fills_it_up():
    batcher, words = Batcher(), Words()
    assert asked(batcher, words, "a b", "c") == ([[b"a", b"b"], [b"c", b""]], [2, 1])
    assert asked(batcher, words) == ([], [])
    batcher.stop()


def test_what_waits_is_computed_together_with_what_is_as_long_and_each_gets_its_own():
    batcher, words = Batcher(), Words(held=True)
    first = batcher.submit(words.signature, texts("first"))
    assert words.begun.wait(SECONDS)
    long = "w " * 100
    asked_for = ["a", "b c", long, "d e f", long + "x"]
    futures = [batcher.submit(words.signature, texts(value)) for value in asked_for]
    words.goes_on.set()
    for value, future in zip(asked_for, futures, strict=True):
        answer = future.result(SECONDS)
        assert answer["words"].tolist() == [[word.encode() for word in value.split()]]
    assert first.result()["count"].tolist() == [1]
    assert [len(batch) for batch in words.batches] == [1, 3, 2]
    batcher.stop()


def test_one_requests_fault_is_not_anothers():
    batcher, words = Batcher(), Words(held=True)
    batcher.submit(words.signature, texts("first"))
    assert words.begun.wait(SECONDS)
    good, bad, other = (batcher.submit(words.signature, texts(value)) for value in ("good", "fail", "other"))
    words.goes_on.set()
    assert good.result(SECONDS)["words"].tolist() == [[b"good"]]
    assert other.result(SECONDS)["words"].tolist() == [[b"other"]]
    with pytest.raises(RuntimeError, match="a word that fails"):
        bad.result(SECONDS)
    batcher.stop()


def test_many_rows_are_computed_some_at_a_time_in_order_of_length_and_answered_in_theirs():
    batcher, words = Batcher(Limits(rows=4)), Words()
    values = [" ".join("w" * (1 + n % 3) for _ in range((7 * n) % 11)) for n in range(30)]
    answer = batcher.submit(words.signature, texts(*values)).result(SECONDS)
    assert [[w.decode() for w in row if w] for row in answer["words"].tolist()] == [value.split() for value in values]
    assert answer["words"].shape == (30, 10) and max(len(batch) for batch in words.batches) == 4
    batcher.stop()


def test_a_request_of_many_rows_lets_others_in_between_its_parts():
    batcher, words = Batcher(Limits(rows=4)), Words(held=True)
    many = batcher.submit(words.signature, texts(*["many"] * 40))
    assert words.begun.wait(SECONDS) and batcher.rows == 36
    few = [batcher.submit(words.signature, texts("few" * n)) for n in (20, 40)]
    words.goes_on.set()
    assert [one.result(SECONDS)["count"].tolist() for one in few] == [[1], [1]]
    assert many.result(SECONDS)["count"].tolist() == [1] * 40 and batcher.rows == 0
    assert [batch[0] == "many" for batch in words.batches] == [True, False, False] + [True] * 9
    faulty = batcher.submit(words.signature, texts(*["fail"] * 4, *["w" * 100] * 100))
    with pytest.raises(RuntimeError, match="a word that fails"):
        faulty.result(SECONDS)
    batcher.stop()
    assert batcher.rows == 0 and words.batches[-1] == ["fail"] * 4


def test_columns_that_are_not_as_long_as_each_other_are_asked_alone():
    batches, begun, goes_on = [], threading.Event(), threading.Event()

    def add(inputs):
        batches.append([len(values) for values in inputs.values()])
        begun.set()
        assert goes_on.wait(SECONDS)
        return {"sum": inputs["a"] + inputs["b"]}

    number = Tensor(np.dtype("float32"), (None,))
    signature, batcher = Signature({"a": number, "b": number}, {"sum": number}, {}, add), Batcher(Limits(rows=4))
    asked = [([1], [1]), ([1], [1]), ([1], [1, 2, 3]), ([1], [2]), ([5], 10 * [1])]
    futures = []
    for a, b in asked:
        futures.append(batcher.submit(signature, {"a": np.float32(a), "b": np.float32(b)}))
        assert begun.wait(SECONDS)
    goes_on.set()
    found = [future.result(SECONDS)["sum"].tolist() for future in futures]
    assert found == [[2], [2], [2, 3, 4], [3], [6] * 10] and batcher.rows == 0
    assert batches == [[1, 1], [2, 2], [1, 3], [1, 10]]
    # In the queue they are as many as the longest has.
    begun.clear()
    goes_on.clear()
    batcher.limits = Limits(queue=4)
    batcher.submit(signature, {"a": np.float32([1]), "b": np.float32([1])})
    assert begun.wait(SECONDS)
    batcher.submit(signature, {"a": np.float32([1]), "b": np.float32(4 * [1])})
    with pytest.raises(Refused, match="4 rows wait already"):
        batcher.submit(signature, {"a": np.float32([1]), "b": np.float32([1])})
    goes_on.set()
    batcher.stop()


class Matrices:
    """Answers a text of n characters with n letters and an n x n matrix of ones, both filled up."""

    def __init__(self):
        self.calls = 0
        inputs = {"text": Tensor(STRING, (None,))}
        outputs = {"ones": Tensor(np.dtype("float32"), (None, 2, None, None)), "letters": Tensor(STRING, (None, None))}
        padding = {"letters": ("letters", ""), "ones": ("letters", None)}
        self.signature = Signature(inputs, outputs, padding, self)

    def __call__(self, inputs):
        self.calls += 1
        lengths = [len(text) for text in inputs["text"]]
        rest = [max(lengths) + 1 - length for length in lengths]
        ones = [
            np.pad(np.ones((2, n, n), "float32"), ((0, 0), (0, m), (0, m))) for n, m in zip(lengths, rest, strict=True)
        ]
        letters = [[b"a"] * n + [b""] * m for n, m in zip(lengths, rest, strict=True)]
        return {"ones": np.stack(ones), "letters": np.array(letters, object)}


def test_what_is_long_along_several_axes_is_filled_up_and_cut_along_all_of_them():
    batcher, matrices = Batcher(Limits(rows=2)), Matrices()
    assert matrices.signature.is_batched
    answer = batcher.submit(matrices.signature, texts("aaaaa", "a", "aaa", "aa", "a")).result(SECONDS)
    assert matrices.calls == 3 and answer["ones"].shape == (5, 2, 5, 5) and answer["letters"].shape == (5, 5)
    for row, count in zip(range(5), (5, 1, 3, 2, 1), strict=True):
        assert (answer["ones"][row, :, :count, :count] == 1).all() and answer["ones"][row].sum() == 2 * count**2
    assert batcher.submit(matrices.signature, texts("aaa")).result(SECONDS)["ones"].shape == (1, 2, 3, 3)
    batcher.stop()


def test_rows_of_ids_are_as_long_as_their_text_may_be():
    inputs = {"input_ids": np.zeros((9, 50), np.int32), "input_mask": np.zeros((9, 50), np.int32)}
    outputs = {"sum": Tensor(np.dtype("int32"), (None,))}
    signature = Signature({name: Tensor(np.dtype("int32"), (None, None)) for name in inputs}, outputs, {}, None)
    parts = batching.parts_of(signature, inputs, Limits(characters=800))
    assert [len(part) for part in parts] == [4, 4, 1]


def test_an_answer_that_is_too_large_to_be_written_is_refused_before_all_of_it_is_computed(monkeypatch):
    monkeypatch.setattr(batching, "MOST_VALUES", 2000)
    batcher, matrices = Batcher(Limits(rows=2)), Matrices()
    assert len(batcher.submit(matrices.signature, texts(*["aaa"] * 9)).result(SECONDS)["ones"]) == 9
    # A row of 8 letters is 136 values; and one of 30 makes rows of as many of them all.
    for lengths, calls in (([8] * 40, 8), ([1] * 20 + [30], 11)):
        matrices.calls = 0
        request = texts(*("a" * length for length in lengths))
        with pytest.raises(
            Refused, match="the answer has more than 2000 values; ask for fewer rows at a time"
        ) as refused:
            batcher.submit(matrices.signature, request).result(SECONDS)
        assert refused.value.status == 413 and matrices.calls == calls and batcher.rows == 0
    with pytest.raises(Refused, match="more than 2000 values"):  # of one row, too
        batcher.submit(matrices.signature, texts("a" * 40)).result(SECONDS)
    batcher.stop()
    # Rows of a later part are filled up to those of an earlier one, too.
    size = batching.Size()
    size.add({"ones": np.zeros((1, 40, 20))})
    with pytest.raises(Refused, match="more than 2000 values"):
        size.add({"ones": np.zeros((2, 1, 1))})


def test_a_full_queue_and_a_stopped_server_say_so_and_what_waits_is_answered():
    batcher, words = Batcher(Limits(queue=3)), Words(held=True)
    first = batcher.submit(words.signature, texts("first"))
    assert words.begun.wait(SECONDS)
    waiting = [batcher.submit(words.signature, texts("a")) for _ in range(3)]
    with pytest.raises(Refused, match="3 rows wait already; try again a little later") as refused:
        batcher.submit(words.signature, texts("b"))
    assert refused.value.status == 503
    words.goes_on.set()
    batcher.stop()
    assert all(future.done() for future in (first, *waiting))
    with pytest.raises(Refused, match="shutting down"):
        batcher.submit(words.signature, texts("b"))


def test_a_batch_may_gather_for_a_moment():
    batcher, words = Batcher(Limits(rows=3, wait=SECONDS)), Words()
    futures = [batcher.submit(words.signature, texts("a")) for _ in range(3)]
    assert all(future.result(SECONDS)["count"].tolist() == [1] for future in futures)
    assert [len(batch) for batch in words.batches] == [3]
    batcher.stop()


def test_an_abandoned_request_is_not_computed():
    batcher, words = Batcher(), Words(held=True)
    batcher.submit(words.signature, texts("first"))
    assert words.begun.wait(SECONDS)
    batcher.submit(words.signature, texts("nobody waits")).cancel()
    words.goes_on.set()
    batcher.stop()
    assert words.batches == [["first"]]


def test_an_abandoned_request_that_fails_leaves_the_queue_empty():
    batcher, words = Batcher(Limits(rows=4)), Words(held=True)
    many = batcher.submit(words.signature, texts(*["fail"] * 4, *["w" * 100] * 100))
    assert words.begun.wait(SECONDS) and many.cancel()
    words.goes_on.set()
    batcher.stop()
    assert batcher.rows == 0
