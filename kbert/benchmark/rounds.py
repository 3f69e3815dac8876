"""Systems in turn: each prepares in a process of its own, then all work round after round, and medians are compared.

Alone on a busy machine a time means little; what was measured in turn within one run can be compared.
"""

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kbert.environment import ADDED

TOLERANCE = 1e-3  # of answers, between systems that compute the same
SYSTEMS = Path(__file__).parent / "systems"
# All systems are there at once: none may take a GPU's memory before it needs it.
GROWING = {"TF_FORCE_GPU_ALLOW_GROWTH": "true", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


class System(NamedTuple):
    """What takes part: a script of systems/, the interpreter that runs it, and the job it prepares for."""

    name: str
    script: str
    job: dict
    python: str = sys.executable
    environment: dict = {}


@dataclass
class Result:
    """What a system told: of itself, and one dict with `seconds` a round. reason: why it took no part, or stopped."""

    name: str
    about: dict = field(default_factory=dict)
    rounds: list[dict] = field(default_factory=list)
    peak_bytes: int | None = None
    reason: str | None = None

    @property
    def seconds(self) -> float:
        return statistics.median(one["seconds"] for one in self.rounds)


def in_turn(
    systems: Sequence[System],
    rounds: int,
    tell: Callable[[int, int], None] | None = None,
    limit: float = 3600.0,
    apart: bool = False,
) -> list[Result]:
    """What each system took, in the order given; the first to work changes from round to round.

    apart: each prepares anew for each round and ends after it, so that one alone is in memory. A system that lacks a
    library, fails, or takes more than `limit` seconds to prepare or for a round has a reason in its result and no later
    round. Raises ValueError where the first one does, as the others are compared with it.
    """
    results, processes = [Result(system.name) for system in systems], {}

    def begin(number: int) -> None:
        processes[number] = _Process(systems[number], limit)
        results[number].about.update(processes[number].answer())

    def work(number: int) -> None:
        results[number].rounds.append(processes[number].work())

    def end(number: int) -> None:
        peaks = results[number].peak_bytes, processes[number].end()
        results[number].peak_bytes = max((peak for peak in peaks if peak), default=None)
        processes.pop(number).kill()

    if apart:
        turns = [(done, begin, work, end) for done in range(rounds)]
    else:
        turns = [(0, begin), *((done, work) for done in range(rounds)), (0, end)]
    count = len(systems)
    try:
        for done, (first, *acts) in enumerate(turns):
            for place in range(count):
                number = (first + place) % count
                # The others are compared with the first one.
                if results[number].reason is None and results[0].reason is None:
                    try:
                        for act in acts:
                            act(number)
                    except _Ended as ended:
                        results[number].reason = str(ended)
                        processes.pop(number).kill()
                if tell:
                    tell(count * done + place + 1, count * len(turns))
    finally:
        for process in processes.values():
            process.kill()
    if results[0].reason:
        raise ValueError(f"{results[0].name}: {results[0].reason}")
    for result in results[1:]:
        if result.rounds and not _agree(result.about, results[0].about):
            result.rounds, result.reason = [], f"answers otherwise than {results[0].name}"
    return results


def _agree(about: dict, ours: dict) -> bool:
    """Whether two systems that tell of what they computed computed the same, to a thousandth."""
    if "check" not in about or "check" not in ours:
        return True
    return np.allclose(about["check"], ours["check"], rtol=TOLERANCE, atol=TOLERANCE)


class _Ended(Exception):
    """A system's process ended, or lacks what it needs."""


class _Process:
    """A system at work, which answers in lines of JSON (systems/worker.py)."""

    def __init__(self, system: System, limit: float):
        self.errors, self.limit, self.is_late = tempfile.TemporaryFile(), limit, False
        command = [system.python, str(SYSTEMS / f"{system.script}.py")]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self.errors}
        # A session of its own, as what it starts has to end with it, or it would work on beside the others.
        # Others multiply as they do by themselves; kbert's scripts import it, and so have what it adds.
        usual = {name: value for name, value in os.environ.items() if name not in ADDED}
        environment = usual | GROWING | system.environment
        self.process = subprocess.Popen(command, text=True, start_new_session=True, env=environment, **pipes)
        self.send(json.dumps(system.job))

    def answer(self) -> dict:
        late = threading.Timer(self.limit, self.give_up)
        late.start()
        line = self.process.stdout.readline()
        late.cancel()
        if self.is_late:
            raise _Ended(f"no answer in {self.limit:g} seconds")
        if not line:
            self.process.wait()
            self.errors.seek(0)
            lines = self.errors.read().decode(errors="replace").strip().splitlines()
            status = self.process.returncode
            # Of a Python that fails the last line tells why; who is killed may have said anything before.
            raise _Ended(lines[-1] if lines and status == 1 else f"ended with status {status}")
        told = json.loads(line)
        if "missing" in told:
            raise _Ended(f"{told['missing']} is not installed")
        return told

    def give_up(self) -> None:
        self.is_late = True
        self.kill()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()  # until its memory is free

    def send(self, line: str) -> None:
        try:
            self.process.stdin.write(f"{line}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # answer tells why

    def work(self) -> dict:
        self.send("")
        return self.answer()

    def end(self) -> int:
        """Bytes at its fullest."""
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass  # answer tells why
        return self.answer()["peak_bytes"]


def best_forms(result: Result) -> dict[str, tuple[str, float]]:
    """Of the result of systems/limit.py: each product's fastest form and its median seconds."""
    found = {}
    for name, forms in result.rounds[0]["forms"].items():
        medians = {form: statistics.median(one["forms"][name][form] for one in result.rounds) for form in forms}
        best = min(medians, key=medians.get)
        found[name] = best, medians[best]
    return found


def ratio(result: Result, ours: Result) -> float:
    """How many times as long as ours, in the median round."""
    pairs = zip(result.rounds, ours.rounds, strict=False)
    return statistics.median(one["seconds"] / other["seconds"] for one, other in pairs)


def first_with(modules: Sequence[str], interpreters: Sequence[str]) -> str:
    """The first of this and other interpreters that has all modules; this one where none has."""
    look = "import sys; from importlib.util import find_spec; sys.exit(not all(map(find_spec, sys.argv[1:])))"
    for python in (sys.executable, *interpreters):
        if subprocess.run([python, "-c", look, *modules]).returncode == 0:
            return python
    return sys.executable
