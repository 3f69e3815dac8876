"""Text files -> documents -> sentences: where each one is, found in one scan and kept as three small arrays on disk.

The files, laid end to end, form one long string of bytes. A sentence is the stretch from its start to the next one's;
a document is a run of sentences, a block a run of 64 to 128 KB of text: small documents together, or a piece of a
long one. Blocks are what an epoch shuffles. Text is read by position, never mapped: memory does not grow with it.
"""

import contextlib
import functools
import glob
import gzip
import hashlib
import itertools
import json
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict

import numpy as np

from kbert.text.sentences import (
    BOUNDARIES,
    CHUNK_BYTES,
    PLAIN_TEXT,
    UNDECODABLE,
    CorpusFormat,
    boundaries,
    checked_chunks,
    is_binary,
    opened,
    with_long_ones_cut,
)

BLOCK_BYTES = 1 << 16
BINARY = "binary files skipped"
SCAN_VERSION = 2  # part of the fingerprint: raise it when the scan finds other sentences

INDEX_ARRAYS = ("sentences", "documents", "blocks")
SCRATCH, A_DAY = ("scanning-", "unpacking-", "tokenizing-"), 24 * 3600  # what is made in the cache, under another name


def expand_paths(paths: Iterable[str]) -> list[str]:
    """Files, folders (searched through) and globs -> the files, each once, sorted.

    In folders what is hidden is passed over, files and folders. Of several names of a file the first is taken.

    Raises FileNotFoundError for a path that names nothing, ValueError where no file is left.
    """
    files = set()
    for path in map(os.fspath, paths):
        matches = [path] if os.path.exists(path) else sorted(glob.glob(path, recursive=True))
        if not matches:
            raise FileNotFoundError(f"corpus {path}: no such file, folder or glob match")
        for match in matches:
            if os.path.isdir(match):
                files.update(_files_in(match))
            else:
                files.add(match)
    if not files:
        raise ValueError(f"corpus {' '.join(map(str, paths))}: holds no files; expected text files")
    return sorted({os.path.realpath(path): path for path in sorted(files, reverse=True)}.values())


def _files_in(folder: str, above: tuple[str, ...] = ()) -> Iterator[str]:
    """What is not hidden in a folder and those in it, links too, but for one to a folder that it is in itself."""
    real = os.path.realpath(folder)
    for entry in os.scandir(folder) if real not in above else ():
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from _files_in(entry.path, (*above, real))
        else:
            yield entry.path


class _IndexWriter:
    """Takes the starts of sentences as they are found and writes sentences, documents and blocks as they come."""

    def __init__(self, folder: str, stack: contextlib.ExitStack):
        paths = {name: os.path.join(folder, f"{name}.int64") for name in INDEX_ARRAYS}
        self.files = {name: stack.enter_context(open(path, "wb")) for name, path in paths.items()}
        self.counts = dict.fromkeys(INDEX_ARRAYS, 0)
        self.block_start = None

    def add(self, starts: np.ndarray, begins_document: np.ndarray) -> None:
        """Sentences in order: the byte where each starts, int64 [n], and whether a document begins there, bool [n]."""
        first, blocks = self.counts["sentences"], []
        for number, (start, new) in enumerate(zip(starts.tolist(), begins_document.tolist(), strict=True)):
            size = BLOCK_BYTES if self.block_start is None else start - self.block_start
            if size >= 2 * BLOCK_BYTES or (new and size >= BLOCK_BYTES):
                blocks.append(first + number)
                self.block_start = start
        self._write("documents", first + np.flatnonzero(begins_document))
        self._write("blocks", blocks)
        self._write("sentences", starts)

    def close(self, end: int) -> dict[str, int]:
        counts = dict(self.counts)
        for name, last in zip(INDEX_ARRAYS, (end, counts["sentences"], counts["sentences"]), strict=True):
            self._write(name, [last])
            self.files[name].flush()
            os.fsync(self.files[name].fileno())
        return counts

    def _write(self, name: str, values) -> None:
        # Not ndarray.tofile, which reports a full disk without its reason.
        self.files[name].write(np.asarray(values, np.int64).tobytes())
        self.counts[name] += len(values)


