"""The feature-based approach (section 5.3): which layers' vectors are taken, and how they are mixed (Table 7)."""

from collections.abc import Sequence

import keras
from keras import ops

from kbert.config import BertConfig
from kbert.model.bert import Bert
from kbert.model.fine_tuning import BertTagger, OneOutputLayer

MIXES = ("concatenation", "sum", "weighted_sum")
UNITS = ("piece", "mean", "pooled")


def layer_numbers(layers: Sequence[int], count: int) -> list[int]:
    """Layers 1 to `count`, 0 for the embedding output, negative ones from the end, as numbers from 0 on.

    Raises ValueError for one that is not there, and for none at all.
    """
    if not layers:
        raise ValueError("no layer is given, expected at least one")
    for layer in layers:
        if not -count <= layer <= count:
            raise ValueError(f"layer {layer} is not there, expected 0 (the embeddings) to {count}, or -{count} to -1")
    return [layer if layer >= 0 else count + 1 + layer for layer in layers]


@keras.saving.register_keras_serializable(package="kbert")
class BertFeatures(keras.Model):
    """The vectors of a Bert as they are, of pieces or of whole texts (section 5.3, Table 7).

    Called with Bert's features; returns float32 [B, S, width] for `unit` piece, [B, width] for the mean over a text's
    pieces and for the pooled [CLS], for which layers do not matter; [..., layers, H] where `mix` is none. `weights` are
    those of a weighted sum, one for each layer. Raises ValueError for what the Bert does not have or does not go
    together.
    """

    def __init__(
        self,
        bert: Bert,
        layers: Sequence[int] = (-1,),
        mix: str = "concatenation",
        weights: Sequence[float] | None = None,
        unit: str = "mean",
        name: str = "bert_features",
        **options,
    ):
        super().__init__(name=name, **options)
        if unit not in UNITS:
            raise ValueError(f"unit is {unit!r}, expected one of {', '.join(UNITS)}")
        if mix not in ("none", *MIXES):
            raise ValueError(f"mix is {mix!r}, expected one of none, {', '.join(MIXES)}")
        if (weights is not None) != (mix == "weighted_sum"):
            raise ValueError(f"weights is {weights} and mix {mix}, expected weights for a weighted_sum alone")
        if weights is not None and len(weights) != len(layers):
            raise ValueError(f"weights has {len(weights)} numbers, expected one for each of {len(layers)} layers")
        if unit == "pooled" and not bert.config.pooler:
            raise ValueError("unit is pooled and the Bert has no pooler, expected mean, or another Bert")
        if unit == "pooled" and (tuple(layers), mix) != ((-1,), "concatenation"):
            raise ValueError(
                f"layers is {list(layers)} and mix {mix}: the pooled vector has neither, expected none given"
            )
        self.numbers = layer_numbers(layers, bert.config.num_hidden_layers)
        self.bert, self.mix, self.unit = bert, mix, unit
        self.shares = list(weights or [1.0] * len(layers))
        self.arguments = {"layers": list(layers), "mix": mix, "weights": weights and list(weights), "unit": unit}
        self.loss_names = ()
        self.built = True

    @property
    def config(self) -> BertConfig:
        return self.bert.config

    def call(self, features, training=False):
        if self.unit == "pooled":
            return ops.cast(self.bert(features, pooled_only=True)["pooled_output"], "float32")
        outputs = self.bert(features, output_all_layers=True)["all_layer_outputs"]
        chosen = [ops.cast(outputs[number], "float32") for number in self.numbers]  # of [B, S, H]
        if self.unit == "mean":
            share = ops.cast(features["input_mask"], "float32")
            share = (share / ops.sum(share, axis=1, keepdims=True))[:, :, None]
            chosen = [ops.sum(share * one, axis=1) for one in chosen]  # of [B, H]
        if self.mix == "none":
            return ops.stack(chosen, axis=-2)
        if self.mix == "concatenation":
            return ops.concatenate(chosen, axis=-1)
        return sum(share * one for share, one in zip(self.shares, chosen, strict=True))

    def get_config(self):
        return {**super().get_config(), "bert": keras.saving.serialize_keras_object(self.bert), **self.arguments}

    @classmethod
    def from_config(cls, config):
        return cls(**{**config, "bert": keras.saving.deserialize_keras_object(config["bert"])})


