"""Exit statuses and what a user reads, each in a process of its own as a shell would start it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent

SCRIPT = '''
import dataclasses, errno, gzip, json, os, sys
from pathlib import Path
from typing import Literal
from kbert.command_line import run
from kbert.config import BertConfig

@dataclasses.dataclass(frozen=True)
class Masking:
    rate: float = 0.15
    """Share of the tokens that are chosen."""

def main(
    corpus: list[Path] = [], size: Literal["tiny", "mini"] = "tiny", steps: int = 10, masking: Masking = Masking()
):
    """Pre-trains a BERT.

    Args:
        corpus: Files of text.
        size: How large.
        steps: How many steps.
        masking: How tokens are chosen.
    """
    BODY

if __name__ == "__main__":
    run(main, tensorflow=TENSORFLOW)
'''


@pytest.fixture
def recipe(tmp_path):
    def start(body, *flags, tensorflow=False, **environment):
        script = tmp_path / "pretrain.py"
        script.write_text(SCRIPT.replace("BODY", body).replace("TENSORFLOW", str(tensorflow)))
        variables = {**os.environ, "PYTHONPATH": str(REPOSITORY), **environment}
        command = [sys.executable, str(script), *flags]
        return subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True)

    return start


def one_line(result, status=2):
    assert result.returncode == status, result.stderr
    assert result.stderr.endswith("\n") and result.stderr.count("\n") == 1, result.stderr
    return result.stderr.removesuffix("\n")


def test_flags_reach_main_and_success_is_status_0(recipe):
    result = recipe("print(corpus, size, steps, masking.rate)", *"--corpus a b --steps 3 --masking.rate 0.2".split())
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == "[PosixPath('a'), PosixPath('b')] tiny 3 0.2\n"


def test_help_shows_the_docstring_the_flags_and_their_groups(recipe):
    result = recipe("pass", "--help")
    assert result.returncode == 0
    for text in ("Pre-trains a BERT.", "How many steps. (default: 10)", "masking options", "--masking.rate FLOAT"):
        assert text in result.stdout


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        ("--steps many", ("--steps", "'many'")),
        ("--size huge", ("--size", "'huge'", "'tiny', 'mini'")),
        ("--stesp 3", ("--stesp",)),
        ("--masking.rate x", ("--masking.rate", "'x'")),
        ("--steps", ("--steps",)),
    ],
)
def test_a_bad_flag_is_one_line_that_names_it(recipe, flags, parts):
    line = one_line(recipe("pass", *flags.split()))
    assert line.startswith("pretrain.py: ") and line.endswith("(pretrain.py --help lists the flags)")
    assert all(part in line for part in parts), line


def test_an_error_of_the_library_is_one_line(recipe):
    line = one_line(recipe("BertConfig(hidden_size=100, num_attention_heads=12)"))
    assert line == "pretrain.py: hidden_size 100 is not a multiple of num_attention_heads 12"


def test_a_value_error_of_the_recipe_is_one_line_whatever_its_breaks(recipe):
    assert one_line(recipe(r"raise ValueError('two\nlines')")) == "pretrain.py: two lines"


@pytest.mark.parametrize("read", ["open('no.txt')", "Path('no.txt').read_text()", "gzip.open('no.txt')"])
def test_a_missing_file_is_one_line_that_names_it(recipe, read):
    assert one_line(recipe(read)) == "pretrain.py: No such file or directory: no.txt"


@pytest.mark.parametrize(
    "failure",
    [
        "raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), 'runs/model')",
        "open('/dev/full', 'w').write('x' * 100_000)",
        "raise RuntimeError('runs/model; No space left on device')",
    ],
    ids=["errno", "a full device", "another library's error"],
)
def test_a_full_disk_is_one_line_whoever_notices(recipe, failure):
    assert "no space left on the device" in one_line(recipe(failure))


def test_ctrl_c_is_one_line_and_says_what_the_interruption_says(recipe):
    assert one_line(recipe("raise KeyboardInterrupt"), status=130) == "pretrain.py: interrupted"
    assert one_line(recipe("raise KeyboardInterrupt('saved at step 7')"), 130) == "pretrain.py: saved at step 7"
    of_training = "stop = KeyboardInterrupt('saved'); stop.status = 75; raise stop"
    assert one_line(recipe(of_training), status=75) == "pretrain.py: saved"


@pytest.mark.parametrize("bug", ["json.loads('{')", "{}['key']", "raise RuntimeError"])
def test_an_error_of_ours_keeps_its_traceback(recipe, bug):
    result = recipe(bug)
    assert result.returncode == 1
    assert "Traceback" in result.stderr


def test_a_run_with_tensorflow_shows_nothing_of_its_start(recipe):
    result = recipe("import tensorflow as tf; print(tf.constant(1).numpy() + 1)", tensorflow=True)
    assert (result.returncode, result.stdout, result.stderr) == (0, "2\n", "")


def test_a_tensorflow_that_cannot_be_imported_says_why(recipe, tmp_path):
    (tmp_path / "tensorflow.py").write_text("import os; os.write(2, b'a note'); raise ImportError('no library')")
    result = recipe("pass", tensorflow=True)
    assert result.returncode == 1
    assert "a note" in result.stderr and "ImportError: no library" in result.stderr


def test_keras_2_is_refused(recipe):
    result = recipe("pass", TF_USE_LEGACY_KERAS="1")
    assert result.returncode != 0
    assert result.stderr.splitlines()[-1].startswith("ImportError: TF_USE_LEGACY_KERAS")


def test_a_server_imports_tensorflow_alone_and_what_is_hidden_for_that_is_there_again():
    code = """import runpy, sys
