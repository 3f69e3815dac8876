"""The whole state of a run in one file per checkpoint, written so that a kill at any moment loses no checkpoint.

A run that is restored ends with the same weights, to the bit, as one that was never stopped (Keras's
BackupAndRestore repeats the epoch: TRAPS 15). The state: model with the seeds of its dropout, optimizer, metrics of the
steps since they were last logged, position in the corpus.
"""

import hashlib
import json
import math
import os
import signal
import sys
import threading
import zlib
from pathlib import Path

import keras
import numpy as np
import safetensors
import safetensors.numpy
import tensorflow as tf

from kbert.training.distribution import agree, any_says, chief_first, is_chief, workers
from kbert.training.step import is_due
from kbert.whole_file import written_whole

WATCHED = ("loss", "gradient_norm")


class NonFiniteLoss(ValueError):
    """A loss, a gradient norm or a weight became infinite or NaN."""


class Stopped(KeyboardInterrupt):
    """Ctrl-C or SIGTERM, after the run was saved: a process that ends by it has the status `status`.

    Not 130 or 143, with which it ends where there is nothing to save: a scheduler can tell what is to be called again.
    """

    status = os.EX_TEMPFAIL


class Checkpoint(keras.callbacks.Callback):
    """Saves `<output>/checkpoints/step-<number>.safetensors` every `every` steps and at the end, and keeps a few.

    A thread writes while the next steps are trained. Of several processes the chief writes; all see the same folder.
    Belongs last in the list of callbacks, so that what the others wrote at a step is there before its checkpoint is.
    Ctrl-C and SIGTERM to any process, unless they are ignored when `fit` begins, save after the running step (the next
    one where there are several), then raise Stopped in all; a second one stops at once. Raises NonFiniteLoss naming the
    step and the last good checkpoint, OSError naming the file that has no space.
    """

    def __init__(self, output, settings: dict, every: int = 1000, keep: int = 2):
        super().__init__()
        self.folder = Path(output) / "checkpoints"
        self.settings_digest = digest(settings)
        self.every, self.keep = every, keep
        self.last_step = 0  # of the newest checkpoint, which may be being written
        self.to_evaluate = False  # a signal interrupted the evaluation of that step
        self.writer, self.error, self.writes = None, None, True
        self.restored_metrics, self.epoch = [], 0
        self.signal_received = None
        self.former_handlers = {}

    def restore(self, model) -> int:
        """Puts the newest undamaged checkpoint into a compiled model; the number of steps done, 0 without one.

        A damaged file is named on standard error and set aside. Raises ValueError if all are damaged, or if the
        checkpoint is another run's or another model's, or not the same in all processes.
        """
        strategy = model.distribute_strategy
        self.writes = is_chief(strategy)
        with chief_first(strategy):
            step = self._restore(model)
        agree(strategy, {"the step of the newest checkpoint": step})
        return step

    def _restore(self, model) -> int:
        for leftover in self.folder.glob("*.tmp"):
            leftover.unlink()
        damaged = {}
        for path in sorted(self.folder.glob("step-*.safetensors"), reverse=True):
            try:
                values, metadata = read(path)
            except DamagedFile as error:
                damaged[path] = error
                continue
            if metadata.get("settings") != self.settings_digest:
                raise ValueError(f"{path} belongs to a run with other settings; give those, or another output folder")
            variables = state(model)
            check_shapes(path, values, variables)
            for one, error in damaged.items():
                print(f"{one} is damaged ({error}); {path.name} before it is used instead", file=sys.stderr)
                one.rename(one.with_suffix(".damaged"))
            for name, variable in variables.items():
                variable.assign(values[name])
            # `fit` resets the metrics when it begins.
            self.restored_metrics = [(v, values[name]) for name, v in variables.items() if name.startswith("metrics/")]
            self.last_step = int(metadata["step"])
            self.to_evaluate = metadata.get("to_evaluate") == "True"
            return self.last_step
        for path, error in damaged.items():
            told = f"{path} is damaged ({error}), and no checkpoint is whole"
            raise ValueError(f"{told}; expected one, or {self.folder} to be removed, to begin anew")
        return 0

    def save(self) -> None:
        """Takes the model's present state and begins to write it; at any moment the file is there whole or not at all.

        Raises what went wrong in writing the one before.
        """
        self.finish()
        self.last_step = step = self.model.steps_done
        if not self.writes:
            return
        self.writer = threading.Thread(target=self._write, args=(step, snapshot(self.model), self.to_evaluate))
        self.writer.start()

    def finish(self) -> None:
        """Waits for the checkpoint that is being written; raises what went wrong."""
        if self.writer is not None:
            self.writer.join()
            self.writer = None
        if self.error is not None:
            error, self.error = self.error, None
            raise error

    def _write(self, step: int, values: dict, to_evaluate: bool) -> None:
        try:
            for name, value in values.items():
                if np.issubdtype(value.dtype, np.floating) and not np.isfinite(value).all():
                    raise NonFiniteLoss(f"{name} is not finite after step {step}; {self.last_good()}")
            metadata = {"step": str(step), "settings": self.settings_digest, "to_evaluate": str(to_evaluate)}
            self.folder.mkdir(parents=True, exist_ok=True)
            write(self.path(step), values, metadata)
            for path in sorted(self.folder.glob("step-*.safetensors"))[: -self.keep]:
                path.unlink()
        except BaseException as error:
            self.error = error

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}.safetensors"

    def last_good(self) -> str:
        newest = max(self.folder.glob("step-*.safetensors"), default=None)  # whichever process wrote it
        return f"the last good checkpoint is {newest}" if newest else "there is no checkpoint"

    def set_model(self, model):
        super().set_model(model)
        self.writes = is_chief(model.distribute_strategy)

    def on_train_begin(self, logs=None):
        self.signal_received = None
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) != signal.SIG_IGN:  # as of a process in the background
                    self.former_handlers[number] = signal.signal(number, self._note)

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
        for variable, value in self.restored_metrics:
            variable.assign(value)
        self.restored_metrics = []

    def on_train_batch_begin(self, batch, logs=None):
        self.model.stop_asked = self.signal_received is not None

    def on_train_batch_end(self, batch, logs=None):
        not_finite = [f"{name} is {logs[name]}" for name in WATCHED if not math.isfinite(logs[name])]
        if not_finite or self.error is not None:
            self.finish()
        if not_finite:
            last, several = self.model.steps_done, self.model.steps_per_execution
            where = f"at step {last}" if several == 1 else f"in the steps {last - several + 1} to {last}"
            raise NonFiniteLoss(f"{not_finite[0]} {where}; {self.last_good()}")
        # What one process is asked is done by all, after the same step.
        alone = workers(self.model.distribute_strategy) == 1
        stop = self.signal_received is not None if alone else self.model.stop_agreed
        if self.is_last(batch):
            return  # on_train_end saves it, when the others have written theirs
        if stop or is_due(self.model, self.every):
            self.save()
        if stop:
            self._stop()

    def is_last(self, batch: int) -> bool:
        """Whether `fit` ends with this batch."""
        return (self.epoch + 1, batch + 1) == (self.params.get("epochs"), self.params.get("steps"))

    def on_train_end(self, logs=None):
        if self.last_step != self.model.steps_done:
            self.save()
        self.finish()
        self._restore_handlers()
        # Of several processes one alone may have got it in the last steps.
        if any_says(self.model.distribute_strategy, self.signal_received is not None):
            self._stop()

    def on_fit_end(self):
        """Called by the step whatever ended `fit`."""
        self._restore_handlers()
        if self.writer is not None:  # or who restores in this process would take the file for a killed run's
            self.writer.join()

    def _stop(self):
        self.finish()
        where = f"stopped after step {self.last_step}, saved in {self.folder}"
        raise Stopped(f"{where}; the same command goes on from there")

    def _note(self, number, frame):
        """Handles a signal: no exception now, as the state is whole only between two steps."""
        self.signal_received = number
        self._restore_handlers()
        os.write(2, b"\nsaving after this step, then stopping; once more to stop at once without saving\n")

    def _restore_handlers(self):
        for number, handler in self.former_handlers.items():
            signal.signal(number, handler or signal.SIG_DFL)
        self.former_handlers = {}


