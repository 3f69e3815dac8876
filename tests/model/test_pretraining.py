import dataclasses

import keras
import numpy as np
import pytest
from keras import ops

from kbert.config import BertConfig
from kbert.model.pretraining import BertPretrainer


@pytest.fixture(scope="module")
def model(config):
    keras.utils.set_random_seed(5)
    return BertPretrainer(config)


def means(model, features):
    sums = model.sums(features, model(features))
    return {name: float(ops.divide_no_nan(total, weight)) for name, (total, weight) in sums.items()}


@pytest.mark.parametrize(
    ("size", "encoder", "with_heads"),
    [
        ("tiny", 4_385_920, 4_433_468),
        ("mini", 11_170_560, None),
        ("base", 109_482_240, 110_106_428),
        ("large", 335_141_888, 336_226_108),
    ],
)
def test_parameter_counts_are_those_of_the_papers_table(size, encoder, with_heads):
    # In this scope variables have shapes and no values, so that Large needs no memory.
    with keras.StatelessScope(initialize_variables=False):
        model = BertPretrainer(BertConfig.from_size(size))
    counts = {v.path: int(np.prod(v.shape)) for v in model.trainable_variables}
    assert sum(count for path, count in counts.items() if "/bert/" in path) == encoder
    hidden = model.config.hidden_size
    heads = hidden * hidden + hidden + 2 * hidden + 30522 + 2 * hidden + 2
    assert sum(counts.values()) == (with_heads or encoder + heads)
    keras.utils.clear_session()


def test_outputs_have_the_shapes_of_both_heads_in_float32(model, features):
    outputs = model(features)
    assert tuple(outputs["masked_lm_logits"].shape) == (4, 3, 100)
    assert tuple(outputs["next_sentence_logits"].shape) == (4, 2)
    for name in ("masked_lm_logits", "next_sentence_logits"):
        assert keras.backend.standardize_dtype(outputs[name].dtype) == "float32"


def test_berts_outputs_come_with_it_when_asked_for(model, features):
    outputs = model(features, output_all_layers=True, output_attentions=True)
    assert len(outputs["all_layer_outputs"]) == 3 and len(outputs["attention_probabilities"]) == 2


def test_the_last_layer_is_computed_for_what_the_heads_read_with_the_logits_of_the_whole(config, features):
    keras.utils.set_random_seed(5)
    packed = {"sequence_ids": np.int32([[1] * 7 + [2] * 5] * 4), "cls_positions": np.int32([[0, 7]] * 4)}
    places = np.flatnonzero(features["input_mask"]).astype("int32")
    for causal in (False, True):
        model = BertPretrainer(dataclasses.replace(config, causal=causal))
        for asked in (features, features | {"token_places": places}, features | packed):
            part, whole = model(asked), model(asked, output_all_layers=True)
            assert "sequence_output" not in part and "sequence_output" in whole
            for name in ("masked_lm_logits", "next_sentence_logits"):
                np.testing.assert_allclose(part[name], whole[name], atol=1e-5)
    some = BertPretrainer(config, masked_lm=False)
    found = some(features)
    assert set(found) == {"pooled_output", "next_sentence_logits"}
    whole = some(features, output_all_layers=True)
    np.testing.assert_allclose(found["next_sentence_logits"], whole["next_sentence_logits"], atol=1e-5)


def test_where_all_but_one_of_a_row_are_predicted_the_whole_layer_is_computed(model, features):
    every = features | {"masked_lm_positions": np.int32([[*range(11)]] * 4)}
    assert {"sequence_output", "pooled_output"} <= set(model(every)) and "position_output" not in model(every)


def test_the_masked_lm_product_is_tied_to_the_token_embeddings(model, features):
    assert [v.path for v in model.trainable_variables if 100 in v.shape and len(v.shape) == 2] == [
        "bert_pretrainer/bert/embeddings/token_embeddings"
    ]
    table = model.bert.embeddings.token_embeddings
    saved, before = ops.convert_to_numpy(table), ops.convert_to_numpy(model(features)["masked_lm_logits"])
    changed = saved.copy()
    changed[0] *= 2  # [PAD], which no row of the batch can see
    table.assign(changed)
    after = ops.convert_to_numpy(model(features)["masked_lm_logits"])
    table.assign(saved)
    np.testing.assert_allclose(after[..., 1:], before[..., 1:], atol=1e-5)
    np.testing.assert_allclose(after[..., 0], 2 * before[..., 0], atol=1e-4)
    assert np.abs(before[..., 0]).max() > 0.1


def test_the_loss_is_the_mean_over_predictions_plus_the_mean_over_sequences(model, features):
    outputs = {name: ops.convert_to_numpy(value).astype("float64") for name, value in model(features).items()}

    def negative_log_likelihood(labels, logits):
        logits = logits - logits.max(axis=-1, keepdims=True)
        log_probabilities = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        return -np.take_along_axis(log_probabilities, labels[..., None], axis=-1)[..., 0]

    weights = features["masked_lm_weights"]
    masked_lm = negative_log_likelihood(features["masked_lm_ids"], outputs["masked_lm_logits"])
    masked_lm = (masked_lm * weights).sum() / weights.sum()
    next_sentence = negative_log_likelihood(features["next_sentence_labels"], outputs["next_sentence_logits"]).mean()
    ours = means(model, features)
    assert ours["masked_lm_loss"] == pytest.approx(masked_lm, abs=1e-5)
    assert ours["next_sentence_loss"] == pytest.approx(next_sentence, abs=1e-5)
    loss = model.compute_loss(features, None, model(features))
    assert float(loss) == pytest.approx(masked_lm + next_sentence, abs=1e-5)


