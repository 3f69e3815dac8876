"""The order of an epoch and the place in it, so that a run can go on where it stopped without walking there.

An epoch is a seeded permutation of items (blocks of a corpus, records of a file). Consecutive items in that order
form a group, the unit of work. A position is (epoch, group, offset): the instance of that group, in its order, that
comes next. To go on from there one group is made again, whatever the length of the run so far.
"""

import functools
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

START = (0, 0, 0)
AHEAD = 8  # batches


class Walk(NamedTuple):
    """items: how many there are; group_items: at most so many a group; epochs: None is endless; position: the start."""

    items: int
    group_items: int
    seed: int
    epochs: int | None
    position: tuple[int, int, int]

    def batches(self, instances: Callable, batch_size: int, elsewhere: Sequence[Callable] = ()) -> tf.data.Dataset:
        """Batches of what `instances(epoch, item numbers, instances to skip)` makes of each group: a dict of [n, ...].

        All are full. Each also holds data_position int64 [3], where the next begins. elsewhere: functions that make the
        same on other machines, which then take the groups in turn.
        """
        groups = -(-self.items // self.group_items)
        first = self.position[0] * groups + self.position[1]

        @tf.autograph.experimental.do_not_convert
        def make(number, instances=instances):
            epoch, group = number // groups, number % groups
            # Groups of equal size, so that the last one shuffles as well as the others.
            places = tf.range(group * self.items // groups, (group + 1) * self.items // groups)
            seed = tf.stack([tf.cast(self.seed, tf.int64), epoch])
            numbers = tf.random.experimental.index_shuffle(places, seed, self.items - 1)
            skip = tf.where(number == first, tf.constant(self.position[2], tf.int64), 0)
            features = instances(epoch, numbers, skip)
            offset = skip + 1 + tf.range(tf.shape(features["input_ids"], tf.int64)[0])
            place = tf.stack([tf.fill(tf.shape(offset), epoch), tf.fill(tf.shape(offset), group), offset], axis=1)
            return features | {"data_position": place}

        @tf.autograph.experimental.do_not_convert
        def last_position(batch):
            return batch | {"data_position": batch["data_position"][-1]}

        end = tf.int64.max if self.epochs is None else self.epochs * groups
        numbers = tf.data.Dataset.range(first, end)
        if elsewhere:
            # A dataset for each, as calls of one wait for each other where the order has to be the same.
            turns = len(elsewhere)
            lanes = [
                tf.data.Dataset.range(first + turn, end, turns).map(functools.partial(make, instances=one)).prefetch(1)
                for turn, one in enumerate(elsewhere)
            ]
            dataset = tf.data.Dataset.choose_from_datasets(lanes, numbers.map(lambda number: (number - first) % turns))
        else:
            dataset = numbers.map(make, num_parallel_calls=min(os.cpu_count() or 1, 16), deterministic=True)
        return prefetched(dataset.rebatch(batch_size, drop_remainder=True).map(last_position))


def prefetched(batches: tf.data.Dataset) -> tf.data.Dataset:
    """Batches that are made while others are trained on.

    Without tf.data's autotuning: where an iterator ends, its tuner is waited for, which sleeps up to a minute.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return batches.prefetch(AHEAD).with_options(options)
