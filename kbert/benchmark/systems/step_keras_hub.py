"""A step of keras-hub's BertMaskedLM, which has no next sentence head, in Keras's own train step."""

import os

from worker import repeated, serve


def prepare(job):
    os.environ["KERAS_BACKEND"] = "tensorflow"
    import keras
    import keras_hub
    import numpy as np
    import tensorflow as tf

    if job["precision"] == "bfloat16":
        keras.config.set_dtype_policy("mixed_bfloat16")
    config = job["config"]
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=config["vocab_size"],
        num_layers=config["num_hidden_layers"],
        num_heads=config["num_attention_heads"],
        hidden_dim=config["hidden_size"],
        intermediate_dim=config["intermediate_size"],
        max_sequence_length=config["max_position_embeddings"],
    )
    model = keras_hub.models.BertMaskedLM(backbone=backbone, preprocessor=None)
    model.compile(
        keras.optimizers.AdamW(1e-4, weight_decay=0.01, global_clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=[],
        jit_compile=job["xla"],
    )
    batch = np.load(job["batch"])
    names = {
        "token_ids": "input_ids",
        "segment_ids": "segment_ids",
        "padding_mask": "input_mask",
        "mask_positions": "masked_lm_positions",
    }
    features = {name: batch[ours] for name, ours in names.items()}
    batches = iter(tf.data.Dataset.from_tensors((features, batch["masked_lm_ids"])).repeat())
    model.make_train_function()
    about = {"versions": f"keras-hub {keras_hub.__version__}, tensorflow {tf.__version__}, keras {keras.__version__}"}

    def read(logs):
        return [np.asarray(value) for value in tf.nest.flatten(logs)]

    return about, repeated(lambda: model.train_function(batches), wait=read)


serve(prepare)
