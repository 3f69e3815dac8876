"""A pre-training run of seconds, of the parts that recipes/pretrain.py is made of."""

import hashlib
import os
import signal
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from kbert.config import BertConfig
from kbert.model.pretraining import BertPretrainer
from kbert.training.checkpointing import Checkpoint, check_settings, state
from kbert.training.monitoring import Evaluate, EventFiles, Monitor
from kbert.training.optimization import BertAdam, WarmupLinearDecay

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


def new_optimizer(steps=100):
    return BertAdam(WarmupLinearDecay(1e-2, steps, 5))


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


class Slow(keras.callbacks.Callback):
    """Gives a killer time to strike between two steps."""

    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.05)


def train(output, steps=24, **options):
    """Trains up to `steps`, from the last checkpoint if there is one; a digest of all weights in `<output>/digest`."""
    tf.config.experimental.enable_op_determinism()
    settings = {"steps": steps, "seed": 1}
    check_settings(output, settings)
    model = new_model()
    model.compile(new_optimizer(steps), **{"jit_compile": False, **options})
    checkpoint = Checkpoint(output, settings, every=4)
    start = checkpoint.restore(model)
    events = EventFiles(Path(output) / "logs", checkpoint)
    callbacks = [
        Monitor(events, settings, every=3),
        Evaluate(dataset(500, 503), events, every=6, baselines={"masked_lm_loss": 3.2}),
        checkpoint,
        Slow(),
    ]
    data = dataset(int(model.data_position[-1]), 100)
    model.fit(data, steps_per_epoch=steps - start, callbacks=callbacks, shuffle=False, verbose=0)
    Path(output, "digest").write_text(digest(model, "seconds"))


def digest(model, *ignored):
    """Of all bits of a run's state but the times."""
    values = [v.numpy().tobytes() for name, v in state(model).items() if not any(word in name for word in ignored)]
    return hashlib.sha256(b"".join(values)).hexdigest()


def train_until_write(output, moment, number):
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
        os.kill(os.getpid(), signal.SIGKILL)

    os.replace = deadly
    train(output)


def on_two_replicas(output, steps=3, dropout=0.0, twice_the_same=False, **options):
    """Trains with two halves of each batch, or the first half twice; scores and weights are left in `output`."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = new_model(dropout=dropout)
        model.compile(new_optimizer(), **{"jit_compile": False, **options})

    def halves(context):
        parts = []
        for number in range(steps):
            for rows in (slice(0, 2), slice(0, 2) if twice_the_same else slice(2, 4)):
                part = batch(number)
                parts.append({name: part[name] if name == "data_position" else part[name][rows] for name in part})
        return tf.data.Dataset.from_tensor_slices({name: np.stack([part[name] for part in parts]) for name in parts[0]})

    data = strategy.distribute_datasets_from_function(halves)
    history = model.fit(data, steps_per_epoch=steps, shuffle=False, verbose=0).history
    results = {f"train_{name}": value for name, value in history.items()}
    results |= {"data_position": model.data_position.numpy(), "real_tokens": float(model.real_tokens.result())}
    scores = model.evaluate(data, steps=steps, verbose=0, return_dict=True)
    results |= {f"held_out_{name}": value for name, value in scores.items()}
    np.savez(output, *[variable.numpy() for variable in model.weights], **results)
