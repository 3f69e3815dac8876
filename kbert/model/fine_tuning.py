"""Fine-tuning: one output layer on a Bert, everything trained end to end (section 4)."""

import keras
from keras import ops

from kbert.model.base import Model
from kbert.model.bert import Bert, new_dense
from kbert.model.between import cross_entropy
from kbert.model.dropout import Dropout
from kbert.training.metrics import Mean


class OneOutputLayer(Model):
    """A Bert, dropout, and one Dense layer on the vectors that the task reads; a subclass knows the task.

    Called with Bert's features; returns `logits` in float32 and the outputs of Bert that it has: the pooled one alone
    where that is what is read, unless more is asked for. `dropout` is what the output layer reads through, by default
    the config's hidden_dropout_prob. `arguments` are those that make the model again.
    """

    reads = "pooled_output"
    counted = "label_ids"  # the feature that has one item for each example

    def __init__(self, bert: Bert, units: int, means: tuple[str, ...], dropout: float | None, width=None, **options):
        super().__init__(**options)
        config, policy = bert.config, {"dtype": bert.dtype_policy}
        if dropout is not None and not 0 <= dropout < 1:
            raise ValueError(f"dropout is {dropout}, expected 0 up to, not including, 1")
        if self.reads_pooled_output and not config.pooler:
            raise ValueError("the Bert's config.pooler is False, expected a Bert with a pooler")
        self.bert = bert
        self.arguments = {} if dropout is None else {"dropout": dropout}
        with keras.name_scope(self.name, caller=self):
            rate = config.hidden_dropout_prob if dropout is None else dropout
            self.dropout = Dropout(rate, name="dropout", **policy)
            self.output_layer = new_dense(config, width or config.hidden_size, units, name="output_layer", **policy)
        self.loss_names = ("loss",)
        self.means = {name: Mean(name=name) for name in ("loss", *means)}
        self.built = True

    @property
    def reads_pooled_output(self) -> bool:
        return self.reads == "pooled_output"

    def call(self, features, training=False, output_all_layers=False, output_attentions=False):
        outputs = self.bert(
            features,
            training=training,
            pooled_only=self.reads_pooled_output and not (output_all_layers or output_attentions),
            output_all_layers=output_all_layers,
            output_attentions=output_attentions,
        )
        vectors = self.dropout(outputs[self.reads], training=training)
        return outputs | self.scores(ops.cast(self.output_layer(vectors), "float32"))

    def scores(self, logits):
        return {"logits": logits}

    def weights_of(self, features):
        examples = ops.cast(ops.size(features[self.counted]), "float32")
        return dict.fromkeys(self.means, examples)

    def get_config(self):
        bert = keras.saving.serialize_keras_object(self.bert)
        return {**super().get_config(), "bert": bert, **self.arguments}

    @classmethod
    def from_config(cls, config):
        return cls(**{**config, "bert": keras.saving.deserialize_keras_object(config["bert"])})


@keras.saving.register_keras_serializable(package="kbert")
class BertClassifier(OneOutputLayer):
    """softmax(C W^T + b) over `num_labels` classes, C the pooled output (section 4.1); of one text or of a pair.

    `logits` [B, K]. Its loss also needs `label_ids` [B]; with `multi_label`, where each class is there or not on its
    own, `label_ids` [B, K] of 0 and 1. `class_weights`, K numbers, say how much each class counts in the loss.
    Raises ValueError if the Bert has no pooler, num_labels is below 2 (1 with multi_label), or the weights do not fit.
    """

    def __init__(
        self,
        bert: Bert,
        num_labels: int = 2,
        multi_label: bool = False,
        class_weights: list[float] | None = None,
        dropout: float | None = None,
        name: str = "bert_classifier",
        **options,
    ):
        least = 1 if multi_label else 2
        if num_labels < least:
            raise ValueError(f"num_labels is {num_labels}, expected at least {least}")
        if class_weights is not None and multi_label:
            raise ValueError("class_weights weigh classes of which an example has one; expected none with multi_label")
        if class_weights is not None and (len(class_weights) != num_labels or not min(class_weights) > 0):
            raise ValueError(f"class_weights is {class_weights}, expected {num_labels} positive numbers")
        super().__init__(bert, num_labels, ("accuracy",), dropout, name=name, **options)
        self.num_labels, self.multi_label, self.class_weights = num_labels, multi_label, class_weights
        self.arguments |= {"num_labels": num_labels}
        self.arguments |= {"multi_label": True} if multi_label else {}
        self.arguments |= {"class_weights": list(class_weights)} if class_weights else {}

    def weights_of(self, features):
        weights = self.label_weights(features["label_ids"])
        return {"loss": ops.sum(weights), "accuracy": ops.cast(ops.size(weights), "float32")}

    def label_weights(self, labels):
        """How much each label counts in the loss, [B] or [B, K] -> the same shape."""
        if self.class_weights is None:
            return ops.ones(ops.shape(labels), "float32")
        return ops.take(ops.convert_to_tensor(self.class_weights, "float32"), labels)

    def totals(self, features, outputs):
        labels, logits = features["label_ids"], outputs["logits"]
        if self.multi_label:
            truth = ops.cast(labels, "float32")
            loss = ops.softplus(logits) - truth * logits  # of a sigmoid each
            correct = ops.cast((logits > 0) == (truth > 0.5), "float32")
        else:
            loss, correct = cross_entropy(logits, labels)
        return {"loss": ops.sum(loss * self.label_weights(labels)), "accuracy": ops.sum(correct)}


