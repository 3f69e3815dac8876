"""On x86 CPUs TensorFlow multiplies by oneDNN and keeps freed memory once kbert is imported, unless told otherwise."""

import os
import subprocess
import sys

import pytest

from kbert.environment import WANTED

pytestmark = pytest.mark.skipif(not WANTED, reason="no x86 CPU")

VARIABLE = "TF_ENABLE_ONEDNN_OPTS"
# Pages that the system hands out for ten sums of 64 MB each, after two.
COUNT_PAGES = """
import resource
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
# Whether the graph that TensorFlow makes of a product has oneDNN's.
FIND_ONEDNN = """
import tensorflow as tf
from tensorflow.python.eager import context
context.context().enable_run_metadata()
tf.function(tf.matmul)(tf.ones([64, 64]), tf.ones([64, 64]))
print(int("_Mkl" in str(context.context().export_run_metadata())))
"""


def told(code: str, **environment: str) -> int:
    value = environment.get(VARIABLE, "1")  # which some CPUs have oneDNN without
    usual = {name: value for name, value in os.environ.items() if name not in WANTED}
    run = subprocess.run(
        [sys.executable, "-c", f"import kbert, os; assert os.environ['{VARIABLE}'] == '{value}'{code}"],
        env=usual | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(run.stdout.splitlines()[-1])


def test_products_are_those_of_onednn():
    assert told(FIND_ONEDNN)


def test_what_a_step_frees_is_there_for_the_next():
    assert told(COUNT_PAGES) < OF_ONE


def test_the_environment_has_the_last_word():
    assert not told(FIND_ONEDNN, TF_ENABLE_ONEDNN_OPTS="0")