def test_accuracies_count_what_was_predicted_right(model, features):
    outputs = {name: ops.convert_to_numpy(value) for name, value in model(features).items()}
    weights = features["masked_lm_weights"]
    best = {
        "masked_lm_ids": outputs["masked_lm_logits"].argmax(axis=-1).astype("int32"),
        "next_sentence_labels": outputs["next_sentence_logits"].argmax(axis=-1).astype("int32"),
    }
    labels = {name: value.copy() for name, value in best.items()}
    labels["masked_lm_ids"][0, 0] = (labels["masked_lm_ids"][0, 0] + 1) % 100
    labels["next_sentence_labels"][1] = 1 - labels["next_sentence_labels"][1]
    ours = means(model, {**features, **labels})
    assert ours["masked_lm_accuracy"] == pytest.approx(1 - 1 / weights.sum())
    assert ours["next_sentence_accuracy"] == pytest.approx(3 / 4)


def test_an_unused_prediction_slot_changes_nothing(model, features):
    changed = {**features, **{name: features[name].copy() for name in ("masked_lm_ids", "masked_lm_positions")}}
    changed["masked_lm_ids"][features["masked_lm_weights"] == 0] = 55
    changed["masked_lm_positions"][features["masked_lm_weights"] == 0] = 2
    assert means(model, changed) == pytest.approx(means(model, features))


def test_a_batch_without_predictions_has_a_loss_of_0(model, features):
    empty = {**features, "masked_lm_weights": np.zeros((4, 3), "float32")}
    ours = means(model, empty)
    assert (ours["masked_lm_loss"], ours["masked_lm_accuracy"]) == (0, 0)
    assert np.isfinite(float(model.compute_loss(empty, None, model(empty))))


def test_weights_are_known_before_the_forward_pass(model, features):
    sums = model.sums(features, model(features))
    weights = model.weights_of(features)
    assert {name: float(weight) for name, weight in weights.items()} == {
        "masked_lm_loss": 7,
        "masked_lm_accuracy": 7,
        "next_sentence_loss": 4,
        "next_sentence_accuracy": 4,
    }
    assert {name: float(weight) for name, (_, weight) in sums.items()} == pytest.approx(
        {name: float(weight) for name, weight in weights.items()}
    )


def test_without_next_sentence_the_head_and_its_labels_are_gone(config, features):
    model = BertPretrainer(dataclasses.replace(config, pooler=False), next_sentence=False)
    features = {name: value for name, value in features.items() if name != "next_sentence_labels"}
    assert set(model(features)) == {"position_output", "masked_lm_vectors", "masked_lm_logits"}
    assert model.loss_names == ("masked_lm_loss",)
    assert set(means(model, features)) == set(model.weights_of(features)) == {"masked_lm_loss", "masked_lm_accuracy"}


def test_next_sentence_without_a_pooler_is_refused(config):
    with pytest.raises(ValueError, match="next_sentence is True and config.pooler is False"):
        BertPretrainer(dataclasses.replace(config, pooler=False))


def test_huge_logits_have_a_finite_loss(config, features):
    model = BertPretrainer(config)
    model.masked_lm_bias.assign(np.where(np.arange(100) == 7, 1e30, 0))
    sevens = {**features, "masked_lm_ids": np.full((4, 3), 7, "int32")}
    total, _ = model.sums(sevens, model(sevens))["masked_lm_loss"]
    assert float(total) == 0


def test_a_keras_file_holds_the_whole_model(model, features, tmp_path):
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert (loaded.config, loaded.next_sentence) == (model.config, True)
    assert [v.path for v in loaded.variables] == [v.path for v in model.variables]
    before, after = model(features), loaded(features)
    for name in before:
        np.testing.assert_array_equal(ops.convert_to_numpy(after[name]), ops.convert_to_numpy(before[name]))


def test_mixed_precision_keeps_logits_and_bias_in_float32(model, features, config):
    mixed = BertPretrainer(config, dtype="mixed_bfloat16")
    mixed.set_weights(model.get_weights())
    mixed.masked_lm_bias.assign(np.linspace(1, 1.001, 100))
    bias = ops.convert_to_numpy(mixed(features)["masked_lm_logits"])
    mixed.masked_lm_bias.assign(np.zeros(100))
    bias = bias - ops.convert_to_numpy(mixed(features)["masked_lm_logits"])
    np.testing.assert_allclose(bias, np.broadcast_to(np.linspace(1, 1.001, 100), bias.shape), atol=1e-5)
    assert means(mixed, features)["masked_lm_loss"] == pytest.approx(means(model, features)["masked_lm_loss"], rel=0.05)
