import dataclasses

import keras
import numpy as np
import pytest
from keras import ops

from kbert.model.bert import Bert
from kbert.model.fine_tuning import BertClassifier


@pytest.fixture(scope="module")
def model(config):
    keras.utils.set_random_seed(5)
    return BertClassifier(Bert(config), num_labels=3)


@pytest.fixture
def examples(features):
    return {name: features[name] for name in ("input_ids", "input_mask", "segment_ids")} | {
        "label_ids": np.array([0, 2, 1, 1], "int32")
    }


def test_logits_are_a_linear_layer_on_the_pooled_output(model, examples):
    outputs = model(examples)
    pooled = ops.convert_to_numpy(outputs["pooled_output"])
    kernel, bias = (ops.convert_to_numpy(variable) for variable in (model.classes.kernel, model.classes.bias))
    np.testing.assert_allclose(ops.convert_to_numpy(outputs["logits"]), pooled @ kernel + bias, atol=1e-5)


def test_only_the_output_layer_is_new(config):
    bert = Bert(config)
    model = BertClassifier(bert, num_labels=4)
    new = {v.path: tuple(v.shape) for v in model.trainable_variables if v.path not in {w.path for w in bert.variables}}
    assert new == {"bert_classifier/classes/kernel": (32, 4), "bert_classifier/classes/bias": (4,)}
    assert model.bert is bert


def test_loss_and_accuracy_are_means_over_the_examples(model, examples):
    logits = ops.convert_to_numpy(model(examples)["logits"]).astype("float64")
    log_probabilities = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    sums = model.sums(examples, model(examples))
    assert {name: float(weight) for name, (_, weight) in sums.items()} == {"loss": 4, "accuracy": 4}
    assert {name: float(weight) for name, weight in model.weights_of(examples).items()} == {"loss": 4, "accuracy": 4}
    expected = -log_probabilities[range(4), examples["label_ids"]].sum()
    assert float(sums["loss"][0]) == pytest.approx(expected, abs=1e-5)
    assert float(sums["accuracy"][0]) == (logits.argmax(axis=-1) == examples["label_ids"]).sum()


def test_dropout_acts_on_the_pooled_output_in_training(config, examples):
    still = dataclasses.replace(config, attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0)
    model = BertClassifier(Bert(still), num_labels=3)
    model.dropout.rate = 0.5
    first, second = (model(examples, training=True) for _ in range(2))
    assert float(ops.max(ops.abs(first["pooled_output"] - second["pooled_output"]))) == 0
    assert float(ops.max(ops.abs(first["logits"] - second["logits"]))) > 0.01


def test_a_keras_file_holds_the_bert_and_the_output_layer(model, examples, tmp_path):
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert (loaded.config, loaded.num_labels) == (model.config, 3)
    np.testing.assert_array_equal(
        ops.convert_to_numpy(loaded(examples)["logits"]), ops.convert_to_numpy(model(examples)["logits"])
    )


@pytest.mark.parametrize(
    ("pooler", "num_labels", "message"),
    [(False, 2, "config.pooler is False, expected a Bert with a pooler"), (True, 1, "num_labels is 1, expected at")],
)
def test_what_cannot_classify_is_refused(config, pooler, num_labels, message):
    with pytest.raises(ValueError, match=message):
        BertClassifier(Bert(dataclasses.replace(config, pooler=pooler)), num_labels)
