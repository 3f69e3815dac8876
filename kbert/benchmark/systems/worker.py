"""A system's side of a benchmark: it prepares once, then works a round for each line that it reads.

Of the standard library alone, as a system's interpreter need not have kbert's.
"""

import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path


def serve(prepare: Callable[[dict], tuple[dict, Callable[[], dict]]], in_children: bool = False) -> None:
    """Reads a job, a line of JSON, and answers in such lines: of the system, of each round, and its peak memory.

    prepare: the job to what there is to tell and the work of a round. A library that is not there is told as missing.
    in_children: a round is another process, whose memory counts.
    """
    # What libraries print must not come between.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def tell(answer: dict) -> None:
        answers.write(json.dumps(answer) + "\n")

    try:
        about, work = prepare(json.loads(sys.stdin.readline()))
    except ImportError as error:
        tell({"missing": error.name or str(error)})
        return
    tell(about)
    for _ in sys.stdin:
        tell(work())
    tell({"peak_bytes": (peak_of_children if in_children else peak_bytes)()})


def peak_bytes() -> int | None:
    status = Path("/proc/self/status")
    found = re.search(r"VmHWM:\s*(\d+) kB", status.read_text()) if status.exists() else None
    return 1024 * int(found[1]) if found else None


def peak_of_children() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss


def run(command: list[str], job: dict | None = None) -> str:
    """What a process of its own prints, given a job as JSON. Raises RuntimeError with the last line of its errors."""
    done = subprocess.run(command, input=json.dumps(job), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1])
    return done.stdout


# In rounds of one second, what others left running tells: those of a step of Tiny lay between 285 and 358 ms, in
# rounds of three between 278 and 293.
SECONDS_OF_ROUND = 3.0


def repeated(
    work: Callable[[], object],
    least: float = SECONDS_OF_ROUND,
    wait: Callable[[object], object] = lambda result: result,
) -> Callable[[], dict]:
    """A round of as many repetitions as take `least` seconds, told in seconds of one; made after two that warm up.

    wait: for what a repetition gave, where a device may still be at work on it; called for the last of a round alone,
    as trainers do not wait for each step.
    """
    work()
    wait(work())
    begin = time.perf_counter()
    wait(work())
    times = max(1, round(least / (time.perf_counter() - begin)))

    def round_of_work() -> dict:
        begin = time.perf_counter()
        for _ in range(times):
            result = work()
        wait(result)
        return {"seconds": (time.perf_counter() - begin) / times}

    return round_of_work


def padded(rows: list[list[int]]) -> dict:
    """Token ids of any lengths as a batch of the longest: input_ids and input_mask, numpy int64 [B, S]."""
    import numpy as np

    lengths = [len(row) for row in rows]
    mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int64)
    ids = np.zeros_like(mask)
    ids[mask == 1] = np.concatenate(rows)
    return {"input_ids": ids, "input_mask": mask}


def checked(vectors) -> list:
    """A few numbers of each row's first vector, [B, H], by which systems are compared."""
    return [[float(value) for value in row[:4]] for row in vectors]
