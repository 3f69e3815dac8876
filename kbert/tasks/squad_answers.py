"""Spans of windows -> answers to questions, and the files that run_squad.py writes of them.

predictions.json         {id: answer}
nbest_predictions.json   {id: [{"text": answer, "probability": .., "start_logit": .., "end_logit": ..}, ..]}
null_odds.json           {id: score of no answer - score of the best answer}   (v2.0)
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from kbert.tasks.batches import INPUTS, in_order_of_length
from kbert.tasks.pictures import attention
from kbert.tasks.squad import EncodedQuestions, Question
from kbert.text.windows import WindowRule, answer_places
from kbert.whole_file import write_whole


class AnswerRule(NamedTuple):
    """How many answers are listed, how many tokens one has at most, and whether there may be none (v2.0).

    threshold: of the null odds, over which there is none; None where it is yet to be found.
    """

    n_best: int = 20
    longest: int = 30
    no_answer: bool = False
    threshold: float | None = None


class Candidate(NamedTuple):
    """An answer and its logits, the sum of which ranks it."""

    text: str
    start_logit: float
    end_logit: float

    @property
    def score(self) -> float:
        return self.start_logit + self.end_logit


class Found(NamedTuple):
    """The best spans of each window, [W, n]: tokens by their number in `EncodedQuestions.tokens`, and their logits.

    Where a window has fewer, first is -1. null_logits [W, 2] are those of [CLS].
    """

    first: np.ndarray
    last: np.ndarray
    start_logits: np.ndarray
    end_logits: np.ndarray
    null_logits: np.ndarray


def best_spans(model, encoded: EncodedQuestions, rule: WindowRule, answers: AnswerRule, batch_size: int = 64) -> Found:
    """The best spans of every window, by a BertSpanPredictor; like lengths go together."""
    specs = dict.fromkeys(INPUTS, tf.TensorSpec([None, None], tf.int32))

    @tf.function(input_signature=[specs, tf.TensorSpec([None], tf.int64)], autograph=False)
    def of_batch(features, rows):
        outputs = model(features, training=False)
        places = answer_places(encoded.windows, rows, tf.shape(features["input_ids"])[1], rule)
        found = model.best_spans(outputs, *places, longest=answers.longest, best=answers.n_best)
        null = tf.stack([outputs["start_logits"][:, 0], outputs["end_logits"][:, 0]], axis=1)
        return *found, null

    def arrays_of(features, rows):
        return [part.numpy() for part in of_batch(features, rows)]

    rows, found = zip(*in_order_of_length(encoded, arrays_of, batch_size), strict=True)
    back = np.argsort(np.concatenate(rows))
    begins, ends, start_logits, end_logits, null = (np.concatenate(parts)[back] for parts in zip(*found, strict=True))
    # From positions in a sequence to tokens.
    shift = (encoded.passage_spans.starts - encoded.windows.places).numpy()[:, None]
    first, last = (np.where(begins < 0, -1, positions + shift) for positions in (begins, ends))
    return Found(first, last, start_logits, end_logits, null)


class Answers(NamedTuple):
    """The n-best answers of each question by its id, and how much likelier no answer is than the best of them."""

    n_best: dict[str, list[Candidate]]
    null_odds: dict[str, float]


def join(questions: Sequence[Question], encoded: EncodedQuestions, found: Found, rule: AnswerRule) -> Answers:
    """The best answers of each question over all of its windows, cut from the passage by offsets.

    That there is none, "", scores as the window that is least sure of it, and is listed where the rule knows it.
    """
    n_best, null_odds = {}, {}
    splits = np.searchsorted(encoded.windows.passages.numpy(), np.arange(len(questions) + 1))
    for number, question in enumerate(questions):
        of = slice(splits[number], splits[number + 1])
        listed = candidates(question.passage, encoded.offsets, Found(*(part[of] for part in found)), rule.n_best)
        null = found.null_logits[of]
        nothing = Candidate("", *(float(logit) for logit in null[null.sum(axis=1).argmin()]))
        best = listed[0].score if listed else nothing.score
        null_odds[question.id] = nothing.score - best
        if rule.no_answer or not listed:
            listed = sorted([*listed, nothing], key=lambda candidate: -candidate.score)
        n_best[question.id] = listed
    return Answers(n_best, null_odds)


def candidates(passage: str, offsets: np.ndarray, found: Found, count: int) -> list[Candidate]:
    """The best different texts among the spans of a passage's windows."""
    scores = np.where(found.first < 0, -np.inf, found.start_logits + found.end_logits).ravel()
    listed = {}
    for place in np.argsort(-scores, kind="stable"):
        if len(listed) == count or scores[place] == -np.inf:
            break
        row = np.unravel_index(place, found.first.shape)
        text = passage[offsets[0, found.first[row]] : offsets[1, found.last[row]]]
        listed.setdefault(text, Candidate(text, float(found.start_logits[row]), float(found.end_logits[row])))
    return list(listed.values())


