"""Where a run trains: what is told before it begins."""

import pytest

from kbert import devices

FAST = "processor : 0\nvendor_id : x\nflags\t\t: fpu avx512f avx512_bf16\nbugs : y\n"
SLOW = FAST.replace(" avx512_bf16", "")
ARM = "processor : 0\nFeatures\t: fp asimd bf16\n"


@pytest.mark.parametrize(
    "info, precision, lacks",
    [
        (FAST, "bfloat16", False),
        (SLOW, "bfloat16", True),
        (ARM, "bfloat16", False),
        (FAST, "float16", True),
        (SLOW, "float32", False),
        ("processor : 0\n", "bfloat16", False),  # nothing is known
        (None, "bfloat16", False),
    ],
)
def test_a_cpu_without_instructions_for_a_precision_is_known(info, precision, lacks, tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "CPU_INFO", tmp_path / "cpuinfo")
    if info is not None:
        devices.CPU_INFO.write_text(info)
    assert devices.lacks_instructions(precision) == lacks


def test_it_is_told_when_the_run_starts(tmp_path, monkeypatch, capsys):
    import keras

    monkeypatch.setattr(devices, "CPU_INFO", tmp_path / "cpuinfo")
    devices.CPU_INFO.write_text(SLOW)
    before = keras.config.dtype_policy()
    try:
        devices.start("one", devices.DeviceRule(precision="bfloat16"))
    finally:
        keras.config.set_dtype_policy(before)
    assert "no instructions for bfloat16" in capsys.readouterr().out
