"""Where documents and sentences are found, and what is refused."""

import gzip
import itertools
import os

import numpy as np
import pytest

from kbert.text.documents import BLOCK_BYTES, Corpus, CorpusFormat, expand_paths, lines
from kbert.text.sentences import CHUNK_BYTES, MAX_SENTENCE_BYTES


def corpus_of(folder, text, **form):
    (folder / "text.txt").write_bytes(text if isinstance(text, bytes) else text.encode())
    return Corpus([folder / "text.txt"], CorpusFormat(**form))


def sentences(corpus):
    documents = itertools.pairwise(corpus.documents.tolist())
    return [[s.decode().strip() for s in corpus.text(first, last)] for first, last in documents]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three?", [["One.", "Two!", "Three?"]]),
        ('He said "Yes." Then he left.', [['He said "Yes."', "Then he left."]]),
        ('"Yes!" said he. "No."', [['"Yes!" said he.', '"No."']]),
        ("Mr. Holmes met Dr. J. H. Watson. They spoke.", [["Mr. Holmes met Dr. J. H. Watson.", "They spoke."]]),
        ("It cost 3.14 pounds, i.e. little.", [["It cost 3.14 pounds, i.e. little."]]),
        ("Wait… What? “Nothing.” Good.", [["Wait…", "What?", "“Nothing.”", "Good."]]),
        ("他来了。她走了！好吗？", [["他来了。", "她走了！", "好吗？"]]),
        ("वह आया। वह गया।", [["वह आया।", "वह गया।"]]),
        ("\n\n  First.\nSecond line\n \t\nNew document.\n\n", [["First.", "Second line"], ["New document."]]),
        ("\ufeffStart. Next.", [["\ufeffStart.", "Next."]]),
        ("a\r\nb\r\n\r\nc\r\n", [["a", "b"], ["c"]]),
    ],
)
def test_sentences_and_documents_are_where_a_reader_would_put_them(tmp_path, text, expected):
    assert sentences(corpus_of(tmp_path, text)) == expected


def test_a_line_is_a_sentence_and_a_file_a_document_when_told_so(tmp_path):
    corpus = corpus_of(tmp_path, "One. Two.\n\nThree.", documents="file", sentences="line")
    assert sentences(corpus) == [["One. Two.", "Three."]]


