"""Named entities (section 5.3): CoNLL columns -> tagged words -> pieces -> batches, predicted tags -> entities, scores.

word       Jim    Henson      was  puppeteer
tag        B-PER  I-PER       O    O
pieces     jim    hen ##son   was  puppet ##eer
label_ids  1      2   -1      0    0      -1       the first piece of each word is asked
"""

import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from seqeval.metrics import classification_report
from seqeval.metrics.sequence_labeling import get_entities

from kbert.tasks.batches import INPUTS, in_order_of_length
from kbert.tasks.examples import checked_lines
from kbert.text.packing import Spans, pack_spans, special_ids
from kbert.text.windows import WindowRule, answer_places, windows
from kbert.text.words import pieces_of_words
from kbert.whole_file import write_whole

SCHEMES = ("IOB2", "IOB1", "IOBES")
DOCUMENT = "-DOCSTART-"
WINDOWS_AT_ONCE = 4096  # that are compared, a few numbers for each of their pieces


class Sentence(NamedTuple):
    """Words with a tag each, the number of their document, and where they stand."""

    words: list[str]
    tags: list[str]
    document: int
    where: str


class Columns(NamedTuple):
    """How a line is parted (None: at tabs if it has any, else at spaces) and where its word and tag are."""

    separator: str | None = None
    word: int = 0
    tag: int = -1


USUAL = Columns()


def read(path, scheme: str = "IOB2", columns: Columns = USUAL) -> list[Sentence]:
    """The sentences of a file with a word a line and blank lines between sentences; -DOCSTART- begins a document.

    Raises ValueError naming file and line for a line with too few columns, a tag that is none, and one that does not
    follow from the tags before it, with the scheme that would fit.
    """
    path = Path(path)
    sentences, words, tags, lines, document = [], [], [], [], 0

    def end():
        if words:
            sentences.append((Sentence(list(words), list(tags), document, f"{path}, line {lines[0]}"), list(lines)))
        for values in (words, tags, lines):
            values.clear()

    with open(path, encoding="utf-8-sig", newline="\n") as file:
        for number, line in enumerate(checked_lines(path, file), start=1):
            line = line.rstrip("\r\n")
            if not line.strip():
                end()
            elif line.startswith(DOCUMENT):
                end()
                document += 1
            else:
                word, tag = cells(f"{path}, line {number}", line, columns)
                for values, value in ((words, word), (tags, tag), (lines, number)):
                    values.append(value)
    end()
    if not sentences:
        raise ValueError(f"{path}: holds no words; expected a word and a tag on each line")
    check(path, sentences, scheme)
    return [sentence for sentence, _ in sentences]


def cells(where: str, line: str, columns: Columns) -> tuple[str, str]:
    separator = columns.separator or ("\t" if "\t" in line else None)
    # At plain spaces alone: words may hold others, as 10 000 may.
    found = line.split(separator) if separator else re.split(" +", line.strip(" "))
    needed = max(place + 1 if place >= 0 else -place for place in (columns.word, columns.tag))
    if len(found) < max(needed, 2) or not found[columns.word].strip() or not found[columns.tag].strip():
        raise ValueError(f"{where}: {line!r} has {len(found)} columns; expected at least {max(needed, 2)}, not empty")
    return found[columns.word].strip(), found[columns.tag].strip()


def check(path: Path, sentences: Sequence[tuple], scheme: str) -> None:
    """Raises ValueError at the first tag that the scheme does not have there."""
    for sentence, lines in sentences:
        place = first_fault(sentence.tags, scheme)
        if place is not None:
            before = sentence.tags[place - 1] if place else "the begin of a sentence"
            after = sentence.tags[place + 1] if place + 1 < len(sentence.tags) else "its end"
            told = f"{path}, line {lines[place]}: {sentence.tags[place]} between {before} and {after} is no {scheme}"
            fits = [s for s in SCHEMES if all(first_fault(one.tags, s) is None for one, _ in sentences)]
            raise ValueError(f"{told}; expected {'scheme ' + fits[0] if fits else 'O, or B-, I- and so on and a type'}")


def first_fault(tags: Sequence[str], scheme: str) -> int | None:
    """The place of the first tag that a scheme does not allow there, None if there is none."""
    for place, (before, tag, after) in enumerate(zip(["O", *tags], tags, [*tags[1:], "O"], strict=False)):
        if not is_allowed(before, tag, after, scheme):
            return place
    return None


