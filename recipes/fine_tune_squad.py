"""Fine-tunes a BERT to find answers in passages, SQuAD v1.1 and v2.0 (sections 4.2 and 4.3), or scores answers.

python recipes/fine_tune_squad.py --model runs/books --train train-v1.1.json --dev dev-v1.1.json --output runs/squad
"""

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kbert.command_line import run as start
from kbert.devices import DeviceRule, Strategy
from kbert.fine_tuning import (
    LayerRule,
    OptimizerRule,
    alike,
    check_rows,
    check_rules,
    new_search,
    search_all,
    start_of,
    start_runs,
)

# The paper's, by version.
EPOCHS, BATCH_SIZES = {"1.1": 3, "2.0": 2}, {"1.1": 32, "2.0": 48}
OFFICIAL_THRESHOLD = 1.0  # of evaluate-v2.0.py


@dataclass(frozen=True)
class WindowFlags:
    """How a passage is laid out.

    Args:
        sequence_length: tokens per window.
        stride: tokens from window to window.
        question_length: tokens of a question; longer ones are cut at the back, and counted.
        lower_case: whether the vocabulary is an uncased one, where the model does not say.
    """

    sequence_length: int = 384
    stride: int = 128
    question_length: int = 64
    lower_case: bool | None = None


@dataclass(frozen=True)
class AnswerFlags:
    """What is an answer.

    Args:
        n_best: answers that are listed for each question.
        longest: tokens of an answer.
        threshold: of the null odds, over which there is none; by default the best on dev, or the official 1.0 when
            only scores are asked for.
    """

    n_best: int = 20
    longest: int = 30
    threshold: float | None = None


