"""The corpus that every machine which can run kbert already has: the documentation strings of its Python packages.

    corpus/train/<library>.txt, corpus/held_out/<library>.txt   a line is a paragraph, a blank line ends a file
    classification/train.tsv, dev.tsv, test.tsv                 text, label: which library wrote it?

Held-out text, dev and test come from source files that train has no line of, and no paragraph occurs twice.
"""

import dataclasses
import functools
import hashlib
import multiprocessing
import os
import re
import signal
import sysconfig
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from kbert.text import docstrings

STANDARD_LIBRARY = "python"
# Folders that hold tests, copies of other packages, or what is listed on its own.
LEFT_OUT = {"__pycache__", "_vendor", "_vendored", "dist-packages", "idle_test", "site-packages", "test", "tests"}
SHARES = {"train": 0.85, "dev": 0.05, "test": 0.1}  # of each library's text; dev and test are what is held out
CLASSES = 8
LENGTHS = range(100, 601)  # of a paragraph to classify, in characters
# What else libraries are called in code and in their texts; these are parts of words, `tf.data`, where a name counts
# anywhere inside one.
ALIASES = {"tf", "np", "sp", "mpl", "plt", "scikit"}
BLANK = "_"


@dataclasses.dataclass(frozen=True)
class Document:
    """The paragraphs of one source file, `name` being its path from its library's folder on."""

    library: str
    name: str
    paragraphs: list[str]
    split: str = ""

    @property
    def size(self) -> int:
        return sum(map(len, self.paragraphs))


@dataclasses.dataclass(frozen=True)
class Summary:
    """What was read and written: numbers of files, bytes of text, and examples of each class in each split."""

    source_files: int
    unreadable_files: int
    train_bytes: int
    held_out_bytes: int
    labels: list[str]
    examples_per_class: dict[str, int]


def write(
    directory: str | os.PathLike, processes: int | None = None, progress: Callable[[int, int], None] | None = None
) -> Summary:
    """Reads the installed packages and the standard library and writes the files above -> Summary.

    The files depend on what is installed and on nothing else. `processes` (all cores) share the reading; `progress` is
    called with the number of source files done and their total.
    """
    read = _read_all(find_sources(), processes, progress or (lambda done, total: None))
    documents = [document for document in read if document is not None]
    labels = largest_libraries(documents, CLASSES)
    documents = with_splits(without_repetitions(documents, labels))

    directory = Path(directory)
    sizes = {name: _write_texts(documents, name, directory / "corpus" / name) for name in ("train", "held_out")}
    examples = {split: _write_examples(documents, labels, split, directory) for split in SHARES}
    return Summary(len(read), read.count(None), sizes["train"], sizes["held_out"], labels, examples)


def find_sources() -> list[tuple[str, str, str]]:
    """(library, name, path) of every Python source file of the standard library and the installed packages, sorted."""
    places = sysconfig.get_paths()
    standard = os.path.realpath(places["stdlib"])
    packages = {os.path.realpath(places[place]) for place in ("purelib", "platlib")}
    found = []
    for path in _python_files(standard):
        found.append((STANDARD_LIBRARY, f"{STANDARD_LIBRARY}/{os.path.relpath(path, standard)}", path))
    for root in packages:
        for path in _python_files(root):
            name = os.path.relpath(path, root)
            found.append((re.split(r"[/\\.]", name)[0], name, path))
    return sorted(found)


def _python_files(root: str) -> Iterator[str]:
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        yield from (os.path.join(folder, file) for file in files if file.endswith(".py"))


def largest_libraries(documents: Iterable[Document], count: int) -> list[str]:
    """The libraries with most text, largest first; equals by name."""
    sizes = Counter()
    for document in documents:
        sizes[document.library] += document.size
    return sorted(sizes, key=lambda library: (-sizes[library], library))[:count]


