import errno
import itertools
import os
import signal
import threading
import time
from pathlib import Path

import keras
import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf

from kbert.training import checkpointing
from kbert.training.checkpointing import Checkpoint, NonFiniteLoss, Stopped
from kbert.training.monitoring import Evaluate, EventFiles, Monitor
from kbert.whole_file import one_at_a_time, written_whole
from tests.training.logged import TIMES, events
from tests.training.tiny_run import batch, dataset, digest, new_model, new_optimizer, state

SETTINGS = {"steps": 100, "size": "tiny"}


@pytest.fixture(autouse=True)
def interruptible():
    """A test run that was started in the background ignores Ctrl-C, and so would what it tests."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


def fit(model, steps, *callbacks, start=0):
    model.fit(dataset(start), steps_per_epoch=steps, callbacks=list(callbacks), shuffle=False, verbose=0)


def files(output):
    return sorted(path.name for path in (Path(output) / "checkpoints").iterdir())


class AtStep(keras.callbacks.Callback):
    """Calls a function at the end of a step, before the checkpoint does what it does."""

    def __init__(self, step, function):
        super().__init__()
        self.step, self.function = step, function

    def on_train_batch_end(self, batch, logs=None):
        if self.model.steps_done == self.step:
            self.function()


def test_kill_9_at_any_moment_and_the_same_command_end_with_the_same_bits(runs):
    assert (runs["killed"] / "digest").read_text() == (runs["whole"] / "digest").read_text()
    assert files(runs["killed"]) == ["step-00000020.safetensors", "step-00000024.safetensors"]


def test_a_run_killed_and_resumed_has_each_step_in_its_logs_once_with_the_same_numbers(runs):
    whole, killed = events(runs["whole"] / "logs"), events(runs["killed"] / "logs")
    assert whole.keys() == killed.keys()
    assert {len(values) for values in killed.values()} == {1}
    for (run, tag, step), values in whole.items():
        if tag not in TIMES:
            assert killed[run, tag, step] == values, (run, tag, step)
    assert [step for run, tag, step in whole if (run, tag) == ("train", "learning/loss")] == list(range(3, 25, 3))
    assert [step for run, tag, step in whole if (run, tag) == ("held_out", "learning/loss")] == [6, 12, 18, 24]


def test_a_restored_model_goes_on_as_if_never_stopped(model, tmp_path):
    fit(model, 8, Checkpoint(tmp_path, SETTINGS, every=6))
    expected = digest(model, "seconds")

    (tmp_path / "checkpoints" / "step-00000008.safetensors").unlink()
    for variable in state(model).values():
        variable.assign(np.ones(variable.shape))
    checkpoint = Checkpoint(tmp_path, SETTINGS, every=4)
    assert checkpoint.restore(model) == 6
    assert model.data_position.numpy().tolist() == [0, 0, 6]
    fit(model, 2, checkpoint, start=6)
    assert digest(model, "seconds") == expected


def test_what_is_to_be_written_is_not_in_tensorflows_memory_and_stays_as_it_was(model):
    before, taken = {name: np.array(value) for name, value in state(model).items()}, checkpointing.snapshot(model)
    fit(model, 1)
    assert taken.keys() == before.keys() and all(value.flags.owndata for value in taken.values())
    for name, value in taken.items():
        np.testing.assert_array_equal(value, before[name])
    after = checkpointing.snapshot(model)
    assert any((after[name] != value).any() for name, value in taken.items())


def test_without_a_checkpoint_a_run_begins_at_step_0(model, tmp_path):
    assert Checkpoint(tmp_path, SETTINGS).restore(model) == 0


def test_the_last_two_checkpoints_are_kept(model, tmp_path):
    fit(model, 7, Checkpoint(tmp_path, SETTINGS, every=2))
    assert files(tmp_path) == ["step-00000006.safetensors", "step-00000007.safetensors"]


@pytest.mark.parametrize("damage", ["truncated", "altered", "empty"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(model, tmp_path, capsys, damage):
    fit(model, 4, Checkpoint(tmp_path, SETTINGS, every=2))
    newest = tmp_path / "checkpoints" / "step-00000004.safetensors"
    content = bytearray(newest.read_bytes())
    content[-100] ^= 1
    newest.write_bytes({"truncated": content[:-1], "altered": content, "empty": b""}[damage])

    assert Checkpoint(tmp_path, SETTINGS).restore(model) == 2
    assert model.steps_done == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert files(tmp_path) == ["step-00000002.safetensors", "step-00000004.damaged"]


def test_where_all_checkpoints_are_damaged_nothing_is_begun_anew_or_removed(model, tmp_path):
    fit(model, 4, Checkpoint(tmp_path, SETTINGS, every=2))
    before = files(tmp_path)
    for path in (tmp_path / "checkpoints").iterdir():
        path.write_bytes(b"")
    for _ in "12":
        with pytest.raises(
            ValueError, match=r"step-00000004.safetensors is damaged \(.*no checkpoint is whole; expected"
        ):
            Checkpoint(tmp_path, SETTINGS).restore(model)
        assert files(tmp_path) == before


@pytest.fixture
def written(tmp_path):
    """A small checkpoint: its path and its content."""
    path = tmp_path / "step-00000012.safetensors"
    values = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b/é": np.array([3, 4], np.int64)}
    values |= {"c": np.array(1, np.float32), "d": np.array(1, np.int8)}
    content = values, {"step": "12", "settings": checkpointing.digest(SETTINGS), "to_evaluate": "False"}
    checkpointing.write(path, *content)
    return path, content


def test_a_flipped_bit_anywhere_in_a_checkpoint_is_found_or_harmless(written):
    path, content = written
    whole, found = path.read_bytes(), 0
    assert same(checkpointing.read(path), content)
    for place, bit in itertools.product(range(len(whole)), (0, 5, 7)):  # all eight take 8 s
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
        try:
            assert same(checkpointing.read(path), content), (place, bit)
        except checkpointing.DamagedFile:
            found += 1
    assert found > 0.99 * 3 * len(whole)


@pytest.mark.parametrize(
    ("there", "damaged"),
    [
        ('"step":"12"', '"step":"16"'),
        ('"to_evaluate":"False"', '"to_evaluate":"True"'),
        ('"F32"', '"I32"'),
        ('"I64"', '"F64"'),
        ("[2,3]", "[3,2]"),
        ('"shape":[]', '"shape":[1]'),
        ('"a":', '"e":'),
        ('"I8"', '"F8_E4M3"'),  # for which safetensors raises an AttributeError
    ],
)
def test_a_header_that_says_something_else_is_damage(written, there, damaged):
    path, _ = written
    whole = path.read_bytes()
    length = 8 + int.from_bytes(whole[:8], "little")
    header = whole[8:length].decode().replace(there, damaged).encode()
    assert header != whole[8:length]
    path.write_bytes(len(header).to_bytes(8, "little") + header + whole[length:])
    with pytest.raises(checkpointing.DamagedFile):
        checkpointing.read(path)


def same(one, other) -> bool:
    """Whether two checkpoints are read alike: values with their types and shapes, and metadata."""
    described = [{k: (v.dtype.str, v.shape, v.tobytes()) for k, v in values.items()} for values, _ in (one, other)]
    return described[0] == described[1] and one[1] == other[1]


def test_a_checkpoint_that_cannot_be_opened_is_not_taken_for_damaged(model, tmp_path):
    folder = tmp_path / "checkpoints" / "step-00000002.safetensors"
    folder.mkdir(parents=True)
    with pytest.raises(OSError):
        Checkpoint(tmp_path, SETTINGS).restore(model)
    assert folder.exists()


def test_what_a_killed_run_left_half_written_is_removed(model, tmp_path):
    fit(model, 2, Checkpoint(tmp_path, SETTINGS, every=2))
    (tmp_path / "checkpoints" / "step-00000004.safetensors.tmp").write_bytes(b"half")
    assert Checkpoint(tmp_path, SETTINGS).restore(model) == 2
    assert files(tmp_path) == ["step-00000002.safetensors"]


def test_a_checkpoint_of_other_settings_is_refused(model, tmp_path):
    fit(model, 2, Checkpoint(tmp_path, SETTINGS, every=2))
    with pytest.raises(ValueError, match="step-00000002.safetensors belongs to a run with other settings"):
        Checkpoint(tmp_path, SETTINGS | {"steps": 200}).restore(model)


def test_a_checkpoint_of_another_model_is_refused_by_the_variables_name(model, tmp_path):
    fit(model, 2, Checkpoint(tmp_path, SETTINGS, every=2))
    wider = new_model(intermediate_size=48)
    wider.compile(new_optimizer(), jit_compile=False)
    before = digest(wider)
    with pytest.raises(ValueError, match=r"encoder_layer_1/intermediate/kernel has the shape \[16, 32\], exp"):
        Checkpoint(tmp_path, SETTINGS).restore(wider)
    deeper = new_model(num_hidden_layers=2)
    deeper.compile(new_optimizer(), jit_compile=False)
    with pytest.raises(ValueError, match="encoder_layer_2/attention_norm/beta is missing: another model's"):
        Checkpoint(tmp_path, SETTINGS).restore(deeper)
    assert digest(wider) == before


def test_a_loss_that_is_not_finite_stops_the_run_and_is_not_saved(model, tmp_path):
    def spoil():
        model.trainable_weights[0].assign(np.full(model.trainable_weights[0].shape, np.nan))

    with pytest.raises(NonFiniteLoss, match=r"loss is nan at step 4; the last good checkpoint is .*step-00000002"):
        fit(model, 9, AtStep(3, spoil), Checkpoint(tmp_path, SETTINGS, every=2))
    assert files(tmp_path) == ["step-00000002.safetensors"]


def test_of_several_steps_a_call_those_are_named_of_which_one_is_not_finite(tmp_path):
    several = new_model()
    several.compile(new_optimizer(), jit_compile=False, steps_per_execution=3)
    poisoned = [batch(number) for number in range(6)]
    poisoned[4]["masked_lm_weights"][0, 0] = np.nan
    data = tf.data.Dataset.from_tensor_slices({name: np.stack([one[name] for one in poisoned]) for name in poisoned[0]})
    with pytest.raises(NonFiniteLoss, match=r"loss is nan in the steps 4 to 6; the last good .*step-00000003"):
        several.fit(data, steps_per_epoch=6, callbacks=[Checkpoint(tmp_path, SETTINGS, every=3)], verbose=0)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_full_disk_that_a_library_meets_is_named_too(tmp_path, number):
    with pytest.raises(OSError) as caught, written_whole(tmp_path / "file"):
        raise RuntimeError(f"I/O error: {os.strerror(number)} (os error {number})")
    assert (caught.value.errno, caught.value.filename) == (number, str(tmp_path / "file"))


def test_weights_that_are_not_finite_are_not_saved(model, tmp_path):
    def spoil():
        model.trainable_weights[0].assign(np.full(model.trainable_weights[0].shape, np.inf))

    with pytest.raises(NonFiniteLoss, match=r"masked_lm_bias is not finite after step 4; the last good checkpoint is"):
        fit(model, 9, AtStep(4, spoil), Checkpoint(tmp_path, SETTINGS, every=2))
    assert files(tmp_path) == ["step-00000002.safetensors"]


def test_a_full_disk_is_named_and_the_last_checkpoint_stays(model, tmp_path, monkeypatch):
    def full(file):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fill():
        checkpoint.finish()
        monkeypatch.setattr(os, "fsync", full)

    checkpoint = Checkpoint(tmp_path, SETTINGS, every=2)
    with pytest.raises(OSError) as caught:
        fit(model, 9, AtStep(3, fill), checkpoint)
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename.endswith("step-00000004.safetensors")
    assert files(tmp_path) == ["step-00000002.safetensors"]
    assert Checkpoint(tmp_path, SETTINGS).restore(model) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_saves_and_says_how_to_go_on(model, tmp_path, number):
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt, match="stopped after step 3, .*; the same command goes on from there"):
        fit(model, 9, AtStep(3, lambda: os.kill(os.getpid(), number)), Checkpoint(tmp_path, SETTINGS, every=2))
    assert files(tmp_path) == ["step-00000002.safetensors", "step-00000003.safetensors"]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers


def test_a_signal_that_is_ignored_where_the_run_is_started_does_not_stop_it(model, tmp_path):
    former = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        fit(model, 3, AtStep(2, lambda: os.kill(os.getpid(), signal.SIGINT)), Checkpoint(tmp_path, SETTINGS))
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, former)
    assert model.steps_done == 3


def test_an_evaluation_that_a_signal_interrupts_is_made_when_the_run_goes_on(model, tmp_path):
    def callbacks(folder):
        checkpoint = Checkpoint(tmp_path / folder, SETTINGS, every=100)
        checkpoint.restore(model)
        written = EventFiles(tmp_path / folder / "logs", checkpoint)
        return [Monitor(written, {}, every=3), Evaluate(dataset(500, 540), written, every=2), checkpoint]

    beginning = [(variable, variable.numpy()) for variable in state(model).values()]
    fit(model, 7, *callbacks("whole"))
    expected = digest(model, "seconds")
    for variable, value in beginning:
        variable.assign(value)
    killer = AtStep(4, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Stopped, match="stopped after step 4"):
        fit(model, 7, killer, *callbacks("stopped"))
    assert ("held_out", "learning/loss", 4) not in events(tmp_path / "stopped" / "logs")
    again = callbacks("stopped")
    assert again[-1].to_evaluate
    fit(model, 3, *again, start=4)
    assert digest(model, "seconds") == expected
    whole, stopped = events(tmp_path / "whole" / "logs"), events(tmp_path / "stopped" / "logs")
    assert whole.keys() == stopped.keys() and ("held_out", "learning/loss", 4) in whole
    assert all(stopped[key] == values for key, values in whole.items() if key[1] not in TIMES)


def test_an_interrupt_while_saving_lets_the_save_end(model, tmp_path, monkeypatch):
    fsync = os.fsync

    def interrupted(file):
        os.kill(os.getpid(), signal.SIGINT)
        monkeypatch.setattr(os, "fsync", fsync)

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt, match="stopped after step [2-8]"):
        fit(model, 9, Checkpoint(tmp_path, SETTINGS, every=2, keep=9))
    assert files(tmp_path)[0] == "step-00000002.safetensors"
    assert Checkpoint(tmp_path, SETTINGS).restore(model) >= 2 and not list(tmp_path.glob("*/*.damaged"))


def test_what_is_being_written_when_a_run_fails_is_there_for_who_restores(model, tmp_path, monkeypatch):
    save_file = safetensors.numpy.save_file
    monkeypatch.setattr("safetensors.numpy.save_file", lambda *given: (time.sleep(0.5), save_file(*given)))
    with pytest.raises(ZeroDivisionError):
        fit(model, 9, AtStep(3, lambda: 1 / 0), Checkpoint(tmp_path, SETTINGS, every=2))
    assert Checkpoint(tmp_path, SETTINGS).restore(model) == 2


def test_a_second_interrupt_stops_at_once_and_loses_no_checkpoint(model, tmp_path, monkeypatch):
    def interrupt():
        os.kill(os.getpid(), signal.SIGINT)

    def twice():
        checkpoint.finish()
        monkeypatch.setattr("safetensors.numpy.save_file", lambda *_: time.sleep(0.5))
        interrupt()
        interrupt()

    checkpoint = Checkpoint(tmp_path, SETTINGS, every=2)
    with pytest.raises(KeyboardInterrupt) as caught:
        fit(model, 9, AtStep(3, twice), checkpoint)
    assert type(caught.value) is KeyboardInterrupt, "not after a save"
    assert files(tmp_path) == ["step-00000002.safetensors"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_of_two_that_change_a_folder_one_waits_for_the_other(tmp_path):
    told = []

    def second():
        with one_at_a_time(tmp_path):
            told.append("second")

    with one_at_a_time(tmp_path):
        waiting = threading.Thread(target=second)
        waiting.start()
        waiting.join(timeout=0.3)
        told.append("first")
    waiting.join(timeout=30)
    assert told == ["first", "second"]


def test_what_is_logged_after_the_last_step_stays_when_the_same_command_runs_again(model, tmp_path):
    checkpoint = Checkpoint(tmp_path, SETTINGS, every=3)
    files = EventFiles(tmp_path / "logs", checkpoint)
    fit(model, 6, Monitor(files, {}, every=4), checkpoint)
    logged = events(tmp_path / "logs")
    assert {step for _, _, step in logged} == {0, 4, 6}
    again = Checkpoint(tmp_path, SETTINGS, every=3)
    assert again.restore(model) == 6
    EventFiles(tmp_path / "logs", again)
    assert events(tmp_path / "logs") == logged
