"""kbert's encoder on the token ids of one text, as LiteRT computes it."""

from pathlib import Path

from worker import checked, repeated, serve


def prepare(job):
    from kbert.command_line import import_tensorflow

    import_tensorflow()
    import numpy as np
    import tensorflow as tf

    from kbert.serving.litert import LiteRT

    call, ids = LiteRT(Path(job["litert"])), np.array(job["rows"], np.int32)
    segments = np.zeros_like(ids)
    about = {"versions": f"tensorflow {tf.__version__}", "check": checked(call(ids, segments)["sequence_output"][:, 0])}
    return about, repeated(lambda: call(ids, segments))


serve(prepare)