def is_allowed(before: str, tag: str, after: str, scheme: str) -> bool:
    kind, dash, name = tag.partition("-")
    if tag == "O":
        return True
    if not dash or not name or kind not in ("BI" if scheme != "IOBES" else "BIES"):
        return False
    continues = before in (f"B-{name}", f"I-{name}")
    if scheme == "IOB2":
        return kind == "B" or continues
    if scheme == "IOB1":  # B only parts two entities of the same type
        return kind == "I" or continues
    goes_on = after in (f"I-{name}", f"E-{name}")
    return continues == (kind in "IE") and goes_on == (kind in "BI")


def tag_names(sentences: Sequence[Sentence]) -> list[str]:
    """The tags of training sentences, O first. Raises ValueError if no word has another one."""
    names = sorted({tag for sentence in sentences for tag in sentence.tags} - {"O"})
    if not names:
        raise ValueError(f"{sentences[0].where}: all tags are O; expected some entity to learn")
    return ["O", *names]


class EncodedSentences(NamedTuple):
    """Pieces of all words, one after the other, and windows of them, of which batches are made.

    A window shows a span of the pieces and asks for the tags in a part of it; every word is asked for in one window.
    """

    tokens: tf.Tensor  # int32 [T]
    label_ids: tf.Tensor  # int32 [T], of each word's first piece, -1 for other pieces and unknown tags
    firsts: np.ndarray  # first piece of each word, [words]
    spans: Spans
    asked: Spans
    lengths: np.ndarray
    max_length: int
    tokenizer: object

    def packed(self, rows, length) -> dict:
        """Features [n, S] of the windows of these numbers, and `label_ids` [n, S]."""
        span, asked = (Spans(*(tf.gather(part, rows) for part in of)) for of in (self.spans, self.asked))
        features = pack_spans(self.tokens, span, None, length, special_ids(self.tokenizer))
        places = span.starts[:, None] + tf.range(-1, tf.cast(length, tf.int64) - 1)  # of each position, in tokens
        is_asked = (places >= asked.starts[:, None]) & (places < (asked.starts + asked.lengths)[:, None])
        labels = tf.gather(self.label_ids, tf.where(is_asked, places, 0))
        return features | {"label_ids": tf.where(is_asked, labels, -1)}


