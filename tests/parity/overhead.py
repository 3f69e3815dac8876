"""A step of `fit` as pretrain.py takes it beside a bare compiled step: the same model, gradients and update, and no
metrics, no replicas, no position, no logs and no looking at signals.

    python tests/parity/overhead.py SIZE BATCH LENGTH [STEPS [ROUNDS]]

Both train the same variables in turn, STEPS each; prints milliseconds of each round and the ratio of the medians.
"""

import statistics
import sys
import time

import tensorflow as tf

from kbert.config import BertConfig
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


def main(size: str, batch: int, length: int, steps: int = 50, rounds: int = 7) -> None:
    setting = Setting(BertConfig.from_size(size), batch, length, max(1, round(0.15 * length)))
    model, dataset = new_trainer(setting), tf.data.Dataset.from_tensors(random_batch(setting)).repeat()
    step, iterator = bare_step(model), iter(dataset)

    def bare() -> None:
        for _ in range(steps):
            step(iterator)
        model.optimizer.iterations.numpy()

    ways = {"bare": bare, "fit": lambda: model.fit(dataset, steps_per_epoch=steps, verbose=0)}
    taken = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            begin = time.perf_counter()
            way()
            if number:  # the first compiles
                taken[name].append(1000 * (time.perf_counter() - begin) / steps)
    for name, times in taken.items():
        print(f"{name}: {' '.join(f'{each:.2f}' for each in times)} ms, median {statistics.median(times):.2f}")
    ratio = statistics.median(taken["fit"]) / statistics.median(taken["bare"])
    print(f"{size} {batch}x{length}: fit takes {100 * (ratio - 1):+.1f}% over the bare step")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
