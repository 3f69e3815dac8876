"""kbert's encoder on a batch of token ids, of whose padding it computes attention alone."""

from worker import checked, padded, repeated, serve


def prepare(job):
    from kbert.command_line import import_tensorflow

    import_tensorflow()
    import keras
    import tensorflow as tf

    import kbert
    from kbert.model.kernels import weights_final
    from kbert.text.packing import with_token_places

    bert = kbert.load(job["folder"])[0].bert
    batch = padded(job["rows"])
    features = {name: tf.constant(value, tf.int32) for name, value in batch.items()}
    features["segment_ids"] = tf.zeros_like(features["input_ids"])

    @tf.function(autograph=False, reduce_retracing=True, jit_compile=job["xla"])
    def encode(features):
        outputs = bert(features if job["xla"] else with_token_places(features))
        return outputs["sequence_output"], outputs["pooled_output"]

    about = {"versions": f"tensorflow {tf.__version__}, keras {keras.__version__}"}
    with weights_final(bert) as kept:  # as in a SavedModel
        about["check"] = checked(encode(features)[0][:, 0].numpy())

    def work(kept=kept):
        return [values.numpy() for values in encode(features)]

    return about, repeated(work)


serve(prepare)
