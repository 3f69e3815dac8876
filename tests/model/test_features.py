"""Layers have the numbers that the paper's table gives them, and a BiLSTM reads them mixed, its Bert frozen or not."""

from dataclasses import replace

import keras
import numpy as np
import pytest
from keras import ops

from kbert.model.bert import Bert
from kbert.model.features import BertFeatures, BertLSTMTagger, LayerMix, layer_numbers


def test_layers_count_from_the_embeddings_or_from_the_end():
    assert layer_numbers([0, 1, 12, -1, -12, -4], 12) == [0, 1, 12, 12, 1, 9]
    for layers, message in (([13], "layer 13 is not there, expected 0"), ([-13], "layer -13"), ([], "no layer")):
        with pytest.raises(ValueError, match=message):
            layer_numbers(layers, 12)


def test_mixes_are_what_they_are_called(config):
    outputs = [np.full((2, 3, 32), float(number), "float32") for number in (1, 10, 100)]

    def mixed(mix, *layers):
        layer = LayerMix(config, layers, mix)
        return layer, ops.convert_to_numpy(layer(outputs))

    concatenated = mixed("concatenation", -1, 0)[1]
    assert (
        concatenated.shape == (2, 3, 64)
        and (concatenated[..., :32] == 100).all()
        and (concatenated[..., 32:] == 1).all()
    )
    assert (mixed("sum", 1, 2)[1] == 110).all()
    layer, equal = mixed("weighted_sum", 0, 1, 2)
    np.testing.assert_allclose(equal, 37.0, rtol=1e-6)
    layer.layer_weights.assign(np.log([1.0, 1.0, 2.0]))
    layer.scale.assign(2.0)
    np.testing.assert_allclose(ops.convert_to_numpy(layer(outputs)), 2 * (1 + 10 + 200) / 4, rtol=1e-6)
    with pytest.raises(ValueError, match="mix is 'mean', expected one of concatenation"):
        LayerMix(config, [1], "mean")


def test_vectors_are_those_of_the_layers_mixed_and_meant_without_padding(config, features):
    bert = Bert(config)
    inputs = {name: features[name] for name in ("input_ids", "input_mask", "segment_ids")}
    outputs = bert(inputs, output_all_layers=True)
    layers = [ops.convert_to_numpy(one) for one in outputs["all_layer_outputs"]]

    def vectors(**rule):
        model = BertFeatures(bert, **rule)
        found = ops.convert_to_numpy(BertFeatures.from_config(model.get_config())(inputs))
        np.testing.assert_allclose(ops.convert_to_numpy(model(inputs)).shape, found.shape)
        return ops.convert_to_numpy(model(inputs))

    np.testing.assert_allclose(vectors(unit="piece"), layers[-1], atol=1e-6)
    apart = vectors(unit="piece", layers=[0, -1], mix="none")
    np.testing.assert_allclose(apart, np.stack([layers[0], layers[-1]], axis=2), atol=1e-6)
    two = vectors(unit="piece", layers=[1, 0], mix="concatenation")
    np.testing.assert_allclose(two, np.concatenate([layers[1], layers[0]], axis=-1), atol=1e-6)
    mixed = vectors(unit="piece", layers=[0, 1], mix="weighted_sum", weights=[3.0, -1.0])
    np.testing.assert_allclose(mixed, 3 * layers[0] - layers[1], atol=1e-5)
    texts = [one[mask > 0].mean(axis=0) for one, mask in zip(layers[-1], features["input_mask"], strict=True)]
    np.testing.assert_allclose(vectors(), texts, atol=1e-6)
    np.testing.assert_allclose(vectors(layers=[-1, -1], mix="sum"), 2 * np.array(texts), atol=1e-5)
    np.testing.assert_allclose(vectors(unit="pooled"), ops.convert_to_numpy(outputs["pooled_output"]), atol=1e-6)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"unit": "text"}, "unit is 'text', expected one of piece, mean, pooled"),
        ({"mix": "mean"}, "mix is 'mean', expected one of none, concatenation"),
        ({"weights": [1.0]}, "mix concatenation, expected weights for a weighted_sum alone"),
        ({"mix": "weighted_sum"}, "weights is None and mix weighted_sum"),
        ({"mix": "weighted_sum", "weights": [1.0, 2.0]}, "weights has 2 numbers, expected one for each of 1 layers"),
        ({"layers": [9]}, "layer 9 is not there"),
        ({"unit": "pooled"}, "the Bert has no pooler, expected mean"),
    ],
)
def test_vectors_that_cannot_be_are_refused(config, rule, message):
    with pytest.raises(ValueError, match=message):
        BertFeatures(Bert(replace(config, pooler=False)), **rule)


