"""TFRecords written as Google's create_pretraining_data.py writes them are read, in any order and from any position."""

import numpy as np
import pytest
from small_corpus import write_records

from kbert.text.records import FEATURES, Records, records_dataset


def test_records_become_batches_with_the_pipelines_names_shapes_and_types(tmp_path):
    write_records(tmp_path / "a.tfrecord")
    batches = list(records_dataset(Records([tmp_path]), 8).take(5).as_numpy_iterator())  # an epoch
    assert set(batches[0]) == {name for name, _ in FEATURES} | {"data_position"}
    assert batches[0]["input_ids"].shape == (8, 16) and batches[0]["input_ids"].dtype == np.int32
    assert batches[0]["masked_lm_weights"].dtype == np.float32
    seen = np.concatenate([batch["input_ids"][:, 0] for batch in batches])
    assert sorted(seen) == list(range(40)) and list(seen) != list(range(40))
    labels = np.concatenate([batch["next_sentence_labels"] for batch in batches])
    np.testing.assert_array_equal(labels, seen % 2)


def test_records_go_on_from_any_position(tmp_path, monkeypatch):
    monkeypatch.setattr("kbert.text.records.GROUP_RECORDS", 7)
    write_records(tmp_path / "a.tfrecord")
    write_records(tmp_path / "b.tfrecord", 13)
    records = Records([tmp_path])
    whole = list(records_dataset(records, 4).take(30).as_numpy_iterator())
    position = tuple(int(x) for x in whole[16]["data_position"])
    rest = list(records_dataset(records, 4, position=position).take(13).as_numpy_iterator())
    np.testing.assert_array_equal([b["input_ids"] for b in whole[17:]], [b["input_ids"] for b in rest])


def test_a_changed_byte_is_noticed_and_other_content_is_another_corpus(tmp_path):
    path, changed = tmp_path / "a.tfrecord", tmp_path / "changed" / "a.tfrecord"
    changed.parent.mkdir()
    write_records(path)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    changed.write_bytes(content)
    with pytest.raises(ValueError, match=r"a.tfrecord: a corrupted record at byte \d+"):
        Records([changed])
    write_records(changed, 41)
    whole = Records([path])
    assert Records([changed]).digest != whole.digest
    sizes = [len(record) for record in whole.read(np.arange(40))]
    assert whole.places[:, 1:].tolist() == [[sum(sizes[:n]) + 16 * n + 12, sizes[n]] for n in range(40)]


def test_truncated_and_foreign_files_are_refused(tmp_path):
    write_records(tmp_path / "a.tfrecord")
    (tmp_path / "b.tfrecord").write_bytes((tmp_path / "a.tfrecord").read_bytes()[:-7])
    with pytest.raises(ValueError, match=r"b.tfrecord: a truncated record at byte \d+; expected a whole TFRecord file"):
        Records([tmp_path / "b.tfrecord"])
    write_records(tmp_path / "long.tfrecord", sequence_length=32)
    with pytest.raises(ValueError, match="long.tfrecord: input_ids has 32 items, and 16 in .*; expected records"):
        Records([tmp_path / "a.tfrecord", tmp_path / "long.tfrecord"])
    write_records(tmp_path / "c.tfrecord", leave_out=["segment_ids"])
    with pytest.raises(ValueError, match="c.tfrecord: a record without segment_ids"):
        Records([tmp_path / "c.tfrecord"])
    mixed = (tmp_path / "a.tfrecord").read_bytes() + (tmp_path / "long.tfrecord").read_bytes()
    (tmp_path / "mixed.tfrecord").write_bytes(mixed)
    with pytest.raises(ValueError, match="mixed.tfrecord: its records differ in their features"):
        Records([tmp_path / "mixed.tfrecord"])
