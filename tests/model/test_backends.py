"""The model and its optimizers under the backends that this run does not have."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

TESTS = pathlib.Path(__file__).parents[1]
GOLDEN_STEPS = ["steps_as_the_release_does", "is_torchs_adamw", "steps_as_published", "apply_clips_by_the_norm"]

DROPOUT = [
    "same_numbers_on_every_backend",
    "each_draw_and_each_layer",
    "a_restored_state_draws",
    "gradients_pass_where",
]


def run_tests(backend, *arguments):
    """What pytest prints, of tests that have to pass under this backend."""
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed: pip install {backend}")
    command = [sys.executable, "-m", "pytest", "-q", "--noconftest", "-p", "no:cacheprovider", *arguments]
    environment = os.environ | {"KERAS_BACKEND": backend, "JAX_PLATFORMS": "cpu"}
    environment["XLA_FLAGS"] = "--xla_backend_optimization_level=0"  # most of the time is JAX's compiler's
    result = subprocess.run(command, cwd=TESTS.parent, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-1000:]
    return result.stdout


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_outputs_gradients_and_training_are_the_same_under(backend):
    files = ("model/test_parity.py", "training/test_optimization.py", "model/test_dropout.py")
    chosen = " or ".join(["parity", *GOLDEN_STEPS, *DROPOUT])
    printed = run_tests(backend, "-k", chosen, *(str(TESTS / file) for file in files))
    assert f"{25 + len(GOLDEN_STEPS) + len(DROPOUT)} passed" in printed


def test_a_gpus_kernels_compute_what_the_layer_does():
    assert "16 passed" in run_tests("jax", str(TESTS / "model" / "gpu.py"))
