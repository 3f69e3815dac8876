"""The scores of fine_tune_squad.py beside the official scripts', on all of a dev file, to the last digit.

    python tests/parity/scores.py DEV OFFICIAL

DEV is dev-v1.1.json or dev-v2.0.json; OFFICIAL the script of that version as the wheel of tf-models-official has it
(official/nlp/tools/squad_evaluate_v1_1.py, squad_evaluate_v2_0.py), which calls best_exact and best_f1 final_exact and
final_f1. Answers: the first annotator's, the last one's, random spans of the passage, the passage, none, some missing;
null odds: random, the truth with noise, all alike.
"""

import importlib.util
import json
import random
import sys
from pathlib import Path

from kbert.tasks import squad
from kbert.tasks.squad_scores import scores_v1, scores_v2


def module_at(path: str):
    spec = importlib.util.spec_from_file_location("official", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def constructed(questions: list) -> dict[str, dict[str, str]]:
    """Kind -> {question's id: answer}."""
    chance = random.Random(1)
    kinds = ("first", "last", "random spans", "passage", "empty", "mixed")
    answers = {kind: {} for kind in kinds}
    for question in questions:
        begin = chance.randrange(len(question.passage))
        of = {"first": (question.answers or [""])[0], "last": (question.answers or [""])[-1], "empty": ""}
        of |= {"random spans": question.passage[begin : begin + chance.randrange(60)], "passage": question.passage}
        of["mixed"] = chance.choice(list(of.values()))
        for kind, answer in of.items():
            answers[kind][question.id] = answer
    return answers


def official_v1(official, articles: list, answers: dict) -> dict:
    """Its evaluate gives shares; percents are made as the published script makes them, which may differ in a bit."""
    evaluated = official.evaluate(articles, answers)
    total = sum(len(paragraph["qas"]) for article in articles for paragraph in article["paragraphs"])
    scores = {"exact_match": evaluated["exact_match"], "f1": evaluated["final_f1"]}
    return {name: 100.0 * (share * total) / total for name, share in scores.items()}


def compare(name: str, ours: dict, theirs: dict) -> bool:
    digits = {key: (f"{ours.get(key)!s:.15}", f"{value!s:.15}") for key, value in theirs.items()}
    same = ours.keys() == theirs.keys() and all(mine == other for mine, other in digits.values())
    shown = {key: round(value, 4) for key, value in ours.items()}
    print(f"{name}: {'equal' if same else f'DIFFERENT {digits}'}: {shown}")
    return same


def main(dev: str, official_file: str) -> None:
    official, articles = module_at(official_file), json.loads(Path(dev).read_bytes())["data"]
    questions, version = squad.read(dev)
    chance, same = random.Random(2), []
    for kind, answers in constructed(questions).items():
        if version == "1.1":
            fewer = {key: answer for key, answer in answers.items() if chance.random() < 0.9}
            for name, some in ((kind, answers), (f"{kind}, a tenth missing", fewer)):
                same.append(compare(name, scores_v1(questions, some), official_v1(official, articles, some)))
            continue
        truth = {question.id: float(not question.answers) for question in questions}
        odds = {
            "random": {key: chance.gauss(0, 2) for key in truth},
            "truth and noise": {key: value + chance.gauss(0, 0.7) for key, value in truth.items()},
            "alike": dict.fromkeys(truth, 0.5),
        }
        for name, null_odds in odds.items():
            theirs = official.evaluate(articles, answers, null_odds)
            theirs = {key.replace("final_", "best_"): value for key, value in theirs.items() if "pr_" not in key}
            same.append(compare(f"{kind}, odds {name}", scores_v2(questions, answers, null_odds), theirs))
    sys.exit(f"{len(same) - sum(same)} of {len(same)} differ" if not all(same) else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