def encode(
    sentences: Sequence[Sentence], tokenizer, labels: Sequence[str], max_length: int, context: str = "sentence"
) -> EncodedSentences:
    """Cuts words into pieces and lays sentences out in windows of max_length, with [CLS] and [SEP].

    context: "sentence", or "document", where each window is filled up with what stands around its sentence. A sentence
    that is too long is asked for in parts, with as much of it on both sides as fits. A word without any piece is
    [UNK], and one of more than half a window is cut.
    """
    room = max_length - 2
    words = [word for sentence in sentences for word in sentence.words]
    pieces = pieces_of_words(words, tokenizer, most=max(room // 2, 1))
    firsts = pieces.row_starts().numpy()
    ends = np.append(firsts[1:], int(pieces.row_splits[-1]))
    numbers = {label: number for number, label in enumerate(labels)}
    label_ids = np.full(ends[-1], -1, np.int32)
    label_ids[firsts] = [numbers.get(tag, -1) for sentence in sentences for tag in sentence.tags]
    bounds = np.cumsum([0, *(len(sentence.words) for sentence in sentences)])
    begins = np.append(firsts, ends[-1])[bounds]  # of sentences
    of, spans, asked = in_windows(begins, max_length)
    if context == "document":
        spans = widened(asked, document_limits(sentences, begins)[of], room)
    return EncodedSentences(
        tokens=pieces.flat_values,
        label_ids=tf.constant(label_ids),
        firsts=firsts,
        spans=Spans(tf.constant(spans[:, 0]), tf.constant(spans[:, 1] - spans[:, 0])),
        asked=Spans(tf.constant(asked[:, 0]), tf.constant(asked[:, 1] - asked[:, 0])),
        lengths=spans[:, 1] - spans[:, 0] + 2,
        max_length=max_length,
        tokenizer=tokenizer,
    )


def in_windows(begins: np.ndarray, max_length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The sentence of each window [W], the first and last + 1 piece that it shows, and that it is asked for, [W, 2].

    begins [N + 1]: where sentences begin. One that is too long is in windows of which half is new; a piece is asked for
    where most of what is around it is shown.
    """
    rule = WindowRule(max_length, max((max_length - 2) // 2, 1))
    of = windows(tf.ones(len(begins) - 1, tf.int64), tf.constant(np.diff(begins)), rule)
    places, counts = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for part in range(0, len(of.starts), WINDOWS_AT_ONCE):
        rows = tf.range(part, min(part + WINDOWS_AT_ONCE, len(of.starts)), dtype=tf.int64)
        is_asked = answer_places(of, rows, max_length, rule)[0].numpy()
        places.append(is_asked.argmax(axis=1))
        counts.append(is_asked.sum(axis=1))
    places, counts = np.concatenate(places), np.concatenate(counts)
    starts = begins[of.passages] + of.starts.numpy()
    first = starts + places - 1
    spans, asked = (np.stack(pair, axis=1) for pair in ((starts, starts + of.lengths.numpy()), (first, first + counts)))
    return of.passages.numpy(), spans, asked


def document_limits(sentences, begins: np.ndarray) -> np.ndarray:
    """First and last + 1 piece of the document that each sentence is in, [N, 2], by the begins of sentences [N + 1]."""
    documents = np.array([sentence.document for sentence in sentences])
    edges = np.flatnonzero(np.diff(documents, prepend=documents[0] - 1, append=documents[-1] + 1))
    return begins[np.stack([edges[:-1], edges[1:]], axis=1)].repeat(np.diff(edges), axis=0)


def widened(asked: np.ndarray, limits: np.ndarray, room: int) -> np.ndarray:
    """What is asked for with as much on both sides as fits and may be shown, alike where there is enough, [W, 2]."""
    (begins, ends), (least, most) = asked.T, limits.T
    spare = room - (ends - begins)
    left = np.minimum(begins - least, np.maximum(spare // 2, spare - (most - ends)))
    return np.stack([begins - left, np.minimum(ends + spare - left, most)], axis=1)


def tags_of(
    model, encoded: EncodedSentences, sentences, labels: Sequence[str], batch_size: int = 64
) -> list[list[str]]:
    """The likeliest tag of each word, sentence by sentence."""
    specs = dict.fromkeys(INPUTS, tf.TensorSpec([None, None], tf.int32))
    of_batch = tf.function(lambda f: tf.argmax(model(f, training=False)["logits"], axis=-1), [specs], autograph=False)
    found = np.full(len(encoded.label_ids), -1)
    starts, first, count = (values.numpy() for values in (encoded.spans.starts, *encoded.asked))
    for rows, tags in in_order_of_length(encoded, lambda features, rows: of_batch(features).numpy(), batch_size):
        for row, ids in zip(rows, tags, strict=True):
            place = first[row] - starts[row] + 1
            found[first[row] : first[row] + count[row]] = ids[place : place + count[row]]
    of_words = iter(found[encoded.firsts])
    return [[labels[next(of_words)] for _ in sentence.words] for sentence in sentences]


def scores(sentences: Sequence[Sentence], tags: Sequence[Sequence[str]]) -> dict[str, float]:
    """Precision, recall and F1 of whole entities, of all and by type, as the CoNLL evaluation counts them (seqeval)."""
    truth = [sentence.tags for sentence in sentences]
    report = classification_report(truth, list(tags), output_dict=True, zero_division=0)
    result = {f"{name}": float(report["micro avg"][key]) for name, key in NUMBERS.items()}
    for kind in sorted(report.keys() - {"micro avg", "macro avg", "weighted avg"}):
        result |= {f"{kind}_{name}": float(report[kind][key]) for name, key in NUMBERS.items()}
    return result


NUMBERS = {"f1": "f1-score", "precision": "precision", "recall": "recall"}


def entities(words: Sequence[str], tags: Sequence[str]) -> list[dict]:
    """The entities of a sentence with their words and, the words joined by spaces, their characters."""
    starts = np.cumsum([0, *(len(word) + 1 for word in words)])
    found = []
    for kind, first, last in get_entities(list(tags)):
        start, end = int(starts[first]), int(starts[last + 1]) - 1
        text = " ".join(words[first : last + 1])
        found.append({"type": kind, "first_word": first, "last_word": last, "start": start, "end": end, "text": text})
    return found


def write(sentences: Sequence[Sentence], tags: Sequence[Sequence[str]], path: Path) -> None:
    """<path>.conll: word, true and predicted tag, as the CoNLL evaluation reads them; <path>.jsonl.

    Spaces part them, or tabs where a word or a tag has spaces.
    """
    cells = itertools.chain.from_iterable(sentence.words + sentence.tags for sentence in sentences)
    separator = " " if all(len(cell.split()) == 1 for cell in cells) else "\t"
    columns, rows = [], []
    for sentence, found in zip(sentences, tags, strict=True):
        lines = zip(sentence.words, sentence.tags, found, strict=True)
        columns.append("".join(separator.join(line) + "\n" for line in lines))
        row = {"words": sentence.words, "tags": list(found), "entities": entities(sentence.words, found)}
        rows.append(json.dumps(row, ensure_ascii=False) + "\n")
    write_whole(path.with_suffix(".conll"), "\n".join(columns).encode())
    write_whole(path.with_suffix(".jsonl"), "".join(rows).encode())
