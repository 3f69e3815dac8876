"""TensorFlow keeps freed memory once kbert is imported, unless the environment says otherwise."""

import os
import subprocess
import sys

from kbert.allocator import KEEPING

# Pages that the system hands out for ten sums of 64 MB each, after two.
COUNT = """
import resource, sys
{}
import tensorflow as tf
x = tf.zeros([2**24])
def pages():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for step in range(12):
    before = pages() if step == 2 else 0 if step == 0 else before
    tf.reduce_max(x + 1.0).numpy()
print(pages() - before)
"""
OF_ONE = 2**26 // os.sysconf("SC_PAGE_SIZE")


def pages(first_line: str, **environment: str) -> int:
    usual = {name: value for name, value in os.environ.items() if name not in KEEPING}
    run = subprocess.run(
        [sys.executable, "-c", COUNT.format(first_line)],
        env=usual | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(run.stdout.splitlines()[-1])


def test_what_a_step_frees_is_there_for_the_next():
    assert pages("import kbert") < OF_ONE


def test_the_environment_has_the_last_word():
    assert pages("import kbert", TF_CPU_ALLOCATOR_USE_BFC="false") > 5 * OF_ONE


def test_more_than_64_gb_may_be_kept():
    limit = f"import kbert, os; assert int(os.environ['{list(KEEPING)[1]}']) > 2**24"
    assert pages(limit) < OF_ONE
