"""SQuAD v1.1 and v2.0: files -> questions -> windows, best spans -> answers, in the formats of run_squad.py.

Answers are cut from the passage by offsets, as they stand there.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from kbert.tasks.examples import text_of
from kbert.text.packing import Spans, pack_spans, special_ids
from kbert.text.windows import SPECIALS, WindowRule, Windows, windows

PART = 1000  # passages that are tokenized at a time


class Question(NamedTuple):
    """One question; answers are texts (several annotators', none: it has no answer), starts their first characters."""

    id: str
    text: str
    passage: str
    answers: list[str]
    starts: list[int]


def read(path, version: str | None = None) -> tuple[list[Question], str]:
    """The questions of a file of SQuAD's, and its version, "1.1" or, if some question has no answer, "2.0".

    Raises ValueError naming file and question for what is missing, a second question of the same id, an empty passage,
    and a question without an answer where version 1.1 is asked for.
    """
    path = Path(path)
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}: {error}; expected SQuAD's JSON") from None
    questions = {}
    for question in of_articles(path, content):
        where = f"{path}, question {question.id}"
        if question.id in questions:
            raise ValueError(f"{where} is there twice; expected an id of its own for each")
        if not question.passage.strip():
            raise ValueError(f"{where}: its passage is empty; expected text")
        if version == "1.1" and not question.answers:
            raise ValueError(f"{where} has no answer; expected one, as in version 1.1, or version 2.0")
        questions[question.id] = question
    if not questions:
        raise ValueError(f"{path} holds no questions; expected some")
    all_answered = all(question.answers for question in questions.values())
    return list(questions.values()), version or ("1.1" if all_answered else "2.0")


def of_articles(path: Path, content):
    """The questions of all articles in their order."""
    where = f"{path}"
    try:
        for number, article in enumerate(content["data"]):
            where = f"{path}, article {number}"
            for place, paragraph in enumerate(article["paragraphs"]):
                where = f"{path}, article {number}, paragraph {place}"
                for asked, entry in enumerate(paragraph["qas"]):
                    where = f"{path}, article {number}, paragraph {place}, question {asked}"
                    where = f"{path}, question {entry['id']}"
                    answers = [(text_of("text", one["text"]), int(one["answer_start"])) for one in entry["answers"]]
                    # v2.0 has plausible answers to questions without one elsewhere.
                    texts, starts = [list(parts) for parts in zip(*answers, strict=True)] if answers else ([], [])
                    asked, passage = text_of("question", entry["question"]), text_of("context", paragraph["context"])
                    yield Question(str(entry["id"]), asked, passage, texts, starts)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    except (KeyError, TypeError, IndexError) as error:
        expected = "data, paragraphs, context, qas, id, question, answers, text and answer_start, as SQuAD has them"
        raise ValueError(f"{where}: {type(error).__name__} {error}; expected {expected}") from None


def with_answers_in_place(questions: Sequence[Question]) -> tuple[list[Question], list[Question]]:
    """The questions whose first answer stands where it is said to stand, or that have none; and the others.

    Of an answer something must be seen: space and invisible characters are no token.
    """
    found, lost = [], []
    for question in questions:
        places = zip(question.answers[:1], question.starts[:1], strict=True)
        stands = all(
            is_visible(text) and start >= 0 and question.passage.startswith(text, start) for text, start in places
        )
        (found if stands else lost).append(question)
    return found, lost


def is_visible(text: str) -> bool:
    return any(character.isprintable() and not character.isspace() for character in text)


class EncodedQuestions(NamedTuple):
    """Questions and passages as token ids, laid out in windows, of which batches are made."""

    tokens: tf.Tensor  # int32 [T]: of all questions, then of all passages
    question_spans: Spans  # of each window in `tokens`
    passage_spans: Spans
    windows: Windows
    offsets: np.ndarray  # first and last + 1 character of each token, [2, T]; of questions 0
    targets: dict
    lengths: np.ndarray
    max_length: int
    cut_questions: int
    tokenizer: object

    def packed(self, rows, length) -> dict:
        """Features [n, S] of the windows of these numbers, and their targets."""
        spans = [Spans(*(tf.gather(part, rows) for part in of)) for of in (self.question_spans, self.passage_spans)]
        features = pack_spans(self.tokens, *spans, length, special_ids(self.tokenizer))
        return features | {name: tf.gather(values, rows) for name, values in self.targets.items()}


