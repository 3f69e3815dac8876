"""What a SavedModel answers: the same as in Python, in a process that knows nothing of kbert."""

import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from stranger import module_of

from kbert.config import BertConfig
from kbert.model.bert import Bert
from kbert.model.features import BertFeatures, BertLSTMTagger
from kbert.model.fine_tuning import BertClassifier, BertMultipleChoice, BertRegressor, BertSpanPredictor, BertTagger
from kbert.model.pretraining import BertPretrainer
from kbert.model_directory import save
from kbert.serving import warm_up
from kbert.serving.export import as_next_version, export, models_config
from kbert.serving.folders import next_version
from kbert.serving.questions import Attention, Classify, Embed, FillBlanks, NextSentence, Regress
from kbert.text.packing import pack, special_ids
from kbert.text.wordpiece import WordPiece
from kbert.weights.by_name import take_over

LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS), *".,[]"]
POSITIONS = 24
TEXTS = ["ab [MASK] cd [MASK].", "no blank", "", "[MASK]", "[MASK][MASK]x[MASK]", "a " * 30 + "[MASK]", "é \xff [mask]"]


def make_config(**changes):
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    sizes |= {"vocab_size": len(VOCABULARY), "max_position_embeddings": POSITIONS, "initializer_range": 0.3}
    return BertConfig(**{**sizes, **changes})


@pytest.fixture(scope="module")
def tokenizer():
    return WordPiece(VOCABULARY)


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(1)
    model = BertPretrainer(make_config())
    model.compile(optimizer=keras.optimizers.Adam())
    model.optimizer.build(model.trainable_variables)
    return model


@pytest.fixture(scope="module")
def classifier():
    keras.utils.set_random_seed(2)
    classifier = BertClassifier(Bert(make_config()), num_labels=3)
    classifier.labels = ["red", "green", "blue"]
    return classifier


@pytest.fixture(scope="module")
def fill(model, tokenizer):
    return FillBlanks(model, tokenizer, k=3)


@pytest.fixture(scope="module")
def next_sentence(model, tokenizer):
    return NextSentence(model, tokenizer)


@pytest.fixture(scope="module")
def classify(classifier, tokenizer):
    return Classify(classifier, tokenizer, classifier.labels)


@pytest.fixture(scope="module")
def regressor():
    keras.utils.set_random_seed(3)
    return BertRegressor(Bert(make_config()))


@pytest.fixture(scope="module")
def exported(model, classifier, regressor, tokenizer, tmp_path_factory):
    directory = tmp_path_factory.mktemp("saved_models")
    return {
        "pretrainer": export(model, tokenizer, directory / "pretrainer", k=3),
        "classifier": export(classifier, tokenizer, directory / "classifier"),
        "regressor": export(regressor, tokenizer, directory / "regressor"),
    }


SERVER = """
import json, sys
paths, questions = json.loads(sys.stdin.read())
import tensorflow as tf
import tensorflow_text
loaded = {name: tf.saved_model.load(path) for name, path in paths.items()}
answers = []
for name, signature, inputs in questions:
    answer = loaded[name].signatures[signature](**{k: tf.constant(v) for k, v in inputs.items()})
    answers.append({k: v.numpy().astype("U" if v.dtype == tf.string else v.numpy().dtype).tolist()
                    for k, v in answer.items()})
print(json.dumps({"answers": answers, "kbert": "kbert" in sys.modules}))
"""


@pytest.fixture(scope="module")
def served(exported, tmp_path_factory):
    """What a new process that imports only tensorflow and tensorflow_text says of the exports."""
    pair = {"text_a": ["ab c", "x"], "text_b": ["d", "y z " * 20]}
    ids = {"input_ids": [[2, 5, 4, 3]], "input_mask": [[1] * 4], "segment_ids": [[0] * 4]}
    questions = [
        ("pretrainer", "serving_default", {"text": TEXTS}),
        ("pretrainer", "ids", {**ids, "masked_lm_positions": [[2]]}),
        ("pretrainer", "next_sentence", pair),
        ("pretrainer", "attention", {"text": TEXTS, "layer": [1] * len(TEXTS)}),
        ("classifier", "serving_default", {"text": TEXTS}),
        ("classifier", "pairs", pair),
        ("classifier", "ids", ids),
        ("regressor", "serving_default", {"text": TEXTS}),
        ("regressor", "pairs", pair),
        ("regressor", "ids", ids),
    ]
    command = [sys.executable, "-c", SERVER]
    folder = tmp_path_factory.mktemp("elsewhere")
    run = subprocess.run(command, input=json.dumps([exported, questions]), capture_output=True, text=True, cwd=folder)
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    named = {(name, signature): (inputs, report["answers"][n]) for n, (name, signature, inputs) in enumerate(questions)}
    return report, named


