"""Where a run trains: what is told before it begins."""

import keras
import pytest

from kbert import devices
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
