import errno
import fcntl
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import tensorflow as tf

from kbert.training import run_directory
from kbert.training.run_directory import begin_run, check_settings
from kbert.whole_file import one_at_a_time

SETTINGS = {"steps": 100, "size": "tiny"}


@pytest.mark.parametrize("name", ["model.weights.h5", "bert_config.json", "checkpoints"])
def test_a_folder_with_a_model_of_unknown_settings_is_refused_and_left_as_it_was(tmp_path, name):
    (tmp_path / name).write_text("precious")
    with pytest.raises(ValueError, match=f"has a {name} that no run.json tells of; give another output folder"):
        check_settings(tmp_path, {"size": "tiny"})
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_an_output_folder_takes_one_runs_settings(tmp_path):
    check_settings(tmp_path / "run", {"size": "tiny", "corpus": ("a", "b"), "steps": 10})
    check_settings(tmp_path / "run", {"size": "tiny", "corpus": ("a", "b"), "steps": 10})
    with pytest.raises(ValueError, match=r"run.json .*: size is 'tiny' there and 'mini' now; seed is 'not set'"):
        check_settings(tmp_path / "run", {"size": "mini", "corpus": ("a", "b"), "steps": 10, "seed": 1})
    (tmp_path / "run" / "run.json").write_text("{")
    with pytest.raises(ValueError, match="run.json: not JSON"):
        check_settings(tmp_path / "run", {"size": "tiny"})


def test_a_run_goes_on_in_other_parts_but_not_with_other_settings(tmp_path):
    begin_run(tmp_path, SETTINGS, tf.distribute.get_strategy(), {"accumulation": 1})
    begin_run(tmp_path, SETTINGS, tf.distribute.get_strategy(), {"accumulation": 4})
    assert "accumulation" not in (tmp_path / "run.json").read_text()
    with pytest.raises(ValueError, match="holds another run's settings: steps is 100 there and 200 now"):
        begin_run(tmp_path, SETTINGS | {"steps": 200}, tf.distribute.get_strategy(), {"accumulation": 4})
    run_directory.CLAIMED.pop(tmp_path / "run.json").close()


def test_a_run_is_one_processs(tmp_path):
    begin_run(tmp_path, SETTINGS, tf.distribute.get_strategy())
    begin_run(tmp_path, SETTINGS, tf.distribute.get_strategy())
    run_directory.CLAIMED.pop(tmp_path / "run.json").close()
    with open(tmp_path / "run.json", "rb") as of_another:  # which a lock takes for another process's
        fcntl.flock(of_another, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="another process trains there; wait for it, or give another folder"):
            begin_run(tmp_path, SETTINGS, tf.distribute.get_strategy())
    begin_run(tmp_path, SETTINGS, tf.distribute.get_strategy())
    run_directory.CLAIMED.pop(tmp_path / "run.json").close()


def test_of_two_that_begin_at_once_one_waits_until_the_other_owns_the_folder(tmp_path):
    with ThreadPoolExecutor() as threads, one_at_a_time(tmp_path):
        beginning = threads.submit(begin_run, tmp_path, SETTINGS, tf.distribute.get_strategy())
        with pytest.raises(TimeoutError):
            beginning.result(timeout=0.5)
        assert not (tmp_path / "run.json").exists()
        run_directory.check_settings(tmp_path, SETTINGS)
        of_another = open(tmp_path / "run.json", "rb")
        fcntl.flock(of_another, fcntl.LOCK_EX)
    with of_another, pytest.raises(ValueError, match="another process trains there"):
        beginning.result()


def test_where_files_cannot_be_locked_that_is_told_and_a_run_begins(tmp_path, monkeypatch, capfd):
    def no_locks(file, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    begin_run(tmp_path, SETTINGS, tf.distribute.get_strategy())
    assert f"{tmp_path}/run.json: cannot be locked here (No locks available)" in capfd.readouterr().err
    run_directory.CLAIMED.pop(tmp_path / "run.json").close()