def test_the_files_end_to_end_are_the_text_whatever_the_chunks(tmp_path):
    """Sentences that lie across the pieces a file is read in, runs of blank lines and of spaces, a line without end."""
    paragraph = "A sentence of some words. " * 9 + "\n"
    long = [
        paragraph * (CHUNK_BYTES // len(paragraph)),
        "\n" * 5_000,
        " " * 50_000,
        "word " * (5 * CHUNK_BYTES // 5),
        "\nEnd.",
    ]
    (tmp_path / "a.txt").write_text("".join(long))
    (tmp_path / "b.txt").write_text("  Second file. Done.")
    (tmp_path / "c.txt").write_text("")
    corpus = Corpus([tmp_path])
    assert (np.diff(corpus.sentences) > 0).all() and (np.diff(corpus.blocks) > 0).all()
    everything = b"".join(corpus.text(0, corpus.counts["sentences"]))
    assert everything == b"".join((tmp_path / name).read_bytes() for name in ("a.txt", "b.txt"))
    assert not [s for s in corpus.text(0, corpus.counts["sentences"]) if s.isspace()]
    lengths = [len(s.strip()) for s in corpus.text(0, corpus.counts["sentences"])]
    assert max(lengths) <= 2 * MAX_SENTENCE_BYTES
    assert corpus.text(corpus.counts["sentences"] - 2, corpus.counts["sentences"]) == [b"Second file. ", b"Done."]


def test_blocks_are_bounded_and_keep_small_documents_whole(tmp_path):
    small = "Some words of a document.\n" * 60 + "\n"
    corpus = corpus_of(tmp_path, small * 200 + "One long document.\n" * 40_000)
    sizes = np.diff(corpus.sentences[corpus.blocks])
    assert sizes.max() < 2 * BLOCK_BYTES + 2 * MAX_SENTENCE_BYTES and sizes[:-1].min() >= BLOCK_BYTES
    assert corpus.counts["documents"] == 201
    cut = set(corpus.blocks.tolist()) - set(corpus.documents.tolist())
    assert min(cut) > corpus.documents[200]


def test_a_long_run_without_spaces_is_cut_between_characters(tmp_path):
    corpus = corpus_of(tmp_path, "語" * 10_000)
    assert "".join(s.decode() for s in corpus.text(0, corpus.counts["sentences"])) == "語" * 10_000
    assert corpus.counts["sentences"] > 1


def test_gzip_reads_as_the_text_in_it_and_is_unpacked_once(tmp_path):
    with gzip.open(tmp_path / "a.txt.gz", "wt") as file:
        file.write("One. Two.\n\nThree.")
    corpora = [Corpus([tmp_path / "a.txt.gz"], cache=tmp_path / "cache") for _ in range(2)]
    assert sentences(corpora[0]) == sentences(corpora[1]) == [["One.", "Two."], ["Three."]]
    assert len(list((tmp_path / "cache").glob("unpacked-*"))) == 1
    (tmp_path / "b.txt.gz").write_bytes((tmp_path / "a.txt.gz").read_bytes()[:-9])
    with pytest.raises(ValueError, match="b.txt.gz: not a whole gzip file"):
        Corpus([tmp_path / "b.txt.gz"], cache=tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("unpacking-*"))


def test_an_index_is_reused_while_the_files_are_the_same_and_made_again_when_not(tmp_path):
    text, cache, scans = tmp_path / "a.txt", tmp_path / "cache", []
    text.write_text("One. Two.")
    for expected in (1, 1):
        first = Corpus([text], cache=cache, progress=lambda done, total: scans.append(done))
        assert len(scans) == expected * 2 or scans
    before = len(scans)
    Corpus([text], cache=cache, progress=lambda done, total: scans.append(done))
    assert len(scans) == before
    text.write_text("One. Two. Three.")
    second = Corpus([text], cache=cache, progress=lambda done, total: scans.append(done))
    assert len(scans) > before and second.counts["sentences"] == 3 and second.digest != first.digest


def test_bad_text_is_refused_with_file_and_byte_or_skipped_with_a_count(tmp_path):
    with pytest.raises(ValueError, match=r"text.txt: byte 5: 0xff is not valid UTF-8"):
        corpus_of(tmp_path, b"Good \xff bad. Next.")
    with pytest.raises(ValueError, match=r"text.txt: byte 3: a zero byte: the file is binary"):
        corpus_of(tmp_path, b"ELF\0\1")
    corpus = corpus_of(tmp_path, b"Good \xff\xfe bad. Next.", bad_text="skip")
    assert corpus.counts["undecodable bytes skipped"] == 2 and corpus.counts["sentences"] == 2
    (tmp_path / "binary").write_bytes(b"ELF\0\1")
    corpus = Corpus([tmp_path], CorpusFormat(bad_text="skip"))
    assert corpus.counts["binary files skipped"] == 1 and corpus.names == [str(tmp_path / "text.txt")]
    far = b"word " * (CHUNK_BYTES // 5) + b"\n" + b"x" * 10 + b"\xc3"
    with pytest.raises(ValueError, match=f"byte {len(far) - 1}: 0xc3"):
        corpus_of(tmp_path, far)


def test_empty_and_missing_corpora_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="corpus nowhere: no such file, folder or glob match"):
        expand_paths(["nowhere"])
    with pytest.raises(ValueError, match="holds no files"):
        expand_paths([tmp_path])
    with pytest.raises(ValueError, match="no text found"):
        corpus_of(tmp_path, "\n \n\t")


def test_paths_are_expanded_once_each_and_sorted(tmp_path):
    (tmp_path / "in").mkdir()
    for name in ("b.txt", "in/a.txt", ".hidden"):
        (tmp_path / name).write_text("x")
    found = expand_paths([tmp_path, tmp_path / "b.txt", f"{tmp_path}/**/*.txt"])
    assert found == [str(tmp_path / "b.txt"), str(tmp_path / "in" / "a.txt")]


def test_links_to_folders_are_followed_but_not_round_in_a_circle(tmp_path):
    for name in ("corpus/own/a.txt", "elsewhere/b.txt"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "corpus" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "round").symlink_to(tmp_path / "corpus")
    found = expand_paths([tmp_path / "corpus"])
    assert found == [str(tmp_path / "corpus" / name) for name in ("linked/b.txt", "own/a.txt")]


def test_lines_streams_text_and_gzip_without_blank_ones(tmp_path):
    (tmp_path / "a.txt").write_text("one\n\n two\u2028same\n")
    with gzip.open(tmp_path / "b.gz", "wt") as file:
        file.write("three")
    assert list(lines([tmp_path])) == ["one", " two\u2028same", "three"]


def test_lines_pass_over_binary_files_and_name_a_damaged_gzip(tmp_path):
    (tmp_path / "a.txt").write_text("One.\n")
    (tmp_path / "b").write_bytes(b"ELF\0\1\nTwo.\n")
    assert list(lines([tmp_path], "skip")) == ["One."]
    for name, content in (("c.gz", b"Three.\n"), ("d.gz", b"ELF\0\1\nFour.\n")):
        (tmp_path / name).write_bytes(gzip.compress(content))
    counts = {}
    assert list(lines([tmp_path], "skip", counts)) == ["One.", "Three."]
    assert counts["binary files skipped"] == 2
    for name, content in (("cut", gzip.compress(b"One. " * 1000)[:-9]), ("plain", b"One.")):
        (tmp_path / f"{name}.gz").write_bytes(content)
        with pytest.raises(ValueError, match=f"{name}.gz: not a whole gzip file"):
            list(lines([str(tmp_path / f"{name}.gz")]))


def test_hidden_folders_are_passed_over_and_a_file_is_taken_once_whatever_its_names(tmp_path, monkeypatch):
    for folder in ("books", "books/.git", "books/inner"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.txt").write_text("One.")
    (tmp_path / "link.txt").symlink_to(tmp_path / "books" / "a.txt")
    monkeypatch.chdir(tmp_path)
    found = expand_paths(["books", "./books/", str(tmp_path / "books" / "a.txt"), "link.txt"])
    assert sorted(map(os.path.realpath, found)) == [str(tmp_path / "books" / name) for name in ("a.txt", "inner/a.txt")]
    assert expand_paths(["books"]) == ["books/a.txt", "books/inner/a.txt"]


def test_the_same_bytes_in_other_files_are_another_corpus(tmp_path):
    for folder, texts in (("one", ["First.Second."]), ("two", ["First.", "Second."])):
        (tmp_path / folder).mkdir()
        for number, text in enumerate(texts):
            (tmp_path / folder / f"{number}.txt").write_text(text)
    one, two = (Corpus([tmp_path / folder], CorpusFormat(documents="file")) for folder in ("one", "two"))
    assert len(sentences(one)) == 1 and len(sentences(two)) == 2 and one.digest != two.digest


@pytest.mark.parametrize(
    ("name", "content"), [("index.json", ""), ("sentences.int64", "12345678"), ("blocks.int64", "")]
)
def test_an_index_that_is_not_whole_is_made_again(tmp_path, name, content):
    (tmp_path / "a.txt").write_text("One. Two.\n\nThree.")
    whole = sentences(Corpus([tmp_path / "a.txt"], cache=tmp_path / "cache"))
    (file,) = (tmp_path / "cache").glob(f"index-*/{name}")
    file.write_text(content)
    assert sentences(Corpus([tmp_path / "a.txt"], cache=tmp_path / "cache")) == whole == [["One.", "Two."], ["Three."]]


def test_what_a_killed_scan_left_is_removed_when_nobody_can_be_at_it(tmp_path):
    (tmp_path / "a.txt").write_text("One. Two.")
    old, new = tmp_path / "cache" / "scanning-old", tmp_path / "cache" / "scanning-new"
    for folder in (old, new):
        folder.mkdir(parents=True)
        (folder / "sentences.int64").touch()
    for path in (old / "sentences.int64", old, new):  # in the new one something is young
        os.utime(path, (0, 0))
    Corpus([tmp_path / "a.txt"], cache=tmp_path / "cache")
    assert not old.exists() and new.exists()