@pytest.fixture
def examples(features):
    taken = {name: features[name] for name in ("input_ids", "input_mask", "segment_ids")}
    return taken | {"label_ids": np.where(taken["input_mask"] > 0, taken["input_ids"] % 3, -1).astype("int32")}


def tagger(config, **options):
    keras.utils.set_random_seed(7)
    return BertLSTMTagger(Bert(config), 3, lstm_units=5, **({"layers": [-1, 1]} | options))


def test_padding_changes_nothing(config, examples):
    model = tagger(config)
    longer = {name: np.pad(value, ((0, 0), (0, 4))) for name, value in examples.items()}
    short, long = (ops.convert_to_numpy(model(one)["logits"]) for one in (examples, longer))
    mask = examples["input_mask"].astype(bool)
    assert short.shape == (4, 12, 3)
    np.testing.assert_allclose(long[:, :12][mask], short[mask], atol=2e-6)


@pytest.mark.parametrize("frozen", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_frozen_bert_stays_as_it_is_and_the_rest_learns(config, examples, frozen):
    model = tagger(config, frozen=frozen, mix="weighted_sum")
    before = [ops.convert_to_numpy(weight) for weight in model.weights]
    model.compile(keras.optimizers.Adam(1e-2), jit_compile=False)
    first = model.evaluate(examples, batch_size=4, verbose=0, return_dict=True)["loss"]
    model.fit(examples, batch_size=4, epochs=12, verbose=0)
    assert model.evaluate(examples, batch_size=4, verbose=0, return_dict=True)["loss"] < first - 0.1
    names = [
        weight.path
        for weight, old in zip(model.weights, before, strict=True)
        if not np.array_equal(ops.convert_to_numpy(weight), old)
    ]
    assert any(name.endswith("layer_mix/layer_weights") for name in names)
    assert any("/encoder_layer_2/" in name for name in names) != frozen


def test_what_is_above_the_layers_that_are_read_is_not_learned(config, examples):
    model = tagger(config, layers=[0, 1], frozen=False)
    learned = {variable.path for variable in model.learned_variables}
    assert any("/encoder_layer_1/" in path for path in learned)
    assert not any("/encoder_layer_2/" in path for path in learned)
    model.compile(keras.optimizers.Adam(1e-2), jit_compile=False)
    model.fit(examples, batch_size=4, verbose=0)


@pytest.mark.parametrize("frozen", [True, False])
def test_a_frozen_bert_has_no_dropout_in_training(config, examples, frozen):
    model = tagger(config, frozen=frozen, dropout=0.0)
    one, other = (ops.convert_to_numpy(model(examples, training=True)["logits"]) for _ in range(2))
    assert np.array_equal(one, other) == frozen


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_lstms_begin_with_orthogonal_matrices_of_their_own(config, dtype):
    model = BertLSTMTagger(Bert(config, dtype=dtype), num_labels=3, layers=(-1,), lstm_units=8)
    kernels = [one.cell.recurrent_kernel for both in model.lstms for one in (both.forward_layer, both.backward_layer)]
    found = [ops.convert_to_numpy(ops.cast(kernel, "float32")) for kernel in kernels]  # [8, 32] each
    for kernel in found:
        np.testing.assert_allclose(kernel @ kernel.T, np.eye(8), atol=1e-5 if dtype == "float32" else 0.02)
    assert all((one != other).any() for one, other in zip(found, found[1:], strict=False))


def test_a_tagger_comes_back_from_its_config(config, examples):
    model = tagger(config, mix="sum", frozen=False)
    again = BertLSTMTagger.from_config(model.get_config())
    again.set_weights(model.get_weights())
    np.testing.assert_array_equal(*(ops.convert_to_numpy(one(examples)["logits"]) for one in (model, again)))
    paths = [variable.path for variable in model.variables]
    assert len(set(paths)) == len(paths)
    # Names that Keras counts would be others in the next process, and a checkpoint no longer fit.
    assert [weight.path for weight in again.weights] == [weight.path for weight in model.weights]
