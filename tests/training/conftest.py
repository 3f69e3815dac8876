import functools
import random
import signal
import time

import pytest

from tests.training import tiny_run


@pytest.fixture(scope="session")
def runs(start_process, tmp_path_factory):
    """Two outputs of the same command, in two lanes: `whole` was never stopped, `killed` three times, by kill -9."""
    folder, train = tmp_path_factory.mktemp("runs"), functools.partial(tiny_run.train, in_lanes=2)
    whole, killed = folder / "whole", folder / "killed"
    never_stopped = start_process(train, whole)

    for moment, checkpoint in [("half written", 2), ("after renaming", 2)]:
        process = start_process(tiny_run.train_until_write, killed, moment, checkpoint, in_lanes=2)
        process.join()
        assert process.exitcode == -signal.SIGKILL, moment

    process = start_process(train, killed)
    while not (killed / "checkpoints" / "step-00000016.safetensors").exists() and process.is_alive():
        time.sleep(0.01)
    time.sleep(random.random() / 4)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL and not (killed / "digest").exists(), "killed after its end"
    newest = tiny_run.newest(killed)

    for process in (start_process(train, killed), never_stopped):
        process.join()
        assert process.exitcode == 0
    assert newest >= 16 and (killed / "begun-0").read_text() == str(newest + 1)
    return {"whole": whole, "killed": killed}


@pytest.fixture(scope="session")
def compiled():
    model = tiny_run.new_model()
    model.compile(tiny_run.new_optimizer(), jit_compile=False)
    beginning = [(variable, variable.numpy()) for variable in tiny_run.state(model).values()]
    return model, beginning


@pytest.fixture
def model(compiled):
    """A compiled model as new; compiled once for all tests."""
    model, beginning = compiled
    for variable, value in beginning:
        variable.assign(value)
    return model