def assert_equal(answer, expected):
    assert sorted(answer) == sorted(expected)
    for name, value in expected.items():
        value = value.numpy()
        if value.dtype.kind == "f":
            np.testing.assert_allclose(answer[name], value, atol=1e-5)
        else:
            assert np.array_equal(answer[name], value.astype("U") if value.dtype.kind == "O" else value)


@pytest.mark.long
def test_a_new_process_answers_as_python_does(served, model, fill, next_sentence, classify, regressor, tokenizer):
    report, questions = served
    regress = Regress(regressor, tokenizer)
    assert report["kbert"] is False
    in_python = {
        ("pretrainer", "serving_default"): fill,
        ("pretrainer", "ids"): fill.from_ids,
        ("pretrainer", "next_sentence"): next_sentence,
        ("pretrainer", "attention"): Attention(model, tokenizer),
        ("classifier", "serving_default"): classify,
        ("classifier", "pairs"): classify,
        ("classifier", "ids"): classify.from_ids,
        ("regressor", "serving_default"): regress,
        ("regressor", "pairs"): regress,
        ("regressor", "ids"): regress.from_ids,
    }
    assert questions.keys() == in_python.keys()
    for name, (inputs, answer) in questions.items():
        assert_equal(answer, in_python[name](*(tf.constant(value) for value in inputs.values())))


def test_an_export_holds_the_weights_and_no_optimizer(exported, model):
    saved = dict(tf.train.list_variables(f"{exported['pretrainer']}/variables/variables"))
    sizes = [int(np.prod(shape)) for name, shape in saved.items() if "/.ATTRIBUTES/VARIABLE_VALUE" in name]
    # Those of queries, keys and values are side by side, kernels and biases in one each.
    layers = model.config.num_hidden_layers
    assert len(sizes) == len(model.trainable_variables) - 4 * layers
    assert sum(sizes) == sum(int(np.prod(weight.shape)) for weight in model.trainable_variables)


def test_a_model_that_is_trained_on_leaves_its_exports_alone_and_is_not_changed_by_them(tmp_path, tokenizer):
    model = BertClassifier(Bert(make_config()), 2)
    paths = [weight.path for weight in model.variables]
    first = export(model, tokenizer, tmp_path)
    before = answer_of(first)
    for weight in model.trainable_variables:
        weight.assign(1.5 * weight)
    assert [weight.path for weight in model.variables] == paths
    assert not any(layer.self_attention.kernels.kept for layer in model.bert.encoder_layers)
    second = export(model, tokenizer, tmp_path)
    np.testing.assert_array_equal(answer_of(first), before)
    expected = Classify(model, tokenizer)(["ab cd"])["probabilities"]
    np.testing.assert_allclose(answer_of(second), expected, atol=1e-6)
    assert np.abs(answer_of(second) - before).max() > 1e-3


def test_a_row_of_padding_is_answered_and_has_to_do_with_no_other_row(tmp_path, tokenizer):
    answer = tf.saved_model.load(export(BertClassifier(Bert(make_config()), 2), tokenizer, tmp_path)).signatures["ids"]

    def probabilities(ids, mask):
        given = {"input_ids": tf.constant(ids), "input_mask": tf.constant(mask)}
        return answer(**given, segment_ids=tf.zeros_like(given["input_ids"]))["probabilities"].numpy()

    one = probabilities([[2, 9, 3], [2, 7, 3]], [[1, 1, 1], [0, 0, 0]])
    other = probabilities([[2, 30, 3], [2, 7, 3]], [[1, 1, 1], [0, 0, 0]])
    assert np.abs(one[0] - other[0]).max() > 1e-4
    np.testing.assert_array_equal(one[1], other[1])
    np.testing.assert_allclose(probabilities([[2, 7, 3]], [[0, 0, 0]])[0], one[1], atol=1e-6)
    np.testing.assert_allclose(probabilities([[2, 7, 0]], [[2, 2, 0]]), probabilities([[2, 7, 0]], [[1, 1, 0]]))


