"""Short runs of the training step in processes of their own: how long a step takes, and how full the process becomes.

TensorFlow is imported by those processes alone, so that each begins as a run does.
"""

import os
import re
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from kbert import lanes
from kbert.training.planning import Device, Setting, device_of, operations, speed_of, trial

STATUS = Path("/proc/self/status")
CONTAINER = Path("/sys/fs/cgroup/memory.max")
FIRST_OPERATIONS = 10**10  # of the first trial's step: a tenth of a second on two cores
SECONDS_OF_STEP = 1.0  # that the wide trial's shall take; half of it tells too little of what a sequence takes
MOST_LAYERS = 4  # of the deep trial
ROUNDS = 3  # in which the trials take turns: what slows the machine for a while then slows a third of each
FIRST_STEPS = 12  # of a setting in its process, until the heap has its size
FEWEST_STEPS = 2  # of each later turn


class Measured(NamedTuple):
    """The median of the steps after the first; bytes of the process after its imports and at its fullest moment.

    On a GPU the bytes are the GPU's, which was not verified. limit: how many there are.
    """

    seconds: float
    libraries: int
    peak: int
    limit: int
    on_gpu: bool


@contextmanager
def fresh_process(prepare: Callable[[], None]) -> Iterator[Callable[[Setting, float], Measured]]:
    """Yields what measures a setting for some seconds in a process that has done nothing but `prepare` before.

    What it measures next is in the same process, whose fullest moment then may be that of the setting before; a setting
    that it has measured before goes on. Raises ValueError where the system ends the process, as it does when memory is
    short.
    """
    with ProcessPoolExecutor(1, get_context("spawn"), initializer=prepare) as pool:

        def measure(setting: Setting, seconds: float) -> Measured:
            try:
                return pool.submit(measure_step, setting, seconds).result()
            except BrokenProcessPool:
                of = f"{setting.config.num_hidden_layers} layers and batch {setting.batch_size}"
                raise ValueError(f"the system ended the process of a step with {of}: is memory short?") from None

        yield measure


