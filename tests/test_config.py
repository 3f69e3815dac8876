import dataclasses
import json
import subprocess
import sys

import pytest

from kbert.config import SIZES, BertConfig


@pytest.mark.parametrize(
    ("size", "layers", "hidden", "heads", "feed_forward"),
    [
        ("tiny", 2, 128, 2, 512),
        ("mini", 4, 256, 4, 1024),
        ("small", 4, 512, 8, 2048),
        ("medium", 8, 512, 8, 2048),
        ("base", 12, 768, 12, 3072),
        ("large", 24, 1024, 16, 4096),
    ],
)
def test_sizes_are_those_of_the_paper_and_the_release(size, layers, hidden, heads, feed_forward):
    config = BertConfig.from_size(size)
    assert (config.num_hidden_layers, config.hidden_size) == (layers, hidden)
    assert (config.num_attention_heads, config.intermediate_size) == (heads, feed_forward)
    assert config.intermediate_size == 4 * config.hidden_size


def test_the_default_is_base_with_the_releases_settings():
    assert BertConfig() == BertConfig.from_size("base")
    config = BertConfig()
    assert (config.vocab_size, config.max_position_embeddings, config.type_vocab_size) == (30522, 512, 2)
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob) == (0.1, 0.1)
    assert (config.initializer_range, config.layer_norm_epsilon, config.hidden_act) == (0.02, 1e-12, "gelu_tanh")
    assert config.pooler and not config.causal
    assert config.head_size == 64


def test_a_model_is_trusted_with_the_sequences_it_was_trained_on():
    assert BertConfig().trained_length == 512
    assert BertConfig(sequence_length=128).trained_length == 128
    with pytest.raises(ValueError, match="sequence_length is 600, expected at most max_position_embeddings 512"):
        BertConfig(sequence_length=600)


def test_changes_replace_fields_of_a_size():
    config = BertConfig.from_size("mini", vocab_size=8192, causal=True)
    assert (config.vocab_size, config.causal, config.hidden_size) == (8192, True, 256)


def test_json_round_trip_keeps_every_field(tmp_path):
    config = BertConfig.from_size("tiny", vocab_size=99, hidden_act="gelu_erf", pooler=False, layer_norm_epsilon=1e-5)
    config = dataclasses.replace(config, sequence_length=64)
    config.to_json(tmp_path / "bert_config.json")
    assert BertConfig.from_json(tmp_path / "bert_config.json") == config
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bert_config.json"]


def google_file(tmp_path, **changes):
    fields = BertConfig.from_size("tiny").to_dict()
    for name in ("layer_norm_epsilon", "pooler", "causal", "sequence_length"):
        del fields[name]
    path = tmp_path / "bert_config.json"
    path.write_text(json.dumps({**fields, "hidden_act": "gelu", "directionality": "bidi", **changes}))
    return path


def test_plain_gelu_is_refused_unless_told_whose_it_is(tmp_path):
    path = google_file(tmp_path)
    with pytest.raises(ValueError, match="hidden_act is 'gelu'.*gelu_tanh, gelu_erf.*tanh in Google's files"):
        BertConfig.from_json(path)
    assert BertConfig.from_json(path, gelu="gelu_tanh").hidden_act == "gelu_tanh"
    assert BertConfig.from_json(path, gelu="gelu_erf").hidden_act == "gelu_erf"


def test_only_plain_gelu_is_replaced(tmp_path):
    assert BertConfig.from_json(google_file(tmp_path, hidden_act="relu"), gelu="gelu_tanh").hidden_act == "relu"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"hidden_size": 100, "num_attention_heads": 12},
            "hidden_size 100 is not a multiple of num_attention_heads 12",
        ),
        ({"vocab_size": 0}, "vocab_size is 0, expected a positive integer"),
        ({"vocab_size": 30522.0}, "vocab_size is 30522.0, expected a positive integer"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True, expected a positive integer"),
        ({"hidden_dropout_prob": 1}, "hidden_dropout_prob is 1, expected a number from 0 up to, not including, 1"),
        ({"attention_probs_dropout_prob": -0.1}, "attention_probs_dropout_prob is -0.1, expected a number from 0"),
        ({"layer_norm_epsilon": 0}, "layer_norm_epsilon is 0, expected a positive number"),
        ({"initializer_range": "0.02"}, "initializer_range is '0.02', expected a positive number"),
        ({"initializer_range": float("inf")}, "initializer_range is inf, expected a positive number"),
        ({"pooler": 1}, "pooler is 1, expected true or false"),
        ({"sequence_length": 0}, "sequence_length is 0, expected a positive integer"),
        ({"hidden_act": "swish"}, "hidden_act is 'swish', expected one of gelu_tanh, gelu_erf, relu"),
        ({"hidden_act": None}, "hidden_act is None, expected a name"),
    ],
)
def test_an_impossible_field_is_named_with_what_was_received(changes, message):
    with pytest.raises(ValueError) as raised:
        BertConfig(**changes)
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


def test_an_unknown_size_is_refused():
    with pytest.raises(ValueError, match="size is 'huge', expected one of tiny, mini, small, medium, base, large"):
        BertConfig.from_size("huge")
    assert len(SIZES) == 6


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"vocab_size": 5,\n "hidden_size" 4}', "bert_config.json, line 2: "),
        (b"", "bert_config.json, line 1: "),
        (b'{"hidden_act": "\xff"}', "bert_config.json, byte 16: not UTF-8"),
        (b"[1, 2]", "bert_config.json: the JSON is a list, expected an object"),
        (b'{"hiden_size": 4}', "bert_config.json: unknown field 'hiden_size', expected some of vocab_size, "),
        (b'{"hidden_size": 5}', "bert_config.json: hidden_size 5 is not a multiple of num_attention_heads 12"),
    ],
)
def test_a_bad_file_is_named_with_its_place(tmp_path, content, message):
    path = tmp_path / "bert_config.json"
    path.write_bytes(content)
    with pytest.raises(ValueError) as raised:
        BertConfig.from_json(path)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_missing_file_is_an_os_error_with_its_name(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere.json"):
        BertConfig.from_json(tmp_path / "nowhere.json")


def test_the_configuration_needs_neither_keras_nor_tensorflow():
    program = "import sys, kbert.config; print([name for name in ('keras', 'tensorflow') if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