def answer_of(path):
    return tf.saved_model.load(path).signatures["serving_default"](text=tf.constant(["ab cd"]))["probabilities"].numpy()


def test_signatures_have_the_names_a_client_writes(exported):
    loaded = {name: tf.saved_model.load(path) for name, path in exported.items()}
    names = {
        (model, signature): (set(function.structured_input_signature[1]), set(function.structured_outputs))
        for model, module in loaded.items()
        for signature, function in module.signatures.items()
    }
    ids, attention = {"input_ids", "input_mask", "segment_ids"}, ({"text", "layer"}, {"pieces", "attention"})
    assert names == {
        ("pretrainer", "serving_default"): ({"text"}, {"pieces", "probabilities", "ids"}),
        ("pretrainer", "ids"): (ids | {"masked_lm_positions"}, {"probabilities", "ids"}),
        ("pretrainer", "next_sentence"): ({"text_a", "text_b"}, {"probabilities"}),
        ("pretrainer", "attention"): attention,
        ("classifier", "serving_default"): ({"text"}, {"probabilities", "label"}),
        ("classifier", "pairs"): ({"text_a", "text_b"}, {"probabilities", "label"}),
        ("classifier", "ids"): (ids, {"probabilities", "label"}),
        ("classifier", "attention"): attention,
        ("regressor", "serving_default"): ({"text"}, {"value"}),
        ("regressor", "pairs"): ({"text_a", "text_b"}, {"value"}),
        ("regressor", "ids"): (ids, {"value"}),
        ("regressor", "attention"): attention,
    }


def features_of(tokenizer, *sequences):
    """One row without padding, packed in plain Python."""
    ids, segments = [tokenizer.cls_id], [0]
    for number, sequence in enumerate(sequences):
        ids += [*sequence, tokenizer.sep_id]
        segments += [number] * (len(sequence) + 1)
    row = {"input_ids": ids, "input_mask": [1] * len(ids), "segment_ids": segments}
    positions = [place for place, number in enumerate(ids) if number == tokenizer.mask_id]
    return {name: np.array([value], "int32") for name, value in {**row, "masked_lm_positions": positions}.items()}


def test_each_mask_gets_the_models_best_pieces_at_its_own_place(model, tokenizer, fill):
    a, b, c, d, dot, mask = (VOCABULARY.index(piece) for piece in ("a", "##b", "c", "##d", ".", "[MASK]"))
    logits = model(features_of(tokenizer, [a, b, mask, c, d, mask, dot]))["masked_lm_logits"]
    probabilities = keras.ops.convert_to_numpy(keras.ops.softmax(logits))[0]
    answer = fill([TEXTS[0]])
    for place in (0, 1):
        best = np.argsort(-probabilities[place])[:3]
        assert answer["ids"][0, place].numpy().tolist() == best.tolist()
        assert [piece.decode() for piece in answer["pieces"][0, place].numpy()] == [VOCABULARY[i] for i in best]
        np.testing.assert_allclose(answer["probabilities"][0, place], probabilities[place, best], atol=1e-5)
    assert not np.array_equal(answer["ids"][0, 0], answer["ids"][0, 1])


def test_a_mask_position_that_is_none_of_the_rows_is_refused(fill):
    ids = np.ones((2, 8), "int32")
    for position in (-1, 8):
        with pytest.raises(tf.errors.InvalidArgumentError, match="masked_lm_positions: expected 0 to 7"):
            fill.from_ids(*map(tf.constant, (ids, ids, ids * 0, np.array([[1], [position]], "int32"))))


def test_an_answer_does_not_depend_on_the_texts_beside_it(fill):
    together = fill(TEXTS)["probabilities"].numpy()
    for text, row in zip(TEXTS, together, strict=True):
        alone = fill([text])["probabilities"].numpy()[0]
        np.testing.assert_allclose(row[: len(alone)], alone, atol=1e-5)
        assert np.all(row[len(alone) :] == 0)


def test_a_mask_beyond_the_models_positions_is_empty_and_not_another_masks_answer(fill):
    fit = POSITIONS - 2
    texts = ["a " * (fit - 1) + "[MASK] [MASK]", "a " * fit + "[MASK] [MASK]", "[MASK] [MASK]"]
    answer = {name: value.numpy() for name, value in fill(texts).items()}
    answered = [[True, False], [False, False], [True, True]]
    assert (answer["probabilities"][:, :, 0] > 0).tolist() == answered
    assert (answer["ids"][:, :, 0] >= 0).tolist() == answered
    assert (answer["pieces"][:, :, 0] != b"").tolist() == answered
    assert np.all(answer["ids"][0, 1] == -1) and np.all(answer["probabilities"][0, 1] == 0)


