"""Vocabularies: read and written exactly, refused with the line, learned alike whatever the order of the text."""

import gzip
import importlib.util
import random
from collections import Counter
from pathlib import Path

import pytest

from kbert.text import vocabulary
from kbert.text.wordpiece import WordPiece

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
RECIPE = Path(__file__).parents[2] / "recipes" / "learn_vocabulary.py"


@pytest.fixture(scope="module")
def lines() -> list[str]:
    """Words that share their ends, with accents, punctuation, capitals, Chinese and zero-width characters."""
    draw = random.Random(1)
    stems = [
        "walk",
        "talk",
        "jump",
        "play",
        "sing",
        "café",
        "naïve",
        "read",
        "wonder",
        "straße",
        "ölig",
        "mark",
        "turn",
    ]
    ends = ["", "", "s", "ed", "ing", "er", "ers", "ingly", "able", "'s", "-like", "!", ",", "."]
    found = []
    for _ in range(400):
        words = [draw.choice(stems) + draw.choice(ends) for _ in range(draw.randint(3, 20))]
        found.append(" ".join(words).capitalize() + draw.choice([" 中文。", " ($5)", "\u200b", ' "Ja"', ""]))
    return found


@pytest.fixture(scope="module")
def pieces(lines) -> list[str]:
    return vocabulary.learn(lines, 150)


def test_a_vocabulary_is_written_and_read_line_for_line(tmp_path):
    pieces = [*SPECIAL, "the", "##s", "\u2028", "##\u2028", "\u0085x", "\x0b", " ", "中"]
    (tmp_path / "vocab.txt").write_bytes(vocabulary.content(pieces))
    assert vocabulary.read(tmp_path / "vocab.txt") == pieces
    assert vocabulary.content(pieces) == "".join(f"{piece}\n" for piece in pieces).encode()


def test_special_tokens_may_be_anywhere_and_lines_may_end_as_on_windows(tmp_path):
    (tmp_path / "vocab.txt").write_bytes("\r\n".join(["the", *SPECIAL]).encode())
    assert vocabulary.read(tmp_path / "vocab.txt") == ["the", *SPECIAL]


GOOD = "\n".join(SPECIAL).encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "vocab.txt: the vocabulary is empty; expected one piece a line"),
        (GOOD + b"\nthe\n\nof\n", "vocab.txt, line 7: the line is empty; expected a piece"),
        (GOOD + b"\nthe\nof\nthe\n", "vocab.txt, line 8: the piece 'the' is already on line 6"),
        (GOOD + b"\nthe\ncaf\xe9\n", "vocab.txt, line 7: byte 0xe9 is not UTF-8; expected one piece a line"),
        (
            GOOD + b"\n##" + b"a" * 257,
            "vocab.txt, line 6: the piece '##aaaaaaaaaaaaaaaaaa'... is longer than 256 bytes",
        ),
        (
            b"[PAD]\n[UNK]\n[CLS]\nthe\n",
            "vocab.txt: [SEP] [MASK] missing among 4 pieces; expected [PAD] [UNK] [CLS] [SEP] [MASK]",
        ),
    ],
)
def test_a_bad_file_is_refused_with_its_line(tmp_path, content, message):
    (tmp_path / "vocab.txt").write_bytes(content)
    with pytest.raises(ValueError) as error:
        vocabulary.read(tmp_path / "vocab.txt")
    assert str(error.value) == f"{tmp_path}/{message}"


def test_what_could_not_be_read_again_is_not_written():
    for bad in ([*SPECIAL, "a", "a"], [*SPECIAL, "a\nb"], SPECIAL[:4]):
        with pytest.raises(ValueError):
            vocabulary.content(bad)


def test_the_same_text_gives_the_same_vocabulary_in_any_order(lines, pieces):
    for seed in range(3):
        shuffled = random.Random(seed).sample(lines, len(lines))
        assert vocabulary.learn(shuffled, 150) == pieces


def test_small_vocabularies_begin_with_the_special_tokens(pieces):
    assert len(pieces) == 150 and pieces[:5] == SPECIAL
    assert not any(piece.startswith("[unused") for piece in pieces)