def calibrate(setting: Setting, seconds: float, prepare: Callable[[], None], progress=None):
    """Trials of `seconds` each and what it takes to compile them: a shallow one alone, then it, a wide and a deep one.

    They have fewer layers and smaller batches than the setting, but where it has one layer or one sequence. Returns
    Speed, Device and the bytes that the device has; `progress` is called with the trials done and their number.
    """
    progress, seconds = progress or (lambda done, total: None), seconds / ROUNDS
    of_sequence = sum(sum(both) for both in operations(trial(setting, 1, 1)).values())
    batch_size = max(1, min(FIRST_OPERATIONS // of_sequence, setting.in_part // 8))
    shallow = trial(setting, 1, batch_size)
    with fresh_process(prepare) as measure:
        least = measure(shallow, seconds)
    batch_size = max(4 * batch_size, round(batch_size * SECONDS_OF_STEP / least.seconds))
    batch_size = max(min(batch_size, setting.in_part // 2), shallow.batch_size + 1)
    layers = min(max(setting.config.num_hidden_layers, 2), MOST_LAYERS)
    wide, deep = trial(setting, 1, batch_size), trial(setting, layers, batch_size)
    taken = {deep: [], wide: [], shallow: []}
    turns = [*taken] * ROUNDS  # the deep one's first, as its memory counts
    progress(1, 1 + len(turns))
    with fresh_process(prepare) as measure:
        for done, of in enumerate(turns, 2):
            taken[of].append(measure(of, seconds))
            progress(done, 1 + len(turns))
    speed = speed_of(*((of, statistics.median(one.seconds for one in taken[of])) for of in (shallow, wide, deep)))
    blank = Device(least.libraries, on_gpu=least.on_gpu)
    return speed, device_of(blank, [(shallow, least.peak), (deep, taken[deep][0].peak)]), least.limit


def measure_step(setting: Setting, seconds: float) -> Measured:
    """Trains on one batch for so many seconds, in this process, as pretrain.py does; goes on where it did so before."""
    import keras

    from kbert.training.checkpointing import snapshot

    lanes.begin(setting.lanes)
    memory, libraries, on_gpu = of_libraries()
    model, batches = trained(setting)

    class Clock(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.moments, self.held, self.first = [], None, int(self.model.optimizer.iterations) == 0

        def on_train_batch_end(self, batch, logs=None):
            self.moments.append(time.perf_counter())
            steps, passed = len(self.moments) - 1, self.moments[-1] - self.moments[0]
            if self.first:  # for as long as a checkpoint is written, in steps
                self.held = snapshot(self.model) if steps == 1 else self.held if steps < 4 else None
            self.model.stop_training = passed > seconds and steps >= (FIRST_STEPS if self.first else FEWEST_STEPS)

    clock = Clock()
    model.fit(batches, callbacks=[clock], verbose=0)
    steps = [after - before for before, after in pairwise(clock.moments)]
    _, peak, limit = memory()
    return Measured(statistics.median(steps), libraries, peak, limit, on_gpu)


@cache
def of_libraries() -> tuple[Callable, int, bool]:
    """What tells this process's memory, what it took when this was first called, and whether that is a GPU's."""
    import tensorflow as tf

    tf.zeros([])  # which sets up the devices
    on_gpu = bool(tf.config.list_physical_devices("GPU"))
    memory = gpu_memory if on_gpu else process_memory
    return memory, memory()[0], on_gpu


@cache
def trained(setting: Setting) -> tuple:
    """A new trainer and what it trains on, each setting's own in this process."""
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = False  # the end of an iterator waits for tf.data's tuner, which sleeps up to a minute
    return new_trainer(setting), tf.data.Dataset.from_tensors(random_batch(setting)).repeat().with_options(options)


def new_trainer(setting: Setting):
    """A new BertPretrainer, compiled as pretrain.py does."""
    import keras
    import tensorflow as tf

    from kbert.model.pretraining import BertPretrainer
    from kbert.training.optimization import LAMB, BertAdam, WarmupLinearDecay

    tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(1)
    keras.config.set_dtype_policy("float32" if setting.precision == "float32" else f"mixed_{setting.precision}")
    model = BertPretrainer(setting.config)
    model.bert.recompute = setting.recompute
    kind = {"adam": BertAdam, "lamb": LAMB}[setting.optimizer]
    optimizer = kind(WarmupLinearDecay(1e-4, 10**6, 10**4), bias_correction=True)
    model.compile(optimizer, accumulation=setting.accumulation)
    return model


def random_batch(setting: Setting) -> dict:
    """Full sequences of random tokens: how long a step takes does not depend on them."""
    import numpy as np

    generator, shape = np.random.default_rng(1), (setting.batch_size, setting.sequence_length)
    predicted = (setting.batch_size, setting.predictions)

    def draw(below, shape):
        return generator.integers(0, below, shape, dtype=np.int32)

    return {
        "input_ids": draw(setting.config.vocab_size, shape),
        "input_mask": np.ones(shape, np.int32),
        "segment_ids": draw(2, shape),
        "masked_lm_positions": draw(setting.sequence_length, predicted),
        "masked_lm_ids": draw(setting.config.vocab_size, predicted),
        "masked_lm_weights": np.ones(predicted, np.float32),
        "next_sentence_labels": draw(2, shape[:1]),
    }


def process_memory() -> tuple[int, int, int]:
    """Bytes that this process takes now, took at its fullest, and that there are. Raises ValueError but on Linux."""
    if not STATUS.exists():
        raise ValueError(f"{STATUS} is not there, expected a Linux, whose processes tell their memory in it")
    now, fullest = (re.search(rf"{name}:\s*(\d+) kB", STATUS.read_text())[1] for name in ("VmRSS", "VmHWM"))
    return 1024 * int(now), 1024 * int(fullest), machine_memory()


def gpu_memory() -> tuple[int, int, int]:
    """The same of the first GPU's bytes."""
    import tensorflow as tf
    from tensorflow.python.client import device_lib

    taken = tf.config.experimental.get_memory_info("GPU:0")
    limits = [device.memory_limit for device in device_lib.list_local_devices() if device.device_type == "GPU"]
    return taken["current"], taken["peak"], limits[0]


def machine_memory() -> int:
    """Bytes of this machine, or of the container that this process is in."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    of_container = CONTAINER.read_text().strip() if CONTAINER.exists() else "max"
    return whole if of_container == "max" else min(whole, int(of_container))
