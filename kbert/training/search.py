"""The paper's way to fine-tune: a run for each setting and restart, the best on dev kept (section 4.1, appendix A.3).

A run that was killed goes on from its checkpoint, a search from its last finished run.
"""

import json
import shutil
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import keras
import tensorflow as tf

from kbert.training.checkpointing import Checkpoint
from kbert.training.distribution import agree, chief_first, is_chief, loss_is_told
from kbert.training.monitoring import EventFiles, Monitor
from kbert.training.optimization import BertAdam, WarmupLinearDecay
from kbert.whole_file import write_whole


class Trial(NamedTuple):
    """One run of a search; restarts of a setting differ in data order, output layer and dropout."""

    learning_rate: float
    batch_size: int
    epochs: int
    restart: int = 0

    @property
    def setting(self) -> str:
        return f"rate-{self.learning_rate:g}-batch-{self.batch_size}-epochs-{self.epochs}"

    @property
    def name(self) -> str:
        return f"{self.setting}-restart-{self.restart + 1}"


@dataclass
class Search:
    """Fine-tuning runs under one folder.

    new_model: -> an uncompiled model with the start's weights and a new output layer.
    batches: (trial, seed, number of the first batch) -> a dataset of the run's batches, of known length.
    score: model -> numbers on dev. save: keeps the best model.
    best_by: name of the number that decides, the higher the better. optimizer: options of BertAdam; warmup: share of
    the steps. settings: what beside the trial decides the weights. strategy: where runs train; of several processes the
    chief writes.
    """

    output: Path
    settings: dict
    new_model: Callable[[], keras.Model]
    batches: Callable
    score: Callable[[keras.Model], dict]
    save: Callable[[keras.Model], None]
    best_by: str
    optimizer: dict
    warmup: float = 0.1
    seed: int = 1
    xla: bool = False
    accumulation: int = 1
    strategy: tf.distribute.Strategy = field(default_factory=tf.distribute.get_strategy)

    def results(self, trials: Iterable[Trial], show: Callable[[str], None] = print) -> dict[Trial, dict]:
        """The numbers of each trial on dev; those that are finished already are read.

        A run that was killed goes on with the batch after its checkpoint and ends with the same weights to the bit.
        """
        tf.config.experimental.enable_op_determinism()  # on a GPU; a CPU gives the same bits without
        trials, results = list(trials), {}
        agree(self.strategy, {"the runs": [trial.name for trial in trials]})
        for trial in trials:
            is_finished = self.file(trial).exists()
            agree(self.strategy, {f"whether {trial.name} is finished": is_finished})
            if not is_finished:
                self.run(trial, show)
            with chief_first(self.strategy):
                # After the numbers are written, or a kill in between would lose the run.
                shutil.rmtree(self.file(trial).parent / "checkpoints", ignore_errors=True)
                results[trial] = json.loads(self.file(trial).read_bytes())
            numbers = ", ".join(f"{name} {value:.4f}" for name, value in results[trial].items())
            show(f"{trial.name}: {numbers}")
        return results

    def file(self, trial: Trial) -> Path:
        return self.output / "runs" / trial.name / "metrics.json"

    def best(self) -> dict | None:
        """Name (`run`) and numbers of the run whose model is saved: the best of all calls, the first of equals."""
        path = self.output / "best.json"
        return json.loads(path.read_bytes()) if path.exists() else None

    def run(self, trial: Trial, show: Callable[[str], None]) -> None:
        """Trains, scores, saves the model if it is the best so far, and only then notes the numbers."""
        seed = self.seed + trial.restart
        batches = self.batches(trial, seed, 0)
        steps = len(batches)
        keras.utils.set_random_seed(seed)
        schedule = WarmupLinearDecay(trial.learning_rate, steps, int(self.warmup * steps))
        with loss_is_told(self.strategy), self.strategy.scope():
            model = self.new_model()
            how = {"jit_compile": "auto" if self.xla else False, "accumulation": self.accumulation}
            model.compile(BertAdam(schedule, **self.optimizer), **how)
        settings = {**self.settings, **trial._asdict()}
        folder = self.file(trial).parent
        # Each takes as long as half a step of a small model; SIGTERM and Ctrl-C save in any case.
        checkpoint = Checkpoint(folder, settings, every=max(1, min(steps // 4, 250)))
        done = checkpoint.restore(model)
        events = EventFiles(self.output / "logs" / trial.name, checkpoint)
        show(f"\n{trial.name}, {steps} steps" + (f", {done} of them done" if done else ""))
        if done < steps:
            model.fit(
                self.batches(trial, seed, done) if done else batches,
                steps_per_epoch=steps - done,
                verbose="auto" if is_chief(self.strategy) else 0,
                callbacks=[Monitor(events, settings, max(1, steps // 50)), checkpoint],
            )
        numbers = self.score(model)
        if not is_chief(self.strategy):
            return
        events.scalars("dev", steps, {f"dev/{name}": value for name, value in numbers.items()})
        events.trial("dev", trial._asdict())
        best = self.best()
        if best is None or numbers[self.best_by] > best[self.best_by]:
            self.save(model)
            write_whole(self.output / "best.json", to_json({"run": trial.name, **numbers}))
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(self.file(trial), to_json(numbers))


def to_json(content: dict) -> bytes:
    return json.dumps(content, indent=1).encode() + b"\n"


def summary(results: dict[Trial, dict], best_by: str) -> dict[str, tuple]:
    """Mean, standard deviation and best of each setting's restarts, and how many there are."""
    rows = {}
    for setting in dict.fromkeys(trial.setting for trial in results):
        values = [numbers[best_by] for trial, numbers in results.items() if trial.setting == setting]
        deviation = statistics.stdev(values) if len(values) > 1 else 0.0
        rows[setting] = (statistics.mean(values), deviation, max(values), len(values))
    return rows
