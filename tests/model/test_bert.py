import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops
from tensorflow.python.framework import test_util

from kbert.model.bert import Bert
from kbert.model.between import normed_sum
from tests.optimized import optimized_nodes


@pytest.fixture(scope="module")
def bert(config):
    keras.utils.set_random_seed(5)
    return Bert(config)


def arrays(outputs):
    return {name: ops.convert_to_numpy(value) for name, value in outputs.items()}


def twin(bert, **changes):
    """A Bert with the same weights and another configuration."""
    other = Bert(dataclasses.replace(bert.config, **changes))
    weights = {variable.path: variable for variable in bert.trainable_variables}
    for variable in other.trainable_variables:
        variable.assign(weights[variable.path])
    return other


def test_variables_exist_before_the_first_call_under_paths_of_their_own(config):
    paths = [variable.path for variable in Bert(config).variables]
    assert len(set(paths)) == len(paths)
    assert "bert/embeddings/token_embeddings" in paths
    assert "bert/encoder_layer_2/self_attention/query/kernel" in paths
    assert "bert/pooler/bias" in paths


def test_weights_start_apart_from_each_other_in_the_releases_truncated_normal(config):
    bert = Bert(dataclasses.replace(config, initializer_range=0.02))
    matrices = [ops.convert_to_numpy(v) for v in bert.trainable_variables if len(v.shape) == 2]
    assert len({matrix.tobytes() for matrix in matrices}) == len(matrices)
    values = np.concatenate([matrix.ravel() for matrix in matrices])
    assert np.abs(values).max() <= 0.04
    # A normal cut at two of its standard deviations has 0.8796 of it left.
    assert abs(values.std() / (0.02 * 0.8796) - 1) < 4 / np.sqrt(2 * len(values))
    vectors = {v.name: ops.convert_to_numpy(v) for v in bert.trainable_variables if len(v.shape) == 1}
    assert set(vectors) == {"gamma", "beta", "bias"}
    assert (vectors["gamma"] == 1).all() and (vectors["beta"] == 0).all() and (vectors["bias"] == 0).all()


def test_every_layer_norm_has_the_configurations_epsilon(config):
    bert = Bert(dataclasses.replace(config, layer_norm_epsilon=1e-7))
    norms = [bert.embeddings.layer_norm]
    norms += [norm for layer in bert.encoder_layers for norm in (layer.attention_norm, layer.feed_forward_norm)]
    assert [norm.epsilon for norm in norms] == [1e-7] * 5


def test_padding_changes_nothing(bert, features):
    padded = {name: np.pad(features[name], ((0, 0), (0, 5))) for name in ("input_ids", "input_mask", "segment_ids")}
    padded["input_ids"][:, 12:] = 77
    short, long = arrays(bert(features)), arrays(bert(padded))
    np.testing.assert_allclose(long["sequence_output"][:, :12], short["sequence_output"], atol=2e-6)
    np.testing.assert_allclose(long["pooled_output"], short["pooled_output"], atol=2e-6)


def test_every_token_and_segment_that_is_seen_matters(bert, features):
    reference = arrays(bert(features))["pooled_output"]
    for name in ("input_ids", "segment_ids"):
        changed = {**features, name: features[name].copy()}
        changed[name][0, 11] = 1 - changed[name][0, 11] if name == "segment_ids" else 1
        assert np.abs(arrays(bert(changed))["pooled_output"][0] - reference[0]).max() > 1e-4


def in_one_row(features):
    """Rows 2 and 3, of 7 and 5 tokens, in one row of 12 and two of padding."""

    def packed(name, fill=0):
        return np.concatenate([features[name][2, :7], features[name][3, :5], [fill] * 2])[None].astype("int32")

    row = {name: packed(name) for name in ("input_ids", "input_mask", "segment_ids")}
    row["position_ids"] = np.array([[*range(7), *range(5), 0, 0]], "int32")
    row["sequence_ids"] = np.array([[1] * 7 + [2] * 5 + [0] * 2], "int32")
    row["cls_positions"] = np.array([[0, 7]], "int32")
    return row


