"""Fine-tuning: a task's output layer on a Bert, everything trained end to end (section 4)."""

import keras
from keras import ops

from kbert.model import Model, cross_entropy
from kbert.model.bert import Bert, new_dense
from kbert.model.dropout import Dropout


@keras.saving.register_keras_serializable(package="kbert")
class BertClassifier(Model):
    """softmax(C W^T + b) over `num_labels` classes, C the pooled output after dropout (sections 4.1 and 4.4).

    Called with Bert's features; returns Bert's outputs and `logits` [B, K] in float32. Its loss also needs `label_ids`
    [B]. Raises ValueError if the Bert has no pooler or num_labels is below 2.
    """

    def __init__(self, bert: Bert, num_labels: int = 2, name: str = "bert_classifier", **options):
        super().__init__(name=name, **options)
        if not bert.config.pooler:
            raise ValueError("the Bert's config.pooler is False, expected a Bert with a pooler")
        if num_labels < 2:
            raise ValueError(f"num_labels is {num_labels}, expected at least 2")
        self.bert = bert
        self.num_labels = num_labels
        config, policy = bert.config, {"dtype": bert.dtype_policy}
        with keras.name_scope(self.name, caller=self):
            self.dropout = Dropout(config.hidden_dropout_prob, name="dropout", **policy)
            self.classes = new_dense(config, config.hidden_size, num_labels, name="classes", **policy)
        self.loss_names = ("loss",)
        self.means = {name: keras.metrics.Mean(name=name) for name in ("loss", "accuracy")}
        self.built = True

    @property
    def config(self):
        return self.bert.config

    def call(self, features, training=False, output_all_layers=False, output_attentions=False):
        outputs = self.bert(
            features, training=training, output_all_layers=output_all_layers, output_attentions=output_attentions
        )
        pooled = self.dropout(outputs["pooled_output"], training=training)
        outputs["logits"] = ops.cast(self.classes(pooled), "float32")
        return outputs

    def weights_of(self, features):
        examples = ops.cast(ops.size(features["label_ids"]), "float32")
        return {"loss": examples, "accuracy": examples}

    def sums(self, features, outputs):
        loss, correct = cross_entropy(features["label_ids"], outputs["logits"])
        weights = self.weights_of(features)
        return {
            "loss": (ops.sum(loss), weights["loss"]),
            "accuracy": (ops.sum(correct), weights["accuracy"]),
        }

    def get_config(self):
        bert = keras.saving.serialize_keras_object(self.bert)
        return {**super().get_config(), "bert": bert, "num_labels": self.num_labels}

    @classmethod
    def from_config(cls, config):
        return cls(**{**config, "bert": keras.saving.deserialize_keras_object(config["bert"])})
