"""Parts of a batch side by side, each computed by one core.

Where an operation's work is shared out among the cores they wait for each other after each, and all wait at once for
what the memory holds up. Where an operation has one thread, and as many run at once as there are cores, one lane
multiplies meanwhile: on two cores (AVX-512 at half width) a step of Tiny or Mini takes 7% less, of Base 3%. Each lane
has the gradients of all weights, and masks of its own in dropout.

In fine-tuning, whose batches are of many lengths, a MiniLM takes 9% less for 32 sequences of 24 or 54 tokens and as
long for 14; Base takes 6% less for 54 tokens and 6% more for 24 (two cores without AVX-512).
"""

import contextlib

from kbert import environment

MOST_CORES = 2  # with more it was not measured
FEWEST_TOKENS = 4096  # of what is computed at once: with 2,048 nothing is gained, with 512 a step of Base takes 4% more


def count(rows: int, length: int, recompute: bool) -> int:
    """In how many lanes this machine takes so many sequences of so many tokens, if it has no accelerator.

    In one where layers are computed twice: XLA compiles that step whole, which in two lanes takes 1.6 times as long.
    """
    cores = environment.cores()
    fit = cores <= MOST_CORES and rows % cores == 0 and rows * length >= FEWEST_TOKENS
    return cores if fit and not recompute else 1


def begin(lanes: int) -> None:
    """Gives this process so many lanes, but with an accelerator, and where TensorFlow has computed something before."""
    import tensorflow as tf

    if lanes > 1 and all(device.device_type == "CPU" for device in tf.config.list_physical_devices()):
        with contextlib.suppress(RuntimeError):  # threads are as they are
            tf.config.threading.set_intra_op_parallelism_threads(1)
            tf.config.threading.set_inter_op_parallelism_threads(lanes)


def there_are() -> int:
    """How many lanes this process has, by its threads."""
    import tensorflow as tf

    threading = tf.config.threading
    one_thread = threading.get_intra_op_parallelism_threads() == 1
    return max(1, threading.get_inter_op_parallelism_threads()) if one_thread else 1