def _scan_file(chunks: Iterable[bytes], base: int, writer: _IndexWriter, form: CorpusFormat) -> None:
    """Finds the sentences and documents of one file that begins at byte `base` of the corpus."""
    boundary, offset, begun = BOUNDARIES[form.sentences], base, False
    for chunk in chunks:
        starts, after_blank = boundaries(chunk, boundary)
        after_blank = after_blank if form.documents == "blank-line" else []
        if not begun and (text := chunk.lstrip()):
            first, begun = len(chunk) - len(text), True
            starts = starts if first in starts[:1] else [first, *starts]
            after_blank = [first, *after_blank]
        starts = np.asarray(with_long_ones_cut(starts, chunk), np.int64)
        writer.add(starts + offset, np.isin(starts, after_blank))
        offset += len(chunk)


@contextlib.contextmanager
def whole_gzip(path: str) -> Iterator[None]:
    """A block that reads a .gz file; raises ValueError naming it if it is damaged or none."""
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: not a whole gzip file ({error})") from None


def _unpacked(path: str, cache: str) -> str:
    """A .gz file's text, unpacked into the cache once; other files as they are."""
    if not path.endswith(".gz"):
        return path
    status = os.stat(path)
    name = hashlib.blake2b(f"{os.path.abspath(path)}|{status.st_size}|{status.st_mtime_ns}".encode(), digest_size=12)
    target = os.path.join(cache, f"unpacked-{name.hexdigest()}.txt")
    if not os.path.exists(target):
        with tempfile.NamedTemporaryFile(dir=cache, prefix="unpacking-", delete=False) as out:
            try:
                with whole_gzip(path), gzip.open(path) as file:
                    shutil.copyfileobj(file, out, CHUNK_BYTES)
            except BaseException:
                os.unlink(out.name)
                raise
        os.replace(out.name, target)
    return target


def lines(paths: Iterable[str], bad_text: str = "refuse", counts: dict[str, int] | None = None) -> Iterator[str]:
    """The lines of text files (also .gz), folders and globs, streamed; bad text is refused or skipped as in a scan.

    counts: gets how much was skipped.
    """
    counts = {} if counts is None else counts
    for name in (UNDECODABLE, BINARY):
        counts.setdefault(name, 0)
    for path in expand_paths(paths):
        with whole_gzip(path), opened(path) as file:
            if bad_text == "skip" and is_binary(path):
                counts[BINARY] += 1
                continue
            for chunk in checked_chunks(path, file, bad_text, counts):
                yield from (line for line in chunk.decode("utf-8", "ignore").split("\n") if line and not line.isspace())


def _told(chunks: Iterable[bytes], digest, progress: Callable[[int], None]) -> Iterator[bytes]:
    """The same chunks, hashed and reported as they pass."""
    done = 0
    for chunk in chunks:
        digest.update(chunk)
        done += len(chunk)
        progress(done)
        yield chunk


def whole_index(folder: str) -> dict | None:
    """What index.json says, None if it or one of the arrays is missing or not whole."""
    try:
        with open(os.path.join(folder, "index.json"), encoding="utf-8") as file:
            facts = json.load(file)
        for name in INDEX_ARRAYS:
            if os.path.getsize(os.path.join(folder, f"{name}.int64")) != 8 * (facts["counts"][name] + 1):
                return None
        return facts
    except (OSError, ValueError):
        return None


def remove_stale(cache: str) -> None:
    """Removes what killed processes were making in the cache: of a working one something is younger than a day."""
    for made in SCRATCH:
        for path in glob.glob(os.path.join(glob.escape(cache), f"{made}*")):
            inside = glob.glob(os.path.join(glob.escape(path), "**"), recursive=True)
            with contextlib.suppress(OSError):  # another process may be removing it
                if max(os.stat(one).st_mtime for one in [path, *inside]) < time.time() - A_DAY:
                    shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)


