"""What comes alone is answered by LiteRT, as the SavedModel it lies in answers, and by nothing else."""

import functools
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from kbert.config import BertConfig
from kbert.model.bert import Bert
from kbert.model.features import BertFeatures
from kbert.model.fine_tuning import BertClassifier, BertRegressor, BertTagger
from kbert.model.pretraining import BertPretrainer
from kbert.serving import litert
from kbert.serving.batching import Batcher, Limits
from kbert.serving.export import export
from kbert.serving.models import Models, Signature, Version, alone_by
from kbert.text.plain import PlainRow
from kbert.text.wordpiece import WordPiece

LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS), *".,"]
TEXTS = ["ab cd.", "", "x", "one two, three four. five", "a " * 100, "é \xff \x00"]
CONFIG = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
CONFIG |= {"vocab_size": len(VOCABULARY), "max_position_embeddings": 24, "initializer_range": 0.3}


def new_bert(**changes):
    keras.utils.set_random_seed(4)
    return Bert(BertConfig(**CONFIG, **changes))


def named(classifier):
    classifier.labels = ["red", "green", "blue"]
    return classifier


MODELS = {
    "classes": lambda: named(BertClassifier(new_bert(), 3)),
    "several classes": lambda: BertClassifier(new_bert(), 3, multi_label=True),
    "erf's GELU": lambda: BertClassifier(new_bert(hidden_act="gelu_erf"), 3),
    "left to right": lambda: BertClassifier(new_bert(causal=True), 3),
    "a number": lambda: BertRegressor(new_bert()),
    "pieces": lambda: BertFeatures(new_bert(), unit="piece"),
    "mean": lambda: BertFeatures(new_bert(), layers=(-1, 0), mix="none"),
    "pooled": lambda: BertFeatures(new_bert(), unit="pooled"),
}


@pytest.fixture(scope="module")
def tokenizer():
    return WordPiece(VOCABULARY)


SHORT = ("classes", "pieces")


@pytest.fixture(scope="module")
def exported(tokenizer, tmp_path_factory):
    """The folder of a model's only version, made once."""

    @functools.cache
    def of(name):
        return Path(export(MODELS[name](), tokenizer, tmp_path_factory.mktemp("saved"), litert=True))

    return of


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=() if name in SHORT else pytest.mark.long) for name in MODELS]
)
def version(request, exported):
    return Version(exported(request.param))


@pytest.fixture
def calls(monkeypatch):
    """The shapes that LiteRT is asked with."""
    seen, call = [], litert.LiteRT.__call__

    def noted(self, input_ids, segment_ids):
        seen.append((input_ids.shape, int(segment_ids.sum())))
        return call(self, input_ids, segment_ids)

    monkeypatch.setattr(litert.LiteRT, "__call__", noted)
    return seen


def check_same(found, expected):
    assert sorted(found) == sorted(expected)
    for name, values in expected.items():
        values, one = values.numpy(), found[name]
        assert one.dtype == values.dtype
        if one.shape != values.shape:  # no padding is made here, and there for the rest of 8
            assert one.shape[1] == found["pieces"].shape[1] == np.sum(expected["pieces"].numpy() != b"")
            values = values[:, : one.shape[1]]
        if values.dtype == object:
            assert one.tolist() == values.tolist()
        else:
            np.testing.assert_allclose(one, values, rtol=0, atol=1e-5)


def test_a_text_alone_is_answered_as_by_the_graph(version, calls):
    for text in TEXTS:
        found = version.signatures["serving_default"].call({"text": [text]})
        check_same(found, version.loaded.signatures["serving_default"](text=tf.constant([text])))
    assert [shape for shape, _ in calls] == [(1, 7), (1, 2), (1, 3), (1, 23), (1, 24), (1, 4)]


@pytest.mark.filterwarnings(r"ignore:\s*Warning. tf.lite.Interpreter is deprecated")
@pytest.mark.parametrize("activation", ["gelu_tanh", "gelu_erf"])
def test_gelu_is_one_operation_of_litert_and_the_model_keeps_its_own(activation):
    bert = new_bert(hidden_act=activation)
    former = [layer.activation for layer in bert.encoder_layers]
    model = litert.as_litert(bert, bert)
    # Before the interpreter hands operations over to XNNPACK, which hides them.
    plain = tf.lite.experimental.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    interpreter = tf.lite.Interpreter(model_content=model, experimental_op_resolver_type=plain)
    operations = [one["op_name"] for one in interpreter._get_ops_details()]
    assert operations.count("GELU") == len(bert.encoder_layers) == 2
    assert operations.count("TANH") == 1  # the pooler's
    assert [layer.activation for layer in bert.encoder_layers] == former


