"""Requests and answers in TensorFlow Serving's JSON, and what is said of those that are none."""

import json

import numpy as np
import pytest

from kbert.serving.rest import Refused, Tensor, error, read_request, write_answer

STRING, INT, FLOAT, BOOL = (np.dtype(kind) for kind in (object, "int32", "float32", "bool"))
SIGNATURES = {
    "serving_default": {"text": Tensor(STRING, (None,))},
    "pairs": {"text_a": Tensor(STRING, (None,)), "text_b": Tensor(STRING, (None,))},
    "ids": {"input_ids": Tensor(INT, (None, None))},
    "scaled": {"x": Tensor(FLOAT, (None,)), "by": Tensor(FLOAT, ())},
    "nothing": {},
    "numbers": {"x": Tensor(FLOAT, (None, 2)), "is_good": Tensor(BOOL, (None,))},
}


def inputs_of(name):
    if name not in SIGNATURES:
        raise Refused(400, f"signature {name} is not there")
    return SIGNATURES[name]


def read(content) -> tuple:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    request = read_request(body, inputs_of)
    return request.signature, {name: array.tolist() for name, array in request.inputs.items()}, request.rows


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"instances": ["a", "é"]}, {"text": [b"a", "é".encode()]}),
        ({"instances": [{"text": "a"}, {"text": "b"}]}, {"text": [b"a", b"b"]}),
        ({"instances": [{"b64": "/w=="}]}, {"text": [b"\xff"]}),
        ({"instances": [{"text": {"b64": "YQ=="}}]}, {"text": [b"a"]}),
        ({"instances": []}, {"text": []}),
        ({"inputs": ["a"]}, {"text": [b"a"]}),
        ({"inputs": {"text": ["a\u0000b"]}}, {"text": [b"a\0b"]}),
        ({"signature_name": "ids", "instances": [[1, 2], [3, 4]]}, {"input_ids": [[1, 2], [3, 4]]}),
        ({"signature_name": "ids", "inputs": []}, {"input_ids": []}),
        (
            {"signature_name": "pairs", "instances": [{"text_a": "a", "text_b": "b"}]},
            {"text_a": [b"a"], "text_b": [b"b"]},
        ),
        (
            {"signature_name": "numbers", "inputs": {"x": [[1, 2.5]], "is_good": [True]}},
            {"x": [[1.0, 2.5]], "is_good": [True]},
        ),
        ({"signature_name": "pairs", "inputs": {"text_a": ["a"], "text_b": []}}, {"text_a": [b"a"], "text_b": []}),
        ({"signature_name": "scaled", "inputs": {"x": [1, 2], "by": 3}}, {"x": [1.0, 2.0], "by": 3.0}),
        ({"signature_name": "nothing", "inputs": {}}, {}),
        (b'{"signature_name": "numbers", "inputs": {"x": [[-Infinity, 0]], "is_good": [false]}}', None),
    ],
)
def test_rows_and_columns_are_read(content, expected):
    signature, inputs, rows = read(content)
    assert signature == (json.loads(content) if isinstance(content, bytes) else content).get(
        "signature_name", "serving_default"
    )
    assert rows == (b"instances" in (content if isinstance(content, bytes) else json.dumps(content).encode()))
    if expected is None:
        assert inputs["x"] == [[-np.inf, 0.0]]
    else:
        assert inputs == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff", "the body is not UTF-8 (byte 0), expected JSON in UTF-8"),
        (b"{", "JSON Parse error: "),
        (b"[" * 100_000, "JSON Parse error: "),
        (b'"text"', 'the body is "text", expected a JSON object'),
        ({}, 'expected "instances" (a list of rows) or "inputs" (columns), one of them; got []'),
        ({"text": ["a"]}, 'one of them; got ["text"]'),
        ({"instances": [], "inputs": []}, 'one of them; got ["instances", "inputs"]'),
        ({"instances": ["a"], "signature": "ids"}, "unknown: signature; expected signature_name and instances"),
        ({"signature_name": 1, "instances": []}, "signature_name is 1, expected a string"),
        ({"signature_name": "none", "instances": []}, "signature none is not there"),
        ({"instances": "a"}, '"instances" is "a", expected a list'),
        ({"instances": [1]}, "text: 1 is no string (expected a string)"),
        ({"instances": [None]}, "text: null is no string"),
        ({"instances": [["a"]]}, 'text: ["a"] is no string'),
        ({"inputs": "a"}, 'text: expected string [?], lists of equal lengths; got "a"'),
        ({"instances": [{"b64": "?"}]}, "is no string (not base64"),
        ({"instances": ["\ud800"]}, "text: "),
        ({"instances": [{"texts": "a"}]}, "instance 0: got texts; expected an object of text"),
        ({"instances": [{"text": "a"}, "b"]}, 'instance 1: got "b"; expected an object of text'),
        ({"signature_name": "pairs", "instances": ["a"]}, "expected named inputs: text_a, text_b"),
        ({"signature_name": "pairs", "inputs": {"text_a": ["a"]}}, "inputs missing: text_b; expected text_a, text_b"),
        ({"inputs": {"text": ["a"], "more": 1}}, "inputs unknown: more; expected text"),
        ({"signature_name": "nothing", "inputs": 1}, "expected named inputs: none"),
        ({"signature_name": "ids", "instances": [[1], [2, 3]]}, "expected int32 [?, ?], lists of equal lengths"),
        ({"signature_name": "ids", "instances": [[1.5]]}, "input_ids: 1.5 is no int32 (expected int)"),
        ({"signature_name": "ids", "instances": [[True]]}, "input_ids: true is no int32"),
        ({"signature_name": "ids", "instances": [[2**31]]}, "input_ids: 2147483648 is no int32"),
        ({"signature_name": "ids", "instances": [1]}, "expected int32 [?, ?], lists of equal lengths; got [1]"),
        ({"signature_name": "numbers", "inputs": {"x": [[1, 2, 3]], "is_good": [True]}}, "expected float32 [?, 2]"),
        ({"signature_name": "numbers", "inputs": {"x": [[1, 1e39]], "is_good": [True]}}, "is no float32 (too large)"),
        ({"signature_name": "numbers", "inputs": {"x": [[1, 10**400]], "is_good": [True]}}, "is no float32"),
        ({"signature_name": "numbers", "inputs": {"x": [[1, 2]], "is_good": [1]}}, "is_good: 1 is no bool"),
    ],
)
def test_what_is_no_request_is_refused_with_what_to_send(content, message):
    with pytest.raises(Refused) as refused:
        read(content)
    assert refused.value.status == 400 and message in refused.value.message, refused.value.message