class Corpus:
    """Text files with an index of their sentences, documents and blocks, readable at any place.

    Attributes: names, the files as found; sentences int64 [N + 1], the byte where each begins; documents int64 [D +
    1] and blocks int64 [K + 1], the first sentence of each; counts; digest, a hash of the text itself and of how it
    is read. `cache` is a folder for the index and for unpacked .gz files; both are reused while the files are
    unchanged. Without one they last as long as this object. Raises ValueError for a corpus without text and, naming
    file and byte, for bad text.
    """

    def __init__(
        self,
        paths: Iterable[str],
        form: CorpusFormat = PLAIN_TEXT,
        cache: str | None = None,
        progress: Callable[[int, int], None] | None = None,
    ):
        named, self.form = expand_paths(paths), form
        if cache is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="kbert-corpus-")
            cache = self._temporary.name
        os.makedirs(cache, exist_ok=True)
        files = [(name, _unpacked(name, cache)) for name in named]
        if form.bad_text == "skip":
            files = [(name, path) for name, path in files if not is_binary(path)]
        self.binary_files = len(named) - len(files)
        self.names, self.files = [name for name, _ in files], [path for _, path in files]
        sizes = [os.path.getsize(path) for path in self.files]
        self.file_starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        remove_stale(cache)
        folder = os.path.join(cache, f"index-{self._fingerprint()}")
        facts = whole_index(folder)
        if facts is None:
            shutil.rmtree(folder, ignore_errors=True)
            self._scan(folder, progress or (lambda done, total: None))
            facts = whole_index(folder)
        self.counts, self.digest = facts["counts"], facts["digest"]
        if not self.counts["sentences"]:
            more = f" and {len(named) - 1} more" if len(named) > 1 else ""
            raise ValueError(f"corpus {named[0]}{more}: no text found; expected UTF-8 text")
        self.sentences, self.documents, self.blocks = (
            np.memmap(os.path.join(folder, f"{name}.int64"), np.int64, "r") for name in INDEX_ARRAYS
        )
        self._open = functools.lru_cache(maxsize=64)(lambda path: open(path, "rb", buffering=0))

    def _fingerprint(self) -> str:
        files = [(os.path.abspath(path), os.path.getsize(path), os.stat(path).st_mtime_ns) for path in self.files]
        text = json.dumps([SCAN_VERSION, BLOCK_BYTES, asdict(self.form), files])
        return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()

    def _scan(self, folder: str, progress: Callable[[int, int], None]) -> None:
        """Writes the index to a folder of its own, which gets its name when it is whole."""
        counts, total = {UNDECODABLE: 0, BINARY: self.binary_files}, int(self.file_starts[-1])
        digest = hashlib.blake2b(json.dumps([SCAN_VERSION, asdict(self.form)]).encode(), digest_size=16)
        with tempfile.TemporaryDirectory(dir=os.path.dirname(folder), prefix="scanning-") as scanning:
            inside = os.path.join(scanning, "index")
            os.mkdir(inside)
            with contextlib.ExitStack() as stack:
                writer = _IndexWriter(inside, stack)
                for name, path, base in zip(self.names, self.files, self.file_starts.tolist(), strict=False):
                    with open(path, "rb") as file:
                        chunks = checked_chunks(name, file, self.form.bad_text, counts)
                        chunks = _told(chunks, digest, lambda done, base=base: progress(base + done, total))
                        _scan_file(chunks, base, writer, self.form)
                    digest.update(b"\0")  # no text has it: a file's end is a document's
                counts |= writer.close(total) | {"files": len(self.files), "bytes": total}
            with open(os.path.join(inside, "index.json"), "w", encoding="utf-8") as file:
                json.dump({"counts": counts, "digest": digest.hexdigest()}, file)
                file.flush()
                os.fsync(file.fileno())
            if not os.path.exists(folder):
                os.rename(inside, folder)

    def read(self, start: int, end: int) -> bytes:
        """The bytes [start, end) of the corpus, files end to end."""
        pieces, number = [], int(np.searchsorted(self.file_starts, start, "right")) - 1
        while start < end:
            until = min(end, int(self.file_starts[number + 1]))
            file = self._open(self.files[number])
            piece = os.pread(file.fileno(), until - start, start - int(self.file_starts[number]))
            if len(piece) != until - start:
                raise ValueError(f"{self.files[number]}: shorter than when it was indexed; it changed during the run")
            pieces.append(piece)
            start, number = until, number + 1
        return b"".join(pieces)

    def text(self, first: int, last: int) -> list[bytes]:
        """The sentences [first, last)."""
        starts = (self.sentences[first : last + 1] - self.sentences[first]).tolist()
        text = self.read(int(self.sentences[first]), int(self.sentences[last]))
        return [text[start:end] for start, end in itertools.pairwise(starts)]
