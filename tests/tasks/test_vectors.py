"""A text's vectors are those of its own tokens, whatever is beside it, in order, in each format."""

import json

import numpy as np
import pytest
import tensorflow as tf

from kbert.tasks import vectors
from kbert.text.wordpiece import WordPiece

LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS), *".,?"]
TEXTS = ["ab c", "", "d ||| ef \u200b g", "a " * 30, "hi"]


@pytest.fixture(scope="module")
def tokenizer():
    return WordPiece(VOCABULARY)


def ids_of(features):
    """Vectors [n, S, 1] that are the tokens' ids."""
    return tf.cast(features["input_ids"][..., None], tf.float32)


def named(found) -> list[list[tuple[str, str]]]:
    """(token, the piece that its vector is of) of each text."""
    return [[(t, VOCABULARY[int(v[0])]) for t, v in zip(one.tokens, one.values, strict=True)] for one in found]


def test_pieces_have_their_own_vectors_with_the_special_tokens(tokenizer):
    found = list(vectors.vectors_of(TEXTS, ids_of, tokenizer, "piece", 12))
    assert [one.index for one in found] == [0, 1, 2, 3, 4] and [one.cut for one in found] == [False] * 3 + [True, False]
    assert all(token == piece for one in named(found) for token, piece in one)
    assert found[0].tokens == ["[CLS]", "a", "##b", "c", "[SEP]"] and found[1].tokens == ["[CLS]", "[SEP]"]
    assert found[2].tokens == ["[CLS]", "d", "[SEP]", "e", "##f", "g", "[SEP]"] and len(found[3].tokens) == 12


def test_words_have_the_vector_of_their_first_piece(tokenizer):
    found = named(vectors.vectors_of(TEXTS, ids_of, tokenizer, "word", 12))
    assert found[0] == [("ab", "a"), ("c", "c")] and found[1] == [] and found[4] == [("hi", "h")]
    assert found[2] == [("d", "d"), ("ef", "e"), ("\u200b", "[UNK]"), ("g", "g")]
    assert found[3] == [("a", "a")] * 10


def test_chunks_change_nothing(tokenizer, monkeypatch):
    whole = list(vectors.vectors_of(TEXTS * 5, ids_of, tokenizer, "piece", 12))
    monkeypatch.setattr(vectors, "CHUNK", 4)
    monkeypatch.setattr(vectors, "TOKENS", 24)
    parts = list(vectors.vectors_of(iter(TEXTS * 5), ids_of, tokenizer, "piece", 12))
    assert [one[:2] for one in parts] == [one[:2] for one in whole]
    for one, other in zip(parts, whole, strict=True):
        np.testing.assert_array_equal(one.values, other.values)


def test_so_many_tokens_are_computed_together_as_are_allowed(tokenizer, monkeypatch):
    shapes = []

    def call(features):
        shapes.append(tuple(features["input_ids"].shape))
        return ids_of(features)

    monkeypatch.setattr(vectors, "TOKENS", 24)
    texts = ["a"] * 9 + ["a " * 30] * 3 + ["a b c d"]
    found = list(vectors.vectors_of(["a", *texts], call, tokenizer, "word", 12))
    assert [len(one.tokens) for one in found] == [1] * 10 + [10] * 3 + [4]
    assert shapes == [(1, 3), (8, 3), (2, 6), (2, 12), (1, 12)]


def test_so_many_texts_wait_together_as_memory_has_room_for(tokenizer, monkeypatch):
    sizes, of_chunk = [], vectors.of_chunk

    def counted(texts, *arguments):
        sizes.append(len(texts))
        return of_chunk(texts, *arguments)

    monkeypatch.setattr(vectors, "of_chunk", counted)
    monkeypatch.setattr(vectors, "MEMORY", 5 * 12 * 4)  # five texts of twelve numbers
    assert len(list(vectors.vectors_of(["a"] * 20, ids_of, tokenizer, "piece", 12))) == 20
    assert sizes == [1, 5, 5, 5, 4]
    sizes.clear()
    assert len(list(vectors.vectors_of(["a"] * 20, lambda f: ids_of(f)[:, 0], tokenizer, "text", 12))) == 20
    assert sizes == [1, 19]
    monkeypatch.setattr(vectors, "CHARACTERS", 6)
    sizes.clear()
    assert len(list(vectors.vectors_of(["abc"] * 5, lambda f: ids_of(f)[:, 0], tokenizer, "text", 12))) == 5
    assert sizes == [1, 2, 2]


@pytest.mark.parametrize("ending", [".jsonl", ".npz", ".tfrecord"])
def test_each_format_holds_what_was_found(tokenizer, tmp_path, ending):
    found = list(vectors.vectors_of(TEXTS, lambda f: tf.stack([ids_of(f)] * 2, 2), tokenizer, "piece", 12))
    path = tmp_path / f"v{ending}"
    assert vectors.write(found, path, [-1, 3]) == {"texts": 5, "vectors": 5 + 2 + 7 + 12 + 4, "texts cut": 1}
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    one = found[2]
    if ending == ".jsonl":
        row = json.loads(path.read_text(encoding="utf-8").splitlines()[2])
        assert row["linex_index"] == 2 and [feature["token"] for feature in row["features"]] == one.tokens
        layers = row["features"][1]["layers"]
        assert [layer["index"] for layer in layers] == [-1, 3] and layers[0]["values"] == one.values[1, 0].tolist()
    elif ending == ".npz":
        with np.load(path) as arrays:
            assert len(arrays.files) == 10 and arrays["2_tokens"].tolist() == one.tokens
            np.testing.assert_array_equal(arrays["2"], one.values)
    else:
        example = tf.train.Example.FromString(list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())[2])
        features = example.features.feature
        assert features["index"].int64_list.value == [2] and features["tokens"].bytes_list.value[1] == b"d"
        values = np.reshape(features["values"].float_list.value, features["shape"].int64_list.value)
        np.testing.assert_array_equal(values, one.values)


def test_a_byte_order_mark_is_no_text(tmp_path):
    (tmp_path / "a").write_text("\ufeffab\r\n\ufeffc", encoding="utf-8")
    assert list(vectors.lines(tmp_path / "a")) == ["ab", "\ufeffc"]


def test_lines_that_are_no_text_are_named(tmp_path):
    (tmp_path / "a").write_bytes(b"ok\n\xff\n")
    with pytest.raises(ValueError, match="a, line 2: invalid start byte, expected UTF-8"):
        list(vectors.lines(tmp_path / "a"))


def test_a_run_that_breaks_leaves_no_file_of_that_name(tokenizer, tmp_path):
    def broken():
        yield from vectors.vectors_of(["a"], ids_of, tokenizer, "piece", 12)
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        vectors.write(broken(), tmp_path / "v.jsonl", [])
    assert not (tmp_path / "v.jsonl").exists()
