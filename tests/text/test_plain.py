"""Rows of plain text by Python alone are those of the graph, or are left to it."""

import random
import string

import numpy as np
import pytest
import tensorflow as tf

from kbert.text import packing
from kbert.text.plain import LONGEST_WORD, MOST_CHARACTERS, PlainRow
from kbert.text.wordpiece import WordPiece

LETTERS = string.ascii_letters + string.digits
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
# Neither "q" nor "##z" is a piece: words with them are unknown. Some cannot be found: those across words.
PIECES = [*SPECIAL, *LETTERS.replace("q", ""), *(f"##{one}" for one in LETTERS.replace("z", "")), "ab", "abc", "##bc"]
PIECES += ["the", "##ing", "do", "don't", "U.S.", "a b", "##", "#", *".,'!-", "[", "]", "\u00e9", "\U0001f600"]
LONGEST = 24


@pytest.fixture(scope="module", params=[True, False], ids=["uncased", "cased"])
def both(request):
    tokenizer = WordPiece(PIECES, lower_case=request.param)
    return tokenizer, PlainRow(PIECES, request.param, LONGEST)


def rows_of_graph(tokenizer, text_a, text_b=None):
    ids = [tokenizer(tf.constant([text])) for text in (text_a, text_b) if text is not None]
    packed = packing.pack(ids[0], ids[1] if len(ids) == 2 else None, LONGEST, packing.special_ids(tokenizer))
    length = int(tf.reduce_sum(packed["input_mask"]))
    return packed["input_ids"][:, :length], packed["segment_ids"][:, :length]


def check_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == np.int32
        assert one.tolist() == other.numpy().tolist()


def random_text(draw: random.Random) -> str:
    words = ["the", "doing", "abcbc", "don't", "U.S.", "quiz", "a b", "##", "##bc", "[MASK]", "[unk]", "\t", "\r\n"]
    text = ""
    for _ in range(draw.randint(0, 9)):
        text += draw.choice([*words, "".join(draw.choices(LETTERS, k=draw.randint(1, 6)))])
        text += draw.choice(["", " ", "  ", draw.choice(string.punctuation)])
    return text


def test_rows_of_a_text_and_of_two_are_those_of_the_graph(both):
    tokenizer, plain = both
    draw, found = random.Random(1), 0
    for number in range(400):
        texts = [random_text(draw) for _ in range(1 + number % 2)]
        row = plain(*(text.encode() if number % 3 else text for text in texts))
        if row is not None:
            check_same(row, rows_of_graph(tokenizer, *texts))
            found += 1
    assert found > 200


def test_a_text_that_just_fits_is_packed_and_one_token_more_is_left(both):
    tokenizer, plain = both
    check_same(plain("a " * (LONGEST - 2)), rows_of_graph(tokenizer, "a " * (LONGEST - 2)))
    check_same(plain("a " * (LONGEST - 4), "a"), rows_of_graph(tokenizer, "a " * (LONGEST - 4), "a"))
    assert plain("a " * (LONGEST - 1)) is None
    assert plain("a " * (LONGEST - 4), "a a") is None


@pytest.mark.parametrize(
    "text",
    ["\u00e9", b"\xff", "a" * (LONGEST_WORD + 1), 3, ["a"], " " * (MOST_CHARACTERS * LONGEST + 1)],
)
def test_what_is_not_plain_is_left_to_the_graph(both, text):
    _, plain = both
    assert plain(text) is plain("a", text) is None


def test_a_word_that_is_just_short_is_packed(both):
    tokenizer, plain = both
    word = "ab" + "z" * (LONGEST_WORD - 2)
    check_same(plain(word), rows_of_graph(tokenizer, word))


def test_of_each_character_the_row_is_the_graph_s_unless_it_is_a_control_character(both):
    tokenizer, plain = both
    for character in map(chr, range(128)):
        row = plain(f"a{character}b")
        if character in "\t\n\r" or " " <= character <= "~":
            check_same(row, rows_of_graph(tokenizer, f"a{character}b"))
        else:
            assert row is None


@pytest.mark.parametrize("kind", [str, bytes, np.str_, np.bytes_])
def test_a_text_may_be_of_any_kind_of_string(both, kind):
    tokenizer, plain = both
    text = kind("ab, the") if issubclass(kind, str) else kind(b"ab, the")
    check_same(plain(text), rows_of_graph(tokenizer, "ab, the"))


def test_a_text_of_blanks_is_looked_through_where_it_is_not_too_long(both):
    tokenizer, plain = both
    check_same(plain(" " * MOST_CHARACTERS * LONGEST), rows_of_graph(tokenizer, ""))


def test_it_is_read_as_it_was_written(both):
    _, plain = both
    again = PlainRow.from_json(plain.as_json())
    assert (again.ids, again.lower_case, again.longest) == (plain.ids, plain.lower_case, plain.longest)
