"""Lines of text -> rows of a signature's inputs.

text   a line is the only input
tsv    a line is the inputs parted by tabs, without quotes or escapes, in the order of the columns
jsonl  a line is a JSON object of the inputs by name
"""

import hashlib
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from kbert.serving.rest import Refused, Tensor, array_of, described, shown

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Source(NamedTuple):
    """Where lines come from; size: bytes, None where it is not known."""

    name: str
    lines: Iterable[bytes]
    size: int | None


class Batch(NamedTuple):
    """Lines that are asked together; first: the number of the first, from 1. read: bytes up to the end of the last."""

    first: int
    lines: list[bytes]
    read: int

    @property
    def last(self) -> int:
        return self.first + len(self.lines) - 1


def source_of(texts: Sequence[str], path: str | None) -> Source:
    """Texts of the command line, or the lines of a file or of standard input ("-"); an empty line is one, too."""
    if path is None:
        # What is no UTF-8 on the command line comes as surrogates, and goes as the bytes that it was.
        lines = [text.encode("utf-8", "surrogateescape") for text in texts]
        return Source("--text", lines, sum(len(line) + 1 for line in lines))
    if path == "-":
        return Source("standard input", lines_of(sys.stdin.buffer), None)
    file = open(path, "rb")  # open as long as its lines are read
    return Source(path, lines_of(file), os.fstat(file.fileno()).st_size if file.seekable() else None)


def digest_of(texts: Sequence[str], path: str | None) -> str:
    """What tells one input from another, "" for a stream."""
    if path is None:
        return hashlib.sha256(json.dumps(texts).encode()).hexdigest()
    if not os.path.isfile(path):
        return ""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def lines_of(file) -> Iterator[bytes]:
    """Lines without their ends, of Unix or Windows, and without a byte-order mark."""
    for number, line in enumerate(file):
        if number == 0:
            line = line.removeprefix(BYTE_ORDER_MARK)
        yield line.removesuffix(b"\n").removesuffix(b"\r") if line.endswith(b"\n") else line


def batches(lines: Iterable[bytes], size: int) -> Iterator[Batch]:
    """So many lines at a time, as they come."""
    first, read, lines = 1, 0, iter(lines)
    while chunk := list(itertools.islice(lines, size)):
        read += sum(len(line) + 1 for line in chunk)
        yield Batch(first, chunk, read)
        first += len(chunk)


def row_reader(form: str, columns: Sequence[str], inputs: dict[str, Tensor]) -> Callable[[bytes], dict]:
    """A function that takes a line for a row, input -> value, and raises Refused saying what was expected.

    columns: the order of tsv, none for that of the names. Raises ValueError for a form that does not fit the inputs.
    """
    names = columns or tuple(inputs)
    has = ", ".join(f"{name} ({described(tensor)})" for name, tensor in inputs.items())
    if columns and (form != "tsv" or sorted(columns) != sorted(inputs)):
        raise ValueError(f"--columns {' '.join(columns)}: expected --format tsv and all inputs once: {has}")
    if form == "text" and len(inputs) != 1:
        raise ValueError(f"--format text: expected one input, there are {has}; expected --format tsv or jsonl")
    if form != "jsonl" and any(tensor.dtype.kind != "O" or len(tensor.shape) != 1 for tensor in inputs.values()):
        raise ValueError(f"--format {form}: expected inputs of one text each, there are {has}; expected --format jsonl")

    def read(line: bytes) -> dict:
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise Refused(400, f"byte {error.start + 1}: {error.reason}, expected UTF-8") from None
        if form == "jsonl":
            row = json_row(text, names)
        else:
            row = text_row(text.split("\t") if form == "tsv" else [text], names)
        for name, value in row.items():
            array_of([value], inputs[name], name)  # refused here, not by a server that has all the batch
        return row

    return read


def text_row(fields: list[str], names: Sequence[str]) -> dict:
    if len(fields) != len(names):
        raise Refused(400, f"{len(fields)} columns; expected {len(names)} parted by tabs: {', '.join(names)}")
    return dict(zip(names, fields, strict=True))


def json_row(text: str, names: Sequence[str]) -> dict:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"{error}; expected a JSON object of {', '.join(names)}") from None
    if not isinstance(row, dict) or row.keys() != set(names):
        got = ", ".join(row) or "no names" if isinstance(row, dict) else shown(row)
        raise Refused(400, f"got {got}; expected a JSON object of {', '.join(names)}")
    return {name: row[name] for name in names}