def encode(questions: Sequence[Question], tokenizer, rule: WindowRule, with_targets: bool = False) -> EncodedQuestions:
    """Tokenizes questions, and each passage once, and lays them out.

    With targets a window has `start_positions` and `end_positions`, 0, those of [CLS], where it does not hold all of
    the first answer.
    """
    asked = tokenizer([question.text for question in questions])
    cut_questions = int((asked.row_lengths() > rule.question_length).numpy().sum())
    asked = asked[:, : rule.question_length]
    numbers = {}
    passage_of = np.array([numbers.setdefault(question.passage, len(numbers)) for question in questions])
    ids, offsets, splits = tokenized(list(numbers), tokenizer)
    laid = windows(asked.row_lengths() + 2, tf.constant(np.diff(splits)[passage_of]), rule)
    of = laid.passages.numpy()
    question_spans = Spans(tf.gather(asked.row_starts(), of), tf.gather(asked.row_lengths(), of))
    shift = len(asked.flat_values)
    begins = shift + splits[passage_of[of]] + laid.starts.numpy()
    offsets = np.concatenate([np.zeros([2, shift], np.int64), offsets], axis=1)
    targets = {}
    if with_targets:
        first, last = answer_tokens(questions, splits[passage_of], splits[passage_of + 1], offsets[:, shift:])
        targets = positions_in(laid, first[of], last[of])
    return EncodedQuestions(
        tokens=tf.concat([asked.flat_values, ids], 0),
        question_spans=question_spans,
        passage_spans=Spans(tf.constant(begins), laid.lengths),
        windows=laid,
        offsets=offsets,
        targets=targets,
        lengths=(question_spans.lengths + laid.lengths + SPECIALS).numpy(),
        max_length=rule.sequence_length,
        cut_questions=cut_questions,
        tokenizer=tokenizer,
    )


def tokenized(passages: list[str], tokenizer) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids [T] of all passages, first and last + 1 character of each token [2, T], where each passage begins [N + 1].

    A part at a time: on the way to offsets every character of a part is a number.
    """
    ids, offsets, lengths = [np.zeros(0, np.int32)], [np.zeros([2, 0], np.int64)], [np.zeros(1, np.int64)]
    for start in range(0, len(passages), PART):
        found = tokenizer.tokenize_with_offsets(passages[start : start + PART])
        ids.append(found[0].flat_values.numpy())
        offsets.append(np.stack([found[3].flat_values, found[4].flat_values]))
        lengths.append(found[0].row_lengths().numpy())
    return np.concatenate(ids), np.concatenate(offsets, axis=1), np.cumsum(np.concatenate(lengths))


def answer_tokens(questions, begins, ends, offsets) -> tuple[np.ndarray, np.ndarray]:
    """The first and last token of each question's first answer by its number in the passage, [Q]; -1 where none is.

    begins, ends: where its passage's tokens are in offsets [2, T].
    """
    found = np.full([2, len(questions)], -1)
    for number, question in enumerate(questions):
        if question.answers:
            starts, stops = offsets[:, begins[number] : ends[number]]
            begin, end = question.starts[0], question.starts[0] + len(question.answers[0])
            # Those that share a character with it: pieces may share one, and space at its ends is in none.
            first, last = np.searchsorted(stops, begin, side="right"), np.searchsorted(starts, end) - 1
            if first <= last:
                found[:, number] = first, last
    return found[0], found[1]


def positions_in(of: Windows, first: np.ndarray, last: np.ndarray) -> dict:
    """Positions in windows of an answer's first and last token, [W]; both 0 where it is not whole in the window."""
    starts, lengths, places = of.starts.numpy(), of.lengths.numpy(), of.places.numpy()
    inside = (first >= starts) & (last < starts + lengths) & (first >= 0)
    names = {"start_positions": first, "end_positions": last}
    return {name: tf.constant(np.where(inside, token - starts + places, 0), tf.int32) for name, token in names.items()}


def digest(questions: Sequence[Question]) -> str:
    """A hash of questions, wherever their file lies."""
    return hashlib.sha256(json.dumps(list(questions)).encode()).hexdigest()
