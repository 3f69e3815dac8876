"""SQuAD's scores on cases worked out by hand from the official scripts' rules, where the two differ and where not."""

from typing import NamedTuple

import pytest

from kbert.tasks.squad_scores import f1, normalized, scores_v1, scores_v2


class Question(NamedTuple):
    id: str
    answers: list[str]


def test_case_punctuation_articles_and_white_space_do_not_count():
    assert normalized("  The  Cat's\tan a-the U.S.A.! ") == "cats athe usa"
    assert normalized("“The” – 1,000") == "“ ” – 1000"  # ASCII punctuation only
    assert normalized("a an the") == ""


@pytest.mark.parametrize(
    ("truth", "answer", "expected"),
    [
        ("denver broncos", "denver broncos", 1.0),
        ("denver broncos", "broncos", 2 / 3),
        ("x x y", "x y y y", 2 * (2 / 4) * (2 / 3) / (2 / 4 + 2 / 3)),  # each x and y counts as often as in both
        ("x", "y", 0.0),
        ("", "", 0.0),
    ],
)
def test_f1_is_of_words_in_common(truth, answer, expected):
    assert f1(truth, answer) == expected


def test_v1_takes_the_best_of_the_answers_and_counts_a_missing_prediction_as_0():
    questions = [Question("q1", ["Denver Broncos", "The Broncos"]), Question("q2", ["1990"]), Question("q3", ["The"])]
    scores = scores_v1(questions, {"q1": "broncos", "q3": "a", "other": "x"})
    # q1 exact by the second answer; q3 is exact, both empty, but has no word in common.
    assert scores == {"exact_match": 100 * 2 / 3, "f1": 100 * 1 / 3}


QUESTIONS = [
    Question("a1", ["Paris", "the city"]),
    Question("a2", ["blue whale"]),
    Question("a3", ["the"]),  # an answer of nothing counts as no answer, but the question has one
    Question("n1", []),
    Question("n2", []),
]
PREDICTIONS = {"a1": "Paris.", "a2": "whale", "a3": "", "n1": "", "n2": "wrong"}


def test_v2_scores_questions_with_and_without_an_answer_apart():
    whale = 100 * 2 / 3
    assert scores_v2(QUESTIONS, PREDICTIONS) == pytest.approx(
        {
            **{"exact": 60.0, "f1": (100 + whale + 100 + 100 + 0) / 5, "total": 5},
            **{"HasAns_exact": 200 / 3, "HasAns_f1": (200 + whale) / 3, "HasAns_total": 3},
            **{"NoAns_exact": 50.0, "NoAns_f1": 50.0, "NoAns_total": 2},
        }
    )
    assert not any(name.startswith("NoAns") for name in scores_v2(QUESTIONS[:3], PREDICTIONS))


def test_v2_odds_over_the_threshold_say_that_there_is_no_answer():
    odds = {"a1": 0.1, "a2": 0.9, "a3": 0.3, "n1": 0.2, "n2": 0.6}
    scores = scores_v2(QUESTIONS, PREDICTIONS, odds, threshold=0.5)
    # a2 and n2 become "": n2 is right so, a2 wrong.
    assert [scores[name] for name in ("exact", "HasAns_exact", "NoAns_exact")] == pytest.approx([80, 200 / 3, 100])
    # From 2 right with every answer "": a1 (3), n1, a3 (4), n2 (3), a2 (3): best with a threshold of a3's odds.
    assert (scores["best_exact"], scores["best_exact_thresh"]) == (80.0, 0.3)
    assert (scores["best_f1"], scores["best_f1_thresh"]) == (80.0, 0.3)
    official = scores_v2(QUESTIONS, PREDICTIONS, odds)
    assert official["exact"] == 60.0, "by default no odds are over 1"


def test_v2_refuses_a_missing_prediction_and_missing_odds_by_name():
    with pytest.raises(ValueError, match=r"a2 has no prediction \(of 2 in all\)"):
        scores_v2(QUESTIONS, {name: text for name, text in PREDICTIONS.items() if name not in ("a2", "n1")})
    with pytest.raises(ValueError, match="n2 has no null odds"):
        scores_v2(QUESTIONS, PREDICTIONS, {"a1": 0, "a2": 0, "a3": 0, "n1": 0})