class DamagedFile(Exception):
    """A checkpoint whose content is not what was written."""


def state(model) -> dict:
    """All variables that a run's next steps depend on, by name."""
    groups = {
        "model": [(v.path, v) for v in model.variables],
        # Without the optimizer's own name, in which Keras numbers the optimizers of a process.
        "optimizer": [(v.path.partition("/")[2], v) for v in model.optimizer.variables],
        "metrics": [(v.path, v) for v in model.metrics_variables],
    }
    variables = model.run_variables()
    for group, named in groups.items():
        for name, variable in named:
            if variables.setdefault(f"{group}/{name}", variable) is not variable:
                raise ValueError(f"two variables of the {group} are called {name}, expected names of their own")
    return variables


def snapshot(model) -> dict:
    """The state as it is now, as NumPy arrays, whatever the model does next.

    Not as tensors, for which TensorFlow would copy each variable that the next step changes, in memory that it does not
    give back to the system: a step of Mini with recomputation, 128 sequences, then took 2,117 MB instead of 1,668.
    """
    with tf.device("CPU:0"):
        return {name: np.array(memoryview(tf.identity(variable))) for name, variable in state(model).items()}


def check_shapes(path, values: dict, variables: dict) -> None:
    """Raises ValueError naming the first variable that the file and the model do not have alike."""
    for name in sorted(values.keys() ^ variables.keys()):
        raise ValueError(f"{path}: {name} is {'not in the model' if name in values else 'missing'}: another model's")
    for name, variable in variables.items():
        stored, expected = (tuple(x.shape) for x in (values[name], variable))
        if stored != expected:
            raise ValueError(f"{path}: {name} has the shape {list(stored)}, expected {list(expected)}: another model's")


def write(path, values: dict, metadata: dict) -> None:
    """Writes a checkpoint, whole or not at all."""
    with written_whole(path) as temporary:
        metadata = metadata | {"checksum": str(checksum(values, metadata))}
        safetensors.numpy.save_file(values, temporary, metadata)


def read(path) -> tuple[dict, dict]:
    """Values and metadata of a checkpoint; raises DamagedFile if they are not as they were written."""
    try:
        with safetensors.safe_open(path, framework="np") as file:
            values = {name: file.get_tensor(name) for name in file.keys()}
            metadata = file.metadata() or {}
    except (OSError, MemoryError):
        raise
    except Exception as error:  # a damaged header names types that NumPy has not, is no UTF-8, ...
        raise DamagedFile(f"{type(error).__name__}: {error}") from None
    expected = metadata.pop("checksum", None)
    if expected != str(checksum(values, metadata)):
        raise DamagedFile("its checksum is not that of its content")
    return values, metadata


def checksum(values: dict, metadata: dict) -> int:
    """CRC-32 of metadata and of the tensors' names, types, shapes and bytes: of what is read, as the header is."""
    result = zlib.crc32(json.dumps(metadata, sort_keys=True).encode())
    for name in sorted(values):
        value = values[name]
        result = zlib.crc32(json.dumps([name, value.dtype.name, value.shape]).encode(), result)
        result = zlib.crc32(value.reshape(-1).view(np.uint8), result)
    return result


def digest(settings: dict) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
