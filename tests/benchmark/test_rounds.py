"""Systems work in turn in processes of their own; who cannot is named; medians and ratios are those of the rounds."""

import json
import os
import runpy
import sys
import time
from unittest.mock import Mock

import numpy as np
import pytest

from kbert.benchmark import jobs
from kbert.benchmark.rounds import SYSTEMS, Result, System, best_forms, first_with, in_turn, ratio
from kbert.benchmark.tables import Work, tell
from kbert.config import BertConfig
from kbert.training import planning

FAKE = """
import fcntl
import os
import subprocess
import threading
import time
from worker import serve

def prepare(job):
    if "alone" in job:
        fcntl.flock(os.open(job["alone"], os.O_CREAT), fcntl.LOCK_EX | fcntl.LOCK_NB)  # until this process ends
    if "import" in job:
        __import__(job["import"])
    print("a library's greeting")
    count = 0

    def work():
        nonlocal count
        count += 1
        with open(job["log"], "a") as log:
            log.write(job["name"])
        if "starts" in job:
            with open(job["starts"], "w") as told:
                told.write(str(subprocess.Popen(["sleep", "600"]).pid))
        time.sleep(job.get("sleeps", 0))
        if "ends" in job:
            threading.Timer(1, os._exit, [7]).start()
        if job.get("fails") == count:
            raise RuntimeError("out of luck")
        return {"seconds": job["seconds"] * count}

    return {"check": job["check"], "environment": sorted(os.environ)}, work

serve(prepare)
"""


@pytest.fixture
def system(tmp_path, monkeypatch):
    (tmp_path / "fake.py").write_text(FAKE)
    monkeypatch.setenv("PYTHONPATH", str(SYSTEMS))  # where worker is

    def new(name, seconds=1.0, **job):
        job = {"name": name, "seconds": seconds, "log": str(tmp_path / "log"), "check": [[1.0, 2.0]], **job}
        return System(name, str(tmp_path / "fake"), job)

    return new


def test_each_round_begins_with_another_system(system, tmp_path):
    done = []
    results = in_turn([system("a"), system("b", 2.0), system("c")], 3, lambda *place: done.append(place))
    assert (tmp_path / "log").read_text() == "abc" + "bca" + "cab"
    assert [one["seconds"] for one in results[1].rounds] == [2.0, 4.0, 6.0]
    assert results[1].seconds == 4.0 and ratio(results[1], results[0]) == 2.0
    assert all(result.peak_bytes > 1e6 and result.reason is None for result in results)
    assert done[-1] == (15, 15)  # with their begin and end


def test_apart_each_begins_anew_for_each_round_and_has_ended_before_the_next(system, tmp_path):
    done = []
    alone = {"alone": str(tmp_path / "alone")}
    systems = [system("a", **alone), system("b", 2.0, fails=1, **alone), system("c", **alone)]
    results = in_turn(systems, 3, lambda *place: done.append(place), apart=True)
    assert (tmp_path / "log").read_text() == "abc" + "ca" + "ca"
    assert [[one["seconds"] for one in result.rounds] for result in results] == [[1.0] * 3, [], [1.0] * 3]
    assert results[0].peak_bytes > 1e6 and results[1].reason == "RuntimeError: out of luck"
    assert done[-1] == (9, 9)