@keras.saving.register_keras_serializable(package="kbert")
class BertRegressor(OneOutputLayer):
    """One number for a text or a pair: C w + b, C the pooled output, as the paper does STS-B.

    `logits` [B]. Its loss, the mean squared error, also needs `label_values` float [B].
    """

    counted = "label_values"

    def __init__(self, bert: Bert, dropout: float | None = None, name: str = "bert_regressor", **options):
        super().__init__(bert, 1, ("absolute_error",), dropout, name=name, **options)

    def scores(self, logits):
        return {"logits": logits[:, 0]}

    def totals(self, features, outputs):
        error = outputs["logits"] - ops.cast(features["label_values"], "float32")
        return {"loss": ops.sum(ops.square(error)), "absolute_error": ops.sum(ops.abs(error))}


@keras.saving.register_keras_serializable(package="kbert")
class BertTagger(OneOutputLayer):
    """softmax(T_i W^T + b) for every token (section 5.3).

    `logits` [B, S, K]. Its loss also needs `label_ids` [B, S], negative where nothing is asked.
    """

    reads = "sequence_output"

    def __init__(self, bert: Bert, num_labels: int, dropout: float | None = None, name: str = "bert_tagger", **options):
        if num_labels < 2:
            raise ValueError(f"num_labels is {num_labels}, expected at least 2")
        super().__init__(bert, num_labels, ("accuracy",), dropout, name=name, **options)
        self.num_labels = num_labels
        self.arguments |= {"num_labels": num_labels}

    def weights_of(self, features):
        asked = ops.sum(ops.cast(features["label_ids"] >= 0, "float32"))
        return {"loss": asked, "accuracy": asked}

    def totals(self, features, outputs):
        asked = ops.cast(features["label_ids"] >= 0, "float32")
        loss, correct = cross_entropy(outputs["logits"], ops.maximum(features["label_ids"], 0))
        return {"loss": ops.sum(loss * asked), "accuracy": ops.sum(correct * asked)}


