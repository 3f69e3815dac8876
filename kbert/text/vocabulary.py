"""Vocabularies of word pieces: learned from text, read from and written to vocab.txt, one piece a line."""

import itertools
import os
from collections import Counter
from collections.abc import Iterable, Sequence

import tensorflow as tf
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from kbert.text.normalization import SEPARATOR, UNKNOWN_BY_LENGTH, normalize

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
UNUSED = tuple(f"[unused{number}]" for number in range(99))
SMALL = 1000  # smaller vocabularies have no unused pieces
SMALLEST = 50

MAX_PIECE_BYTES = 256  # of FastWordpieceTokenizer
RARE_CHARACTERS = 1e-5  # the rarest characters, together this share of the text, get no piece
BATCH_CHARACTERS = 1 << 22
REPEATS = 1000


def read(path: str | os.PathLike) -> list[str]:
    """The pieces of a vocabulary file in the order of their ids.

    Raises ValueError, with the line, for a file that is empty or not UTF-8, for pieces that are empty or there twice
    and when a special token is missing.
    """
    with open(path, "rb") as file:
        content = file.read()
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        byte = content[error.start]
        raise ValueError(f"{path}, line {line}: byte {byte:#04x} is not UTF-8; expected one piece a line") from None
    # Not splitlines: Google's Chinese vocabulary holds U+2028.
    return checked([line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else [], str(path))


def content(pieces: Sequence[str]) -> bytes:
    """What a vocabulary file holds. Raises ValueError as read does."""
    return "".join(f"{piece}\n" for piece in checked(pieces)).encode()


def checked(pieces: Sequence[str], name: str = "vocabulary") -> list[str]:
    """The pieces as a list. Raises ValueError as read does; a piece's line is its id + 1."""
    first_lines = {}
    for line, piece in enumerate(pieces, 1):
        if not piece:
            raise ValueError(f"{name}, line {line}: the line is empty; expected a piece")
        if "\n" in piece:
            raise ValueError(f"{name}, line {line}: the piece {piece!r} holds a line break")
        if piece in first_lines:
            raise ValueError(f"{name}, line {line}: the piece {piece!r} is already on line {first_lines[piece]}")
        if not _fits(piece):
            raise ValueError(f"{name}, line {line}: the piece {piece[:20]!r}... is longer than {MAX_PIECE_BYTES} bytes")
        first_lines[piece] = line
    missing = [token for token in SPECIAL_TOKENS if token not in first_lines]
    if not first_lines:
        raise ValueError(f"{name}: the vocabulary is empty; expected one piece a line")
    if missing:
        raise ValueError(
            f"{name}: {' '.join(missing)} missing among {len(first_lines)} pieces; expected {' '.join(SPECIAL_TOKENS)}"
        )
    return list(pieces)


def first_pieces(size: int) -> list[str]:
    """The special tokens at Google's ids: [PAD] 0, [UNK] 100, [CLS] 101, [SEP] 102, [MASK] 103; 0 to 4 if size < 1000.

    Raises ValueError for a size that leaves too little room for others.
    """
    if size < SMALLEST:
        raise ValueError(
            f"vocabulary size {size}: too small for the letters of a language; expected {SMALLEST} or more"
        )
    pad, *others = SPECIAL_TOKENS
    return [pad, *(UNUSED if size >= SMALL else ()), *others]


def learn(lines: Iterable[str], size: int, lower_case: bool = True) -> list[str]:
    """Learns a vocabulary of at most `size` pieces, special tokens included; the order of the lines does not matter.

    Text that has no more to learn gives fewer. Raises ValueError for text without words and a size under 50.
    """
    return learn_from_words(count_words(lines, lower_case), size)


def count_words(lines: Iterable[str], lower_case: bool = True) -> Counter[str]:
    """How often each word occurs, split and normalized as Google's tokenizer does before it looks for pieces."""
    words = Counter()
    for batch in _batches(lines):
        spans = Counter()
        for text in normalize(tf.constant(batch), lower_case).numpy():
            spans.update(text.split())
        # Punctuation is split off once per different span, not once per occurrence.
        split = tf.strings.regex_replace(tf.constant(list(spans), tf.string), f"({SEPARATOR})", r" \1 ")
        for text, count in zip(split.numpy(), spans.values(), strict=True):
            for word in text.decode().split():
                words[word] += count
    unknown = {chr(code_point) for code_point in UNKNOWN_BY_LENGTH}
    return Counter({word: count for word, count in words.items() if word[0] not in unknown})


def learn_from_words(words: Counter[str], size: int) -> list[str]:
    """Learns a vocabulary as `learn` does, from counted words."""
    first = first_pieces(size)
    if not words:
        raise ValueError("the corpus has no words to learn a vocabulary from")
    ascii_characters = _ascii_characters(words) if size >= SMALL else set()
    alphabet = _alphabet(words, (size - len(first)) * 9 // 10) | ascii_characters
    words = {word: count for word, count in words.items() if alphabet.issuperset(word)}
    beginnings = sorted({word[0] for word in words} | ascii_characters)
    inside = {character for word in words for character in word[1:]} | set(filter(str.isalnum, ascii_characters))
    continuations = sorted(f"##{character}" for character in inside)
    # The learner gives ids to all characters, also to those that never begin a word.
    useless = {character for word in words for character in word} - set(beginnings)
    # Without ids given beforehand it numbers continuations as its hash table has them and breaks ties by number.
    trainer = trainers.WordPieceTrainer(
        vocab_size=size - len(first) + len(useless), special_tokens=continuations, min_frequency=2, show_progress=False
    )
    learner = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    learner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    learner.train_from_iterator(_repeated(words), trainer)
    ids = learner.get_vocab()
    known = {*beginnings, *continuations, *useless}
    learned = (piece for piece in sorted(ids, key=ids.get) if piece not in known and _fits(piece))
    return [*first, *beginnings, *continuations, *learned][:size]


def _fits(piece: str) -> bool:
    return len(piece.removeprefix("##").encode()) <= MAX_PIECE_BYTES


def _batches(lines: Iterable[str]) -> Iterable[list[str]]:
    batch, characters = [], 0
    for line in lines:
        batch.append(line)
        characters += len(line)
        if characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _ascii_characters(words: Iterable[str]) -> set[str]:
    """Those that text without accents may always have, seen or not; capitals only where the words have some."""
    capitals = any("A" <= character <= "Z" for word in words for character in word)
    return {character for character in map(chr, range(0x21, 0x7F)) if capitals or not character.isupper()}


def _alphabet(words: Counter[str], most_pieces: int) -> set[str]:
    """The characters that get pieces of their own: the most frequent ones, within a number of pieces."""
    counts, beginnings, continuations = Counter(), set(), set()
    for word, count in words.items():
        beginnings.add(word[0])
        continuations.update(word[1:])
        for character in word:
            counts[character] += count
    ordered = sorted(counts, key=lambda character: (-counts[character], character))
    pieces = itertools.accumulate((character in beginnings) + (character in continuations) for character in ordered)
    seen = itertools.accumulate(counts[character] for character in ordered)
    enough = counts.total() * (1 - RARE_CHARACTERS)
    return {
        character
        for character, needed, covered in zip(ordered, pieces, seen, strict=True)
        if needed <= most_pieces and covered - counts[character] < enough
    }


def _repeated(words: dict[str, int]) -> Iterable[str]:
    for word, count in words.items():
        for done in range(0, count, REPEATS):
            yield f"{word} " * min(REPEATS, count - done)