def predictions(answers: Answers, rule: AnswerRule) -> dict[str, str]:
    """The answer to each question: its best one, or "" where the odds against any are over the threshold."""
    best = best_texts(answers)
    if not rule.no_answer:
        return best
    return {key: "" if answers.null_odds[key] > rule.threshold else text for key, text in best.items()}


def best_texts(answers: Answers) -> dict[str, str]:
    """The best answer to each question that is a text."""
    return {key: next((one.text for one in listed if one.text), "") for key, listed in answers.n_best.items()}


def between(odds: dict[str, float], threshold: float) -> float:
    """The middle between a threshold, which is the odds of a question, and the odds over it: where no last bit counts.

    The best threshold is served so, as a batch of other questions may change last bits of the odds.
    """
    return (threshold + min((one for one in odds.values() if one > threshold), default=threshold)) / 2


def write(answers: Answers, rule: AnswerRule, folder: Path) -> None:
    """Writes predictions.json, nbest_predictions.json and, where no answer is one, null_odds.json."""
    contents = {"predictions": predictions(answers, rule), "nbest_predictions": {}}
    for key, listed in answers.n_best.items():
        scores = np.array([one.score for one in listed])
        shares = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
        rows = [{"text": one.text, "probability": float(p)} for one, p in zip(listed, shares, strict=True)]
        logits = [{"start_logit": one.start_logit, "end_logit": one.end_logit} for one in listed]
        contents["nbest_predictions"][key] = [row | more for row, more in zip(rows, logits, strict=True)]
    if rule.no_answer:
        contents["null_odds"] = answers.null_odds
    for name, content in contents.items():
        write_whole(folder / f"{name}.json", json.dumps(content, indent=4).encode() + b"\n")


def read(path, kind) -> dict:
    """A file of predictions (kind str) or null odds (numbers); raises ValueError naming file and question."""
    try:
        content = json.loads(Path(path).read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}: {error}; expected JSON") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: a {type(content).__name__}; expected an object, question by question")
    for key, value in content.items():
        if not isinstance(value, kind):
            raise ValueError(f"{path}, question {key}: {value!r}; expected a {'text' if kind is str else 'number'}")
    return content


def show(model, questions: Sequence[Question], encoded: EncodedQuestions, answers: Answers, folder: Path) -> None:
    """Writes for TensorBoard how long the answers are, how sure it is of none, and where a question looks."""
    shutil.rmtree(folder, ignore_errors=True)
    best = best_texts(answers)
    words = {"truth": [len(text.split()) for question in questions for text in question.answers[:1]]}
    words["answered"] = [len(text.split()) for text in best.values()]
    odds = {"has answer": [], "has none": []}
    for question in questions:
        odds["has answer" if question.answers else "has none"].append(answers.null_odds[question.id])
    with tf.summary.create_file_writer(str(folder)).as_default(0):
        for name, values in words.items():
            tf.summary.histogram(f"answer length in words/{name}", values)
        for name, values in odds.items():
            if values:
                tf.summary.histogram(f"null odds/{name}", values)
        tf.summary.image("dev/attention of a question", attention_of(model, encoded)[None])


def attention_of(model, encoded: EncodedQuestions, passage_tokens: int = 60) -> np.ndarray:
    """Where the tokens of the first question look in its passage, the last layer's heads together, as a picture."""
    features = encoded.packed([0], int(encoded.lengths[0]))
    found = model(features, output_attentions=True)["attention_probabilities"][-1]  # [1, A, S, S]
    place, tokens = int(encoded.windows.places[0]), encoded.tokenizer.vocabulary
    pieces = [tokens[number] for number in features["input_ids"][0].numpy()]
    rows, columns = slice(0, place), slice(place, min(place + passage_tokens, len(pieces) - 1))
    weights = tf.reduce_mean(found[0], axis=0).numpy()[rows, columns]
    return attention(weights, pieces[rows], pieces[columns])
