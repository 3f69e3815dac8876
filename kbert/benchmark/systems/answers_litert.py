"""One raw text to probabilities of classes as kbert's server reads a SavedModel that brings LiteRT's."""

from worker import checked, repeated, serve


def prepare(job):
    from kbert.command_line import import_tensorflow

    import_tensorflow()
    import tensorflow as tf

    from kbert.serving.models import Version

    answer = Version(job["saved_model"]).signatures["serving_default"].call

    def answers():
        return answer({"text": job["texts"]})["probabilities"]

    return {"versions": f"tensorflow {tf.__version__}", "check": checked(answers())}, repeated(answers)


serve(prepare)
