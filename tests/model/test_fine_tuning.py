"""Every task's model is one linear layer on the vectors that the paper names, with the loss that it names."""

import dataclasses

import keras
import numpy as np
import pytest
from keras import ops

from kbert.model.bert import Bert
from kbert.model.fine_tuning import (
    HEADS,
    BertClassifier,
    BertMultipleChoice,
    BertRegressor,
    BertSpanPredictor,
    BertTagger,
    freeze,
    reinitialize,
)

READS = {"BertTagger": "sequence_output", "BertSpanPredictor": "sequence_output"}
ARGUMENTS = {"BertClassifier": {"num_labels": 3}, "BertTagger": {"num_labels": 3}}
UNITS = {"BertClassifier": 3, "BertTagger": 3, "BertRegressor": 1, "BertMultipleChoice": 1, "BertSpanPredictor": 2}
TARGETS = {
    "BertClassifier": {"label_ids": np.int32([0, 2, 1, 1])},
    "BertRegressor": {"label_values": np.float32([0.5, -1, 3, 2])},
    "BertTagger": {"label_ids": np.int32([[-1, 0, 1, 2, 2, 0, 1, -1, -1, 0, 0, -1], *[[-1, 1] + [-1] * 10] * 3])},
    "BertSpanPredictor": {"start_positions": np.int32([1, 0, 2, 3]), "end_positions": np.int32([4, 0, 2, 4])},
    "BertMultipleChoice": {"label_ids": np.int32([1, 0])},
}


def new(head: str, config, **arguments):
    keras.utils.set_random_seed(5)
    return HEADS[head](Bert(config), **ARGUMENTS.get(head, {}) | arguments)


@pytest.fixture
def examples(features):
    return {name: features[name] for name in ("input_ids", "input_mask", "segment_ids")}


def shaped(head: str, examples: dict) -> dict:
    """Two choices a row for multiple choice."""
    if head != "BertMultipleChoice":
        return examples
    return {name: value.reshape(2, 2, -1) for name, value in examples.items()}


def numpy(outputs: dict) -> dict:
    return {name: ops.convert_to_numpy(value).astype("float64") for name, value in outputs.items()}


def log_softmax(logits):
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


@pytest.mark.parametrize("head", HEADS)
def test_the_scores_are_a_linear_layer_on_the_vectors_of_the_task(config, examples, head):
    model = new(head, config)
    outputs = numpy(model(shaped(head, examples)))
    kernel, bias = (ops.convert_to_numpy(variable) for variable in model.output_layer.weights)
    expected = outputs[READS.get(head, "pooled_output")] @ kernel + bias
    match head:
        case "BertSpanPredictor":
            found = np.stack([outputs["start_logits"], outputs["end_logits"]], axis=-1)
        case "BertRegressor":
            found = outputs["logits"][:, None]
        case "BertMultipleChoice":
            assert outputs["logits"].shape == (2, 2)
            found = outputs["logits"].reshape(4, 1)
        case _:
            found = outputs["logits"]
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("head", HEADS)
def test_only_the_output_layer_is_new(config, head):
    bert = Bert(config)
    model = HEADS[head](bert, **ARGUMENTS.get(head, {}))
    new = {v.path: tuple(v.shape) for v in model.trainable_variables if v.path not in {w.path for w in bert.variables}}
    layer = f"{model.name}/output_layer"
    assert new == {f"{layer}/kernel": (32, UNITS[head]), f"{layer}/bias": (UNITS[head],)}
    assert model.bert is bert


@pytest.mark.parametrize("head", HEADS)
def test_weights_are_known_before_the_forward_pass_and_the_loss_is_a_mean(config, examples, head):
    model, features = new(head, config), shaped(head, examples) | TARGETS[head]
    sums = {
        name: (float(total), float(weight)) for name, (total, weight) in model.sums(features, model(features)).items()
    }
    assert {name: float(weight) for name, weight in model.weights_of(features).items()} == {
        name: weight for name, (_, weight) in sums.items()
    }
    assert set(sums) == set(model.means)
    loss = float(model.compute_loss(features, None, model(features)))
    assert loss == pytest.approx(sums["loss"][0] / sums["loss"][1], rel=1e-6)