@pytest.mark.parametrize("names", [("text",), ("text_a", "text_b"), ("text_b", "text_a")])
def test_plain_texts_that_fit_are_packed_without_the_graph(names):
    packed, rows = [], []

    def packer(**texts):
        packed.append({name: text.numpy().tolist() for name, text in texts.items()})
        mask = tf.constant([[1, 1, 0]])
        return {"input_ids": mask * 7, "input_mask": mask, "segment_ids": mask * 0}

    def of_row(input_ids, segment_ids):
        rows.append((input_ids.tolist(), segment_ids.tolist()))
        return {"vectors": "found"}

    signature = Signature(dict.fromkeys(names), {"vectors": None}, {}, lambda columns: "several")
    plain = PlainRow(VOCABULARY, lower_case=True, longest=24)
    call = alone_by(of_row, plain, packer, signature).call
    assert packed == [dict.fromkeys(names, [b""])]
    texts = dict(zip(sorted(names), (["ab"], ["c."]), strict=False))
    assert call(texts) == {"vectors": "found"}
    pieces, segments = ["[CLS]", "a", "##b", "[SEP]"], [0] * 4
    if len(names) == 2:
        pieces, segments = [*pieces, "c", ".", "[SEP]"], segments + [1] * 3
    assert rows == [([[VOCABULARY.index(piece) for piece in pieces]], [segments])]
    assert len(packed) == 1
    call(texts | {names[0]: ["\u00e9"]})
    assert len(packed) == 2 and rows[1] == ([[7, 7]], [[0, 0]])
    assert call(texts | {names[0]: ["a", "b"]}) == call(texts | {names[0]: "a"}) == "several"


def check_answers_alone(folder, calls):
    version = Version(folder)
    calls.clear()  # of the warm-up
    found = version.signatures["serving_default"].call({"text": ["ab cd."]})
    check_same(found, version.loaded.signatures["serving_default"](text=tf.constant(["ab cd."])))
    assert [shape for shape, _ in calls] == [(1, 7)]


def test_a_version_from_before_packs_by_the_graph(exported, tmp_path, calls):
    folder = Path(shutil.copytree(exported("classes"), tmp_path / "asked" / "1"))
    (folder / litert.PLAIN_FILE).unlink()
    with pytest.raises(FileNotFoundError, match="plain.json"):
        Version(folder)
    litert.digest_of(folder / litert.PLAIN_FILE).unlink()
    check_answers_alone(folder, calls)


def test_a_tokenizer_that_may_find_other_pieces_is_the_graph_s(tmp_path, calls):
    class Reversed(WordPiece):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
        def __call__(self, texts):
            return tf.reverse(super().__call__(texts), axis=[1])

    folder = Path(export(MODELS["classes"](), Reversed(VOCABULARY), tmp_path / "asked", litert=True))
    assert not (folder / litert.PLAIN_FILE).exists()
    check_answers_alone(folder, calls)


def test_a_pair_alone_is_answered_as_by_the_graph(version, calls):
    plain = [("ab cd.", "x"), ("x", "ab cd."), ("", "x")]  # the graph packs the others
    pairs = [*zip(TEXTS, reversed(TEXTS), strict=True), *plain]
    for text_a, text_b in pairs:
        found = version.signatures["pairs"].call({"text_a": [text_a], "text_b": [text_b]})
        asked = {"text_a": tf.constant([text_a]), "text_b": tf.constant([text_b])}
        check_same(found, version.loaded.signatures["pairs"](**asked))
    assert len(calls) == len(pairs)
    assert all(of_second > 0 for _, of_second in calls)


def test_several_texts_and_none_are_answered_by_the_graph(version, calls):
    for texts in (TEXTS, TEXTS[:0]):
        found = version.signatures["serving_default"].call({"text": texts})
        check_same(found, version.loaded.signatures["serving_default"](text=tf.constant(texts, tf.string)))
    assert not calls


def test_pairs_of_unlike_counts_are_refused(version, calls):
    with pytest.raises(tf.errors.InvalidArgumentError, match="text_a has 1 rows and text_b 2, expected as many"):
        version.signatures["pairs"].call({"text_a": ["a"], "text_b": ["b", "c"]})
    assert not calls


