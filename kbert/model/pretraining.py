"""Pre-training: the masked-LM and next-sentence heads on a Bert, their losses and accuracies (section 3.1)."""

import dataclasses

import keras
from keras import ops

from kbert.config import BertConfig
from kbert.model.base import Model
from kbert.model.bert import Bert, gather_positions, new_dense, new_layer_norm
from kbert.model.between import ACTIVATIONS, cross_entropy, directly, tied_cross_entropy, tied_logits
from kbert.training.metrics import Mean


@keras.saving.register_keras_serializable(package="kbert")
class BertPretrainer(Model):
    """A Bert with the two heads of pre-training, or one of them, or none where it is only a place for the Bert.

    Called with Bert's features and `masked_lm_positions` [B, P]; returns, with `masked_lm`, `masked_lm_logits`
    [B, P, V] and the `masked_lm_vectors` [B, P, H] that they are products of, with `next_sentence`,
    `next_sentence_logits` [B, 2] (index 1 = random), both logits float32, and the outputs of Bert that it has: those
    that the heads read alone, unless more is asked for. Its losses also need `masked_lm_ids`, `masked_lm_weights`
    [B, P] and `next_sentence_labels` [B].
    `masked_lm_changes` are the fields of the config in which the masked-LM head differs, as that of keras-hub does.
    Raises ValueError if `next_sentence` is asked of a config without a pooler.
    """

    def __init__(
        self,
        config: BertConfig,
        masked_lm: bool = True,
        next_sentence: bool = True,
        masked_lm_changes: dict | None = None,
        name: str = "bert_pretrainer",
        **options,
    ):
        super().__init__(name=name, **options)
        if next_sentence and not config.pooler:
            raise ValueError("next_sentence is True and config.pooler is False, expected a config with a pooler")
        self.masked_lm, self.next_sentence, self.masked_lm_changes = masked_lm, next_sentence, masked_lm_changes
        self.arguments = {"masked_lm": masked_lm, "next_sentence": next_sentence}
        self.arguments |= {"masked_lm_changes": dict(masked_lm_changes)} if masked_lm_changes else {}
        hidden, policy = config.hidden_size, {"dtype": self.dtype_policy}
        with keras.name_scope(self.name, caller=self):
            self.bert = Bert(config, **policy)
            if masked_lm:
                of_head = dataclasses.replace(config, **masked_lm_changes or {})
                self.masked_lm_dense = new_dense(config, hidden, hidden, name="masked_lm_dense", **policy)
                self.activation = ACTIVATIONS[of_head.hidden_act]
                self.masked_lm_norm = new_layer_norm(of_head, name="masked_lm_norm", **policy)
                self.masked_lm_bias = self.add_weight(
                    (config.vocab_size,), initializer="zeros", name="masked_lm_bias", autocast=False
                )
            if next_sentence:
                self.next_sentence_dense = new_dense(config, hidden, 2, name="next_sentence_dense", **policy)
        objectives = ("masked_lm",) * masked_lm + ("next_sentence",) * next_sentence
        self.loss_names = tuple(f"{objective}_loss" for objective in objectives)
        names = [f"{objective}_{kind}" for objective in objectives for kind in ("loss", "accuracy")]
        self.means = {name: Mean(name=name) for name in names}
        self.built = True

    @property
    def reads_pooled_output(self) -> bool:
        return self.next_sentence

    def call(self, features, training=False, output_all_layers=False, output_attentions=False):
        whole = output_all_layers or output_attentions or not self.reads_in_part(features)
        outputs = self.bert(
            features,
            training=training,
            pooled_only=not whole and not self.masked_lm,
            positions=features["masked_lm_positions"] if not whole and self.masked_lm else None,
            output_all_layers=output_all_layers,
            output_attentions=output_attentions,
        )
        if self.masked_lm:
            vectors = outputs.get("position_output")
            if vectors is None:
                vectors = gather_positions(outputs["sequence_output"], features["masked_lm_positions"])
            vectors = self.masked_lm_vectors(vectors)
            outputs["masked_lm_vectors"] = vectors
            outputs["masked_lm_logits"] = self.masked_lm_logits(vectors)
        if self.next_sentence:
            logits = self.next_sentence_dense(outputs["pooled_output"])
            outputs["next_sentence_logits"] = ops.cast(logits, "float32")
        return outputs

    def reads_in_part(self, features) -> bool:
        """Whether the heads read fewer vectors of a row than it has."""
        if not self.masked_lm:
            return self.next_sentence
        predictions, length = (features[name].shape[1] for name in ("masked_lm_positions", "input_ids"))
        return predictions is not None and length is not None and predictions + 1 < length

    def masked_lm_vectors(self, vectors):  # [B, P, H] -> [B, P, H]
        rows = ops.reshape(vectors, (-1, self.config.hidden_size))
        rows = self.masked_lm_norm(self.activation(self.masked_lm_dense(rows)))
        return ops.reshape(rows, ops.shape(vectors))

    def masked_lm_logits(self, vectors):  # [B, P, H] -> [B, P, V]
        batch, predictions, hidden = ops.shape(vectors)
        logits = tied_logits(ops.reshape(vectors, (-1, hidden)), *self.tied)
        return ops.reshape(logits, (batch, predictions, -1))

    @property
    def tied(self):
        """What the masked-LM head multiplies by and adds, [V, H] and [V]."""
        return self.bert.embeddings.token_embeddings, self.masked_lm_bias

    def weights_of(self, features):
        weights = {}
        if self.masked_lm:
            predictions = ops.sum(ops.cast(features["masked_lm_weights"], "float32"))
            weights |= {"masked_lm_loss": predictions, "masked_lm_accuracy": predictions}
        if self.next_sentence:
            sequences = ops.cast(ops.size(features["next_sentence_labels"]), "float32")
            weights |= {"next_sentence_loss": sequences, "next_sentence_accuracy": sequences}
        return weights

    def totals(self, features, outputs):
        totals = {}
        if self.masked_lm:
            weight = ops.cast(features["masked_lm_weights"], "float32")
            loss, correct = self.masked_lm_loss(outputs, features["masked_lm_ids"])
            totals |= {"masked_lm_loss": ops.sum(loss * weight), "masked_lm_accuracy": ops.sum(correct * weight)}
        if self.next_sentence:
            loss, correct = cross_entropy(outputs["next_sentence_logits"], features["next_sentence_labels"])
            totals |= {"next_sentence_loss": ops.sum(loss), "next_sentence_accuracy": ops.sum(correct)}
        return totals

    def masked_lm_loss(self, outputs, ids):
        """cross_entropy of the masked-LM logits, 2 x [B, P]."""
        if self.bert.piece is directly:  # as on other backends, where metrics must not read variables
            return cross_entropy(outputs["masked_lm_logits"], ids)
        # A step has one gradient for the loss and the product before it. Of the logits made twice its graph drops one.
        vectors = ops.reshape(outputs["masked_lm_vectors"], (-1, self.config.hidden_size))
        table, bias = (ops.convert_to_tensor(one) for one in self.tied)
        inputs = vectors, ops.cast(table, vectors.dtype), bias
        found = self.bert.piece(tied_cross_entropy, inputs, (ops.reshape(ids, -1),))
        return [ops.reshape(one, ops.shape(ids)) for one in found]

    def get_config(self):
        return {**super().get_config(), "config": self.config.to_dict(), **self.arguments}

    @classmethod
    def from_config(cls, config):
        return cls(**{**config, "config": BertConfig(**config["config"])})
