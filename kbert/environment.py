"""The process that kbert is in: its cores, and what is asked of TensorFlow through the environment.

That is products by oneDNN on every x86 CPU. By itself TensorFlow takes it only for CPUs with AVX-512's VNNI or what
came after it. On others products are Eigen's, and the memory that a step frees is given back to the system, to be had
again page by page, each zeroed: a step of Tiny takes 1,090 ms instead of 850.
"""

import os
import platform

WANTED = {"TF_ENABLE_ONEDNN_OPTS": "1"} if platform.machine() in ("x86_64", "AMD64") else {}
ADDED = {name: value for name, value in WANTED.items() if name not in os.environ}  # what the environment says stays
os.environ.update(ADDED)  # TensorFlow reads it when it is imported


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
