"""Windows hold their answers, and an answer is a piece of the passage as it stands there."""

import json

import numpy as np
import pytest
import tensorflow as tf

from kbert.tasks import squad, squad_answers
from kbert.tasks.squad import Question
from kbert.tasks.squad_answers import AnswerRule, Answers, Candidate, Found
from kbert.text.windows import WindowRule
from kbert.text.wordpiece import WordPiece

LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS), *".,?"]
RULE = WindowRule(sequence_length=20, stride=8, question_length=4)


@pytest.fixture(scope="module")
def tokenizer():
    return WordPiece(VOCABULARY)


def content(*paragraphs) -> dict:
    """SQuAD's JSON of (passage, [(id, question, [(answer, start)])])."""
    return {
        "version": "x",
        "data": [
            {
                "title": "t",
                "paragraphs": [
                    {
                        "context": passage,
                        "qas": [
                            {"id": i, "question": q, "answers": [{"text": t, "answer_start": s} for t, s in answers]}
                            for i, q, answers in questions
                        ],
                    }
                    for passage, questions in paragraphs
                ],
            }
        ],
    }


def written(tmp_path, *paragraphs):
    path = tmp_path / "file.json"
    path.write_text(json.dumps(content(*paragraphs)))
    return path


def test_questions_are_read_in_order_with_all_answers(tmp_path):
    path = written(tmp_path, ("Ab cd.", [("1", "x?", [("Ab", 0), ("cd", 3)]), ("2", "y?", [("cd", 3)])]), ("e", []))
    questions, version = squad.read(path)
    assert version == "1.1" == squad.read(path, "1.1")[1] and squad.read(path, "2.0")[1] == "2.0"
    assert questions[0] == Question("1", "x?", "Ab cd.", ["Ab", "cd"], [0, 3]) and questions[1].id == "2"


@pytest.mark.parametrize(
    ("paragraphs", "message"),
    [
        ([("a", [("1", "q", [("a", 0)]), ("1", "r", [("a", 0)])])], "question 1 is there twice"),
        ([(" \n", [("7", "q", [])])], "question 7: its passage is empty"),
        ([("a", [("1", "q", [("a", 0)]), ("x2", "q", [])])], "question x2 has no answer; expected one, as in version"),
        ([("a", [])], "holds no questions"),
    ],
)
def test_what_is_no_squad_is_refused_with_the_question(tmp_path, paragraphs, message):
    with pytest.raises(ValueError, match=message):
        squad.read(written(tmp_path, *paragraphs), "1.1")


def test_missing_fields_are_named(tmp_path):
    path = written(tmp_path, ("a", [("1", "q", [("a", 0)])]))
    for change, message in (
        (('"answer_start"', '"start"'), "question 1: KeyError 'answer_start'"),
        (('"data"', '"date"'), "changed.json: KeyError 'data'"),
        (("{", ""), "expected SQuAD's JSON"),
        (('"question": "q"', '"question": null'), "question 1: question is null; expected a text"),
        (('"context": "a"', '"context": "a\\ud83d"'), "question 1: context has half a surrogate pair at character 1"),
        (('"answer_start": 0', '"answer_start": "x"'), "question 1: invalid literal for int"),
        (('"id"', '"name"'), "article 0, paragraph 0, question 0: KeyError 'id'"),
        (('"qas"', '"questions"'), "article 0, paragraph 0: KeyError 'qas'"),
    ):
        changed = tmp_path / "changed.json"
        changed.write_text(path.read_text().replace(*change))
        with pytest.raises(ValueError, match=message):
            squad.read(changed)


def test_answers_that_are_not_in_place_are_told_apart():
    stands, none = Question("1", "q", "a bc", ["bc", "zz"], [2, 9]), Question("2", "q", "a", [], [])
    moved, empty = Question("3", "q", "a bc", ["bc"], [1]), Question("4", "q", "a", [""], [0])
    before, unseen = Question("5", "q", "bc a", ["bc"], [-2]), Question("6", "q", "a \u200b", [" \u200b"], [1])
    expected = [stands, none], [moved, empty, before, unseen]
    assert squad.with_answers_in_place([stands, moved, none, empty, before, unseen]) == expected


def example(tokenizer) -> tuple[list[Question], squad.EncodedQuestions]:
    passage = "ab, c d é f g h i j k l m n o p q r s t u v w x."
    questions = [
        Question("1", "a b c d e f", passage, ["é f"], [8]),
        Question("2", "q", passage, ["r s"], [passage.index("r")]),
        Question("3", "q r", "short", [], []),
    ]
    return questions, squad.encode(questions, tokenizer, RULE, with_targets=True)


def test_every_window_points_at_the_answer_it_holds(tokenizer):
    questions, encoded = example(tokenizer)
    assert encoded.cut_questions == 1 and encoded.max_length == 20
    assert encoded.windows.passages.numpy().tolist() == [0, 0, 0, 1, 1, 1, 2]
    rows = encoded.packed(np.arange(7), 20)
    held = []
    for row in range(7):
        first, last = (int(rows[f"{end}_positions"][row]) for end in ("start", "end"))
        held.append("".join(VOCABULARY[number] for number in rows["input_ids"][row, first : last + 1].numpy()))
    assert held == ["ef", "[CLS]", "[CLS]", "[CLS]", "rs", "rs", "[CLS]"]
    assert rows["input_mask"].numpy().sum(axis=1).tolist() == encoded.lengths.tolist()
    shorter = squad.encode(questions, tokenizer, RULE)
    assert shorter.targets == {} and "start_positions" not in shorter.packed([0], 20)


JAMO = "\u1112\u1161\u11ab\u1100\u116e\u11a8"  # what lower case makes of \ud55c\uad6d: six pieces, two characters


