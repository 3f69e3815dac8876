"""The embedded corpus, made from a few packages that the tests write."""

import csv
import itertools

import pytest

from kbert.text import docstrings, embedded_corpus

LIBRARIES = {"tensors": 40, "plots": 30, "python": 20}


def paragraph(library, number):
    word = "".join("abcdefghij"[int(digit)] for digit in f"{number}")  # numbers alone make no difference
    return (
        f"The {word} that {library.title()} makes is what you use when the other {word} of the {library} library is "
        f"in the way of the {library[1]}{word} itself, or when there is none of them to be had."
    )


def source(library, file):
    texts = [paragraph(library, 5 * file + line) for line in range(5)]
    return "\n".join(f'def f{number}():\n    """{text}"""' for number, text in enumerate(texts))


@pytest.fixture
def installed(tmp_path, monkeypatch):
    folders = {"stdlib": tmp_path / "lib", "purelib": tmp_path / "site", "platlib": tmp_path / "site"}
    for library, files in LIBRARIES.items():
        folder = folders["stdlib"] if library == "python" else folders["purelib"] / library
        folder.mkdir(parents=True)
        for file in range(files):
            (folder / f"m{file}.py").write_text(source(library, file))
    monkeypatch.setattr(embedded_corpus.sysconfig, "get_paths", lambda: {k: str(v) for k, v in folders.items()})
    return folders


@pytest.fixture
def written(installed, tmp_path):
    (installed["purelib"] / "plots" / "broken.py").write_text('# coding: rot13\n"""The text of a broken file."""')
    (installed["purelib"] / "plots" / "brief.py").write_text('"""It is too short to be told by what it says."""')
    (installed["purelib"] / "plots" / "tests").mkdir()
    (installed["purelib"] / "plots" / "tests" / "t.py").write_text('"""A test is not what one reads in a manual."""')
    summary = embedded_corpus.write(tmp_path / "out", processes=1)
    return tmp_path / "out", summary


def lines(folder):
    return [line for file in sorted(folder.glob("*.txt")) for line in file.read_text().splitlines() if line]


def examples(directory, split):
    with open(directory / "classification" / f"{split}.tsv", newline="") as file:
        return [(row["text"], row["label"]) for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]


def test_every_paragraph_of_every_file_is_in_one_split_once(written):
    directory, _ = written
    train, held_out = lines(directory / "corpus" / "train"), lines(directory / "corpus" / "held_out")
    expected = {docstrings.paragraphs(paragraph(library, n))[0] for library in LIBRARIES for n in range(5 * 40)}
    everything = train + held_out
    assert len(everything) == len(set(everything)) > 200
    assert set(everything) - expected == {"It is too short to be told by what it says."}
    assert 0.1 < len(held_out) / len(everything) < 0.2


def test_documents_are_source_files_set_apart_by_a_blank_line(written):
    directory, _ = written
    documents = (directory / "corpus" / "train" / "tensors.txt").read_text().split("\n\n")
    files = [source("tensors", file) for file in range(LIBRARIES["tensors"])]
    for document in documents:
        assert sum(all(line in file for line in document.splitlines()) for file in files) == 1


def test_source_files_are_found_in_an_order_of_their_own(installed):
    found = embedded_corpus.find_sources()
    assert found == sorted(found)
    assert found[0] == ("plots", "plots/m0.py", str(installed["purelib"] / "plots" / "m0.py"))
    assert {library for library, _, _ in found} == set(LIBRARIES)


def test_tests_and_files_that_are_no_text_are_left_out_and_the_latter_counted(written):
    directory, summary = written
    assert (summary.source_files, summary.unreadable_files) == (sum(LIBRARIES.values()) + 2, 1)
    assert not any("manual" in line or "broken" in line for line in lines(directory / "corpus" / "train"))


def test_dev_and_test_come_from_files_that_train_has_no_line_of(written):
    directory, summary = written
    named = {
        embedded_corpus.without_names(text, summary.labels): split
        for split in ("train", "held_out")
        for text in lines(directory / "corpus" / split)
    }
    for split, place in (("train", "train"), ("dev", "held_out"), ("test", "held_out")):
        assert {named[text] for text, _ in examples(directory, split)} == {place}
    texts = [text for split in embedded_corpus.SHARES for text, _ in examples(directory, split)]
    assert len(texts) == len(set(texts))


def test_classes_are_balanced_and_their_names_blanked(written):
    directory, summary = written
    assert sorted(summary.labels) == sorted(LIBRARIES)
    for split, count in summary.examples_per_class.items():
        rows = examples(directory, split)
        assert count > 0 and len(rows) == count * len(LIBRARIES)
        for label in LIBRARIES:
            assert sum(row[1] == label for row in rows) == count
        assert not any(name in text.lower() for text, _ in rows for name in LIBRARIES)
        assert not any("too short" in text for text, _ in rows)


def test_examples_are_in_mixed_order(written):
    labels = [label for _, label in examples(written[0], "train")]
    assert len(list(itertools.groupby(labels))) > len(labels) / 3


def test_the_files_are_the_same_for_any_number_of_processes(written, tmp_path):
    directory, summary = written
    assert embedded_corpus.write(tmp_path / "again", processes=2) == summary
    files = sorted(file.relative_to(directory) for file in directory.rglob("*.*"))
    assert len(files) == 2 * len(LIBRARIES) + 3
    assert all((directory / file).read_bytes() == (tmp_path / "again" / file).read_bytes() for file in files)


def test_progress_tells_each_source_file_and_their_number(installed, tmp_path):
    told = []
    embedded_corpus.write(tmp_path / "out", processes=1, progress=lambda done, total: told.append((done, total)))
    files = sum(LIBRARIES.values())
    assert told == [(done, files) for done in range(1, files + 1)]


@pytest.mark.parametrize(
    ("text", "blanked"),
    [
        ("In TensorFlow, a tensor is a value.", "In _, a tensor is a value."),
        ("See tf.data.Dataset. It is new.", "See _. It is new."),
        ("Call `np.sum(x)` or keras_hub.models!", "Call _ or _!"),
        ("It is an outfit of the sp@ce.", "It is an outfit of the _."),
        ("No name is in here.", "No name is in here."),
    ],
)
def test_a_word_with_a_library_name_or_alias_is_blanked_whole(text, blanked):
    assert embedded_corpus.without_names(text, ["tensorflow", "keras"]) == blanked


def test_a_paragraph_repeated_with_another_name_or_number_is_dropped():
    texts = ["In Keras it has 3 axes.", "In tensorflow it has 4 axes!", "In keras it has no axes."]
    documents = [embedded_corpus.Document("keras", "keras/a.py", texts)]
    kept = embedded_corpus.without_repetitions(documents, ["keras", "tensorflow"])
    assert [document.paragraphs for document in kept] == [[texts[0], texts[2]]]
