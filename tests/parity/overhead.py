"""A step of `fit` as pretrain.py takes it beside a bare compiled step: the same model, gradients and update, and no
metrics, no replicas, no position, no logs and no looking at signals. And beside `fit` the same with a checkpoint saved
in the middle of each round, so that with 500 STEPS it is what saving every 500 steps costs.

    python tests/parity/overhead.py SIZE BATCH LENGTH [STEPS [ROUNDS [DETERMINISTIC]]]

All train the same variables in turn, STEPS each; prints milliseconds of each round and the ratios of the medians.
DETERMINISTIC 0 leaves out enable_op_determinism, to compare the times of two calls.
"""

import statistics
import sys
import tempfile
import time

import tensorflow as tf

from kbert.config import BertConfig
from kbert.text.walk import prefetched
from kbert.training.checkpointing import Checkpoint
from kbert.training.measurement import new_trainer, random_batch
from kbert.training.planning import Setting


def bare_step(model):
    """One update by the next batch of an iterator, whose gradients XLA compiles as a whole."""

    @tf.function(jit_compile=True, autograph=False)
    def gradients(features):
        with tf.GradientTape() as tape:
            sums = model.sums(features, model(features, training=True))
            loss = sum(sums[name][0] / sums[name][1] for name in model.loss_names)
        return [tf.convert_to_tensor(gradient) for gradient in tape.gradient(loss, model.learned_variables)]

    @tf.function(autograph=False)
    def step(iterator):
        variables = model.learned_variables
        found = zip(gradients(next(iterator)), variables, strict=True)
        model.optimizer.apply([tf.ensure_shape(one, variable.shape) for one, variable in found], variables)

    return step


class Saving(Checkpoint):
    """Saves only where it is due: not at the end of each `fit`, which a run has once."""

    def on_train_end(self, logs=None):
        self.finish()


def main(size: str, batch: int, length: int, steps: int = 50, rounds: int = 7, deterministic: int = 1) -> None:
    if not deterministic:
        tf.config.experimental.enable_op_determinism = lambda: None
    setting = Setting(BertConfig.from_size(size), batch, length, max(1, round(0.15 * length)))
    model, dataset = new_trainer(setting), prefetched(tf.data.Dataset.from_tensors(random_batch(setting)).repeat())
    step, iterator = bare_step(model), iter(dataset)

    def bare() -> None:
        for _ in range(steps):
            step(iterator)
        model.optimizer.iterations.numpy()

    def fit(*callbacks, count=steps) -> None:
        model.fit(dataset, steps_per_epoch=count, callbacks=list(callbacks), verbose=0)

    folder = tempfile.TemporaryDirectory()
    saving = Saving(folder.name, {}, every=steps)
    ways = {"bare": bare, "fit": fit, "fit, saving": lambda: fit(saving)}
    fit(count=steps // 2)  # so that the multiples of `steps` are in the middle of the rounds
    taken = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            begin = time.perf_counter()
            way()
            if number:  # the first compiles
                taken[name].append(1000 * (time.perf_counter() - begin) / steps)
    for name, times in taken.items():
        print(f"{name}: {' '.join(f'{each:.2f}' for each in times)} ms, median {statistics.median(times):.2f}")
    folder.cleanup()
    bare, fit, saving = (statistics.median(times) for times in taken.values())
    print(f"{size} {batch}x{length}: fit takes {100 * (fit / bare - 1):+.1f}% over the bare step")
    cost = (saving - fit) * steps
    print(f"a save costs {cost:.1f} ms, of {steps} steps {100 * (saving / fit - 1):+.2f}%", end="")
    print(f", of 500 steps {100 * cost / fit / 500:+.2f}%")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
