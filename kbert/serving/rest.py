"""TensorFlow Serving's REST API as JSON and arrays: requests read, answers and errors written. No server, no model.

{"instances": [...]}  a row each  ->  {"predictions": [...]}
{"inputs": {...}}     a column each  ->  {"outputs": {...}}
"""

import base64
import binascii
import json
import math
from typing import NamedTuple

import numpy as np
import orjson

DEFAULT = "serving_default"
INTEGERS = {np.dtype(kind) for kind in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")}


class Refused(Exception):
    """A request that is not answered: the HTTP status, and what to send instead."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status, self.message = status, message


class Tensor(NamedTuple):
    """What a signature says of a tensor: NumPy's type (object for strings) and the shape, None where any size goes."""

    dtype: np.dtype
    shape: tuple[int | None, ...]


class Request(NamedTuple):
    """The arrays of a request by input name; `rows`: whether it came, and is answered, a row each."""

    signature: str
    inputs: dict[str, np.ndarray]
    rows: bool


def read_request(body: bytes, inputs_of) -> Request:
    """A request to predict; inputs_of: name of a signature -> {input: Tensor}. Raises Refused saying what to send."""
    content = parsed(body)
    name = content.get("signature_name", DEFAULT)
    if not isinstance(name, str):
        raise Refused(400, f"signature_name is {shown(name)}, expected a string")
    given = [key for key in ("instances", "inputs") if key in content]
    if len(given) != 1:
        got = shown(given or list(content))
        raise Refused(400, f'expected "instances" (a list of rows) or "inputs" (columns), one of them; got {got}')
    unknown = content.keys() - {"signature_name", *given}
    if unknown:
        raise Refused(400, f"unknown: {', '.join(sorted(unknown))}; expected signature_name and {given[0]}")
    expected = inputs_of(name)
    columns = columns_of_rows(content["instances"], expected) if given == ["instances"] else content["inputs"]
    if not isinstance(columns, dict) or is_base64(columns):
        if len(expected) != 1:
            raise Refused(400, f"expected named inputs: {', '.join(sorted(expected)) or 'none'}")
        columns = {next(iter(expected)): columns}
    for names, told in ((expected.keys() - columns.keys(), "missing"), (columns.keys() - expected.keys(), "unknown")):
        if names:
            raise Refused(400, f"inputs {told}: {', '.join(sorted(names))}; expected {', '.join(sorted(expected))}")
    arrays = {input: array_of(columns[input], tensor, input) for input, tensor in expected.items()}
    return Request(name, arrays, given == ["instances"])


def parsed(body: bytes) -> dict:
    try:
        content = json.loads(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise Refused(400, f"the body is not UTF-8 (byte {error.start}), expected JSON in UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"JSON Parse error: {error}") from None
    if not isinstance(content, dict):
        raise Refused(400, f"the body is {shown(content)}, expected a JSON object")
    return content


def columns_of_rows(rows, expected: dict):
    """A list of rows, each a value or an object of values by name -> columns."""
    if not isinstance(rows, list):
        raise Refused(400, f'"instances" is {shown(rows)}, expected a list')
    named = [isinstance(row, dict) and not is_base64(row) for row in rows]
    if not any(named):
        return rows if rows or len(expected) == 1 else {name: [] for name in expected}
    for number, row in enumerate(rows):
        if not named[number] or row.keys() != expected.keys():
            got = ", ".join(sorted(row)) if named[number] else shown(row)
            raise Refused(400, f"instance {number}: got {got}; expected an object of {', '.join(sorted(expected))}")
    return {name: [row[name] for row in rows] for name in expected}


def array_of(values, tensor: Tensor, name: str) -> np.ndarray:
    """Nested lists of JSON values as an array; raises Refused naming the input where they are no such tensor."""
    shape, level = [], [values]
    for size in tensor.shape:
        lengths = {len(value) if isinstance(value, list) else None for value in level}
        if None in lengths or len(lengths) > 1 or (size is not None and lengths not in ({size}, set())):
            raise Refused(400, f"{name}: expected {described(tensor)}, lists of equal lengths; got {shown(values)}")
        shape.append(lengths.pop() if lengths else size or 0)
        level = [item for value in level for item in value]
    convert = converter(tensor.dtype)
    found = np.empty(len(level), tensor.dtype)
    for number, value in enumerate(level):
        try:
            found[number] = convert(value)
        except (TypeError, ValueError, OverflowError) as error:
            kind = described(tensor).partition(" ")[0]
            raise Refused(400, f"{name}: {shown(value)} is no {kind} ({error})") from None
    return found.reshape(shape)


def converter(dtype: np.dtype):
    """A function that takes a JSON value for one of a type, or raises TypeError, ValueError or OverflowError."""
    if dtype.kind == "O":
        return text_of
    if dtype.kind == "b":
        return checked(bool)
    if dtype in INTEGERS:
        return checked(int)
    return lambda value: in_range(checked(int, float)(value), dtype)


def checked(*types: type):
    def convert(value):
        if type(value) not in types:  # JSON's true is no number
            raise TypeError(f"expected {' or '.join(kind.__name__ for kind in types)}")
        return value

    return convert


def in_range(value: float, dtype: np.dtype) -> float:
    if math.isfinite(value) and abs(value) > float(np.finfo(dtype).max):
        raise OverflowError("too large")
    return value


def text_of(value) -> bytes:
    if is_base64(value):
        try:
            return base64.b64decode(value["b64"], validate=True)
        except binascii.Error as error:
            raise ValueError(f"not base64 ({error})") from None
    if not isinstance(value, str):
        raise TypeError("expected a string")
    return value.encode("utf-8")  # refuses half a surrogate pair


def is_base64(value) -> bool:
    return isinstance(value, dict) and value.keys() == {"b64"} and isinstance(value["b64"], str)


def described(tensor: Tensor) -> str:
    kind = "string" if tensor.dtype.kind == "O" else tensor.dtype.name
    return f"{kind} [{', '.join('?' if size is None else str(size) for size in tensor.shape)}]"


def shown(value) -> str:
    """A JSON value as it is quoted in an error."""
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= 60 else f"{text[:57]}..."


def write_answer(outputs: dict[str, np.ndarray], rows: bool) -> bytes:
    """The answer's JSON: of one output its values, of several an object; Refused where rows are asked and not there."""
    columns = {name: as_json(values, name) for name, values in outputs.items()}
    if not rows:
        return dumped({"outputs": columns if len(columns) > 1 else next(iter(columns.values()))})
    counts = {name: len(values) if np.ndim(values) else None for name, values in outputs.items()}
    if len(set(counts.values())) > 1 or None in counts.values():
        raise Refused(400, f'outputs of different numbers of rows: {counts}; ask with "inputs" instead of "instances"')
    if len(columns) == 1:
        return dumped({"predictions": next(iter(columns.values()))})
    return dumped(
        {"predictions": [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]}
    )


def as_json(values: np.ndarray, name: str):
    """An array as what is written of it: strings as text, or in base64 where the name says that they are bytes."""
    if values.dtype.kind != "O":
        return np.ascontiguousarray(values) if values.ndim else values[()]
    if values.ndim:
        return [as_json(np.asarray(one, object), name) for one in values]
    content = values.item()
    return (
        {"b64": base64.b64encode(content).decode()} if name.endswith("_bytes") else content.decode("utf-8", "replace")
    )


def dumped(content) -> bytes:
    arrays = list(arrays_in(content))
    if all(np.isfinite(array).all() for array in arrays if array.dtype.kind == "f"):
        return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    # NaN, Infinity and -Infinity, which JSON has not and TensorFlow Serving writes.
    return json.dumps(content, default=lambda array: array.tolist(), ensure_ascii=False).encode()


def arrays_in(content):
    if isinstance(content, np.ndarray | np.generic):
        yield np.asarray(content)
    elif isinstance(content, dict):
        for value in content.values():
            yield from arrays_in(value)
    elif isinstance(content, list):
        for value in content:
            yield from arrays_in(value)


def error(message: str) -> bytes:
    # JSON may name half of a pair of surrogates, which no UTF-8 has, and a message repeats what it refuses.
    return orjson.dumps({"error": message.encode("utf-8", "backslashreplace").decode()})
