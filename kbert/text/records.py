"""TFRecords of instances, as Google's create_pretraining_data.py writes them -> the batches of pretraining_data."""

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from kbert.text.documents import expand_paths
from kbert.text.tokens import graph_read
from kbert.text.walk import START, Walk, prefetched

GROUP_RECORDS = 1 << 13
FEATURES = (
    ("input_ids", tf.int64),
    ("input_mask", tf.int64),
    ("segment_ids", tf.int64),
    ("masked_lm_positions", tf.int64),
    ("masked_lm_ids", tf.int64),
    ("masked_lm_weights", tf.float32),
    ("next_sentence_labels", tf.int64),
)


class Records:
    """The records of TFRecord files, readable in any order.

    Attributes: lengths, name -> S, P or 1; places int64 [N, 3]: file, byte, size; largest_id; digest.
    Raises ValueError for a truncated or damaged file, for records without BERT's features and of several lengths.
    """

    def __init__(self, paths):
        self.files = expand_paths(paths)
        digest, places, first, self.largest_id = hashlib.blake2b(digest_size=16), [], None, 0
        for number, path in enumerate(self.files):
            with _whole_records(path):
                record = next(tf.data.TFRecordDataset(path).take(1).as_numpy_iterator(), None)
                if record is not None:
                    lengths = _lengths(path, record)
                    first = first or (path, lengths)
                    for name, length in lengths.items():
                        if length != first[1][name]:
                            told = f"{name} has {length} items, and {first[1][name]} in {first[0]}"
                            raise ValueError(f"{path}: {told}; expected records of one length")
                    sizes, largest = _looked_through(path, lengths)
                    # A record is its length (8 bytes), a check of that (4), the bytes themselves, a check of them (4).
                    starts = np.cumsum(sizes + 16) - sizes - 4
                    places.append(np.stack([np.full(len(sizes), number), starts, sizes], axis=1))
                    self.largest_id = max(self.largest_id, largest)
            with open(path, "rb") as file:
                digest.update(hashlib.file_digest(file, hashlib.blake2b).digest())
        if first is None:
            raise ValueError(f"{self.files[0]}: holds no records")
        self.places, self.lengths, self.digest = np.concatenate(places), first[1], digest.hexdigest()

    def read(self, numbers: np.ndarray) -> np.ndarray:
        """Records by number -> serialized examples."""
        examples = []
        for file, start, size in self.places[numbers]:
            with open(self.files[file], "rb", buffering=0) as opened:
                examples.append(os.pread(opened.fileno(), size, start))
        return np.asarray(examples, object)


def _lengths(path: str, record: bytes) -> dict[str, int]:
    """How many items each of BERT's features has in a record."""
    features = tf.train.Example.FromString(record).features.feature
    if missing := [name for name, _ in FEATURES if name not in features]:
        raise ValueError(f"{path}: a record without {', '.join(missing)}; expected BERT's pre-training features")
    return {name: len(features[name].float_list.value or features[name].int64_list.value) for name, _ in FEATURES}


@contextlib.contextmanager
def _whole_records(path: str) -> Iterator[None]:
    """A block that reads a TFRecord file; raises ValueError where it is not what its first record says."""
    try:
        yield
    except tf.errors.DataLossError as error:
        told = re.search(r"(corrupted|truncated) record at (\d+)", error.message)
        what = f"a {told[1]} record at byte {told[2]}" if told else error.message
        raise ValueError(f"{path}: {what}; expected a whole TFRecord file") from None
    except tf.errors.InvalidArgumentError:
        raise ValueError(f"{path}: its records differ in their features; expected records of one length") from None


def _looked_through(path: str, lengths: dict[str, int]) -> tuple[np.ndarray, int]:
    """Reads a file once, as training will -> the bytes of each record, int64 [N], and the largest token id."""
    parsed = _parsed(lengths)

    def facts(examples):
        features = tf.io.parse_example(examples, parsed)
        ids = [features[name] for name in ("input_ids", "masked_lm_ids")]
        return tf.strings.length(examples), tf.reduce_max(tf.concat(ids, axis=1))

    examples = tf.data.TFRecordDataset(path, buffer_size=1 << 23).batch(1 << 10)
    found = list(prefetched(examples.map(facts, num_parallel_calls=os.cpu_count())).as_numpy_iterator())
    sizes, largest = zip(*found, strict=True)
    return np.concatenate(sizes).astype(np.int64), int(max(largest))


def _parsed(lengths: dict[str, int]) -> dict:
    return {name: tf.io.FixedLenFeature([lengths[name]], dtype) for name, dtype in FEATURES}


def records_dataset(
    records: Records,
    batch_size: int,
    *,
    seed: int = 1,
    position: tuple[int, int, int] = START,
) -> tf.data.Dataset:
    """The endless batches of records, as pretraining_data's, in a new order each epoch; the masks are their own."""
    parsed = _parsed(records.lengths)

    def instances(epoch, numbers, skip):
        examples = graph_read(lambda numbers: (records.read(numbers),), [numbers[skip:]], [tf.string])[0]
        features = tf.io.parse_example(examples, parsed)
        features = {n: tf.cast(v, tf.int32) if v.dtype == tf.int64 else v for n, v in features.items()}
        return features | {"next_sentence_labels": features["next_sentence_labels"][:, 0]}

    walk = Walk(len(records.places), GROUP_RECORDS, seed, None, position)
    return walk.batches(instances, batch_size)
