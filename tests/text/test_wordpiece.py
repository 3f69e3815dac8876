"""Ids and offsets equal Google's rules, in every way the tokenizer is called (see data/make_wordpiece_golden.py)."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import google_tokenizer
import numpy as np
import pytest
import tensorflow as tf

from kbert.text.plain import PlainRow
from kbert.text.wordpiece import WordPiece

GOLDEN = Path(__file__).parent.parent / "data" / "wordpiece_golden.jsonl"
BOTH = pytest.mark.parametrize("lower_case", [True, False], ids=["uncased", "cased"])
LETTERS = "aAbéÉñßøİıΣσก한й😀ﬁ\u0301\u0308\u200d\u00ad"
SEPARATORS = [
    " ",
    "\n",
    "\t",
    "\u00a0",
    "\u2028",
    "\u3000",
    ".",
    "-",
    "$",
    "\u2014",
    "\u2019",
    "中",
    "\u00b7",
    "\u3002",
]

# Of TensorFlow core, and the two of tensorflow-text that TensorFlow Serving links.
SERVABLE_TEXT_OPS = {"FastWordpieceTokenizeWithOffsets", "NormalizeUTF8"}
CORE_OPS = set(
    "AddN AddV2 BroadcastTo Cast ConcatV2 Const Cumsum Equal ExpandDims GatherNd GatherV2 Greater GreaterEqual "
    "Identity Less LogicalAnd LogicalNot Max Maximum Minimum Mul NoOp Pack PartitionedCall Placeholder Prod Range "
    "Reshape SegmentSum SelectV2 Shape Squeeze StatefulPartitionedCall StaticRegexFullMatch StaticRegexReplace "
    "StridedSlice StringLength StringLower Sub TensorScatterUpdate Tile UnicodeDecode UnicodeDecodeWithOffsets "
    "UnicodeEncode UnicodeTranscode Unique UpperBound Where".split()
)

IN_ANOTHER_PROCESS = """
import json, sys
import tensorflow as tf
import tensorflow_text
tokenizer = tf.saved_model.load(sys.argv[1])
texts = [bytes.fromhex(line) for line in sys.stdin.read().split("\\n")]
results = [tokenizer(tf.constant(texts)), *tokenizer.tokenize_with_offsets(tf.constant(texts))]
assert "kbert" not in sys.modules
print(json.dumps([result.to_list() for result in results]))
"""


@pytest.fixture(scope="module")
def golden() -> list[dict]:
    with open(GOLDEN, encoding="ascii") as file:
        return [json.loads(line) for line in file]


@pytest.fixture(scope="module")
def vocabulary(golden) -> list[str]:
    return golden[0]["vocabulary"]


@pytest.fixture(scope="module")
def tokenizers(vocabulary) -> dict[bool, WordPiece]:
    return {lower_case: WordPiece(vocabulary, lower_case) for lower_case in (True, False)}


@pytest.fixture(scope="module")
def lines(golden) -> dict[bool, list[dict]]:
    """The golden lines of each mode, with the text as bytes."""
    found = {True: [], False: []}
    for line in golden[1:]:
        data = bytes.fromhex(line["hex"]) if "hex" in line else line["text"].encode()
        found[line["lower_case"]].append({**line, "bytes": data})
    return found


@pytest.fixture(scope="module")
def character_tokenizers() -> dict[bool, tuple[WordPiece, dict[str, int]]]:
    """Tokenizers that have every character of the fuzz, and its decompositions, as pieces."""
    characters = {c for text in [*LETTERS, *SEPARATORS] for word in google_tokenizer.words(text, True) for c, _ in word}
    characters = sorted(characters | set(LETTERS) | {"ς"})
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *SEPARATORS[6:], *characters]
    pieces = list(dict.fromkeys([*pieces, *(f"##{character}" for character in characters)]))
    ids = {piece: number for number, piece in enumerate(pieces)}
    return {lower_case: (WordPiece(pieces, lower_case), ids) for lower_case in (True, False)}


@pytest.fixture(scope="module")
def saved(tokenizers, tmp_path_factory) -> str:
    path = str(tmp_path_factory.mktemp("saved") / "tokenizer")
    tf.saved_model.save(tokenizers[True], path)
    return path


def test_the_golden_file_has_300_texts_of_each_mode_and_unknown_words_too(lines):
    for mode in lines.values():
        assert len(mode) > 300
        assert sum(1 in line["ids"] for line in mode) > 50
        assert sum("hex" in line for line in mode) > 50


@BOTH
def test_ids_equal_googles(tokenizers, lines, lower_case):
    ids = tokenizers[lower_case]([line["bytes"] for line in lines[lower_case]]).to_list()
    wrong = [line for line, found in zip(lines[lower_case], ids, strict=True) if found != line["ids"]]
    assert not wrong


@BOTH
def test_ids_of_a_text_do_not_depend_on_the_others_in_the_batch(tokenizers, lines, lower_case):
    for line in lines[lower_case]:
        assert tokenizers[lower_case]([line["bytes"]]).to_list() == [line["ids"]]


@BOTH
def test_one_long_text_has_the_ids_of_its_lines(tokenizers, lines, lower_case):
    # The whole text then takes the path for accents, undecodable bytes and long words.
    (ids,) = tokenizers[lower_case]([b"\n".join(line["bytes"] for line in lines[lower_case])]).to_list()
    assert ids == [number for line in lines[lower_case] for number in line["ids"]]


@BOTH
def test_random_words_around_the_limit_of_200_characters_have_googles_ids(character_tokenizers, lower_case):
    draw, texts = random.Random(2), []
    for _ in range(150):
        words = [draw.choices(LETTERS, k=draw.choice([1, 3, 9, 140, 199, 200, 201, 260])) for _ in range(4)]
        texts.append("".join("".join(word) + draw.choice(SEPARATORS) for word in words))
    tokenizer, ids = character_tokenizers[lower_case]
    expected = [google_tokenizer.tokenized(text, ids, lower_case) for text in texts]
    found, *offsets = tokenizer.tokenize_with_offsets(texts)
    assert found.to_list() == [numbers for numbers, _ in expected]
    places = np.stack([offset.values.numpy() for offset in offsets], axis=1)
    assert places.tolist() == [place for _, places in expected for place in places]
    assert (tokenizer(texts).values == found.values).numpy().all()


@BOTH
def test_offsets_equal_the_places_that_the_restated_rules_keep(tokenizers, lines, lower_case):
    texts = [line["bytes"] for line in lines[lower_case]]
    ids, *offsets = (part.to_list() for part in tokenizers[lower_case].tokenize_with_offsets(texts))
    assert ids == [line["ids"] for line in lines[lower_case]]
    places = [[list(place) for place in zip(*row, strict=True)] for row in zip(*offsets, strict=True)]
    assert places == [line["offsets"] for line in lines[lower_case]]


@BOTH
def test_the_text_between_a_pieces_offsets_is_the_piece(tokenizers, lines, vocabulary, lower_case):
    texts = [line["bytes"] for line in lines[lower_case]]
    found = (part.to_list() for part in tokenizers[lower_case].tokenize_with_offsets(texts))
    for text, *row in zip(texts, *found, strict=True):
        characters, last = text.decode("utf-8", "ignore"), (0, 0)
        for number, start, end, start_character, end_character in zip(*row, strict=True):
            assert start < end and last <= (start, end)
            last = start, end
            part = text[start:end].decode("utf-8", "ignore")
            assert part == characters[start_character:end_character]
            piece = vocabulary[number].removeprefix("##")
            if piece != "[UNK]":
                words = google_tokenizer.words(part, lower_case)
                # Alone, a sigma is not final; a Hangul syllable belongs to each of its parts.
                whole = "".join(character for word in words for character, _ in word)
                assert piece.replace("ς", "σ") in whole.replace("ς", "σ")


def test_offsets_of_removed_and_combining_characters():
    tokenizer = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cafe", "##s", "!"])
    ids, *offsets = tokenizer.tokenize_with_offsets([b"\xffCaf\xc3\xa9 cafe\xcc\x81s\xc2\xad!\xcc\x81"])
    assert ids.to_list() == [[5, 5, 6, 7]]
    start_bytes, end_bytes, start_characters, end_characters = (offset.to_list()[0] for offset in offsets)
    assert list(zip(start_bytes, end_bytes, strict=True)) == [(1, 6), (7, 13), (13, 14), (16, 19)]
    assert list(zip(start_characters, end_characters, strict=True)) == [(0, 4), (5, 10), (10, 11), (12, 14)]


def test_no_texts_and_texts_without_words_have_no_pieces(tokenizers):
    assert tokenizers[True]([]).to_list() == []
    assert tokenizers[True](["", " \t\u00a0", "\u0301\u200d"]).to_list() == [[], [], []]
    assert [part.to_list() for part in tokenizers[True].tokenize_with_offsets(["", "\x00"])] == [[[], []]] * 5


def test_pieces_with_whitespace_or_removed_characters_are_never_found():
    pieces = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "a",
        "a a",
        "\u2028",
        "a\u200db",
        "##\u2028",
        "\x01",
        "\x01\x01",
    ]
    tokenizer = WordPiece(pieces)
    assert tokenizer(["a a \u2028 a\u200db a\u2028", "é" * 201, "x" * 201]).to_list() == [[5, 5, 1, 5], [1], [1]]


def test_attributes_tell_the_special_tokens_wherever_they_are():
    tokenizer = WordPiece(["the", "##s", "[MASK]", "[SEP]", "##", "[CLS]", "[UNK]", "[PAD]"], lower_case=False)
    special = tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id
    assert special == (7, 6, 5, 3, 2)
    assert tokenizer.vocab_size == 8 and tokenizer.vocabulary[0] == "the" and not tokenizer.lower_case
    assert tokenizer.continuation_pieces.tolist() == [False, True, False, False, True, False, False, False]
    assert tokenizer(["thes the", "x"]).to_list() == [[0, 1, 0], [6]]


def test_the_digest_tells_vocabularies_and_modes_apart(vocabulary):
    one, same, cased, other = (
        WordPiece(*of) for of in ([vocabulary], [vocabulary], [vocabulary, False], [vocabulary[:-1]])
    )
    assert one.digest == same.digest and len({one.digest, cased.digest, other.digest}) == 3


def test_a_vocabulary_without_mask_is_refused(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nthe\n")
    with pytest.raises(ValueError, match=r"vocab\.txt: \[MASK\] missing among 5 pieces"):
        WordPiece(tmp_path / "vocab.txt")


@BOTH
def test_parallel_maps_of_tf_data_give_the_same_ids(tokenizers, lines, lower_case):
    texts = [line["bytes"] for line in lines[lower_case]][:300]
    dataset = tf.data.Dataset.from_tensor_slices(texts).batch(20)
    dataset = dataset.map(tokenizers[lower_case], num_parallel_calls=2).unbatch()
    assert [ids.tolist() for ids in dataset.as_numpy_iterator()] == [line["ids"] for line in lines[lower_case]][:300]


@BOTH
def test_plain_texts_have_the_same_ids_by_python_alone(tokenizers, lines, lower_case):
    plain, found = PlainRow(tokenizers[lower_case].vocabulary, lower_case, longest=10**6), 0
    for line in lines[lower_case]:
        row = plain(line["bytes"])
        if row is not None:
            assert row[0][0, 1:-1].tolist() == line["ids"]
            found += 1
    assert found > 0.1 * len(lines[lower_case])


def test_all_ops_are_stateless(tokenizers):
    for function in (tokenizers[True].__call__, tokenizers[True].tokenize_with_offsets):
        operations = function.get_concrete_function().graph.get_operations()
        assert not [operation.type for operation in operations if operation.op_def.is_stateful]


def test_a_saved_model_needs_no_kbert_and_no_particular_locale(tokenizers, lines, saved, tmp_path):
    texts = [line["bytes"] for line in lines[True]]
    # In Turkish the lower case of I has no dot.
    environment = {**os.environ, "LC_ALL": "tr_TR.UTF-8", "PYTHONUTF8": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    answer = subprocess.run(
        [sys.executable, "-c", IN_ANOTHER_PROCESS, saved],
        input="\n".join(text.hex() for text in texts), capture_output=True, text=True, env=environment, cwd=tmp_path,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    ids, again, *offsets = json.loads(answer.stdout)
    assert ids == again == [line["ids"] for line in lines[True]]
    here = tokenizers[True].tokenize_with_offsets(texts)[1:]
    assert offsets == [offset.to_list() for offset in here]


def test_a_saved_model_holds_only_ops_that_tensorflow_serving_has(saved):
    loaded = tf.saved_model.load(saved)
    for function in (loaded.__call__, loaded.tokenize_with_offsets):
        graph = function.concrete_functions[0].graph.as_graph_def()
        functions = [node.op for function in graph.library.function for node in function.node_def]
        ops = {node.op for node in graph.node} | set(functions)
        assert SERVABLE_TEXT_OPS <= ops <= CORE_OPS | SERVABLE_TEXT_OPS
