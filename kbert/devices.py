"""Where a recipe's run trains, as flags: on which devices, in how many processes, in what precision."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kbert import lanes

Strategy = Literal["one", "mirrored", "multi_worker", "tpu"]

CPU_INFO = Path("/proc/cpuinfo")  # of Linux; of x86 it has a line of what a core can do
INSTRUCTIONS_LINE = re.compile(r"^flags\s*:(.*)$", re.MULTILINE)
# Without these products take longer than in float32, on Zen 4 2.8 times in bfloat16.
INSTRUCTIONS = {"bfloat16": {"avx512_bf16", "amx_bf16"}, "float16": {"avx512_fp16", "amx_fp16"}}


@dataclass(frozen=True)
class DeviceRule:
    """On what the run trains; the results are the same, but for rounding and, in half precision, more of it.

    Args:
        replicas: parts of the CPU, each a replica, where there is no GPU.
        workers: host:port of each process, for multi_worker; the first is the chief, which writes. By default
            TF_CONFIG's.
        worker: number of this process among them, from 0.
        wait: seconds, for the other processes to come.
        precision: of products and what is between them; variables and sums are float32. bfloat16 is faster on GPUs
            and CPUs that have it, but on a CPU not with recompute.
        recompute: keep only the layers' outputs for the gradient and compute the rest twice: less memory, more time.
    """

    replicas: int | None = None
    workers: tuple[str, ...] = ()
    worker: int | None = None
    wait: float = 600.0
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    recompute: bool = False


def start(word: str, rule: DeviceRule, tf_config: str | None = None, in_lanes: int = 1):
    """Prepares TensorFlow and Keras for a run, before they compute anything; returns the tf.distribute.Strategy.

    tf_config: what the environment variable TF_CONFIG says. Where this process is not the chief it then prints nothing.
    in_lanes: parts of a batch that one device takes side by side (kbert/lanes.py).
    Raises ValueError for what does not go together or is not on this machine.
    """
    if bool(rule.workers) != (rule.worker is not None):
        raise ValueError(f"--devices.workers and --devices.worker {rule.worker}: expected both or none of them")
    if not 0 < rule.wait < float("inf"):
        raise ValueError(f"--devices.wait {rule.wait}: expected a number above 0")
    if rule.workers and word != "multi_worker":
        raise ValueError(f"--devices.workers with --strategy {word}: expected --strategy multi_worker")
    import keras

    from kbert import report
    from kbert.training.distribution import Cluster, is_chief, new_strategy, only_cpus

    if word == "one":
        lanes.begin(in_lanes)
    cluster = None
    if word == "multi_worker":
        if not rule.workers and not tf_config:
            raise ValueError("--strategy multi_worker: expected --devices.workers and --devices.worker, or TF_CONFIG")
        cluster = Cluster(rule.workers, rule.worker) if rule.workers else Cluster.from_json(tf_config)
        cluster.check("--devices.workers and --devices.worker" if rule.workers else "TF_CONFIG")
        report.CONSOLE.print(f"worker {cluster.number} of {len(cluster.workers)}; waiting for all of them")
    if rule.precision != "float32":
        keras.config.set_dtype_policy(f"mixed_{rule.precision}")
    strategy = new_strategy(word, rule.replicas, cluster, rule.wait)
    report.CONSOLE.quiet = not is_chief(strategy)
    if lacks_instructions(rule.precision):
        report.CONSOLE.print(f"this CPU has no instructions for {rule.precision}: float32 would be faster")
    elif rule.recompute and rule.precision != "float32" and only_cpus():
        report.CONSOLE.print(f"on a CPU {rule.precision} with --devices.recompute is no faster than float32")
    return strategy


def lacks_instructions(precision: str) -> bool:
    """Whether products are computed by CPUs that are known to have none for this precision."""
    from kbert.training.distribution import only_cpus

    if precision not in INSTRUCTIONS or not CPU_INFO.exists() or not only_cpus():
        return False
    line = INSTRUCTIONS_LINE.search(CPU_INFO.read_text())
    return line is not None and INSTRUCTIONS[precision].isdisjoint(line[1].split())


def check_batch(batch_size: int, strategy, accumulation: int = 1) -> None:
    """Raises ValueError for a batch that the replicas cannot share equally."""
    replicas = strategy.num_replicas_in_sync
    if batch_size < 1 or accumulation < 1:
        raise ValueError(f"--batch-size {batch_size} and accumulation {accumulation}: expected at least 1")
    if batch_size % (replicas * accumulation):
        of = f"{replicas} replica{'s' if replicas > 1 else ''} x accumulation {accumulation}"
        raise ValueError(f"--batch-size {batch_size}: {of} does not divide it")