def test_larger_vocabularies_have_googles_ids_and_all_of_ascii():
    words = Counter(
        {f"{a}{b}{c}n{d}": 2 for a in "bcdfghkpt" for b in "aeiou" for c in "lmnrs" for d in ["", "a", "e", "o"]}
    )
    pieces = vocabulary.learn_from_words(words, 1000)
    assert len(pieces) == len(set(pieces)) == 1000
    assert [pieces.index(token) for token in SPECIAL] == [0, 100, 101, 102, 103]
    assert pieces[1:100] == [f"[unused{number}]" for number in range(99)]
    ascii_characters = set(map(chr, range(0x21, 0x7F)))
    assert {character for character in ascii_characters if not character.isupper()} <= set(pieces)
    assert "##7" in pieces and "##$" not in pieces and "A" not in pieces


@pytest.mark.parametrize("lower_case", [True, False])
def test_every_learned_piece_is_what_googles_tokenizer_looks_up(lines, lower_case):
    pieces = vocabulary.learn(lines, 1000, lower_case)[104:]
    beginnings = [piece for piece in pieces if not piece.startswith("##")]
    words = [f"a{piece[2:]}" for piece in pieces if piece.startswith("##")]
    assert vocabulary.count_words(beginnings, lower_case) == Counter(beginnings)
    assert vocabulary.count_words(words, lower_case) == Counter(words)
    assert any("é" in piece for piece in pieces) == any(piece == "Walk" for piece in pieces) == (not lower_case)


def test_the_words_of_the_text_need_few_pieces_and_are_known(lines, pieces):
    tokenizer = WordPiece(pieces)
    ids = tokenizer(lines).flat_values.numpy()
    assert tokenizer.unk_id not in ids
    words = sum(vocabulary.count_words(lines).values())
    assert words <= len(ids) < 1.2 * words
    assert {"walk", "cafe", "straße", "##ing", "中", "$"} <= set(pieces)


def test_words_are_counted_as_google_splits_them():
    counts = vocabulary.count_words(["Café, CAFE\u0301!", "b\u00a0b 中文 x" + "y" * 200, "", "b\x00b"])
    assert counts == {"cafe": 2, ",": 1, "!": 1, "b": 2, "中": 1, "文": 1, "bb": 1}
    assert vocabulary.count_words(["Café"], lower_case=False) == {"Café": 1}


def test_rare_characters_get_no_piece_and_ascii_always_does():
    words = Counter({"ab": 10**6, "ab中": 1, "a$": 1, "ab\u0434": 100})
    pieces = vocabulary.learn_from_words(words, 1000)
    assert "##中" not in pieces and "##\u0434" in pieces and "$" in pieces


def test_text_with_little_to_learn_gives_fewer_pieces():
    assert vocabulary.learn(["to be or not to be"], 100) == [*SPECIAL, *"bnot", "##e", "##o", "##r", "##t", "be", "to"]


def test_no_words_and_too_small_a_size_are_refused():
    with pytest.raises(ValueError, match="no words"):
        vocabulary.learn(["", "\u200b"], 100)
    with pytest.raises(ValueError, match="size 49: too small .* expected 50 or more"):
        vocabulary.learn(["a b"], 49)


@pytest.fixture(scope="module")
def recipe():
    spec = importlib.util.spec_from_file_location("learn_vocabulary", RECIPE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_recipe_learns_from_files_in_any_order_and_keeps_an_existing_output(recipe, lines, tmp_path, capsys):
    (tmp_path / "a.txt").write_text("\n".join(lines[:200]), encoding="utf-8")
    with gzip.open(tmp_path / "b.txt.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(lines[200:]))
    files, output = [str(tmp_path / "a.txt"), str(tmp_path / "b.txt.gz")], tmp_path / "new" / "vocab.txt"
    recipe.main(files, output, size=200)
    first = output.read_bytes()
    assert "pieces" in capsys.readouterr().out
    with pytest.raises(ValueError, match="--output .* exists; .* --overwrite"):
        recipe.main(files, output, size=300)
    assert output.read_bytes() == first
    recipe.main(files[::-1], output, size=200, overwrite=True)
    assert output.read_bytes() == first


def test_the_recipe_says_when_the_text_has_too_little(recipe, tmp_path, capsys):
    (tmp_path / "a.txt").write_text("to be or not to be\n" * 3)
    recipe.main([str(tmp_path)], tmp_path / "vocab.txt", size=1000)
    assert "pieces instead of 1000" in capsys.readouterr().out