@keras.saving.register_keras_serializable(package="kbert")
class LayerMix(keras.layers.Layer):
    """One vector for each token of the outputs of some layers: concatenated, summed, or summed with learned weights.

    A weighted sum has the weights' softmax, all alike at first, times a learned scale. Raises ValueError for a layer
    that is not there and another mix.
    """

    def __init__(self, config: BertConfig, layers: Sequence[int], mix: str = "concatenation", **options):
        super().__init__(**options)
        if mix not in MIXES:
            raise ValueError(f"mix is {mix!r}, expected one of {', '.join(MIXES)}")
        self.numbers, self.mix = layer_numbers(layers, config.num_hidden_layers), mix
        self.width = config.hidden_size * (len(layers) if mix == "concatenation" else 1)
        if mix == "weighted_sum":
            with keras.name_scope(self.name, caller=self):
                self.layer_weights = self.add_weight((len(layers),), initializer="zeros", name="layer_weights")
                self.scale = self.add_weight((), initializer="ones", name="scale")
        self.built = True

    def call(self, all_layer_outputs):  # L + 1 of [B, S, H] -> [B, S, width]
        chosen = [all_layer_outputs[number] for number in self.numbers]
        if self.mix == "concatenation":
            return ops.concatenate(chosen, axis=-1)
        if self.mix == "sum":
            return ops.sum(ops.stack(chosen), axis=0)
        shares = ops.reshape(self.scale * ops.softmax(self.layer_weights), (-1, 1, 1, 1))
        return ops.sum(shares * ops.stack(chosen), axis=0)


@keras.saving.register_keras_serializable(package="kbert")
def orthogonal(shape, dtype=None):
    """keras.initializers.Orthogonal drawn in float32, as TensorFlow's QR decomposition has no bfloat16."""
    return ops.cast(keras.initializers.Orthogonal()(shape, "float32"), dtype or "float32")


@keras.saving.register_keras_serializable(package="kbert")
class BertLSTMTagger(BertTagger):
    """Bidirectional LSTMs on mixed layers of a Bert, then softmax for every token, as ELMo's idea has it (section 5.3).

    `frozen`: the Bert stays as it is, without dropout, as in Table 7; if not, it is fine-tuned (Table 5's last row).
    Called and trained as a BertTagger. Raises ValueError as LayerMix does.
    """

    def __init__(
        self,
        bert: Bert,
        num_labels: int,
        layers: Sequence[int] = (-4, -3, -2, -1),
        mix: str = "concatenation",
        lstm_layers: int = 2,
        lstm_units: int = 768,
        frozen: bool = True,
        dropout: float | None = None,
        name: str = "bert_lstm_tagger",
        **options,
    ):
        if num_labels < 2:
            raise ValueError(f"num_labels is {num_labels}, expected at least 2")
        if lstm_layers < 1 or lstm_units < 1:
            raise ValueError(f"lstm_layers is {lstm_layers} and lstm_units {lstm_units}, expected at least 1")
        OneOutputLayer.__init__(
            self, bert, num_labels, ("accuracy",), dropout, width=2 * lstm_units, name=name, **options
        )
        self.num_labels, self.frozen = num_labels, frozen
        self.arguments |= {"num_labels": num_labels, "layers": list(layers), "mix": mix}
        self.arguments |= {"lstm_layers": lstm_layers, "lstm_units": lstm_units, "frozen": frozen}
        bert.trainable = not frozen
        policy = {"dtype": bert.dtype_policy}
        with keras.name_scope(self.name, caller=self):
            self.layer_mix = LayerMix(bert.config, layers, mix, name="layer_mix", **policy)
            self.lstms = []
            for number in range(1, lstm_layers + 1):
                lstm = keras.layers.LSTM(
                    lstm_units, recurrent_initializer=orthogonal, return_sequences=True, name="lstm", **policy
                )
                both = keras.layers.Bidirectional(lstm, name=f"lstm_{number}", **policy)
                both.build((None, None, 2 * lstm_units if self.lstms else self.layer_mix.width))
                self.lstms.append(both)

    @property
    def learned_variables(self) -> list:
        above = self.bert.encoder_layers[max(self.layer_mix.numbers) :]  # which nothing reads
        paths = {weight.path for layer in above for weight in layer.weights}
        return [variable for variable in super().learned_variables if variable.path not in paths]

    def call(self, features, training=False, output_all_layers=False, output_attentions=False):
        outputs = self.bert(
            features,
            training=training and not self.frozen,
            output_all_layers=True,
            output_attentions=output_attentions,
        )
        vectors = self.layer_mix(outputs["all_layer_outputs"])
        for lstm in self.lstms:
            vectors = lstm(self.dropout(vectors, training=training), mask=ops.cast(features["input_mask"], "bool"))
        logits = self.output_layer(self.dropout(vectors, training=training))
        if not output_all_layers:
            outputs = {name: value for name, value in outputs.items() if name != "all_layer_outputs"}
        return outputs | {"logits": ops.cast(logits, "float32")}