def test_packed_sequences_answer_as_they_do_alone(bert, features):
    row = in_one_row(features)
    together, alone = arrays(bert(row)), arrays(bert(features))
    assert together["pooled_output"].shape == (1, 2, 32)
    np.testing.assert_allclose(together["pooled_output"][0], alone["pooled_output"][2:], atol=2e-6)
    np.testing.assert_allclose(together["sequence_output"][0, :7], alone["sequence_output"][2, :7], atol=2e-6)
    np.testing.assert_allclose(together["sequence_output"][0, 7:12], alone["sequence_output"][3, :5], atol=2e-6)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_without_its_padding_a_batch_has_the_same_vectors(bert, features, causal, packed):
    bert = twin(bert, causal=causal)
    if packed:
        features = in_one_row(features)
    mask = np.asarray(features["input_mask"]) > 0
    assert not mask.all()
    less = {**features, "token_places": np.flatnonzero(mask).astype(np.int32)}
    asked = {"output_all_layers": True, "output_attentions": True}
    one, other = bert(features, **asked), bert(less, **asked)
    for name in ("all_layer_outputs", "attention_probabilities"):
        assert len(one[name]) == len(other[name])
        for whole, shorter in zip(one[name], other[name], strict=True):
            whole, shorter = (ops.convert_to_numpy(x) for x in (whole, shorter))
            if name == "attention_probabilities":  # [B, A, S, S], of which the last but one asks
                whole, shorter = (np.swapaxes(x, 1, 2) for x in (whole, shorter))
            assert whole.shape == shorter.shape
            np.testing.assert_allclose(shorter[mask], whole[mask], atol=2e-6)
    for options in (asked, {"pooled_only": True}):
        outputs = (arrays({"pooled": bert(f, **options)["pooled_output"]})["pooled"] for f in (features, less))
        np.testing.assert_allclose(*outputs, atol=2e-6)


@pytest.mark.parametrize("causal", [False, True])
def test_the_pooled_output_alone_is_that_of_the_whole(bert, features, causal):
    row = {name: features[name][:2] for name in ("input_ids", "input_mask", "segment_ids")}
    packed = {"sequence_ids": np.int32([[1] * 7 + [2] * 5] * 2), "cls_positions": np.int32([[0, 7], [2, 9]])}
    for asked in (features, row | packed):
        one = twin(bert, causal=causal)
        whole, alone = arrays(one(asked)), arrays(one(asked, pooled_only=True))
        assert set(alone) == {"pooled_output"}
        np.testing.assert_allclose(alone["pooled_output"], whole["pooled_output"], atol=2e-6)


def test_causal_attention_never_looks_ahead(bert, features):
    causal = twin(bert, causal=True)
    changed = {**features, "input_ids": features["input_ids"].copy()}
    changed["input_ids"][:, 4] = 99
    before, after = (arrays(causal(x))["sequence_output"] for x in (features, changed))
    np.testing.assert_array_equal(after[:, :4], before[:, :4])
    assert (np.abs(after - before)[:, 4].max(axis=-1) > 1e-3).all()
    bidirectional = arrays(bert(changed))["sequence_output"] - arrays(bert(features))["sequence_output"]
    assert (np.abs(bidirectional)[:, 0].max(axis=-1) > 1e-4).all()


def test_what_a_causal_bert_pools_has_seen_the_whole_sequence(bert, features):
    causal = twin(bert, causal=True)
    outputs = causal(features)
    lengths = features["input_mask"].sum(axis=1)
    last = ops.convert_to_numpy(outputs["sequence_output"])[np.arange(len(lengths)), lengths - 1]
    pooled = ops.convert_to_numpy(outputs["pooled_output"])
    np.testing.assert_allclose(pooled, ops.convert_to_numpy(causal.pooler(last)), atol=2e-6)
    in_row = causal(in_one_row(features))["pooled_output"]
    np.testing.assert_allclose(ops.convert_to_numpy(in_row)[0], pooled[2:], atol=2e-6)


def test_layer_outputs_run_from_the_embedding_output_to_the_sequence_output(bert, features, config):
    outputs = bert(features, output_all_layers=True)
    layers = [ops.convert_to_numpy(x) for x in outputs["all_layer_outputs"]]
    assert [layer.shape for layer in layers] == [(4, 12, 32)] * (config.num_hidden_layers + 1)
    np.testing.assert_array_equal(layers[-1], ops.convert_to_numpy(outputs["sequence_output"]))
    embedded = bert.embeddings(features["input_ids"], features["segment_ids"])
    np.testing.assert_array_equal(layers[0], ops.convert_to_numpy(embedded))


def test_attention_probabilities_add_up_to_1_over_real_tokens_alone(bert, features):
    attentions = bert(features, output_attentions=True)["attention_probabilities"]
    assert len(attentions) == 2
    for attention in map(ops.convert_to_numpy, attentions):
        assert attention.shape == (4, 2, 12, 12)
        real = features["input_mask"][:, None, None, :]
        np.testing.assert_allclose((attention * real).sum(axis=-1), 1, atol=1e-6)


def test_nothing_but_what_was_asked_for_is_returned(bert, features):
    assert set(bert(features)) == {"sequence_output", "pooled_output"}


def test_without_a_pooler_there_is_no_pooled_output(bert, features):
    other = twin(bert, pooler=False)
    outputs = other(features)
    assert set(outputs) == {"sequence_output"}
    assert not [variable.path for variable in other.variables if "pooler" in variable.path]


