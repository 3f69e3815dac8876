"""Presets of keras-hub give its answers here, and presets written here give ours there."""

import dataclasses
import json

import keras
import keras_hub
import numpy as np
import pytest

import kbert
from kbert.model.fine_tuning import BertClassifier, BertTagger
from kbert.weights import keras_hub as format
from kbert.weights.by_name import named_weights, without_heads
from tests.weights.tiny import CONFIG, PIECES

FIELDS = {"vocabulary_size": 10, "num_layers": 2, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 12}
LENGTHS = np.array([7, 4])[:, None]
FEATURES = {
    "input_ids": np.int32([[2, 5, 6, 3, 8, 9, 3], [2, 6, 7, 3, 0, 0, 0]]),
    "input_mask": np.int32(np.arange(7) < LENGTHS),
    "segment_ids": np.int32((np.arange(7) > 3) & (np.arange(7) < LENGTHS)),
    "masked_lm_positions": np.int32([[1, 4], [2, 0]]),
}
NAMES = {"token_ids": "input_ids", "padding_mask": "input_mask", "segment_ids": "segment_ids"}


def preset(folder, kind: str):
    """A preset with random weights, saved as keras-hub saves it."""
    keras.utils.set_random_seed(2)
    tokenizer = keras_hub.models.BertTokenizer(vocabulary=PIECES, lowercase=True)
    backbone = keras_hub.models.BertBackbone(**FIELDS, max_sequence_length=16, dropout=0.2)
    preprocessing = {"tokenizer": tokenizer, "sequence_length": 8}
    if kind == "BertMaskedLM":
        theirs = keras_hub.models.BertMaskedLM(backbone, keras_hub.models.BertMaskedLMPreprocessor(**preprocessing))
    elif kind == "BertTextClassifier":
        preprocessor = keras_hub.models.BertTextClassifierPreprocessor(**preprocessing)
        theirs = keras_hub.models.BertTextClassifier(backbone, 3, preprocessor, dropout=0.3)
    else:
        theirs = backbone
    random = np.random.default_rng(4)
    for weight in theirs.weights:
        weight.assign(random.normal(scale=0.3, size=weight.shape) + weight.path.endswith("gamma"))
    theirs.save_to_preset(str(folder))
    tokenizer.save_to_preset(str(folder))
    return theirs


def answers(theirs) -> dict:
    inputs = {name: FEATURES[ours] for name, ours in NAMES.items()}
    if isinstance(theirs, keras_hub.models.BertMaskedLM):
        inputs |= {"mask_positions": FEATURES["masked_lm_positions"]}
    outputs = theirs(inputs, training=False)
    if not isinstance(outputs, dict):
        outputs = {"masked_lm_logits" if "mask_positions" in inputs else "logits": outputs}
    return {name: keras.ops.convert_to_numpy(value) for name, value in outputs.items()}


