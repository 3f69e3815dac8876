"""Normalization equals Google's rules for every character of Unicode and for any bytes."""

import random
import sys
import unicodedata

import google_tokenizer
import pytest
import tensorflow as tf
import tensorflow_text as tf_text

from kbert.text.normalization import SHORT_WORDS, normalize

# Where Python 3.11 to 3.13 and the ops may disagree, in hexadecimal: all of them newer than Unicode 13.
NEWER_THAN_UNICODE_13 = """
ECE 1B4E-1B4F 1B7F 2C2F A7C0 A7D0 A7D6 A7D8 10570-1057A 1057C-1058A 1058C-10592 10594-10595 105C9 105E4 10D6E
10EFD-10EFF 11241 11383 11385 1138E 11391 113C5 113C7-113C8 113D4-113D5 113D7-113D8 11B00-11B09 11BE1 11F00-11F01
11F36-11F3A 11F40 11F42-11F4F 13439-13440 13447-13455 16121-16128 16D68-16D6A 16D6D-16D6F 1E08F 1E4EC-1E4EF 1E5FF
"""


@pytest.fixture(scope="module")
def characters() -> list[str]:
    """All that are assigned, but one in 64 of the many that are alike; and one in 64 of all others."""
    many = [block for block in google_tokenizer.CHINESE if len(block) > 1000]
    many += [range(0xAC00, 0xD7A4), range(0x17000, 0x18D00)]  # Hangul, Tangut
    edges = {edge + step for block in many for edge in (block.start, block.stop) for step in (-1, 0)}
    codes = [code for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
    assigned = {code for code in codes if unicodedata.category(chr(code)) not in ("Cn", "Co")}
    assigned.difference_update(*many)
    return [chr(code) for code in codes if code % 64 == 0 or code in assigned or code in edges]


@pytest.fixture(scope="module")
def newer() -> set[str]:
    ends = [[int(end, 16) for end in ends.split("-")] for ends in NEWER_THAN_UNICODE_13.split()]
    return {chr(code) for first, *last in ends for code in range(first, (last or [first])[0] + 1)}


def in_words(text: str, lower_case: bool) -> str:
    """The words of a text by Google's rules, before they are looked up."""
    found = google_tokenizer.words(text, lower_case)
    return " ".join("".join(character for character, _ in word) for word in found)


@pytest.mark.parametrize("lower_case", [True, False])
def test_every_character_becomes_what_googles_rules_make_of_it(lower_case, characters, newer):
    ours = normalize(tf.constant(characters), lower_case).numpy()
    different = {
        character
        for character, ours in zip(characters, ours, strict=True)
        # Whitespace is left to the splitting.
        if "".join(ours.decode().split()) != in_words(character, lower_case)
    }
    assert different <= newer


def test_words_end_where_googles_rules_end_them(characters, newer):
    splitter = tf_text.FastWordpieceTokenizer(["[UNK]", "x", "##x"], token_out_type=tf.int32)
    cleaned = normalize(tf.constant([f"x{character}x" for character in characters]), lower_case=False)
    ours = splitter.tokenize(cleaned).to_list()
    ids = {"[UNK]": 0, "x": 1, "##x": 2}
    different = {
        character
        for character, ours in zip(characters, ours, strict=True)
        if ours != google_tokenizer.tokenized(f"x{character}x", ids, lower_case=False)[0]
    }
    assert different <= newer


def test_only_separators_keep_a_text_from_being_searched_for_long_words(characters):
    texts = tf.constant([f"{'b' * 150}{character}{'b' * 150}" for character in characters])
    short = tf.strings.regex_full_match(texts, SHORT_WORDS).numpy()
    taken_for_separators = [character for character, short in zip(characters, short, strict=True) if short]
    assert len(taken_for_separators) > 300
    assert all(
        len(in_words(f"b{character}b", lower_case=False)) > 3 or character.isspace()
        for character in taken_for_separators
    )


@pytest.mark.parametrize("lower_case", [True, False])
def test_undecodable_bytes_are_skipped_as_python_skips_them(lower_case):
    draw = random.Random(1)
    # Starts, continuations and near misses of every kind of sequence, between letters.
    some = [0x41, 0x61, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC3, 0xDF, 0xE0, 0xE1, 0xED, 0xEE, 0xEF]
    some += [0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xF8, 0xFE, 0xFF]
    texts = [bytes(draw.choice(some) for _ in range(draw.randint(1, 8))) for _ in range(20000)]
    expected = normalize(tf.constant([text.decode("utf-8", "ignore") for text in texts]), lower_case)
    assert (normalize(tf.constant(texts), lower_case) == expected).numpy().all()
