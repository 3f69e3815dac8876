"""How long a restarted pre-training takes to its first new step, early in a run and late: the same, if nothing is read
or counted again.

    python tests/parity/restart.py CORPUS HELD_OUT VOCABULARY [LATE [TRIALS]]

Trains a Tiny on short sequences with recipes/pretrain.py to step 10 and to step LATE (5,000), kills it there, and
starts it again TRIALS times (5) from each, in turn. The first new step has been when its checkpoint is there; prints
the seconds from the start of the process, their medians and the ratio of these.
"""

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RECIPE = Path(__file__).parents[2] / "recipes" / "pretrain.py"
EARLY = 10


def until(step: int, output: Path, command: list[str], checkpoint_every: int) -> float:
    """Seconds from the start of a run to the checkpoint of a step, at which the run is killed."""
    begin = time.perf_counter()
    words = [*command, "--output", output, "--run.checkpoint-every", checkpoint_every]
    with open(output.with_suffix(".log"), "w") as log:
        process = subprocess.Popen([str(word) for word in words], stdout=log, stderr=log)
    try:
        while not (output / "checkpoints" / f"step-{step:08d}.safetensors").exists():
            if process.poll() is not None:
                raise SystemExit(f"the run ended before step {step}: {Path(log.name).read_text()[-2000:]}")
            time.sleep(0.002)
        return time.perf_counter() - begin
    finally:
        process.kill()
        process.wait()


def keep_only(step: int, output: Path) -> None:
    """As a kill leaves a run at a step: with what came after it nowhere."""
    for path in (output / "checkpoints").iterdir():
        if path.name != f"step-{step:08d}.safetensors":
            path.unlink()


def main(corpus: str, held_out: str, vocabulary: str, late: int = 5000, trials: int = 5) -> None:
    command = [sys.executable, RECIPE, "--corpus", corpus, "--held-out", held_out, "--vocabulary", vocabulary]
    command += "--size tiny --sequence-length 16 --batch-size 8 --run.evaluation-instances 64".split()
    command += ["--steps", 2 * late, "--run.evaluate-every", 2 * late]
    taken = {EARLY: [], late: []}
    with tempfile.TemporaryDirectory() as folder:
        run, again = Path(folder, "run"), Path(folder, "again")
        for step in taken:
            until(step, run, command, checkpoint_every=step)
            keep_only(step, run)
            shutil.copytree(run, Path(folder, str(step)))
        for _ in range(trials):
            for step, seconds in taken.items():
                shutil.copytree(Path(folder, str(step)), again)
                seconds.append(until(step + 1, again, command, checkpoint_every=1))
                shutil.rmtree(again)
    for step, seconds in taken.items():
        each = " ".join(f"{one:.2f}" for one in seconds)
        print(f"restart at step {step}: {each} s, median {statistics.median(seconds):.2f}")
    early, at_late = (statistics.median(seconds) for seconds in taken.values())
    print(f"at step {late} a restart takes {at_late / early:.3f} times as long as at step {EARLY}")


if __name__ == "__main__":
    main(*sys.argv[1:4], *map(int, sys.argv[4:]))