def test_a_model_reads_no_more_than_it_was_trained_on(tokenizer):
    keras.utils.set_random_seed(1)
    model = BertPretrainer(make_config(sequence_length=8))
    answer = FillBlanks(model, tokenizer)(["a " * 5 + "[MASK] [MASK]"])
    assert (answer["ids"][0, :, 0].numpy() >= 0).tolist() == [True, False]
    vectors = Embed(BertFeatures(model.bert), tokenizer)(["a " * 6, "a " * 20])["vectors"].numpy()
    np.testing.assert_array_equal(vectors[0], vectors[1])


def test_pairs_of_another_number_are_refused(classify, next_sentence):
    for ask in (classify, next_sentence):
        with pytest.raises(tf.errors.InvalidArgumentError, match="text_a has 2 rows and text_b 1, expected as many"):
            ask(["a", "b"], ["c"])


def test_an_lstm_is_exported_as_plain_operations(tokenizer, tmp_path, monkeypatch):
    tagger, seen = BertLSTMTagger(Bert(make_config()), 2, layers=[-1], lstm_layers=1, lstm_units=4), []
    lstm = tagger.lstms[0].forward_layer
    inner_loop = lstm.inner_loop
    monkeypatch.setattr(lstm, "inner_loop", lambda *a, **o: seen.append(lstm.use_cudnn) or inner_loop(*a, **o))
    export(tagger, tokenizer, tmp_path)
    assert seen and not any(seen) and lstm.use_cudnn == "auto"


@pytest.mark.parametrize(("texts", "shape"), [([], (0, 0, 3)), (["no blank"], (1, 0, 3)), ([""], (1, 0, 3))])
def test_texts_without_a_blank_get_no_answers(fill, texts, shape):
    answer = fill(texts)
    assert {tuple(value.shape) for value in answer.values()} == {shape}


def test_next_sentence_is_the_softmax_of_the_models_head(model, tokenizer, next_sentence):
    a, b = VOCABULARY.index("a"), VOCABULARY.index("b")
    logits = model(features_of(tokenizer, [a] * 3, [b] * 3))["next_sentence_logits"]
    probabilities = next_sentence(["a a a"], ["b b b"])["probabilities"].numpy()
    np.testing.assert_allclose(probabilities, keras.ops.softmax(logits), atol=1e-5)
    long = next_sentence(["a " * 50], ["b " * 50])["probabilities"].numpy()
    packed = features_of(tokenizer, [a] * 11, [b] * 10)  # 21 of 24 positions are for text, the first has the odd one
    np.testing.assert_allclose(long, keras.ops.softmax(model(packed)["next_sentence_logits"]), atol=1e-5)


def test_a_classifier_names_the_likeliest_label(classifier, classify, tokenizer):
    answer = classify(["a", "b c d", "x y z ."])
    logits = classifier(features_of(tokenizer, [VOCABULARY.index("a")]))["logits"]
    np.testing.assert_allclose(answer["probabilities"][:1], keras.ops.softmax(logits), atol=1e-5)
    best = answer["probabilities"].numpy().argmax(axis=1)
    assert [label.decode() for label in answer["label"].numpy()] == [["red", "green", "blue"][i] for i in best]
    assert Classify(classifier, tokenizer).labels == ["0", "1", "2"]


def test_a_regressor_answers_with_its_number_for_a_text_or_a_pair(regressor, tokenizer):
    regress, a, b = Regress(regressor, tokenizer), VOCABULARY.index("a"), VOCABULARY.index("b")
    for answer, ids in ((regress(["a"]), ([a],)), (regress(["a"], ["b b"]), ([a], [b] * 2))):
        assert answer.keys() == {"value"}
        np.testing.assert_allclose(answer["value"], regressor(features_of(tokenizer, *ids))["logits"], atol=1e-5)