def test_a_classifiers_loss_is_the_mean_cross_entropy(config, examples):
    model, labels = new("BertClassifier", config), TARGETS["BertClassifier"]["label_ids"]
    logits = numpy(model(examples))["logits"]
    sums = model.sums(examples | {"label_ids": labels}, model(examples))
    assert [float(x) for x in sums["loss"]] == pytest.approx(
        [-log_softmax(logits)[range(4), labels].sum(), 4], abs=1e-5
    )
    assert float(sums["accuracy"][0]) == (logits.argmax(axis=-1) == labels).sum()


def test_class_weights_weigh_each_examples_loss_and_nothing_else(config, examples):
    plain, weighted = new("BertClassifier", config), new("BertClassifier", config, class_weights=[1.0, 2.0, 4.0])
    features = examples | TARGETS["BertClassifier"]
    logits = numpy(plain(features))["logits"]
    each = -log_softmax(logits)[range(4), features["label_ids"]]
    total, weight = (float(x) for x in weighted.sums(features, weighted(features))["loss"])
    assert (total, weight) == pytest.approx(((each * [1, 4, 2, 2]).sum(), 9), rel=1e-5)
    one, other = (float(model.sums(features, model(features))["accuracy"][1]) for model in (plain, weighted))
    assert one == other == 4


def test_with_multi_label_each_class_is_there_or_not_on_its_own(config, examples):
    model = new("BertClassifier", config, multi_label=True)
    labels = np.int32([[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]])
    logits = numpy(model(examples))["logits"]
    probabilities = 1 / (1 + np.exp(-logits))
    expected = -np.log(np.where(labels, probabilities, 1 - probabilities)).sum()
    sums = model.sums(examples | {"label_ids": labels}, model(examples))
    assert [float(x) for x in sums["loss"]] == pytest.approx([expected, 12], rel=1e-5)
    assert float(sums["accuracy"][0]) == ((probabilities > 0.5) == labels).sum()


def test_a_regressors_loss_is_the_mean_squared_error(config, examples):
    model, truth = new("BertRegressor", config), TARGETS["BertRegressor"]["label_values"]
    error = numpy(model(examples))["logits"] - truth
    sums = model.sums(examples | {"label_values": truth}, model(examples))
    assert float(sums["loss"][0]) == pytest.approx((error**2).sum(), rel=1e-5)
    assert float(sums["absolute_error"][0]) == pytest.approx(abs(error).sum(), rel=1e-5)


def test_a_tagger_learns_only_where_something_is_asked(config, examples):
    model, labels = new("BertTagger", config), TARGETS["BertTagger"]["label_ids"]
    logits = numpy(model(examples))["logits"]
    rows, columns = np.nonzero(labels >= 0)
    each = -log_softmax(logits)[rows, columns, labels[rows, columns]]
    total, weight = model.sums(examples | {"label_ids": labels}, model(examples))["loss"]
    assert (float(total), float(weight)) == pytest.approx((each.sum(), len(rows)), rel=1e-5)


def test_a_span_predictors_loss_is_the_mean_of_start_and_end(config, examples):
    model, truth = new("BertSpanPredictor", config), TARGETS["BertSpanPredictor"]
    outputs = numpy(model(examples))
    starts, ends = (
        -log_softmax(outputs[f"{end}_logits"])[range(4), truth[f"{end}_positions"]].sum() for end in ("start", "end")
    )
    total, weight = model.sums(examples | truth, model(examples))["loss"]
    assert (float(total), float(weight)) == pytest.approx(((starts + ends) / 2, 4), rel=1e-5)


@pytest.mark.parametrize("head", HEADS)
def test_dropout_acts_before_the_output_layer_in_training(config, examples, head):
    still = dataclasses.replace(config, attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0)
    model = new(head, still, dropout=0.5)
    first, second = (numpy(model(shaped(head, examples), training=True)) for _ in range(2))
    reads, scores = READS.get(head, "pooled_output"), "start_logits" if head == "BertSpanPredictor" else "logits"
    assert np.abs(first[reads] - second[reads]).max() == 0
    assert np.abs(first[scores] - second[scores]).max() > 0.01


def test_dropout_is_the_configs_but_for_spans(config):
    changed = dataclasses.replace(config, hidden_dropout_prob=0.25)
    rates = {head: new(head, changed).dropout.rate for head in HEADS}
    assert rates == dict.fromkeys(HEADS, 0.25) | {"BertSpanPredictor": 0.0}


