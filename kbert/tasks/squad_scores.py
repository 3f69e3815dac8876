"""SQuAD's official scores, v1.1 and v2.0, to the last digit (evaluate-v1.1.py and evaluate-v2.0.py).

The two scripts differ: v1.1 counts a question without a prediction as 0 and gives no F1 for two empty answers; v2.0
wants a prediction for every question, "" where there is no answer, and gives 1 for two empty ones.
"""

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence

ARTICLES = re.compile(r"\b(a|an|the)\b")
WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalized(answer: str) -> str:
    """An answer in lower case, without ASCII punctuation, articles and superfluous white space."""
    return " ".join(ARTICLES.sub(" ", answer.lower().translate(WITHOUT_PUNCTUATION)).split())


def f1(truth: str, answer: str) -> float:
    """F1 of the words that two normalized answers have in common; 0 if one is empty."""
    words, answered = truth.split(), answer.split()
    same = (Counter(words) & Counter(answered)).total()
    if same == 0:
        return 0.0
    precision, recall = same / len(answered), same / len(words)
    return 2 * precision * recall / (precision + recall)


def scores_v1(questions: Sequence, predictions: Mapping[str, str]) -> dict[str, float]:
    """`exact_match` and `f1` in percent of questions with `id` and `answers` (texts), the best of the answers each."""
    exact = overlap = 0.0
    for question in questions:
        if question.id in predictions:
            answer = normalized(predictions[question.id])
            truths = [normalized(text) for text in question.answers]
            # One after the other, as there: Python's sum of floats is another one since 3.12.
            exact += max(truth == answer for truth in truths)
            overlap += max(f1(truth, answer) for truth in truths)
    return {"exact_match": 100.0 * exact / len(questions), "f1": 100.0 * overlap / len(questions)}


def scores_v2(
    questions: Sequence,
    predictions: Mapping[str, str],
    null_odds: Mapping[str, float] | None = None,
    threshold: float = 1.0,
) -> dict[str, float]:
    """`exact`, `f1`, `total` in percent, of all and of those with (HasAns_) and without an answer (NoAns_).

    With null_odds, how far each question seems to have no answer, "" is scored where they are over the threshold, and
    best_exact, best_f1 and their _thresh tell what the best threshold would give. Raises ValueError with the id of a
    question that has no prediction, or no odds.
    """
    for given, name in ((predictions, "prediction"), (null_odds, "null odds")):
        missing = [question.id for question in questions if given is not None and question.id not in given]
        if missing:
            raise ValueError(f"{missing[0]} has no {name} (of {len(missing)} in all); expected one for every question")
    raw = {"exact": {}, "f1": {}}
    for question in questions:
        answer = normalized(predictions[question.id])
        truths = [normalized(text) for text in question.answers]
        truths = [truth for truth in truths if truth] or [""]
        raw["exact"][question.id] = max(int(truth == answer) for truth in truths)
        raw["f1"][question.id] = max(
            f1(truth, answer) if truth and answer else int(truth == answer) for truth in truths
        )
    answerable = {question.id: bool(question.answers) for question in questions}
    odds = null_odds or dict.fromkeys(predictions, 0.0)
    scored = {
        name: {key: float(not answerable[key]) if odds[key] > threshold else value for key, value in values.items()}
        for name, values in raw.items()
    }
    result = {}
    for prefix, wanted in (("", (True, False)), ("HasAns_", (True,)), ("NoAns_", (False,))):
        keys = [key for key, has_answer in answerable.items() if has_answer in wanted]
        if keys:
            means = {name: 100.0 * sum(values[key] for key in keys) / len(keys) for name, values in scored.items()}
            result |= {f"{prefix}{name}": value for name, value in means.items()} | {f"{prefix}total": len(keys)}
    if null_odds is not None:
        for name, values in raw.items():
            best, at = best_threshold(values, predictions, null_odds, answerable)
            result |= {f"best_{name}": best, f"best_{name}_thresh": at}
    return result


def best_threshold(scores: dict, predictions: Mapping, null_odds: Mapping, answerable: dict) -> tuple[float, float]:
    """The best score in percent that a threshold on the null odds gives, and the lowest such threshold."""
    score = best = sum(1 for has_answer in answerable.values() if not has_answer)  # all said to have none
    at = 0.0
    for key in sorted(null_odds, key=null_odds.__getitem__):
        if key not in scores:
            continue
        if answerable[key]:
            score += scores[key]
        elif predictions[key]:
            score -= 1
        if score > best:
            best, at = score, null_odds[key]
    return 100.0 * best / len(scores), at