@pytest.mark.parametrize(
    ("passage", "answer", "start", "expected"),
    [
        ("ab c d", " c", 2, ["c"]),
        ("ab c d", "c ", 3, ["c"]),
        ("ab c ", "c ", 3, ["c"]),
        ("ab c\u200b", "c\u200b", 3, ["c"]),
        ("\ufeffab c", "\ufeffab", 0, ["a", "##b"]),
        ("ab", "b", 1, ["##b"]),
        ("a \ud55c\uad6d b", "\ud55c\uad6d", 2, [JAMO[0], *(f"##{part}" for part in JAMO[1:])]),
        ("a \ud55c\uad6d b", "\uad6d", 3, [f"##{part}" for part in JAMO[3:]]),
    ],
)
def test_an_answer_is_the_tokens_that_share_a_character_with_it(passage, answer, start, expected):
    pieces = WordPiece([*VOCABULARY, *JAMO, *(f"##{part}" for part in JAMO)])
    encoded = squad.encode([Question("1", "q", passage, [answer], [start])], pieces, RULE, with_targets=True)
    row = encoded.packed([0], 20)
    first, last = (int(row[f"{end}_positions"][0]) for end in ("start", "end"))
    assert [pieces.vocabulary[number] for number in row["input_ids"][0, first : last + 1].numpy()] == expected


def test_parts_of_passages_are_tokenized_as_the_whole(tokenizer, monkeypatch):
    questions, whole = example(tokenizer)
    monkeypatch.setattr(squad, "PART", 1)
    parts = squad.encode(questions, tokenizer, RULE, with_targets=True)
    np.testing.assert_array_equal(parts.tokens, whole.tokens)
    np.testing.assert_array_equal(parts.offsets, whole.offsets)


class Pointer:
    """A model that is sure of the tokens with some ids: where an answer begins and where it ends."""

    def __init__(self, begin: str, end: str):
        self.ids = [VOCABULARY.index(piece) for piece in (begin, end)]

    def __call__(self, features, training):
        logits = [tf.where(features["input_ids"] == number, 5.0, -1.0) for number in self.ids]
        return {"start_logits": logits[0], "end_logits": logits[1]}

    def best_spans(self, outputs, begins, ends, longest, best):
        from kbert.model.fine_tuning import BertSpanPredictor

        return BertSpanPredictor.best_spans(self, outputs, begins, ends, longest, best)


@pytest.mark.parametrize("no_answer", [False, True])
def test_answers_are_pieces_of_the_passage_over_all_windows(tokenizer, no_answer):
    questions, encoded = example(tokenizer)
    rule = AnswerRule(n_best=3, longest=4, no_answer=no_answer, threshold=0.0)
    found = squad_answers.best_spans(Pointer("d", "f"), encoded, RULE, rule, batch_size=2)
    answers = squad_answers.join(questions, encoded, found, rule)
    assert squad_answers.predictions(answers, rule)["1"] == "d é f"
    assert answers.n_best["1"][0] == Candidate("d é f", 5.0, 5.0) and answers.null_odds["1"] == -12.0
    # "short" is one word of which no piece is sure: nothing is as likely as any of it.
    assert answers.null_odds["3"] == 0.0 and len(answers.n_best["3"]) == (4 if no_answer else 3)
    found = squad_answers.best_spans(Pointer("v", "x"), encoded, RULE, rule)
    assert squad_answers.predictions(squad_answers.join(questions, encoded, found, rule), rule)["2"] == "v w x"


def test_an_answer_is_none_where_the_odds_are_over_the_threshold(tmp_path):
    listed = [Candidate("a", 1.0, 2.0), Candidate("", 1.5, 1.0), Candidate("b", 0.0, 0.0)]
    answers = Answers({"1": listed}, {"1": -0.5})
    for threshold, expected in ((-0.5, "a"), (-0.6, "")):
        rule = AnswerRule(no_answer=True, threshold=threshold)
        assert squad_answers.predictions(answers, rule) == {"1": expected}
    assert squad_answers.predictions(answers, AnswerRule()) == {"1": "a"}
    squad_answers.write(answers, AnswerRule(no_answer=True, threshold=0.0), tmp_path)
    files = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    assert files["predictions"] == {"1": "a"} and files["null_odds"] == {"1": -0.5}
    rows = files["nbest_predictions"]["1"]
    assert [row["text"] for row in rows] == ["a", "", "b"] and rows[1]["start_logit"] == 1.5
    shares = np.exp([3.0, 2.5, 0.0])
    np.testing.assert_allclose([row["probability"] for row in rows], shares / shares.sum())
    assert squad_answers.read(tmp_path / "predictions.json", str) == {"1": "a"}
    assert squad_answers.between({"1": -2.0, "2": 1.0, "3": 3.0}, 1.0) == 2
    assert squad_answers.between({"1": -2.0, "2": 1.0}, 1.0) == 1
    with pytest.raises(ValueError, match="predictions.json, question 1: 'a'; expected a number"):
        squad_answers.read(tmp_path / "predictions.json", (int, float))


def test_equal_texts_are_listed_once_and_a_window_without_spans_adds_none():
    offsets = np.array([[0, 2, 4], [1, 3, 5]])
    found = Found(
        first=np.array([[0, 2], [-1, 0]]),
        last=np.array([[0, 2], [0, 0]]),
        start_logits=np.array([[1.0, 2.0], [9.0, 3.0]]),
        end_logits=np.zeros([2, 2]),
        null_logits=np.zeros([2, 2]),
    )
    texts = [one.text for one in squad_answers.candidates("a b c", offsets, found, 5)]
    assert texts == ["a", "c"]
