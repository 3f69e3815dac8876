"""Windows and the best context of a token are those of the release, written out here in plain Python."""

import numpy as np
import pytest
import tensorflow as tf

from kbert.text.windows import WindowRule, answer_places, windows


def restated(question: int, passage: int, rule: WindowRule) -> list[tuple[int, int]]:
    """(start, length) of each window, as run_squad.py's convert_examples_to_features lays them."""
    room, spans, start = rule.sequence_length - question - 3, [], 0
    while start < passage:
        length = min(passage - start, room)
        spans.append((start, length))
        if start + length == passage:
            break
        start += min(length, rule.stride)
    return spans or [(0, 0)]


def is_best(spans: list[tuple[int, int]], number: int, token: int) -> bool:
    """Whether window `number` shows a token best: _check_is_max_context of run_squad.py."""
    scores = [
        min(token - start, start + length - 1 - token) + 0.01 * length if start <= token < start + length else -1
        for start, length in spans
    ]
    return int(np.argmax(scores)) == number


@pytest.mark.parametrize("rule", [WindowRule(20, 8, 8), WindowRule(40, 9, 5), WindowRule(24, 24, 4)])
def test_windows_and_best_contexts_are_the_releases(rule):
    random = np.random.default_rng(1)
    questions = random.integers(0, rule.question_length + 1, 60)
    passages = np.concatenate([[0, 1, 8, 9, 200], random.integers(0, 90, 55)])
    of = windows(tf.constant(questions) + 2, tf.constant(passages), rule)
    found = [values.numpy() for values in of]
    rows = tf.constant(random.permutation(len(found[0])))
    begins, ends = (places.numpy() for places in answer_places(of, rows, rule.sequence_length, rule))
    back = np.argsort(rows.numpy())
    begins, ends = begins[back], ends[back]
    row = 0
    for number, (question, passage) in enumerate(zip(questions, passages, strict=True)):
        spans = restated(question, passage, rule)
        for window, (start, length) in enumerate(spans):
            assert [values[row] for values in found] == [number, start, length, question + 2]
            place = question + 2
            assert np.flatnonzero(ends[row]).tolist() == list(range(place, place + length))
            best = [is_best(spans, window, start + offset) for offset in range(length)]
            assert begins[row, place : place + length].tolist() == best and begins[row].sum() == sum(best)
            row += 1
    assert row == len(found[0])


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (WindowRule(60, 30, 64), "sequence_length is 60, expected at least 68"),
        (WindowRule(60, 30, 0), "sequence_length is 60, expected at least 4"),
        (WindowRule(384, 7), "stride is 7, expected 8 to sequence_length"),
        (WindowRule(384, 385), "stride is 385, expected 8 to sequence_length"),
    ],
)
def test_a_rule_that_holds_nothing_is_refused(rule, message):
    with pytest.raises(ValueError, match=message):
        rule.check()
