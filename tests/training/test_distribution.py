"""The number of replicas and of processes changes nothing about what a run computes; what cannot be is refused."""

import functools
import itertools
import signal
import socket
import time

import numpy as np
import pytest
import tensorflow as tf

from kbert.training import distribution
from kbert.training.checkpointing import Stopped
from kbert.training.distribution import Cluster, WorkerLost, new_strategy, shared_out, workers
from tests.training import tiny_run
from tests.training.tiny_run import free_addresses

TOLERANCE = 1e-5


def run(start_process, folder, replicas=1, processes=1, **options):
    """What on_replicas reached on so many replicas, or in so many processes."""
    output = folder / f"{replicas} {processes} {options}.npz"
    clusters = [None]
    if processes > 1:
        addresses = free_addresses(processes)
        clusters = [Cluster(addresses, number) for number in range(processes)]
    running = [start_process(tiny_run.on_replicas, output, replicas, cluster, **options) for cluster in clusters]
    for process in running:
        process.join()
        assert process.exitcode == 0
    return dict(np.load(output))


def differences(one: dict, other: dict) -> dict:
    """The largest relative difference of losses, gradient norms, scores and variables."""
    found = {}
    for name in ("losses", "norms"):
        found[name] = np.max(np.abs(one[name] - other[name]) / np.abs(one[name]))
    scores = [name for name in one if name.startswith("held_out")]
    found["held out"] = np.max([abs(one[name] - other[name]) / max(abs(one[name]), 1e-3) for name in scores])
    # A variable by its length, as single elements may be noise (TRAPS 27).
    found["variables"] = np.max(
        [
            np.linalg.norm(one[name] - other[name]) / max(np.linalg.norm(one[name]), 1e-3 * one[name].size ** 0.5)
            for name in one
            if name.startswith("variable")
        ]
    )
    assert one["data_position"].tolist() == other["data_position"].tolist()
    return found


@pytest.fixture(scope="module")
def alone(start_process, tmp_path_factory):
    """One replica, by the number of steps per call: losses are of so many steps."""
    folder = tmp_path_factory.mktemp("alone")
    return functools.cache(lambda steps: run(start_process, folder, steps_per_execution=steps))


@pytest.mark.parametrize(
    ("replicas", "processes", "parts", "steps", "xla"),
    [(2, 1, 4, 10, False), (1, 2, 1, 10, False)],
)
def test_replicas_and_processes_train_as_one(start_process, tmp_path, alone, replicas, processes, parts, steps, xla):
    options = {"accumulation": parts, "steps_per_execution": steps, "jit_compile": xla}
    found = differences(alone(steps), run(start_process, tmp_path, replicas, processes, **options))
    assert np.max(list(found.values())) <= TOLERANCE, found  # NaN is not


def step_by_step(alone, steps: int) -> dict:
    """What one replica reached with a step a call, and norms as means of so many.

    Losses alone are of calls of so many steps: they are means by weights that only the model knows.
    """
    norms = alone(1)["norms"].reshape(-1, steps).mean(axis=1)
    return alone(1) | {"norms": norms, "losses": alone(steps)["losses"]}


@pytest.mark.long
def test_all_numbers_of_replicas_and_ways_to_run_them_train_as_one(start_process, tmp_path, alone, capsys):
    places, rows = [(1, 1), (2, 1), (4, 1), (1, 2)], []
    for (replicas, processes), parts, steps, xla in itertools.product(places, (1, 4), (1, 10), (False, True, "pieces")):
        options = {"accumulation": parts, "steps_per_execution": steps, "jit_compile": xla}
        found = differences(step_by_step(alone, steps), run(start_process, tmp_path, replicas, processes, **options))
        numbers = "  ".join(f"{name} {value:.1e}" for name, value in found.items())
        rows.append(f"{replicas} replicas, {processes} processes, in {parts}, {steps} a call, XLA {xla!s:5}: {numbers}")
        assert np.max(list(found.values())) <= TOLERANCE, rows[-1]
    with capsys.disabled():
        print("", *rows, sep="\n")


