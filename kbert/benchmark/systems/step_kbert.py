"""A step of kbert's pre-training, as pretrain.py takes it."""

from worker import repeated, serve


def prepare(job):
    from kbert.command_line import import_tensorflow

    import_tensorflow()
    import keras
    import numpy as np
    import tensorflow as tf

    from kbert import lanes
    from kbert.config import BertConfig
    from kbert.training.measurement import new_trainer
    from kbert.training.planning import Setting

    setting = Setting(**job["setting"] | {"config": BertConfig(**job["config"])})
    lanes.begin(setting.lanes)
    model = new_trainer(setting)
    train = model.make_train_function()
    batches = iter(tf.data.Dataset.from_tensors(dict(np.load(job["batch"]))).repeat())
    about = {"versions": f"tensorflow {tf.__version__}, keras {keras.__version__}"}

    def read(logs):
        return [np.asarray(value) for value in tf.nest.flatten(logs)]

    return about, repeated(lambda: train(batches), wait=read)


serve(prepare)
