"""Where a run trains: what is told before it begins."""

import keras
import pytest
import tensorflow as tf

from kbert import devices, environment, fine_tuning, lanes
from kbert.training import distribution

FAST = "processor\t: 0\nvendor_id\t: x\nflags\t\t: fpu avx512f avx512_bf16\nbugs\t: y\n"
SLOW = FAST.replace(" avx512_bf16", "")
ARM = "processor\t: 0\nFeatures\t: fp asimd bf16\n"


@pytest.fixture
def on_cpus(tmp_path, monkeypatch):
    """Has CPUs alone, of which /proc/cpuinfo says what it is called with."""
    monkeypatch.setattr(distribution, "only_cpus", lambda: True)
    monkeypatch.setattr(devices, "CPU_INFO", tmp_path / "cpuinfo")
    return devices.CPU_INFO.write_text


@pytest.mark.parametrize(
    ("info", "precision", "lacks"),
    [
        (FAST, "bfloat16", False),
        (FAST.replace("avx512_bf16", "amx_bf16"), "bfloat16", False),
        (SLOW, "bfloat16", True),
        (FAST, "float16", True),
        (SLOW, "float32", False),
        (ARM, "bfloat16", False),  # nothing is known of it
    ],
)
def test_a_cpu_without_instructions_for_a_precision_is_known(info, precision, lacks, on_cpus):
    on_cpus(info)
    assert devices.lacks_instructions(precision) == lacks


def test_of_a_system_without_cpuinfo_and_of_a_gpu_nothing_is_said(on_cpus, monkeypatch):
    assert not devices.lacks_instructions("bfloat16")
    on_cpus(SLOW)
    monkeypatch.setattr(distribution, "only_cpus", lambda: False)
    assert not devices.lacks_instructions("bfloat16")


@pytest.mark.parametrize(("word", "begun"), [("one", [2]), ("mirrored", [])])
def test_one_device_alone_takes_batches_in_lanes(word, begun, monkeypatch):
    asked = []
    monkeypatch.setattr(lanes, "begin", asked.append)
    monkeypatch.setattr(distribution, "new_strategy", lambda *arguments: tf.distribute.get_strategy())
    devices.start(word, devices.DeviceRule(), in_lanes=2)
    assert asked == begun


@pytest.mark.parametrize(
    ("batch_sizes", "tokens", "rule", "accumulation", "asked"),
    [((32,), 128, {}, 1, 2), ((64, 32), 128, {}, 1, 2), ((32,), 64, {}, 1, 1), ((64, 33), 128, {}, 1, 1)]
    + [((32,), 128, {}, 2, 1), ((32,), 128, {"recompute": True}, 1, 1)],
)
def test_fine_tuning_is_in_lanes_where_every_batch_of_its_runs_can_be(
    batch_sizes, tokens, rule, accumulation, asked, monkeypatch
):
    found = []
    monkeypatch.setattr(environment, "cores", lambda: 2)
    monkeypatch.setattr(lanes, "begin", found.append)
    how = devices.DeviceRule(**rule), fine_tuning.OptimizerRule(accumulation=accumulation), tokens
    fine_tuning.start_runs("one", *how, (1e-4,), batch_sizes, (1,))
    assert found == [asked]


@pytest.mark.parametrize(
    ("info", "rule", "told"),
    [
        (SLOW, {"precision": "bfloat16"}, "no instructions for bfloat16"),
        (FAST, {"precision": "bfloat16", "recompute": True}, "bfloat16 with --devices.recompute is no faster"),
        (FAST, {"precision": "bfloat16"}, ""),
        (SLOW, {"recompute": True}, ""),
    ],
)
def test_what_is_no_faster_is_told_when_the_run_starts(info, rule, told, on_cpus, capsys):
    on_cpus(info)
    before = keras.config.dtype_policy()
    try:
        devices.start("one", devices.DeviceRule(**rule))
    finally:
        keras.config.set_dtype_policy(before)
    printed = " ".join(capsys.readouterr().out.split())
    assert told in printed if told else not printed