def test_a_sequence_longer_than_the_positions_is_refused(bert):
    features = {name: np.ones((1, 25), "int32") for name in ("input_ids", "input_mask", "segment_ids")}
    for more in ({}, {"token_places": np.arange(25, dtype="int32")}):
        with pytest.raises(ValueError, match="sequences of 25 tokens, expected at most max_position_embeddings 24"):
            bert(features | more)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_keeps_variables_and_probabilities_in_float32(bert, features, config, policy):
    mixed = Bert(config, dtype=policy)
    mixed.set_weights(bert.get_weights())
    assert {v.dtype for v in mixed.trainable_variables} == {"float32"}
    outputs = mixed(features, output_attentions=True)
    assert keras.backend.standardize_dtype(outputs["sequence_output"].dtype) == policy.removeprefix("mixed_")
    assert keras.backend.standardize_dtype(outputs["attention_probabilities"][0].dtype) == "float32"
    output = ops.convert_to_numpy(ops.cast(outputs["sequence_output"], "float32"))
    difference = output - arrays(bert(features))["sequence_output"]
    assert 0 < np.abs(difference).max() < 0.2


def test_a_functional_model_with_a_bert_inside_survives_a_keras_file(bert, features, tmp_path):
    inputs = {name: keras.Input((12,), dtype="int32", name=name) for name in ("input_ids", "input_mask", "segment_ids")}
    model = keras.Model(inputs, bert(inputs)["pooled_output"])
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    batch = {name: features[name] for name in inputs}
    np.testing.assert_array_equal(ops.convert_to_numpy(loaded(batch)), ops.convert_to_numpy(model(batch)))


def test_a_configuration_survives_serialization(config):
    bert = Bert(dataclasses.replace(config, causal=True), name="left_to_right", dtype="mixed_bfloat16")
    other = Bert.from_config(bert.get_config())
    assert (other.config, other.name, other.dtype_policy.name) == (bert.config, "left_to_right", "mixed_bfloat16")


def test_dropout_acts_in_training_only(bert, features):
    still = [arrays(bert(features))["sequence_output"] for _ in range(2)]
    np.testing.assert_array_equal(still[0], still[1])
    moving = [arrays(bert(features, training=True))["sequence_output"] for _ in range(2)]
    assert np.abs(moving[0] - still[0]).max() > 0.1
    assert np.abs(moving[0] - moving[1]).max() > 0.1


@pytest.mark.parametrize(
    ("setting", "changing"),
    [("hidden_dropout_prob", [True, True, True]), ("attention_probs_dropout_prob", [False, True, True])],
)
def test_each_dropout_setting_has_its_own_places(config, features, setting, changing):
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, setting: 0.5}
    bert = Bert(dataclasses.replace(config, **rates))
    first, second = (bert(features, training=True, output_all_layers=True)["all_layer_outputs"] for _ in range(2))
    assert [float(ops.max(ops.abs(x - y))) > 0 for x, y in zip(first, second, strict=True)] == changing


@pytest.mark.parametrize(
    ("activation", "kernel"), [("gelu_tanh", b"GeluApproximate"), ("gelu_erf", b"GeluExact"), ("relu", b"Relu")]
)
def test_answers_have_the_activation_computed_within_the_product_before_it(config, activation, kernel):
    """A GELU apart is ten passes over the widest array of a layer; TensorFlow recognizes few forms of it."""
    if not test_util.IsMklEnabled():
        pytest.skip("TensorFlow without oneDNN")
    bert = Bert(dataclasses.replace(config, hidden_act=activation))
    inputs = {name: tf.TensorSpec([None, None], tf.int32) for name in ("input_ids", "input_mask", "segment_ids")}
    answer = tf.function(lambda features: bert(features)["sequence_output"], autograph=False)
    nodes = optimized_nodes(answer.get_concrete_function(inputs).graph)
    fused = [tuple(node.attr["fused_ops"].list.s) for node in nodes if node.op == "_FusedMatMul"]
    assert fused.count((b"BiasAdd", kernel)) == config.num_hidden_layers


@pytest.mark.parametrize("policy", ["float64", "bfloat16", "float16", "mixed_bfloat16"])
def test_it_answers_in_the_precision_of_any_policy(config, features, policy):
    exact, found = (Bert(config, dtype=one) for one in ("float32", policy))
    for variable, value in zip(found.trainable_variables, exact.trainable_variables, strict=True):
        variable.assign(ops.cast(value, variable.dtype))
    output, expected = (bert(features)["sequence_output"] for bert in (found, exact))
    assert output.dtype == found.compute_dtype
    np.testing.assert_allclose(ops.cast(output, "float32"), expected, atol=1e-5 if policy == "float64" else 0.1)


@pytest.mark.parametrize("mean", [0, 100])
def test_a_normed_sum_is_as_exact_as_its_numbers_allow(mean):
    random = np.random.default_rng(6)
    x, change = (random.normal(mean, 1, (64, 96)).astype("float32") for _ in range(2))
    gamma, beta = (random.normal(size=96).astype("float32") for _ in range(2))
    total = x.astype("float64") + change
    centred = total - total.mean(axis=-1, keepdims=True)
    expected = centred / np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + 1e-3) * gamma + beta
    found = ops.convert_to_numpy(normed_sum(x, change, gamma, beta, rate=0.0, epsilon=1e-3))
    np.testing.assert_allclose(found, expected, atol=(1 + 2 * mean) * 2e-6)