@pytest.mark.long
def test_replicas_skip_the_same_steps_of_float16_as_one(start_process, tmp_path):
    options = {"loss_scale": 2.0**20, "steps": 12}
    one, two = (run(start_process, tmp_path, replicas, **options) for replicas in (1, 2))
    skipped = one["norms"] == 0
    assert skipped[0] and not skipped[-1] and (skipped == (two["norms"] == 0)).all()
    for name in ("losses", "norms"):
        np.testing.assert_allclose(two[name], one[name], rtol=0.02)


DROPOUT = {"dropout": 0.5, "steps": 3, "jit_compile": False}


@pytest.mark.long
def test_replicas_draw_their_own_dropout(start_process, tmp_path):
    # Both of two replicas see what the one sees: with its masks they would have its loss.
    one = run(start_process, tmp_path, replicas=1, rows=[0, 1, 2, 3], **DROPOUT)
    two = run(start_process, tmp_path, replicas=2, rows=[0, 1, 2, 3] * 2, **DROPOUT)
    assert abs(one["losses"][0] - two["losses"][0]) > 1e-3


@pytest.mark.long
def test_replicas_draw_the_same_dropout_on_each_rerun(start_process, tmp_path):
    one, again = (run(start_process, tmp_path, replicas=2, **DROPOUT) for _ in "12")
    assert one["digest"] == again["digest"]


def test_a_batch_that_the_replicas_cannot_share_is_refused():
    class TwoReplicas:
        num_replicas_in_sync = 2

    with pytest.raises(ValueError, match="a batch has 5 sequences, which 2 replicas cannot share equally"):
        shared_out(tf.data.Dataset.from_tensors({"input_ids": np.zeros((5, 3), np.int32)}), TwoReplicas())


def test_one_replica_takes_batches_as_they_are():
    data = tiny_run.dataset(0, 2)
    assert shared_out(data, tf.distribute.get_strategy()) is data
    assert workers(tf.distribute.get_strategy()) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "TF_CONFIG is not JSON"),
        ("[]", 'TF_CONFIG is \\[\\], expected {"cluster"'),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "ps", "index": 0}}', 'expected {"cluster"'),
        (
            '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}',
            "this is worker 1, expected 0 to 0",
        ),
        ('{"cluster": {"worker": ["a"]}, "task": {"type": "worker", "index": 0}}', "'a' is no address, expected host"),
        (
            '{"cluster": {"worker": ["a:1", "a:1"]}, "task": {"type": "worker", "index": 0}}',
            "an address is there twice",
        ),
    ],
)
def test_a_cluster_that_is_none_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        Cluster.from_json(text)


def test_the_chief_comes_before_the_workers():
    text = '{"cluster": {"worker": ["a:1", "b:2"], "chief": ["c:3"]}, "task": {"type": "worker", "index": 1}}'
    assert Cluster.from_json(text) == Cluster(("c:3", "a:1", "b:2"), 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("two",), "the strategy is 'two', expected one of one, mirrored, multi_worker, tpu"),
        (("one", 2), "replicas is 2; expected a number of parts of the CPU, at least 1; the strategy is one"),
        (("mirrored",), "mirrored: there is no GPU; expected at least 2 replicas"),
        (("multi_worker",), "expected a cluster for multi_worker alone"),
        (("one", None, Cluster(("a:1",), 0)), "expected a cluster for multi_worker alone"),
        (("tpu",), "tpu: TensorFlow finds none"),
    ],
)
def test_a_place_that_is_not_there_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        new_strategy(*arguments)


def test_a_port_that_is_taken_is_named():
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=f"worker 0: port {port} of localhost: Address already in use"):
            new_strategy("multi_worker", None, Cluster((f"localhost:{port}", "localhost:1"), 0))


def in_two_processes(start_process, output, at=None, worker=1):
    """Exit statuses of two processes that train one run; `at` is for one of them."""
    addresses = free_addresses(2)
    running = [
        start_process(tiny_run.train, output, cluster=Cluster(addresses, number), at=at if number == worker else None)
        for number in range(2)
    ]
    for process in running:
        process.join(timeout=300)
    return [process.exitcode for process in running]


