"""Runs whose processes are killed at random moments end, each time, with the bits of one that was never stopped."""

import random
import signal
import time

import pytest

from kbert.training.distribution import Cluster
from tests.training import tiny_run
from tests.training.logged import TIMES, events
from tests.training.tiny_run import free_addresses


def begun(start_process, output, processes, write=None, **options) -> list:
    """The processes of a run, just started; write: the chief's moment and number for train_until_write."""
    for path in output.glob("begun-*"):
        path.unlink()
    addresses = free_addresses(processes)
    running = []
    for number in range(processes):
        given = options | {"cluster": Cluster(addresses, number) if processes > 1 else None}
        of_writing = (tiny_run.train_until_write, output, *write) if write and number == 0 else None
        running.append(start_process(*(of_writing or (tiny_run.train, output)), **given))
    return running


def ended(running) -> list[int]:
    for process in running:
        process.join(timeout=300)
        assert process.exitcode is not None, "a process that lost another goes on waiting"
    return [process.exitcode for process in running]


def kill_in_training(start_process, output, processes, **options):
    """Starts a run, and kills one of its processes at a random moment between its first step and its last."""
    running, victim = begun(start_process, output, processes, **options), random.randrange(processes)
    first = output / f"begun-{victim}"
    while not first.exists():
        assert all(process.is_alive() for process in running), "ended before its first step"
        time.sleep(0.005)
    calls = (tiny_run.STEPS - int(first.read_text())) // options.get("steps_per_execution", 1)
    time.sleep(random.uniform(0, 0.7) * tiny_run.PAUSE * calls)
    running[victim].kill()
    statuses = ended(running)
    assert statuses.pop(victim) == -signal.SIGKILL and 0 not in statuses


def kill_in_writing(start_process, output, processes, **options):
    """The same while a checkpoint is written, or just after."""
    before = tiny_run.newest(output)
    number = random.randint(1, (tiny_run.STEPS - before) // tiny_run.EVERY)
    moment = random.choice(["half written", "after renaming"])
    first, *others = ended(begun(start_process, output, processes, (moment, number), **options))
    # Where it is the last, the others have nothing to wait for.
    assert first == -signal.SIGKILL and (0 not in others or before + number * tiny_run.EVERY == tiny_run.STEPS)
    there = number if moment == "after renaming" else number - 1
    assert tiny_run.newest(output) == before + there * tiny_run.EVERY, (moment, number)


def go_on_until_done(start_process, output, processes=1, **options):
    """Starts a run, which is to begin after its newest checkpoint, and to end."""
    newest = tiny_run.newest(output)
    assert ended(begun(start_process, output, processes, **options)) == [0] * processes
    firsts = {path.read_text() for path in output.glob("begun-*")}
    assert firsts == ({str(newest + options.get("steps_per_execution", 1))} if newest < tiny_run.STEPS else set())


@pytest.mark.parametrize(
    ("runs", "processes", "options"),
    [
        (20, 1, {}),
        (20, 1, {"replicas": 2}),
        (20, 2, {}),
        (5, 1, {"jit_compile": True, "steps_per_execution": 2}),
        (5, 1, {"jit_compile": "pieces", "accumulation": 2}),
        (5, 1, {"jit_compile": "pieces", "in_lanes": 2}),
        (5, 1, {"jit_compile": True, "dtype": "mixed_float16"}),
        (5, 1, {"jit_compile": "pieces", "dtype": "mixed_bfloat16"}),
    ],
)
@pytest.mark.long
def test_runs_killed_at_any_moment_end_with_the_same_bits(start_process, tmp_path, runs, processes, options):
    """Each is killed twice: at a random moment of its training, and at a random checkpoint's writing."""
    whole, kills = tmp_path / "whole", [kill_in_training, kill_in_writing]
    go_on_until_done(start_process, whole, processes, **options)
    for number in range(runs):
        output = tmp_path / f"killed {number}"
        for kill in random.sample(kills, 2) if number else kills:
            if tiny_run.newest(output) < tiny_run.STEPS:  # there is something left to kill
                kill(start_process, output, processes, **options)
                assert not (output / "digest").exists()
        go_on_until_done(start_process, output, processes, **options)
        assert (output / "digest").read_text() == (whole / "digest").read_text()
        assert logged(output) == logged(whole)


def logged(output) -> dict:
    """What a run logged of its steps, each once, but for times."""
    found = events(output / "logs")
    assert {len(values) for values in found.values()} == {1}
    return {place: values for place, values in found.items() if place[1] not in TIMES}