def test_answers_are_written_as_they_were_asked():
    label, number = np.array([b"red", "grün".encode()], object), np.float32([0.1, 2])
    assert json.loads(write_answer({"label": label}, True)) == {"predictions": ["red", "grün"]}
    assert json.loads(write_answer({"label": label}, False)) == {"outputs": ["red", "grün"]}
    both = {"label": label, "p": number}
    assert write_answer(both, False) == '{"outputs":{"label":["red","grün"],"p":[0.1,2.0]}}'.encode()
    rows = [{"label": "red", "p": 0.1}, {"label": "grün", "p": 2.0}]
    assert json.loads(write_answer(both, True)) == {"predictions": rows}
    bytes_ = write_answer({"image_bytes": np.array([[b"\xff"]], object)}, True)
    assert json.loads(bytes_) == {"predictions": [[{"b64": "/w=="}]]}
    assert write_answer({"p": np.float32([[np.nan, -np.inf]])}, True) == b'{"predictions": [[NaN, -Infinity]]}'
    assert json.loads(write_answer({"n": np.int64([2**60])}, True)) == {"predictions": [2**60]}
    assert write_answer({"mean": np.float32(3)}, False) == b'{"outputs":3.0}'
    with pytest.raises(Refused, match="outputs of different numbers of rows"):
        write_answer({"label": label, "p": number[:1]}, True)
    assert json.loads(error('no "such" thing')) == {"error": 'no "such" thing'}
