"""A vocabulary of a few hundred pieces and text made of it, for tests."""

import itertools

import numpy as np

from kbert.text.documents import Corpus, CorpusFormat

WORDS = ["".join(letters) for letters in itertools.product("bcdfglmnprst", "aeiou", "lmnrst")][:300]
PIECES = [a + b for a in "bdfgkmrt" for b in "aeiou"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCABULARY = SPECIAL + ["."] + WORDS + ["##" + piece for piece in PIECES]


def text(number: int, size: int) -> str:
    """About `size` bytes of sentences of 1 to 60 words, some of which are several pieces; some without a token."""
    draw = np.random.default_rng(number)
    sentences = []
    while sum(map(len, sentences)) < size:
        words = draw.choice(WORDS, draw.integers(1, 60 if draw.random() < 0.2 else 16))
        tails = draw.choice(PIECES, len(words))
        words = [w + t if long else w for w, t, long in zip(words, tails, draw.random(len(words)) < 0.15, strict=True)]
        sentences.append(" ".join(words).capitalize() + "." if draw.random() > 0.01 else "\u200b\u200d")
    return "\n".join(sentences) + "\n"


def write_corpus(folder, sizes) -> Corpus:
    """One document a file, about as many bytes long as told."""
    for number, size in enumerate(sizes):
        (folder / f"{number:03}.txt").write_text(text(number, size), encoding="utf-8")
    return Corpus([folder], CorpusFormat(documents="file", sentences="line"))