def assert_answers_equal(model, expected: dict):
    found = {name: keras.ops.convert_to_numpy(value) for name, value in model(FEATURES).items()}
    real = FEATURES["input_mask"] > 0
    for name, value in expected.items():
        ours = found[name]
        if name == "sequence_output":
            value, ours = value[real], ours[real]
        np.testing.assert_allclose(ours, value, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("kind", format.KINDS)
def test_presets_give_the_same_answers_here_and_there(tmp_path, kind):
    theirs = preset(tmp_path / "theirs", kind)
    model, tokenizer = kbert.load(tmp_path / "theirs")
    assert tokenizer.vocabulary == PIECES and tokenizer.lower_case
    assert model.config.hidden_dropout_prob == model.config.attention_probs_dropout_prob == 0.2
    expected = answers(theirs)
    assert expected
    assert_answers_equal(model, expected)
    format.write(model, tokenizer, tmp_path / "ours")
    again = type(theirs).from_preset(str(tmp_path / "ours"))
    for name, value in answers(again).items():
        np.testing.assert_allclose(value, expected[name], atol=1e-6)
    if kind == "BertTextClassifier":
        assert model.dropout.rate == 0.3 and again.dropout == 0.3
    if kind != "BertBackbone":
        assert model.config.trained_length == again.preprocessor.sequence_length == 8


def test_their_masked_lm_head_goes_through_our_folder(tmp_path):
    preset(tmp_path / "theirs", "BertMaskedLM")
    model, tokenizer = kbert.load(tmp_path / "theirs")
    assert model.masked_lm_norm.epsilon == 1e-5 and model.config.layer_norm_epsilon == 1e-12
    kbert.save(model, tokenizer, tmp_path / "ours")
    again, _ = kbert.load(tmp_path / "ours")
    outputs = [keras.ops.convert_to_numpy(one(FEATURES)["masked_lm_logits"]) for one in (model, again)]
    np.testing.assert_array_equal(*outputs)


def test_the_encoder_alone_of_any_model_can_be_carried(tmp_path):
    config = dataclasses.replace(CONFIG, sequence_length=8)
    model, tokenizer = kbert.BertPretrainer(config), kbert.WordPiece(PIECES)
    format.write(without_heads(model), tokenizer, tmp_path)
    again, _ = kbert.load(tmp_path)
    assert again.config.trained_length == 8
    for name, weight in named_weights(again).items():
        np.testing.assert_array_equal(weight, named_weights(model)[name])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_act": "gelu_erf"}, "hidden_act is gelu_erf, and keras-hub's BertBackbone has gelu_tanh only"),
        ({"hidden_dropout_prob": 0.0}, "hidden and attention dropout differ"),
        ({}, "keras-hub has no next sentence head; expected one that it has, or none .encoder-only"),
    ],
)
def test_what_keras_hub_computes_otherwise_is_refused(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        format.write(
            kbert.BertPretrainer(dataclasses.replace(CONFIG, **change)), kbert.WordPiece(PIECES), tmp_path / "no"
        )
    assert not (tmp_path / "no").exists()


def test_heads_that_keras_hub_has_not_are_refused(tmp_path):
    masked_lm = kbert.BertPretrainer(CONFIG, next_sentence=False)
    with pytest.raises(ValueError, match="masked-LM head has the exact GELU and epsilon 1e-5"):
        format.write(masked_lm, kbert.WordPiece(PIECES), tmp_path / "no")
    for model in (BertTagger(kbert.Bert(CONFIG), 2), BertClassifier(kbert.Bert(CONFIG), 2, multi_label=True)):
        with pytest.raises(ValueError, match=f"keras-hub has no {type(model).__name__} of this kind"):
            format.write(model, kbert.WordPiece(PIECES), tmp_path / "no")


def test_a_preset_of_a_name_is_asked_of_keras_hub(tmp_path, monkeypatch):
    def no_network(name, **options):
        raise ConnectionError(f"no route to {name}")

    monkeypatch.setattr(format, "kind_of", no_network)
    with pytest.raises(
        ValueError, match="bert_tiny_en_uncased: no route to bert_tiny_en_uncased; expected a preset that"
    ):
        kbert.load("bert_tiny_en_uncased")
    assert format.knows("all_minilm_l6_v2_en") and format.knows("kaggle://any/thing")
    assert not format.knows("runs/books") and not format.knows("books")


def test_damaged_presets_and_those_of_others_are_named(tmp_path):
    preset(tmp_path, "BertBackbone")
    (tmp_path / "model.weights.h5").write_bytes((tmp_path / "model.weights.h5").read_bytes()[:1000])
    with pytest.raises(ValueError, match=f"{tmp_path}: .*; expected a whole preset of BERT"):
        kbert.load(tmp_path)


def test_presets_of_keras_nlp_and_of_other_models_are_told_apart(tmp_path):
    theirs = preset(tmp_path, "BertTextClassifier")
    for name, old in (("config.json", "BertBackbone"), ("task.json", "BertClassifier")):
        content = json.loads((tmp_path / name).read_text())
        content |= {"registered_name": f"keras_nlp>{old}", "class_name": old}
        content["module"] = content["module"].replace("keras_hub.src", "keras_nlp.src")
        (tmp_path / name).write_text(json.dumps(content))
    assert_answers_equal(kbert.load(tmp_path)[0], answers(theirs))
    (tmp_path / "task.json").unlink()
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"class_name": "RobertaBackbone"}))
    with pytest.raises(ValueError, match="is a preset of RobertaBackbone; expected one of BertBackbone"):
        kbert.load(tmp_path)