@keras.saving.register_keras_serializable(package="kbert")
class BertSpanPredictor(OneOutputLayer):
    """P_i = softmax_i(S . T_i) for the start of an answer, and the same for its end (section 4.2).

    `start_logits`, `end_logits` [B, S]. Its loss, the mean of both, also needs `start_positions`, `end_positions` [B].
    No dropout by default, as in run_squad.py. `answering`: what FindAnswer is to be made with, kept beside the weights.
    """

    reads = "sequence_output"
    counted = "start_positions"

    def __init__(
        self,
        bert: Bert,
        dropout: float | None = 0.0,
        answering: dict | None = None,
        name: str = "bert_span_predictor",
        **options,
    ):
        super().__init__(bert, 2, ("start_accuracy", "end_accuracy"), dropout, name=name, **options)
        if answering:
            self.answering = answering

    @property
    def answering(self) -> dict:
        return self.arguments.get("answering", {})

    @answering.setter
    def answering(self, answering: dict) -> None:
        self.arguments |= {"answering": dict(answering)}

    def scores(self, logits):
        return {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}

    def best_spans(self, outputs, begins, ends, longest: int = 30, best: int = 20):
        """The likeliest spans of at most `longest` tokens that begin and end where they may, bool [B, S] each.

        Returns first and last position, int32, start and end logit, all [B, best] by the sum of both logits; first is
        -1 where there are fewer. Raises ValueError for no span at all.
        """
        if longest < 1 or best < 1:
            raise ValueError(f"longest is {longest} and best {best}, expected at least 1")
        never = -1e30
        starts = ops.where(begins, outputs["start_logits"], never)
        stops = ops.where(ends, outputs["end_logits"], never)
        batch, length = ops.shape(starts)
        beyond = ops.pad(stops, ((0, 0), (0, longest)), constant_values=never)
        # For each first position the next `longest` last ones; and `best` that never are, so that there are enough.
        pairs = starts[:, :, None] + ops.stack([beyond[:, more : more + length] for more in range(longest)], axis=-1)
        pairs = ops.pad(ops.reshape(pairs, (batch, length * longest)), ((0, 0), (0, best)), constant_values=2 * never)
        scores, places = ops.top_k(pairs, best)
        exists = scores > never / 2
        first = ops.where(exists, places // longest, 0)
        last = ops.where(exists, first + places % longest, 0)
        logits = [ops.take_along_axis(outputs[f"{n}_logits"], p, axis=1) for n, p in (("start", first), ("end", last))]
        return ops.where(exists, first, -1), last, *logits

    def totals(self, features, outputs):
        start_loss, start_correct = cross_entropy(outputs["start_logits"], features["start_positions"])
        end_loss, end_correct = cross_entropy(outputs["end_logits"], features["end_positions"])
        return {
            "loss": ops.sum(start_loss + end_loss) / 2,
            "start_accuracy": ops.sum(start_correct),
            "end_accuracy": ops.sum(end_correct),
        }


@keras.saving.register_keras_serializable(package="kbert")
class BertMultipleChoice(OneOutputLayer):
    """Which of N continuations fits: one vector, dot each C, softmax over the N (section 4.4).

    Called with Bert's features as [B, N, S]; `logits` [B, N]; Bert's own outputs have B * N rows. Its loss also needs
    `label_ids` [B].
    """

    def __init__(self, bert: Bert, dropout: float | None = None, name: str = "bert_multiple_choice", **options):
        super().__init__(bert, 1, ("accuracy",), dropout, name=name, **options)

    def call(self, features, training=False, output_all_layers=False, output_attentions=False):
        batch, choices, length = ops.shape(features["input_ids"])
        names = ("input_ids", "input_mask", "segment_ids")
        rows = {name: ops.reshape(features[name], (batch * choices, length)) for name in names}
        rows |= {name: features[name] for name in ("token_places",) if name in features}
        outputs = super().call(rows, training, output_all_layers, output_attentions)
        return outputs | {"logits": ops.reshape(outputs["logits"], (batch, choices))}

    def totals(self, features, outputs):
        loss, correct = cross_entropy(outputs["logits"], features["label_ids"])
        return {"loss": ops.sum(loss), "accuracy": ops.sum(correct)}


def freeze(bert: Bert, layers: int) -> None:
    """Keeps the embeddings and the first `layers` layers as they are; 0 trains everything.

    Before `compile`. Raises ValueError for more layers than there are.
    """
    if not 0 <= layers <= len(bert.encoder_layers):
        raise ValueError(f"{layers} layers to freeze, expected 0 to {len(bert.encoder_layers)}")
    for layer in [bert.embeddings, *bert.encoder_layers[:layers]] if layers else []:
        layer.trainable = False


def reinitialize(bert: Bert, layers: int) -> None:
    """Draws the last `layers` layers and the pooler anew, which can steady small sets (Zhang et al. 2021, 2006.05987).

    0 changes nothing. Raises ValueError for more layers than there are.
    """
    if not 0 <= layers <= len(bert.encoder_layers):
        raise ValueError(f"{layers} layers to draw anew, expected 0 to {len(bert.encoder_layers)}")
    fresh = Bert(bert.config) if layers else bert
    old, new = (
        [*one.encoder_layers[len(one.encoder_layers) - layers :], getattr(one, "pooler", None)] for one in (bert, fresh)
    )
    for layer, drawn in zip(old, new, strict=True):
        if layers and layer is not None:
            for weight, value in zip(layer.weights, drawn.weights, strict=True):
                weight.assign(value)


HEADS = {
    head.__name__: head for head in (BertClassifier, BertRegressor, BertTagger, BertSpanPredictor, BertMultipleChoice)
}