def test_a_gpu_answers_what_comes_alone_itself(exported, calls, monkeypatch):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["a GPU"])
    version = Version(exported("classes"))
    found = version.signatures["serving_default"].call({"text": ["x"]})
    check_same(found, version.loaded.signatures["serving_default"](text=tf.constant(["x"])))
    assert not calls


def test_many_threads_get_their_own_answers(exported):
    version = Version(exported("classes"))
    call = version.signatures["serving_default"].call
    expected = {text: call({"text": [text]})["probabilities"] for text in TEXTS}

    def ask(number):
        for turn in range(30):
            text = TEXTS[(number + turn) % len(TEXTS)]
            np.testing.assert_array_equal(call({"text": [text]})["probabilities"], expected[text])

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(ask, range(6)))  # raises what a thread raised


@pytest.mark.parametrize("file", [litert.FILE, litert.PLAIN_FILE], ids=["weights", "pieces"])
@pytest.mark.parametrize("left", [None, 0, 100, 10_000])
def test_a_version_whose_file_is_gone_or_cut_off_is_left_out(exported, tmp_path, file, left):
    folder = Path(shutil.copytree(exported("classes"), tmp_path / "asked" / "1"))
    content = (folder / file).read_bytes()
    (folder / file).unlink()
    if left is not None:
        (folder / file).write_bytes(content[: min(left, len(content) - 1)])
    models = Models(tmp_path)
    models.look()
    assert not models.served
    [status] = models.status("asked")
    told = f"{file.name}: not as it was written" if left is not None else "No such file or directory"
    assert status["state"] == "END" and told in status["status"]["error_message"]
    (folder / file).write_bytes(content)
    models.look()
    assert models.served


def test_what_is_no_version_is_refused(tmp_path):
    with pytest.raises(ValueError, match="reviews: expected <name>/<version>, the version a number"):
        Version(tmp_path / "reviews")


def test_rows_of_a_request_are_put_together_whichever_way_each_is_answered(exported, calls):
    version = Version(exported("pieces"))
    signature, batcher = version.signatures["serving_default"], Batcher(Limits(characters=40))
    calls.clear()  # of the warm-up
    try:
        texts = ["ab cd.", "one two, three four. five", "x y", "z"]
        found = batcher.submit(signature, {"text": np.array(texts, object)}).result(60)
    finally:
        batcher.stop()
    expected = version.loaded.signatures["serving_default"](text=tf.constant(texts))
    assert [shape for shape, _ in calls] == [(1, 23)]
    longest = found["pieces"].shape[1]
    assert longest == 23
    assert found["pieces"].tolist() == expected["pieces"].numpy()[:, :longest].tolist()
    is_piece = found["pieces"] != b""
    vectors = expected["vectors"].numpy()[:, :longest]
    np.testing.assert_allclose(found["vectors"][is_piece], vectors[is_piece], rtol=0, atol=1e-5)


def test_weights_are_written_once_without_it(tokenizer, tmp_path):
    folder = Path(export(MODELS["classes"](), tokenizer, tmp_path))
    assert not (folder / litert.FILE).exists()
    assert not hasattr(tf.saved_model.load(folder), "packers")


@pytest.mark.parametrize("kind", [BertPretrainer, lambda config: BertTagger(Bert(config), 2)], ids=["blanks", "words"])
def test_what_answers_other_than_texts_is_refused(kind, tokenizer, tmp_path):
    with pytest.raises(ValueError, match="--litert: the model is a Bert(Pretrainer|Tagger), expected a BertClassifier"):
        export(kind(BertConfig(**CONFIG)), tokenizer, tmp_path / "saved", litert=True)
    assert not (tmp_path / "saved").exists()


@pytest.mark.parametrize("policy", ["bfloat16", "mixed_bfloat16", "mixed_float16"])
def test_half_precision_is_refused(policy, tokenizer, tmp_path):
    keras.config.set_dtype_policy(policy)
    try:
        model = MODELS["classes"]()
        with pytest.raises(ValueError, match="--litert: the model computes in b?float16, expected float32"):
            export(model, tokenizer, tmp_path / "saved", litert=True)
    finally:
        keras.config.set_dtype_policy("float32")
    assert not (tmp_path / "saved").exists()
