"""What a run wrote for TensorBoard."""

import collections

import tensorflow as tf
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

TIMES = ("throughput/real_tokens_per_second", "throughput/share_of_time_waiting")


def events(folder):
    """(run, tag, step) -> the values written, in the order of the files."""
    found = collections.defaultdict(list)
    for file in sorted(folder.glob("*/events.*"), key=lambda file: file.name.rsplit("-", 1)[-1]):
        for event in EventFileLoader(str(file)).Load():
            for value in event.summary.value:
                found[file.parent.name, value.tag, event.step].append(tf.make_ndarray(value.tensor).item())
    return dict(found)
