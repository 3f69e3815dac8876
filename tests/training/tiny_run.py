"""A pre-training run of seconds, of the parts that recipes/pretrain.py is made of."""

import contextlib
import hashlib
import os
import random
import signal
import socket
import sys
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from kbert import lanes
from kbert.config import BertConfig
from kbert.model.pretraining import BertPretrainer
from kbert.training.checkpointing import Checkpoint, Stopped, state
from kbert.training.distribution import WorkerLost, is_chief, new_strategy
from kbert.training.monitoring import Evaluate, EventFiles, Monitor
from kbert.training.optimization import BertAdam, WarmupLinearDecay
from kbert.training.run_directory import begin_run
from kbert.whole_file import write_whole

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz"]
LENGTH, PREDICTIONS = 16, 3


def new_model(dropout=0.1, dtype=None, **changes):
    keras.utils.set_random_seed(1)
    fields = {
        "vocab_size": len(VOCABULARY),
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": LENGTH,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
    }
    return BertPretrainer(BertConfig(**fields | changes), dtype=dtype)


def new_optimizer(steps=100, peak=1e-2):
    return BertAdam(WarmupLinearDecay(peak, steps, 5))


def batch(number, size=4):
    """Batch `number` of an endless corpus: shuffled letters, of which some are masked and some rows are short."""
    generator = np.random.default_rng(number)
    ids = generator.integers(5, len(VOCABULARY), (size, LENGTH), dtype=np.int32)
    mask = (np.arange(LENGTH) < generator.integers(8, LENGTH + 1, (size, 1))).astype(np.int32)
    positions = np.argsort(generator.random((size, 8)), axis=1)[:, :PREDICTIONS].astype(np.int32)
    truth = np.take_along_axis(ids, positions, axis=1)
    np.put_along_axis(ids, positions, np.int32(4), axis=1)
    return {
        "input_ids": ids * mask,
        "input_mask": mask,
        "segment_ids": np.zeros_like(ids),
        "masked_lm_positions": positions,
        "masked_lm_ids": truth,
        "masked_lm_weights": (generator.random((size, PREDICTIONS)) < 0.8).astype(np.float32),
        "next_sentence_labels": generator.integers(0, 2, size, dtype=np.int32),
        "data_position": np.array([0, 0, number + 1], np.int64),
    }


def dataset(start=0, stop=1000):
    batches = [batch(number) for number in range(start, stop)]
    return tf.data.Dataset.from_tensor_slices({name: np.stack([b[name] for b in batches]) for name in batches[0]})


STEPS, EVERY = 24, 4  # of `train`, and from one of its checkpoints to the next
PAUSE = 0.05


class Slow(keras.callbacks.Callback):
    """Gives a killer time to strike between two steps."""

    def on_train_batch_end(self, batch, logs=None):
        time.sleep(PAUSE)


class Begun(keras.callbacks.Callback):
    """Leaves in a file how many steps are done after the first call of this process."""

    def __init__(self, path):
        super().__init__()
        self.path = Path(path)

    def on_train_batch_end(self, batch, logs=None):
        if batch < self.model.steps_per_execution:
            write_whole(self.path, str(self.model.steps_done).encode())


class Signal(keras.callbacks.Callback):
    """Sends this process a signal at the end of a step."""

    def __init__(self, step, number):
        super().__init__()
        self.step, self.number = step, number

    def on_train_batch_end(self, batch, logs=None):
        if self.model.steps_done == self.step:
            os.kill(os.getpid(), self.number)


def train(
    output, steps=STEPS, replicas=1, cluster=None, at=None, dropout=0.1, peak=1e-2, dtype=None, in_lanes=1, **options
):
    """Trains up to `steps`, from the last checkpoint if there is one; a digest of all weights in `<output>/digest`.

    at: a step and a signal that this process then gets. `<output>/begun-<number of the process>` has what Begun says.
    Ends with status 3 where another process is lost, Stopped's where it was stopped.
    """
    lanes.begin(in_lanes)
    tf.config.experimental.enable_op_determinism()
    settings = {"steps": steps, "seed": 1}
    word = "multi_worker" if cluster else "mirrored" if replicas > 1 else "one"
    strategy = new_strategy(word, replicas if word == "mirrored" else None, cluster)
    begin_run(output, settings, strategy)
    with strategy.scope():
        model = new_model(dropout, dtype)
        model.compile(new_optimizer(steps, peak), **{"jit_compile": False, **options})
    assert model.lanes == in_lanes
    checkpoint = Checkpoint(output, settings, every=EVERY)
    start = checkpoint.restore(model)
    events = EventFiles(Path(output) / "logs", checkpoint)
    callbacks = [
        Monitor(events, settings, every=3),
        Evaluate(dataset(500, 503), events, every=6, baselines={"masked_lm_loss": 3.2}),
        *([Signal(*at)] if at else []),
        checkpoint,
        Begun(Path(output, f"begun-{cluster.number if cluster else 0}")),
        Slow(),
    ]
    data = dataset(int(model.data_position[-1]), 100)
    try:
        if start < steps:
            model.fit(data, steps_per_epoch=steps - start, callbacks=callbacks, verbose=0)
    except WorkerLost as error:
        Path(output, "lost").write_text(str(error))
        os._exit(3)
    except Stopped as stopped:
        sys.exit(stopped.status)
    if is_chief(strategy):
        Path(output, "digest").write_text(digest(model, "seconds"))
        np.savez(Path(output) / "weights.npz", *[variable.numpy() for variable in model.weights])