@pytest.mark.parametrize("head", HEADS)
def test_a_keras_file_holds_the_bert_and_the_output_layer(config, examples, tmp_path, head):
    model = new(head, config, dropout=0.3)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert (type(loaded), loaded.config, loaded.arguments) == (type(model), model.config, model.arguments)
    outputs, expected = (numpy(one(shaped(head, examples))) for one in (loaded, model))
    for name, value in expected.items():
        np.testing.assert_array_equal(outputs[name], value)


def test_frozen_layers_are_the_first_and_the_embeddings(config):
    model = new("BertClassifier", config)
    freeze(model.bert, 1)
    left = {v.path.split("/")[2] for v in model.trainable_variables if "/bert/" in f"/{v.path}"}
    assert not [v.path for v in model.trainable_variables if "embeddings" in v.path or "encoder_layer_1" in v.path]
    assert len(model.trainable_variables) == 16 + 2 + 2, left  # the second layer, the pooler, the output layer
    freeze(new("BertClassifier", config).bert, 0)
    with pytest.raises(ValueError, match="3 layers to freeze, expected 0 to 2"):
        freeze(model.bert, 3)


def test_reinitialized_layers_are_the_last_and_the_pooler(config):
    model = new("BertClassifier", config)
    before = {v.path: v.numpy() for v in model.bert.weights}
    reinitialize(model.bert, 0)
    assert all(np.array_equal(before[v.path], v.numpy()) for v in model.bert.weights)
    reinitialize(model.bert, 1)
    changed = {
        v.path.partition("bert/")[2].split("/")[0] for v in model.bert.weights if (v.numpy() != before[v.path]).any()
    }
    assert changed == {"encoder_layer_2", "pooler"}
    with pytest.raises(ValueError, match="3 layers to draw anew, expected 0 to 2"):
        reinitialize(model.bert, 3)


@pytest.mark.parametrize("head", [BertClassifier, BertRegressor, BertMultipleChoice])
def test_what_reads_the_pooled_output_needs_a_pooler(config, head):
    with pytest.raises(ValueError, match="config.pooler is False, expected a Bert with a pooler"):
        head(Bert(dataclasses.replace(config, pooler=False)))


@pytest.mark.parametrize("head", [BertTagger, BertSpanPredictor])
def test_what_reads_every_token_does_not(config, head):
    head(Bert(dataclasses.replace(config, pooler=False)), **ARGUMENTS.get(head.__name__, {}))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_labels": 1}, "num_labels is 1, expected at least 2"),
        ({"num_labels": 0, "multi_label": True}, "num_labels is 0, expected at least 1"),
        ({"num_labels": 2, "class_weights": [1.0]}, r"class_weights is \[1.0\], expected 2 positive numbers"),
        ({"num_labels": 2, "class_weights": [1.0, 0.0]}, "expected 2 positive numbers"),
        ({"num_labels": 2, "class_weights": [1.0, 1.0], "multi_label": True}, "expected none with multi_label"),
        ({"dropout": 1.0}, "dropout is 1.0, expected 0 up to, not including, 1"),
    ],
)
def test_what_cannot_classify_is_refused(config, arguments, message):
    with pytest.raises(ValueError, match=message):
        BertClassifier(Bert(config), **arguments)


def test_the_best_spans_are_those_of_all_that_are_allowed(config):
    random = np.random.default_rng(2)
    logits = {name: random.normal(size=(3, 12)).astype("float32") for name in ("start_logits", "end_logits")}
    begins, ends = random.random((3, 12)) < 0.6, random.random((3, 12)) < 0.8
    begins[2, :11] = False  # one span, or none
    model = new("BertSpanPredictor", config)
    found = [ops.convert_to_numpy(x) for x in model.best_spans(logits, begins, ends, longest=4, best=9)]
    for row in range(3):
        spans = [(i, j) for i in range(12) for j in range(i, min(i + 4, 12)) if begins[row, i] and ends[row, j]]
        spans.sort(key=lambda span: -(logits["start_logits"][row, span[0]] + logits["end_logits"][row, span[1]]))
        count = min(9, len(spans))
        assert [(int(i), int(j)) for i, j in zip(found[0][row], found[1][row], strict=True)][:count] == spans[:9]
        assert (found[0][row, count:] == -1).all()
        for place, (i, j) in enumerate(spans[:9]):
            assert found[2][row, place] == logits["start_logits"][row, i]
            assert found[3][row, place] == logits["end_logits"][row, j]