def main(
    dev: str,
    output: str,
    model: str | None = None,
    train: str | None = None,
    predictions: str | None = None,
    null_odds: str | None = None,
    version: Literal["1.1", "2.0"] | None = None,
    learning_rates: tuple[float, ...] = (5e-5,),
    batch_sizes: tuple[int, ...] | None = None,
    epochs: tuple[int, ...] | None = None,
    restarts: int = 1,
    strategy: Strategy = "one",
    seed: int = 1,
    windows: WindowFlags = WindowFlags(),
    answers: AnswerFlags = AnswerFlags(),
    layers: LayerRule = LayerRule(),
    optimizer: OptimizerRule = OptimizerRule(),
    devices: DeviceRule = DeviceRule(),
) -> None:
    """Fine-tunes a BERT on questions and passages, or, given --predictions, only scores them.

    The best run on dev is the model in OUTPUT; its answers are beside it as predictions.json, nbest_predictions.json
    and (2.0) null_odds.json. The same command goes on where it stopped; finished runs are not done again.

    Args:
        dev: SQuAD's JSON, to score answers by and to choose the best run.
        output: folder of the search and of the best model; metrics.json has the official scores.
        model: a BERT to start from: a folder or a name, as convert_weights.py takes.
        train: SQuAD's JSON, to learn from.
        predictions: {id: answer}, to score instead of training.
        null_odds: {id: how much likelier no answer is}, beside predictions of version 2.0.
        version: 2.0 has questions without an answer; by default what the files are.
        learning_rates: peaks to try.
        batch_sizes: windows per update, to try; by default the paper's, 32, or 48 in version 2.0.
        epochs: numbers of passes to try; by default the paper's, 3, or 2 in version 2.0.
        restarts: runs of each setting, which differ in data order and output layer.
        strategy: one device; all GPUs of this machine, or parts of its CPU; those of several processes; a TPU.
        seed: of the first restart.
        windows: how a passage is laid out.
        answers: what is an answer.
        layers: which layers learn, and how much.
        optimizer: how the weights move.
        devices: on what the runs train.
    """
    given = {name: value for name, value in locals().items() if value != USUAL[name]}
    check_files(model, train, predictions, null_odds)
    check_scored_alone(predictions, given, answers)
    # Not at the top, so that --help answers at once.
    import kbert
    from kbert import report
    from kbert.tasks import squad
    from kbert.training.distribution import is_chief
    from kbert.training.run_directory import begin_run

    # Read: everything that can be refused is looked at before long work begins.
    asked, version = squad.read(dev, version)
    if predictions is not None:
        score_alone(asked, version, (predictions, null_odds), answers.threshold, output)
        return
    check_rules(layers, optimizer, seed, restarts)
    grid = {"epochs": epochs or (EPOCHS[version],), "batch_sizes": batch_sizes or (BATCH_SIZES[version],)}
    replicas = start_runs(strategy, devices, optimizer, windows.sequence_length, learning_rates, **grid)
    learned, lost = squad.with_answers_in_place(squad.read(train, "1.1" if version == "1.1" else None)[0])
    if not learned:
        raise ValueError(f"{train}, question {lost[0].id}: its answer is not where it is said to be, nor any other's")
    rule, answer_rule = rules(windows, answers, version)
    of_start = (model, windows.lower_case, windows.sequence_length)
    tokenizer, new_model, settings = start_of(*of_start, kbert.BertSpanPredictor, layers, optimizer, devices)
    encoded = squad.encode(learned, tokenizer, rule, with_targets=True)
    check_rows(grid["batch_sizes"], encoded)
    judge = Judge(asked, squad.encode(asked, tokenizer, rule), rule, answer_rule)
    settings |= {"examples": squad.digest(learned), "dev": squad.digest(asked), "version": version, "seed": seed}
    settings |= {f"windows.{name}": value for name, value in rule._asdict().items()}
    settings |= {f"answers.{name}": value for name, value in answer_rule._asdict().items()}
    begin_run(output, settings, replicas, alike(optimizer, devices))
    report.table("Fine-tuning", facts_of({"train": encoded, "dev": judge.encoded}, (learned, asked), lost))

    # Build, compile, fit and evaluate each run; the best on dev is saved as it is found.
    def save(best):
        best.answering = {"longest": answers.longest, "threshold": judge.served, **rule._asdict()}
        kbert.save(best, tokenizer, output)
        judge.write(best, Path(output))

    run = {"settings": settings, "new_model": new_model, "strategy": replicas, "save": save}
    best_by = "f1" if version == "1.1" else "best_f1"
    search = new_search(output, encoded, layers, optimizer, score=judge.score, best_by=best_by, **run)
    best = search_all(search, learning_rates, **grid, restarts=restarts)
    if is_chief(replicas):
        report.finish(f"Best: {best.pop('run')}", output, best)


class Judge:
    """Answers the dev questions with a model and scores the answers; keeps those of the last model."""

    def __init__(self, questions, encoded, rule, answer_rule):
        self.questions, self.encoded, self.rule, self.answer_rule = questions, encoded, rule, answer_rule

    def score(self, model) -> dict:
        """The official scores; in version 2.0 at the threshold, by default the best on these questions."""
        from kbert.tasks import squad_answers
        from kbert.tasks.squad_scores import scores_v1, scores_v2

        rule = self.answer_rule
        found = squad_answers.best_spans(model, self.encoded, self.rule, rule)
        self.used, self.served = rule, rule.threshold
        self.answers = squad_answers.join(self.questions, self.encoded, found, rule)
        texts, odds = squad_answers.best_texts(self.answers), self.answers.null_odds
        if not rule.no_answer:
            return scores_v1(self.questions, texts)
        at_zero = scores_v2(self.questions, texts, odds, 0.0)
        threshold = at_zero["best_f1_thresh"] if rule.threshold is None else rule.threshold
        self.used = rule._replace(threshold=threshold)
        self.served = squad_answers.between(odds, threshold) if rule.threshold is None else threshold
        of_zero = {f"{name}_at_threshold_0": at_zero[name] for name in ("exact", "f1")}
        return scores_v2(self.questions, texts, odds, threshold) | {"threshold": threshold} | of_zero

    def write(self, model, output: Path) -> None:
        """The answers that the model last scored gave, and what TensorBoard shows of them."""
        from kbert.tasks import squad_answers

        squad_answers.write(self.answers, self.used, output)
        squad_answers.show(model, self.questions, self.encoded, self.answers, output / "logs" / "best")


