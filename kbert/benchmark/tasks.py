"""Fine-tunings that are compared: what kbert's recipe is given, what the others, and how their answers are scored."""

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

SQUAD = "squad"


class FineTuning(NamedTuple):
    """One of them.

    job: kbert's recipe and its flags, and what others get. lengths: tokens of each example. read: vectors of an example
    that its output layer reads, None for all. dev: what is scored. scores: of what others told.
    """

    job: dict
    lengths: list[int]
    read: int | None
    dev: str
    scores: Callable[[dict], dict]


def of_glue(task: str, data: Path, folder: Path, tokenizer, sequence_length: int) -> FineTuning:
    """A task of GLUE in the folder of its files; others get its rows as a file in `folder`. No one predicts test."""
    import numpy as np

    from kbert.tasks import classification, glue

    problem = classification.of_task(task, data)
    split, dev = next(iter(problem.dev.items()))
    examples = {"train": _with_targets(problem, problem.train), "dev": _with_targets(problem, dev)}
    learned = without(glue.task_named(task).test.values(), data, folder)  # of which the recipe would predict it
    flags = {"task": task, "data": learned, "sequence-length": sequence_length}
    job = _job("fine_tune_glue", flags, examples, folder, sequence_length) | {"labels": max(len(problem.labels), 1)}

    def scores(told):
        logits = np.array(told["logits"])
        return problem.scores(dev, logits if problem.labels else logits[:, 0])

    lengths = [min(length, sequence_length) for length in _lengths_of(tokenizer, problem.train)]
    return FineTuning(job, lengths, 1, split, scores)


def of_squad(data: Path, folder: Path, tokenizer, sequence_length: int, train: int, dev: int) -> FineTuning:
    """So many questions of train-v1.1.json, drawn at random, and the first of dev-v1.1.json, in a folder.

    kbert's files of them and those of others are written to `folder`. Raises ValueError where there are fewer, and for
    windows that cannot overlap as transformers' do.
    """
    from kbert.tasks import squad
    from kbert.tasks.squad_scores import scores_v1
    from kbert.text.windows import SPECIALS, WindowRule

    rule = WindowRule(sequence_length)
    least = rule.question_length + SPECIALS + rule.stride + 1
    if sequence_length < least:
        raise ValueError(f"--sequence-length {sequence_length}: expected at least {least}, as windows overlap")
    known = {"train": squad.with_answers_in_place(squad.read(data / "train-v1.1.json", "1.1")[0])[0]}
    known["dev"] = squad.read(data / "dev-v1.1.json", "1.1")[0]
    for name, flag, count in (("train", "questions", train), ("dev", "dev-questions", dev)):
        if not 1 <= count <= len(known[name]):
            raise ValueError(f"--{flag} {count}: expected 1 to {len(known[name]):,}, those of {name}-v1.1.json")
    random.Random(1).shuffle(known["train"])
    chosen = {"train": known["train"][:train], "dev": known["dev"][:dev]}
    flags = {"windows.sequence-length": sequence_length}
    for name, questions in chosen.items():
        flags[name] = str(folder / f"{name}.json")
        Path(flags[name]).write_text(json.dumps({"data": [{"paragraphs": list(map(_paragraph, questions))}]}))
    examples = {
        name: [[one.id, one.text.strip(), one.passage, one.answers[0], one.starts[0]] for one in questions]
        for name, questions in chosen.items()
    }
    job = _job("fine_tune_squad", flags, examples, folder, sequence_length)
    lengths = squad.encode(chosen["train"], tokenizer, rule).lengths.tolist()
    return FineTuning(job, lengths, None, "dev", lambda told: scores_v1(chosen["dev"], told["answers"]))


def _job(recipe: str, flags: dict, examples: dict, folder: Path, sequence_length: int) -> dict:
    path = folder / "examples.json"
    path.write_text(json.dumps(examples))
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    return {"recipe": recipe, "flags": words, "examples": str(path), "sequence_length": sequence_length}


def _paragraph(question) -> dict:
    places = zip(question.answers, question.starts, strict=True)
    answers = [{"text": text, "answer_start": start} for text, start in places]
    return {"context": question.passage, "qas": [{"id": question.id, "question": question.text, "answers": answers}]}


def _with_targets(problem, examples: Sequence) -> list:
    """Rows of text, second text or None, and target."""
    targets = next(iter(problem.targets(examples).values())).tolist()
    return [[one.text_a, one.text_b, target] for one, target in zip(examples, targets, strict=True)]


def _lengths_of(tokenizer, examples: Sequence) -> list[int]:
    """Tokens of [CLS] A [SEP] or [CLS] A [SEP] B [SEP]."""
    lengths = tokenizer([one.text_a for one in examples]).row_lengths().numpy() + 2
    if examples[0].text_b is not None:
        lengths = lengths + tokenizer([one.text_b for one in examples]).row_lengths().numpy() + 1
    return lengths.tolist()


def without(names: Sequence[str], data: Path, folder: Path) -> str:
    """A folder in `folder` with links to the files of `data` but those of these names."""
    links = folder / "data"
    links.mkdir()
    for path in data.iterdir():
        if path.name not in names:
            (links / path.name).symlink_to(path.resolve())
    return str(links)
