import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest

import kbert
from kbert.model.fine_tuning import BertClassifier
from kbert.model.pretraining import BertPretrainer
from kbert.model_directory import load_model
from kbert.text.wordpiece import WordPiece
from kbert.training.optimization import BertAdam

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "dog", "##s", "ran", "\u2028"]
CONFIG = kbert.BertConfig(
    vocab_size=len(PIECES),
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=16,
    hidden_act="gelu_erf",
)
FEATURES = {
    "input_ids": np.array([[2, 5, 4, 7, 3]]),
    "input_mask": np.ones((1, 5), int),
    "segment_ids": np.zeros((1, 5), int),
    "masked_lm_positions": np.array([[2]]),
}


@pytest.fixture(scope="module")
def tokenizer():
    return WordPiece(PIECES, lower_case=False)


@pytest.fixture
def saved(tokenizer, tmp_path):
    kbert.save(BertPretrainer(CONFIG), tokenizer, tmp_path / "model")
    return tmp_path / "model"


def outputs(model):
    return {name: keras.ops.convert_to_numpy(value) for name, value in model(FEATURES).items()}


def assert_equal(model, other):
    expected = outputs(model)
    for name, value in outputs(other).items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)


def test_what_is_saved_is_loaded(tokenizer, tmp_path):
    model = BertPretrainer(CONFIG)
    kbert.save(model, tokenizer, tmp_path)
    loaded, its_tokenizer = kbert.load(tmp_path)
    assert isinstance(loaded, BertPretrainer) and loaded.config == CONFIG
    assert its_tokenizer.vocabulary == PIECES and its_tokenizer.lower_case is False
    assert_equal(model, loaded)
    names = {"bert_config.json", "vocab.txt", "tokenizer_config.json", "model.weights.h5"}
    assert {file.name for file in tmp_path.iterdir()} == names


def test_a_pretrainer_without_next_sentences_is_loaded_as_one(tokenizer, tmp_path):
    model = BertPretrainer(CONFIG, next_sentence=False)
    kbert.save(model, tokenizer, tmp_path)
    loaded, _ = kbert.load(tmp_path)
    assert loaded.loss_names == ("masked_lm_loss",)
    assert_equal(model, loaded)


def test_a_classifier_is_loaded_with_its_labels(tokenizer, tmp_path):
    model = BertClassifier(BertPretrainer(CONFIG).bert, num_labels=3)
    model.labels = ["a", "b\u2028", "c\rd"]
    kbert.save(model, tokenizer, tmp_path)
    loaded, _ = kbert.load(tmp_path)
    assert list(loaded.labels) == ["a", "b\u2028", "c\rd"]
    assert_equal(model, loaded)


def test_a_pretrainer_saved_over_a_classifier_leaves_none_of_it(tokenizer, tmp_path):
    classifier = BertClassifier(kbert.Bert(CONFIG), num_labels=2)
    classifier.labels = ["a", "b"]
    kbert.save(classifier, tokenizer, tmp_path)
    model = BertPretrainer(CONFIG)
    kbert.save(model, tokenizer, tmp_path)
    assert_equal(model, kbert.load(tmp_path)[0])


def test_weights_are_named_by_where_they_are_and_no_optimizer_is_among_them(tokenizer, tmp_path):
    model = BertPretrainer(CONFIG)
    model.compile(BertAdam(1e-3), jit_compile=False)
    kbert.save(model, tokenizer, tmp_path)
    names = []
    with h5py.File(tmp_path / "model.weights.h5") as file:
        file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
        np.testing.assert_array_equal(
            file["bert/encoder_layer_2/self_attention/query/kernel"],
            model.bert.encoder_layers[1].self_attention.query.kernel.numpy(),
        )
    assert len(names) == len(model.weights)
    assert {"bert/embeddings/token_embeddings", "masked_lm_bias", "next_sentence_dense/kernel"} <= set(names)


def test_a_model_is_loaded_without_tensorflow_text_or_a_tokenizer(saved):
    program = f"""
import sys
import kbert.model_directory
assert kbert.model_directory.load_model({str(saved)!r}).config.hidden_size == 16
assert "tensorflow_text" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parent.parent)


def test_a_tokenizer_of_another_size_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match="the tokenizer has 6 pieces, expected 10, the model's vocab_size"):
        kbert.save(BertPretrainer(CONFIG), WordPiece(PIECES[:6]), tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_full_disk_is_named_and_leaves_the_model_that_was_there(saved, tokenizer, monkeypatch):
    before = {file.name: file.read_bytes() for file in saved.iterdir()}

    def full(file):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError) as caught:
        kbert.save(BertPretrainer(CONFIG), tokenizer, saved)
    assert caught.value.filename.startswith(str(saved))
    assert {file.name: file.read_bytes() for file in saved.iterdir()} == before


def test_no_folder_and_a_missing_file_are_named(saved):
    with pytest.raises(
        FileNotFoundError, match="nothing is no folder, expected a model directory with bert_config.json"
    ):
        kbert.load(saved / "nothing")
    (saved / "vocab.txt").unlink()
    with pytest.raises(FileNotFoundError, match="vocab.txt is missing, expected a model directory with"):
        kbert.load(saved)


def test_another_vocabulary_is_refused(saved):
    (saved / "vocab.txt").write_text("\n".join(PIECES[:7]) + "\n")
    with pytest.raises(
        ValueError, match="model: the vocabulary has 7 pieces, expected the 10 of vocab_size in the configuration"
    ):
        kbert.load(saved)


def test_weights_of_another_model_are_refused_by_name(saved):
    config = json.loads((saved / "bert_config.json").read_text())
    (saved / "bert_config.json").write_text(json.dumps(config | {"max_position_embeddings": 32}))
    with pytest.raises(
        ValueError, match=r"bert/embeddings/position_embeddings has the shape \(16, 16\), expected \(32,"
    ):
        kbert.load(saved)
    (saved / "bert_config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(
        ValueError, match="h5: bert/encoder_layer_3/attention_norm/beta, .* are missing; expected the weights"
    ):
        kbert.load(saved)
    (saved / "bert_config.json").write_text(json.dumps(config | {"num_hidden_layers": 1}))
    with pytest.raises(ValueError, match="bert/encoder_layer_2/attention_norm/beta, .* are no weight of this model"):
        kbert.load(saved)


def test_damaged_files_are_named(saved):
    weights = (saved / "model.weights.h5").read_bytes()
    for content in (weights[:-100], weights[:1000], b"", b"text"):
        (saved / "model.weights.h5").write_bytes(content)
        with pytest.raises(ValueError, match="model.weights.h5 is damaged or no HDF5 file"):
            load_model(saved)
    (saved / "model.weights.h5").write_bytes(weights)
    (saved / "task.json").write_text('{"model": "BertWhatever"}')
    with pytest.raises(
        ValueError,
        match="task.json: {'model': 'BertWhatever'} is no task .*; expected a model of BertPretrainer, BertCl",
    ):
        load_model(saved)
    (saved / "tokenizer_config.json").write_text('{"do_lower_case": "no"}')
    with pytest.raises(ValueError, match="tokenizer_config.json: do_lower_case is 'no', expected true or false"):
        kbert.load(saved)
    (saved / "tokenizer_config.json").write_text("{")
    with pytest.raises(ValueError, match="tokenizer_config.json: .* expected JSON"):
        kbert.load(saved)
