"""kbert's encoder on the token ids of one text, as LiteRT computes it."""

from pathlib import Path

from worker import checked, repeated, serve


def prepare(job):
    from kbert.command_line import import_tensorflow

    import_tensorflow()
    import numpy as np
    import tensorflow as tf

    import kbert
    from kbert.model.kernels import weights_final
    from kbert.serving.litert import OneText, converted, write

    bert = kbert.load(job["folder"])[0].bert

    def encode(input_ids, segment_ids):
        return bert({"input_ids": input_ids, "segment_ids": segment_ids, "input_mask": tf.ones_like(input_ids)})

    file = Path(job["folder"]) / "encoder.tflite"
    with weights_final(bert):  # as in a SavedModel
        write(file, converted(encode))
    call, ids = OneText(file), np.array(job["rows"], np.int32)
    segments = np.zeros_like(ids)
    about = {"versions": f"tensorflow {tf.__version__}", "check": checked(call(ids, segments)["sequence_output"][:, 0])}
    return about, repeated(lambda: call(ids, segments))


serve(prepare)