def begin(output, cluster):
    """Begins a run as `train` does; why it is refused is then in `<output>.txt`."""
    strategy = new_strategy("multi_worker", None, cluster)
    try:
        begin_run(output, {}, strategy)
    except ValueError as error:
        Path(f"{output}.txt").write_text(str(error))


def digest(model, *ignored):
    """Of all bits of a run's state but the times."""
    values = [v.numpy().tobytes() for name, v in state(model).items() if not any(word in name for word in ignored)]
    return hashlib.sha256(b"".join(values)).hexdigest()


def newest(output) -> int:
    """The step of the newest checkpoint, 0 without one."""
    steps = [int(path.stem.partition("-")[2]) for path in Path(output, "checkpoints").glob("step-*.safetensors")]
    return max(steps, default=0)


def train_until_write(output, moment, number, **options):
    """Trains, and kills itself at a moment of writing checkpoint `number`, counted from 1 in this process."""
    replace, written = os.replace, []

    def deadly(source, target):
        if Path(target).suffix == ".safetensors":
            written.append(target)
        if len(written) < number:
            return replace(source, target)
        if moment == "half written":
            os.truncate(source, os.path.getsize(source) // 2)
        elif moment == "after renaming":
            replace(source, target)
        else:
            raise ValueError(moment)
        os.kill(os.getpid(), signal.SIGKILL)

    os.replace = deadly
    train(output, **options)


def small(number, size):
    """A batch of the small BERT's runs on several replicas: some rows have no prediction at all."""
    features = batch(number, size)
    features["masked_lm_weights"][:: 3 + number % 3] = 0
    return features


class EachCall(keras.callbacks.Callback):
    """Loss and gradient norm over the steps of each call, and then resets them."""

    def __init__(self):
        super().__init__()
        self.losses, self.norms = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(logs["loss"])
        self.norms.append(logs["gradient_norm"])
        self.model.reset_metrics()


def on_replicas(
    output, replicas=1, cluster=None, steps=20, size=16, dropout=0.0, rows=None, loss_scale=None, **options
):
    """Trains a small BERT on parts of the CPU, or in a process of a cluster; what it reached is left in `output`.

    rows: the numbers of those of each batch that are taken, instead of all. loss_scale: the first, in float16.
    """
    tf.config.experimental.enable_op_determinism()
    word = "multi_worker" if cluster else "mirrored" if replicas > 1 else "one"
    strategy = new_strategy(word, replicas if word == "mirrored" else None, cluster)
    with strategy.scope():
        model = new_model(dropout, "mixed_float16" if loss_scale else None, num_hidden_layers=2)
        model.compile(new_optimizer(peak=1e-4), **{"jit_compile": False, **options})  # the paper's rate
    if loss_scale:
        model.loss_scale.scale.assign(loss_scale)
    batches = [small(number, size) for number in range(steps)]
    if rows is not None:
        batches = [{name: v if name == "data_position" else v[rows] for name, v in one.items()} for one in batches]
    data = tf.data.Dataset.from_tensor_slices({name: np.stack([b[name] for b in batches]) for name in batches[0]})
    each = EachCall()
    model.fit(data, steps_per_epoch=steps, callbacks=[each], verbose=0)
    scores = model.evaluate(data, verbose=0, return_dict=True)
    if is_chief(strategy):
        results = {f"held_out_{name}": value for name, value in scores.items()}
        results |= {"losses": each.losses, "norms": each.norms, "data_position": model.data_position.numpy()}
        results |= {f"variable {variable.path}": variable.numpy() for variable in model.weights}
        np.savez(output, digest=digest(model, "seconds"), **results)


def free_addresses(count):
    """Addresses on this machine whose ports nobody uses, and no connection gets by chance before they are bound."""
    found = []
    while len(found) < count:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("", port))
            found.append(f"localhost:{port}")
    return tuple(dict.fromkeys(found)) if len(set(found)) == count else free_addresses(count)