def test_what_kbert_adds_to_the_environment_is_not_for_others(system, monkeypatch):
    for name in ("ADDED_BY_KBERT", "SET_BY_USER"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setattr("kbert.benchmark.rounds.ADDED", {"ADDED_BY_KBERT": "1"})
    (result,) = in_turn([system("a")], 1)
    told = result.about["environment"]
    assert "SET_BY_USER" in told and "ADDED_BY_KBERT" not in told


def test_who_lacks_a_library_or_fails_is_named_and_the_others_go_on(system):
    systems = [system("a"), system("b", **{"import": "no_such_library"}), system("c", fails=2)]
    ours, missing, failing = in_turn(systems, 3)
    assert len(ours.rounds) == 3
    assert missing.rounds == [] and missing.reason == "no_such_library is not installed"
    assert len(failing.rounds) == 1 and failing.reason == "RuntimeError: out of luck"


def test_who_does_not_answer_or_ends_after_its_last_round_is_named(system):
    ours, ended, slow = in_turn([system("a"), system("b", ends=True), system("c", sleeps=60)], 1, limit=10)
    assert len(ours.rounds) == 1 and ours.peak_bytes and slow.reason == "no answer in 10 seconds"
    assert len(ended.rounds) == 1 and ended.peak_bytes is None and ended.reason == "ended with status 7"


def test_what_a_system_started_ends_with_it_and_without_the_first_no_other_works_on(system, tmp_path):
    with pytest.raises(ValueError, match="a: no answer in 5 seconds"):
        in_turn([system("a", starts=str(tmp_path / "started"), sleeps=60), system("b")], 20, limit=5)
    child = int((tmp_path / "started").read_text())
    with pytest.raises(ProcessLookupError):
        for _ in range(50):  # until its end is seen
            os.kill(child, 0)
            time.sleep(0.1)
    assert (tmp_path / "log").read_text().count("b") <= 1


def test_a_job_may_be_large(system):
    assert in_turn([system("a", rows=[[7] * 1000] * 1000)], 1)[0].rounds


def test_without_the_first_there_is_nothing_to_compare(system):
    with pytest.raises(ValueError, match="a: no_such_library is not installed"):
        in_turn([system("a", **{"import": "no_such_library"}), system("b")], 1)


def test_who_computes_something_else_is_not_compared(system):
    _, same, other = in_turn([system("a"), system("b", check=[[1.0001, 2.0]]), system("c", check=[[1.1, 2.0]])], 1)
    assert same.rounds and not other.rounds and other.reason == "answers otherwise than a"


def test_the_interpreter_is_the_first_that_has_the_library(tmp_path):
    other = tmp_path / "python"
    other.write_text(f'#!/bin/sh\nexec {sys.executable} -c "" \n')  # which says yes to all
    other.chmod(0o755)
    assert first_with(["json"], [str(other)]) == sys.executable
    assert first_with(["no_such_library"], [str(other)]) == str(other)
    assert first_with(["no_such_library"], []) == sys.executable


def test_products_have_the_operations_of_the_step_and_of_the_encoder():
    setting = planning.Setting(BertConfig.from_size("mini"), 4, 32, 5)

    def operations(products):
        return sum(2 * one["times"] * one["batch"] * one["m"] * one["n"] * one["k"] for one in products)

    total = sum(sum(both) for both in planning.operations(setting).values())
    assert operations(jobs.products_of_step(setting)) == total
    encoder = jobs.products_of_encoder(setting.config, [32] * 4)
    assert operations(encoder) == jobs.operations_of_encoder(setting.config, [32] * 4)
    scores = next(one for one in encoder if one["name"] == "attention scores")
    assert (scores["times"], scores["batch"], scores["k"]) == (4, 4 * 4, 64)
    of_cls = jobs.products_of_encoder(setting.config, [32] * 4, read=1)
    assert operations(of_cls) == jobs.operations_of_encoder(setting.config, [32] * 4, read=1) < operations(encoder)
    tuning = jobs.products_of_fine_tuning(setting.config, 4, [30, 34, 32], steps=7, read=1)
    assert operations(tuning) == 7 * 3 * operations(of_cls)


def test_a_share_is_of_the_limit_and_the_form_is_the_fastest_in_the_median(tmp_path, capsys):
    ours = Result("kbert", {"versions": "1"}, [{"seconds": 20.0}, {"seconds": 40.0}, {"seconds": 30.0}], 5 * 10**6)
    peer = Result("peer", {}, [{"seconds": 60.0}] * 3, 10**6)
    forms = [{"one": 1.0, "other": 2.0}, {"one": 5.0, "other": 2.0}, {"one": 5.0, "other": 2.0}]
    limit = Result("limit", {}, [{"seconds": 15.0, "forms": {"product": form}} for form in forms])
    assert best_forms(limit) == {"product": ("other", 2.0)}
    gone = Result("gone", reason="it is not installed")
    stopped = Result("stopped", {}, [{"seconds": 1.0}], reason="out of memory")
    tell(Work("a step", 3_000, 60 * 10**9), [ours, peer, limit, gone, stopped], str(tmp_path))
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert (
        metrics["kbert, tokens/s"] == 100 and metrics["kbert, GFLOP/s"] == 2 and metrics["kbert, of the limit"] == 0.5
    )
    assert metrics["peer, times kbert's"] == 2.0 and metrics["peer, peak MB"] == 1.0
    out = capsys.readouterr().out
    assert all(milliseconds in out for milliseconds in ("30,000", "60,000", "15,000"))
    assert "gone: it is not installed" in out and "stopped: out of memory" in out
    assert not [name for name in metrics if name.startswith(("gone", "stopped"))]
    lines = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    assert [line["name"] for line in lines] == ["kbert", "peer", "limit", "gone", "stopped"]
    assert lines[0]["rounds"][1] == {"seconds": 40.0}


def test_a_text_is_cut_for_kbert_where_it_is_for_the_peers(tmp_path):
    model, _ = jobs.write_model(tmp_path, None, "tiny", labels=2, sequence_length=16)
    assert model.config.trained_length == 16


def test_a_random_model_has_biases_and_scales_as_a_trained_one_has(tmp_path):
    model, _ = jobs.write_model(tmp_path, None, "tiny")
    assert all(np.unique(weight).size > 1 for weight in model.trainable_weights)


def test_a_round_waits_for_its_last_repetition_alone():
    repeated = runpy.run_path(str(SYSTEMS / "worker.py"))["repeated"]
    done, waited = [], []
    repeated.__globals__["time"] = Mock(perf_counter=lambda: 0.25 * len(done))  # a repetition takes a quarter

    def work():
        done.append(len(done))
        return done[-1]

    a_round = repeated(work, least=1.0, wait=waited.append)
    assert done == [0, 1, 2] and waited == [1, 2]
    assert a_round() == {"seconds": 0.25}
    assert done == list(range(7)) and waited == [1, 2, 6]