def test_vectors_of_texts_are_those_of_the_bert_alone_and_of_pieces_have_their_names(regressor, tokenizer, tmp_path):
    bert, a, b = regressor.bert, VOCABULARY.index("a"), VOCABULARY.index("b")
    export(BertFeatures(bert), tokenizer, tmp_path / "vectors")
    loaded = tf.saved_model.load(tmp_path / "vectors" / "1").signatures
    assert set(loaded) == {"serving_default", "pairs", "ids", "attention"}
    served = loaded["serving_default"](text=tf.constant(["a", "b b a"]))["vectors"]
    for vector, ids in zip(served, ([a], [b, b, a]), strict=True):
        expected = bert(features_of(tokenizer, ids))["sequence_output"][0, : len(ids) + 2]
        np.testing.assert_allclose(vector, np.mean(expected, axis=0), atol=1e-5)
    answer = Embed(BertFeatures(bert, [0, -1], mix="none", unit="piece"), tokenizer)(["a", "b b a"], ["b", "q"])
    assert answer["vectors"].shape == (2, 8, 2, 32)
    assert answer["pieces"].numpy()[0].tolist() == [b"[CLS]", b"a", b"[SEP]", b"b", b"[SEP]", b"", b"", b""]


def test_attention_is_that_of_the_layer_asked_for_as_the_bert_has_it(tokenizer):
    keras.utils.set_random_seed(6)
    classifier = BertClassifier(Bert(make_config(num_hidden_layers=3)))
    ask, ids = Attention(classifier, tokenizer), {piece: number for number, piece in enumerate(VOCABULARY)}
    texts, layers = ["ab c", "d", "", "a " * 40], [3, 1, 2, 3]
    pieces = [["a", "##b", "c"], ["d"], [], ["a"] * (POSITIONS - 2)]
    answer = {name: value.numpy() for name, value in ask(texts, layers).items()}
    assert answer["attention"].shape == (4, 2, POSITIONS, POSITIONS) and answer["pieces"].shape == (4, POSITIONS)
    for row, (layer, words) in enumerate(zip(layers, pieces, strict=True)):
        count = len(words) + 2
        features = features_of(tokenizer, [ids[word] for word in words])
        expected = classifier.bert(features, output_attentions=True)["attention_probabilities"][layer - 1][0]
        np.testing.assert_allclose(answer["attention"][row, :, :count, :count], expected, atol=1e-5)
        assert np.all(answer["attention"][row, :, count:] == 0) and np.all(answer["attention"][row, :, :, count:] == 0)
        names = [name.decode() for name in answer["pieces"][row]]
        assert names == ["[CLS]", *words, "[SEP]", *[""] * (POSITIONS - count)]
    assert ask([], [])["attention"].shape == (0, 2, 8, 8)
    for layer in (0, 4):
        with pytest.raises(tf.errors.InvalidArgumentError, match=rf"layer is \[{layer}\], expected 1 to 3"):
            ask(["a", "b"], [1, layer])


def test_attention_reads_a_mask_as_one_where_the_model_fills_masks(model, classifier, tokenizer):
    filled, read = (Attention(one, tokenizer)(["a[MASK]"], [1])["pieces"].numpy()[0] for one in (model, classifier))
    assert [piece.decode() for piece in filled[:4]] == ["[CLS]", "a", "[MASK]", "[SEP]"]
    assert [piece.decode() for piece in read[:4]] == ["[CLS]", "a", "[", "m"]


def test_the_recipe_exports_a_model_directory_and_shows_what_it_answers(model, tokenizer, tmp_path, capsys):
    save(model, tokenizer, tmp_path / "model")
    recipe = module_of("export")
    recipe.main(str(tmp_path / "model"), "mine", k=2, output=str(tmp_path / "served"))
    assert (tmp_path / "served" / "mine" / "1" / "saved_model.pb").exists()
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("serving_default", "next_sentence", "[MASK] 2", "tf.saved_model.load("))
    with pytest.raises(ValueError, match="--name is 'a/b', expected letters"):
        recipe.main(str(tmp_path / "model"), "a/b")
    recipe.main(str(tmp_path / "model"), "mine", vectors=recipe.VectorFlags("mean"), output=str(tmp_path / "served"))
    assert "vectors float32" in capsys.readouterr().out
    assert not list(tmp_path.glob("served/mine/*/assets.extra/ids.tflite"))
    pieces = recipe.VectorFlags("piece")
    recipe.main(str(tmp_path / "model"), "mine", vectors=pieces, litert=True, output=str(tmp_path / "served"))
    assert (tmp_path / "served" / "mine" / "3" / "assets.extra" / "ids.tflite").exists()
    padding = json.loads((tmp_path / "served" / "mine" / "3" / "assets.extra" / "padding.json").read_text())
    assert padding.keys() == {"serving_default", "pairs", "attention"}
    assert "[CLS], the, " not in (shown := capsys.readouterr().out) and "pieces string" in shown and "[CLS]" in shown
    with pytest.raises(ValueError, match="--threshold 1.0: expected a BertSpanPredictor, .* is a BertPretrainer"):
        recipe.main(str(tmp_path / "model"), "mine", threshold=1.0)
    with pytest.raises(ValueError, match="--litert: the model is a BertPretrainer, expected a BertClassifier"):
        recipe.main(str(tmp_path / "model"), "mine", litert=True)
    with pytest.raises(ValueError, match="--litert --precision bfloat16: LiteRT's weights are float32"):
        recipe.main(str(tmp_path / "model"), "mine", litert=True, precision="bfloat16")
    with pytest.raises(ValueError, match="expected --vectors.unit beside it"):
        recipe.main(str(tmp_path / "model"), "mine", vectors=recipe.VectorFlags(layers=(1,)))