def without_repetitions(documents: Iterable[Document], libraries: list[str]) -> list[Document]:
    """The documents without paragraphs that occurred before, be it with other numbers, signs or library names."""
    seen = set()
    kept = []
    for document in documents:
        paragraphs = []
        for text in document.paragraphs:
            key = re.sub(r"[^a-z]+", " ", without_names(text, libraries).lower())
            if key not in seen:
                seen.add(key)
                paragraphs.append(text)
        if paragraphs:
            kept.append(dataclasses.replace(document, paragraphs=paragraphs))
    return kept


def with_splits(documents: list[Document]) -> list[Document]:
    """The documents with their splits: each in the one that lacks most of its share of the library's text so far."""
    given, so_far, placed = Counter(), Counter(), []
    for document in documents:
        library = document.library
        so_far[library] += document.size
        split = max(SHARES, key=lambda split: SHARES[split] * so_far[library] - given[library, split])
        given[library, split] += document.size
        placed.append(dataclasses.replace(document, split=split))
    return placed


def without_names(text: str, libraries: Iterable[str]) -> str:
    """The text with a blank for each word that has a library's name in it, in any case, or an alias as a part."""
    name, word = _name_patterns(tuple(libraries))
    return word.sub(BLANK, text) if name.search(text.lower()) else text


@functools.cache
def _name_patterns(libraries: tuple[str, ...]) -> tuple[re.Pattern, re.Pattern]:
    """What finds a name in lower-case text (much faster than in any case), and what finds a word with a name in it,
    up to the punctuation at its end."""
    name = rf"(?:{'|'.join(map(re.escape, libraries))}|(?<![a-z])(?:{'|'.join(sorted(ALIASES))})(?![a-z]))"
    word = rf"(?<!\S)\S*?{name}\S*?(?=[.,;:!?)]*(?!\S))"
    return re.compile(name), re.compile(word, re.IGNORECASE)


def _read_all(sources: list, processes: int | None, progress: Callable[[int, int], None]) -> list[Document | None]:
    """The documents of all sources, in their order, None for a file that cannot be read or is no text."""
    read = []
    context = multiprocessing.get_context("spawn")  # a fork would copy TensorFlow's locks
    with context.Pool(processes, initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN)) as pool:
        for document in pool.imap(_read, sources, chunksize=16):
            read.append(document)
            progress(len(read), len(sources))
    return read


def _read(source: tuple[str, str, str]) -> Document | None:
    library, name, path = source
    try:
        return Document(library, name, docstrings.read(Path(path).read_bytes()))
    except (OSError, SyntaxError, ValueError, LookupError):
        return None


def _fraction(text: str) -> float:
    """A number in [0, 1) that is the text's own."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "replace")).digest()[:6], "big") / 2**48


def _write_texts(documents: list[Document], name: str, folder: Path) -> int:
    """One file per library with its documents of a split -> the bytes written."""
    texts = defaultdict(list)
    for document in documents:
        if (document.split == "train") == (name == "train"):
            texts[document.library].append("\n".join(document.paragraphs) + "\n")
    folder.mkdir(parents=True, exist_ok=True)
    for library, parts in texts.items():
        (folder / f"{library}.txt").write_text("\n".join(parts), encoding="utf-8", errors="replace", newline="\n")
    return sum((folder / f"{library}.txt").stat().st_size for library in texts)


def _write_examples(documents: list[Document], labels: list[str], split: str, directory: Path) -> int:
    """<split>.tsv with as many paragraphs of each library, in an order of their own -> how many of each."""
    texts = {label: [] for label in labels}
    for document in documents:
        if document.library in texts and document.split == split:
            blanked = (without_names(text, labels) for text in document.paragraphs if len(text) in LENGTHS)
            texts[document.library] += blanked
    count = min(map(len, texts.values()))
    rows = [(text, label) for label in labels for text in sorted(texts[label], key=_fraction)[:count]]
    rows.sort(key=lambda row: _fraction(row[0]))
    (directory / "classification").mkdir(parents=True, exist_ok=True)
    lines = ["text\tlabel", *("\t".join(row) for row in rows)]
    (directory / "classification" / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    return count