@pytest.fixture(scope="module")
def whole(start_process, tmp_path_factory):
    """A run of two processes that was never stopped."""
    output = tmp_path_factory.mktemp("whole")
    assert in_two_processes(start_process, output) == [0, 0]
    return output


@pytest.mark.parametrize(
    ("number", "worker"),
    [
        (signal.SIGKILL, 1),
        pytest.param(signal.SIGKILL, 0, marks=pytest.mark.long),
        pytest.param(signal.SIGTERM, 1, marks=pytest.mark.long),
        pytest.param(signal.SIGTERM, 0, marks=pytest.mark.long),
    ],
)
def test_a_signal_to_one_process_stops_both_and_they_go_on(start_process, tmp_path, whole, number, worker):
    begin = time.perf_counter()
    statuses = in_two_processes(start_process, tmp_path, at=(6, number), worker=worker)
    assert time.perf_counter() - begin < 300
    if number == signal.SIGTERM:
        assert statuses == [Stopped.status, Stopped.status]
        assert max(path.name for path in (tmp_path / "checkpoints").iterdir()) == "step-00000007.safetensors"
    else:
        assert statuses[worker] == -signal.SIGKILL and statuses[1 - worker] == 3, statuses
        assert "another worker is gone" in (tmp_path / "lost").read_text()
    assert in_two_processes(start_process, tmp_path) == [0, 0]
    assert (tmp_path / "digest").read_text() == (whole / "digest").read_text()


@pytest.mark.long
def test_a_signal_in_the_last_step_stops_both_too(start_process, tmp_path, whole):
    assert in_two_processes(start_process, tmp_path, at=(tiny_run.STEPS, signal.SIGTERM)) == [Stopped.status] * 2
    assert in_two_processes(start_process, tmp_path) == [0, 0]
    assert (tmp_path / "digest").read_text() == (whole / "digest").read_text()


@pytest.mark.long
def test_a_folder_that_the_processes_do_not_share_is_refused(start_process, tmp_path):
    addresses = free_addresses(2)
    running = [
        start_process(tiny_run.begin, tmp_path / f"run {number}", Cluster(addresses, number)) for number in range(2)
    ]
    for number, process in enumerate(running):
        process.join(timeout=300)
        told = (tmp_path / f"run {number}.txt").read_text()
        assert "what the folder of the run, which all have to see, holds is 'a run.json of" in told
        assert "and 'no run.json'" in told
    assert not (tmp_path / "run 1").exists()


def test_what_fails_in_making_a_batch_here_is_no_other_worker_s_loss(monkeypatch):
    monkeypatch.setattr(distribution, "workers", lambda strategy: 2)
    unknown = tf.errors.UnknownError(None, None, "FileNotFoundError: gone\nTraceback (most recent call last):\n  File")
    with pytest.raises(tf.errors.UnknownError), distribution.loss_is_told(None):
        raise unknown
    with pytest.raises(WorkerLost, match="another worker is gone, or this one failed"), distribution.loss_is_told(None):
        raise tf.errors.UnknownError(None, None, "Connection reset by peer")


@pytest.mark.long
def test_a_killed_run_goes_on_with_another_number_of_replicas(start_process, tmp_path):
    parted, alone = tmp_path / "parted", tmp_path / "alone"
    for output, replicas, at, status in (
        (parted, 2, (6, signal.SIGKILL), -signal.SIGKILL),
        (parted, 1, None, 0),
        (alone, 1, None, 0),
    ):
        process = start_process(tiny_run.train, output, replicas=replicas, at=at, dropout=0.0, peak=1e-4)
        process.join()
        assert process.exitcode == status
    reached, expected = (np.load(output / "weights.npz") for output in (parted, alone))
    for name in expected:
        distance = np.linalg.norm(reached[name] - expected[name])
        assert distance <= TOLERANCE * max(np.linalg.norm(expected[name]), 1e-3 * expected[name].size ** 0.5)
