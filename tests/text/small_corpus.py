"""A vocabulary of a few hundred pieces, text made of it, and TFRecords of instances, for tests."""

import itertools

import numpy as np
import tensorflow as tf

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


def write_records(path, count=40, sequence_length=16, predictions=3, leave_out=()):
    """TFRecords whose every token is the number of the record."""
    with tf.io.TFRecordWriter(str(path)) as writer:
        for number in range(count):
            values = {
                "input_ids": [number] * sequence_length,
                "input_mask": [1] * sequence_length,
                "segment_ids": [0] * sequence_length,
                "masked_lm_positions": [1, 2, 0],
                "masked_lm_ids": [number, number + 1, 0],
                "masked_lm_weights": [1.0, 1.0, 0.0],
                "next_sentence_labels": [number % 2],
            }
            feature = {
                name: tf.train.Feature(float_list=tf.train.FloatList(value=value))
                if name == "masked_lm_weights"
                else tf.train.Feature(int64_list=tf.train.Int64List(value=value))
                for name, value in values.items()
                if name not in leave_out
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
