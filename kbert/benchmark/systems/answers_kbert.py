"""Raw texts to probabilities of classes through kbert's SavedModel."""

from worker import checked, repeated, serve


def prepare(job):
    from kbert.command_line import import_tensorflow

    import_tensorflow()
    import tensorflow as tf
    import tensorflow_text

    answer = tf.saved_model.load(job["saved_model"]).signatures["serving_default"]

    def answers():
        return answer(text=tf.constant(job["texts"]))["probabilities"].numpy()

    versions = f"tensorflow {tf.__version__}, tensorflow-text {tensorflow_text.__version__}"
    return {"versions": versions, "check": checked(answers())}, repeated(answers)


serve(prepare)