def check_files(model: str | None, train: str | None, predictions: str | None, null_odds: str | None) -> None:
    """Raises ValueError unless either a training or predictions to score are asked for."""
    for name, value in (("model", model), ("train", train)):
        if predictions is None and value is None:
            raise ValueError(f"--{name} is missing: expected --model and --train, or --predictions to score")
        if predictions is not None and value is not None:
            raise ValueError(f"--{name} {value}: --predictions {predictions} is scored alone; expected one of them")
    if predictions is None and null_odds is not None:
        raise ValueError(f"--null-odds {null_odds}: expected --predictions beside it")


def check_scored_alone(predictions: str | None, given: dict, answers: AnswerFlags) -> None:
    """Raises ValueError for flags of training, of those that differ from what they usually are, beside predictions."""
    if predictions is not None:
        needless = given.keys() - {"dev", "output", "predictions", "null_odds", "version", "answers"}
        needless |= {"answers"} if answers != AnswerFlags(threshold=answers.threshold) else set()
        for name in sorted(needless):
            told = f"--{name.replace('_', '-')} is there for training; expected none of it"
            raise ValueError(f"--predictions {predictions} is scored alone: {told}")


def score_alone(questions, version: str, files: tuple, threshold: float | None, output: str) -> None:
    """Scores a file of predictions, and one of null odds or None, as the official scripts do."""
    from kbert import report
    from kbert.tasks.squad_answers import read
    from kbert.tasks.squad_scores import scores_v1, scores_v2

    predictions, null_odds = read(files[0], str), files[1] and read(files[1], (int, float))
    if version == "1.1":
        for flag, value in (("null-odds", files[1]), ("answers.threshold", threshold)):
            if value is not None:
                raise ValueError(f"--{flag} {value}: version 1.1 has an answer to every question; expected 2.0")
        missing = sum(question.id not in predictions for question in questions)
        if missing:
            print(f"{missing} questions have no prediction, which counts as 0")
        scores = scores_v1(questions, predictions)
    else:
        if threshold is not None and null_odds is None:
            raise ValueError(f"--answers.threshold {threshold}: expected --null-odds, which are over it or not")
        scores = scores_v2(questions, predictions, null_odds, OFFICIAL_THRESHOLD if threshold is None else threshold)
    Path(output).mkdir(parents=True, exist_ok=True)
    report.finish(f"{files[0]}, SQuAD {version}", output, scores)


def rules(windows: WindowFlags, answers: AnswerFlags, version: str) -> tuple:
    """How passages are laid out and what is an answer; raises ValueError for a rule that cannot be."""
    from kbert.tasks.squad_answers import AnswerRule
    from kbert.text.windows import WindowRule

    rule = WindowRule(windows.sequence_length, windows.stride, windows.question_length)
    rule.check()
    for name, value in (("n-best", answers.n_best), ("longest", answers.longest)):
        if value < 1:
            raise ValueError(f"--answers.{name} {value}: expected at least 1")
    if version == "1.1" and answers.threshold is not None:
        raise ValueError(f"--answers.threshold {answers.threshold}: version 1.1 has an answer to every question")
    return rule, AnswerRule(answers.n_best, answers.longest, version == "2.0", answers.threshold)


def facts_of(encoded: dict, questions: tuple, lost: list) -> dict:
    """What was read, and what of it is cut or left out."""
    facts = {}
    for (name, one), of in zip(encoded.items(), questions, strict=True):
        facts |= {f"{name}: questions": len(of), f"{name}: windows": len(one.lengths)}
        facts |= {f"{name}: questions cut": one.cut_questions}
    facts["train: without its answer in place, left out"] = len(lost)
    if lost:
        facts["the first of them"] = lost[0].id
    return facts


USUAL = {name: parameter.default for name, parameter in inspect.signature(main).parameters.items()}


if __name__ == "__main__":
    start(main)