runpy.run_path(sys.argv[1])["import_tensorflow_alone"]()
import kbert.serving.batching, kbert.serving.models, kbert.serving.server
print(sorted({"tensorflow", "keras", "jax", "sklearn", "matplotlib"} & set(sys.modules)))
import keras
print(keras.config.backend())
"""
    command = [sys.executable, "-c", code, str(Path(__file__).parents[1] / "recipes" / "serve.py")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "['tensorflow']\ntensorflow\n"), done.stderr


@pytest.mark.parametrize(
    ("recipe", "flags", "package"),
    [
        ("query", "--model a --text b", "orjson"),
        ("query", "--model a --text b", "httpx"),
        ("query", "--model a --text b --url grpc://localhost:1", "grpc"),
        ("serve", "", "uvicorn"),
    ],
)
def test_a_package_that_an_extra_brings_is_named(tmp_path, recipe, flags, package):
    (tmp_path / "saved_models").mkdir()
    file = Path(__file__).parents[1] / "recipes" / f"{recipe}.py"
    code = f"import runpy, sys; sys.modules[{package!r}] = None; sys.argv = [{str(file)!r}, *sys.argv[1:]]"
    command = [sys.executable, "-c", f"{code}; runpy.run_path(sys.argv[0], run_name='__main__')", *flags.split()]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    expected = f"{recipe}.py: {package} is not installed; pip install -e '.[serve]' brings it\n"
    assert (done.returncode, done.stderr) == (2, expected)


@pytest.mark.parametrize(
    ("body", "flags"),
    [("None", ["--help"]), ("print('a line')", []), ("[print(n) for n in range(100_000)]", [])],
    ids=["help", "less than is buffered", "more"],
)
def test_who_stops_reading_sees_nothing_of_it(tmp_path, body, flags):
    script = tmp_path / "pretrain.py"
    script.write_text(SCRIPT.replace("BODY", body).replace("TENSORFLOW", "False"))
    reader, writer = os.pipe()
    os.close(reader)
    variables = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": ""}
    command = [sys.executable, str(script), *flags]
    result = subprocess.run(command, env=variables, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (result.returncode, result.stderr) == (141, "")


def test_a_pipe_that_breaks_elsewhere_is_told(recipe):
    assert one_line(recipe("raise BrokenPipeError(32, 'Broken pipe')")) == "pretrain.py: [Errno 32] Broken pipe"