@pytest.mark.parametrize(
    "new_model",
    [
        BertPretrainer,
        pytest.param(lambda config: BertSpanPredictor(Bert(config)), marks=pytest.mark.long),
        pytest.param(
            lambda config: BertLSTMTagger(Bert(config), num_labels=3, layers=(-1,), lstm_units=8),
            marks=pytest.mark.long,
        ),
        pytest.param(lambda config: BertClassifier(Bert(config), num_labels=3), marks=pytest.mark.long),
        pytest.param(lambda config: BertRegressor(Bert(config)), marks=pytest.mark.long),
        pytest.param(lambda config: BertTagger(Bert(config), num_labels=3), marks=pytest.mark.long),
        pytest.param(lambda config: BertMultipleChoice(Bert(config)), marks=pytest.mark.long),
    ],
)
def test_in_half_precision_weights_are_and_the_answers_nearly_the_same(
    new_model, tokenizer, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("kbert.devices.lacks_instructions", lambda precision: precision == "bfloat16")
    keras.utils.set_random_seed(7)
    save(new_model(make_config()), tokenizer, tmp_path / "model")
    recipe, answers = module_of("export"), {}
    try:
        for precision in ("float32", "bfloat16"):
            recipe.main(str(tmp_path / "model"), "mine", output=str(tmp_path / precision), precision=precision)
            assert ("no instructions for bfloat16" in capsys.readouterr().out) == (precision == "bfloat16")
            loaded = tf.saved_model.load(tmp_path / precision / "mine" / "1")
            assert {weight.dtype.name for weight in loaded.weights} == {precision}
            for one in loaded.signatures.values():
                assert not any(output.dtype == tf.bfloat16 for output in one.structured_outputs.values())
            ask = loaded.signatures["serving_default"]
            texts = recipe.EXAMPLES | ({"text": ["ab [MASK]"]} if new_model is BertPretrainer else {})
            answers[precision] = ask(**{n: tf.constant(texts[n]) for n in ask.structured_input_signature[1]})
    finally:
        keras.config.set_dtype_policy("float32")
    for name, value in answers["bfloat16"].items():
        expected = answers["float32"][name]
        assert value.dtype == expected.dtype and value.shape == expected.shape
        if value.dtype == tf.float32:
            assert tf.size(value) > 0
            np.testing.assert_allclose(value, expected, atol=0.05)


def allowed_but_for(name):
    listdir = os.listdir

    def list_or_refuse(folder):
        if Path(folder).name == name:
            raise PermissionError(13, "Permission denied", str(folder))
        return listdir(folder)

    return list_or_refuse


def test_beside_the_graph_are_warm_up_requests_and_what_a_server_may_want(classifier, tokenizer, tmp_path, monkeypatch):
    path = Path(export(classifier, tokenizer, tmp_path / "colours"))
    requests = warm_up.read(path)
    assert {signature for signature, _ in requests} == {"serving_default", "pairs"} and len(requests) == 8
    signatures = tf.saved_model.load(path).signatures
    for signature, inputs in requests:
        answer = signatures[signature](**{name: tf.constant(values) for name, values in inputs.items()})
        assert answer["probabilities"].shape == (1, 3)
    assert (path / "assets.extra" / "labels.txt").read_text() == "red\ngreen\nblue\n"
    assert BertConfig.from_json(path / "assets.extra" / "bert_config.json") == classifier.config
    for name in ("empty", "lost+found"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(os, "listdir", allowed_but_for("lost+found"))
    line = '  config { name: "colours" base_path: "/models/colours" model_platform: "tensorflow" }'
    assert models_config(tmp_path) == f"model_config_list {{\n{line}\n}}\n"
    assert warm_up.read(tmp_path) == []


def test_a_model_with_next_sentences_alone_is_asked_for_them(model, tokenizer, next_sentence, tmp_path):
    alone = BertPretrainer(model.config, masked_lm=False)
    take_over(alone, model)
    pairs = {"text_a": tf.constant(["a a a"]), "text_b": tf.constant(["b b b"])}
    signatures = tf.saved_model.load(export(alone, tokenizer, tmp_path)).signatures
    assert set(signatures) == {"serving_default", "next_sentence", "attention"}
    expected = next_sentence(["a a a"], ["b b b"])["probabilities"]
    for name in ("serving_default", "next_sentence"):
        np.testing.assert_allclose(signatures[name](**pairs)["probabilities"], expected, atol=1e-6)
    with pytest.raises(ValueError, match="BertPretrainer without a head that is asked for k"):
        export(alone, tokenizer, tmp_path, k=3)


def test_versions_count_up_and_other_names_do_not_matter(tmp_path):
    assert next_version(tmp_path) == 1
    for name in ("2", "10", "old", ".unfinished-3"):
        (tmp_path / name).mkdir()
    assert next_version(tmp_path) == 11


def test_of_two_exports_at_once_each_gets_a_number(tmp_path, monkeypatch):
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "saved_model.pb").write_text("the other's")
    (tmp_path / "mine").mkdir()
    numbers = iter([7, 8])  # as if the other's had not been there yet
    monkeypatch.setattr("kbert.serving.export.next_version", lambda folder: next(numbers))
    assert as_next_version(tmp_path / "mine", tmp_path) == tmp_path / "8"
    assert (tmp_path / "8").is_dir() and not (tmp_path / "mine").exists()


def test_an_export_that_fails_leaves_nothing(classifier, tokenizer, tmp_path, monkeypatch):
    def fail(root, path, signatures):
        (tmp_path / "name" / path.name / "saved_model.pb").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    (tmp_path / "name" / "1").mkdir(parents=True)
    monkeypatch.setattr(tf.saved_model, "save", fail)
    with pytest.raises(OSError, match="No space left"):
        export(classifier, tokenizer, tmp_path / "name")
    assert [entry.name for entry in (tmp_path / "name").iterdir()] == ["1"]


def test_what_cannot_answer_is_refused(model, classifier, tokenizer, tmp_path):
    with pytest.raises(ValueError, match="k is 0, expected 1 to 61"):
        FillBlanks(model, tokenizer, k=0)
    with pytest.raises(ValueError, match="losses are loss: .* masked_lm_loss"):
        FillBlanks(classifier, tokenizer)
    with pytest.raises(ValueError, match="masked_lm_loss: .* next_sentence_loss"):
        NextSentence(BertPretrainer(make_config(), next_sentence=False), tokenizer)
    with pytest.raises(ValueError, match="causal"):
        FillBlanks(BertPretrainer(make_config(causal=True)), tokenizer)
    with pytest.raises(ValueError, match="labels has 2 names, expected the model's 3"):
        Classify(classifier, tokenizer, ["red", "green"])
    with pytest.raises(ValueError, match="the vocabulary has 60 pieces, the model 61"):
        FillBlanks(model, WordPiece(VOCABULARY[:-1]))
    with pytest.raises(ValueError, match="model is a Sequential without a head that is asked"):
        export(keras.Sequential(), tokenizer, tmp_path)
    with pytest.raises(ValueError, match="model is a BertPretrainer without a head that is asked"):
        export(BertPretrainer(make_config(), masked_lm=False, next_sentence=False), tokenizer, tmp_path)


def test_classes_that_exclude_nothing_have_a_probability_each(tokenizer):
    model = BertClassifier(Bert(make_config()), num_labels=3, multi_label=True)
    answer = Classify(model, tokenizer)(["ab cd.", "ef"])
    logits = model(pack(tokenizer(["ab cd.", "ef"]), None, 8, special_ids(tokenizer)))["logits"]
    np.testing.assert_allclose(answer["probabilities"], 1 / (1 + np.exp(-np.asarray(logits))), atol=1e-6)
