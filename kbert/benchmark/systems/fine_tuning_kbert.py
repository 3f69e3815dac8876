"""A recipe of kbert's, called as a user calls it, from the start of the process to the scores of dev."""

import json
import sys
import tempfile
import time
from pathlib import Path

from worker import run, serve


def prepare(job):
    command = [sys.executable, job["recipe"], "--model", job["folder"], *job["flags"]]
    for name in ("learning_rates", "batch_sizes", "epochs"):
        command += [f"--{name.replace('_', '-')}", str(job[name])]
    command += ["--devices.precision", job["precision"]]

    def work():
        with tempfile.TemporaryDirectory() as folder:
            begin = time.perf_counter()
            run([*command, "--output", f"{folder}/run"])
            seconds = time.perf_counter() - begin
            return {"seconds": seconds, "scores": json.loads(Path(folder, "run", "metrics.json").read_text())}

    return {"versions": "kbert"}, work


serve(prepare, in_children=True)
