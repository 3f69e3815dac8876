import functools
import subprocess
import sys
import time
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from kbert import environment, lanes
from kbert.model.bert import Bert
from kbert.model.fine_tuning import BertClassifier, BertSpanPredictor, BertTagger
from kbert.training import pieces
from kbert.training.optimization import global_norm
from tests.training import tiny_run
from tests.training.tiny_run import batch, dataset, new_model, new_optimizer, state


def fit(model, data, steps, **options):
    return model.fit(data, steps_per_epoch=steps, shuffle=False, verbose=0, **options).history


def log_probabilities(logits):
    logits = logits - logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def test_evaluation_averages_over_what_was_predicted_in_all_batches(model):
    batches = [batch(0), batch(1), batch(2, size=3)]
    whole = {name: np.concatenate([b[name] for b in batches]) for name in batches[0] if name != "data_position"}
    outputs = model(whole)
    weights = whole["masked_lm_weights"]
    found = log_probabilities(outputs["masked_lm_logits"].numpy())
    of_truth = np.take_along_axis(found, whole["masked_lm_ids"][..., None], axis=-1)[..., 0]
    best = found.argmax(axis=-1) == whole["masked_lm_ids"]
    follows = log_probabilities(outputs["next_sentence_logits"].numpy())
    labels = whole["next_sentence_labels"]

    data = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=spec())
    values = model.evaluate(data.apply(tf.data.experimental.assert_cardinality(3)), verbose=0, return_dict=True)

    assert values["masked_lm_loss"] == pytest.approx(-(of_truth * weights).sum() / weights.sum(), rel=1e-5)
    assert values["masked_lm_accuracy"] == pytest.approx((best * weights).sum() / weights.sum(), rel=1e-5)
    assert values["next_sentence_loss"] == pytest.approx(-follows[range(len(labels)), labels].mean(), rel=1e-5)
    assert values["next_sentence_accuracy"] == pytest.approx((follows.argmax(-1) == labels).mean(), rel=1e-5)
    assert values["loss"] == pytest.approx(values["masked_lm_loss"] + values["next_sentence_loss"], rel=1e-6)
    assert "gradient_norm" not in values


def spec():
    return {
        name: tf.TensorSpec([None, *value.shape[1:]] if name != "data_position" else [3], value.dtype)
        for name, value in batch(0).items()
    }


def test_an_update_is_the_gradient_of_the_mean_loss_clipped_by_its_norm():
    model = new_model(dropout=0)
    features = {name: tf.constant(value) for name, value in batch(0).items()}
    with tf.GradientTape() as tape:
        loss = model.compute_loss(features, None, model(features, training=True))
    gradients = [tf.convert_to_tensor(g) for g in tape.gradient(loss, model.trainable_variables)]
    norm = float(global_norm(gradients))
    expected = [v.numpy() - g * 0.5 / norm for v, g in zip(model.trainable_variables, gradients, strict=True)]
    assert norm > 0.5

    model.compile(keras.optimizers.SGD(1.0, global_clipnorm=0.5), jit_compile=False)
    history = fit(model, dataset(), 1)

    assert history["loss"] == pytest.approx([float(loss)], rel=1e-6)
    assert history["gradient_norm"] == pytest.approx([norm], rel=1e-5)
    for variable, value in zip(model.trainable_variables, expected, strict=True):
        np.testing.assert_allclose(variable.numpy(), value, atol=1e-6, err_msg=variable.path)


def test_each_batch_trains_once_and_its_position_is_kept(model):
    fit(model, dataset(3), 5)
    assert model.steps_done == 5
    assert model.data_position.numpy().tolist() == [0, 0, 8]


def test_tokens_padding_and_waiting_are_counted(model):
    def slowly():
        for number in range(3):
            time.sleep(0.1)
            yield batch(number)

    fit(model, tf.data.Dataset.from_generator(slowly, output_signature=spec()), 3)
    assert float(model.real_tokens.result()) == sum(batch(number)["input_mask"].sum() for number in range(3))
    assert float(model.token_slots.result()) == 3 * 4 * tiny_run.LENGTH
    assert 0.25 < float(model.seconds_waiting.result()) < float(model.seconds.result())


def test_arrays_are_shuffled_and_datasets_are_not(monkeypatch, model):
    told = {}
    monkeypatch.setattr(keras.Model, "fit", lambda self, x, **options: told.update(options))
    model.fit({"input_ids": np.zeros((4, 8), "int32")})
    assert told["shuffle"]
    model.fit(dataset())
    assert not told["shuffle"]


@pytest.mark.parametrize("how", [False, "auto", pytest.param(True, marks=pytest.mark.long)])
def test_batches_of_several_lengths_share_one_graph_whichever_comes_first(monkeypatch, how):
    model, traced = new_model(), []
    model.compile(new_optimizer(), jit_compile=how)
    for name in ("_train_step", "_test_step"):
        original = getattr(type(model), name)
        monkeypatch.setattr(
            type(model), name, lambda *arguments, f=original: traced.append(arguments[2]) or f(*arguments)
        )
    by_sequence = ("input_ids", "input_mask", "segment_ids")

    def batches():
        for number, length in enumerate((12, 16, 14)):
            whole = batch(number)
            yield {name: value[:, :length] if name in by_sequence else value for name, value in whole.items()}

    specs = {name: tf.TensorSpec(value.shape, value.dtype) for name, value in batch(0).items()}
    specs |= {name: tf.TensorSpec([4, None], tf.int32) for name in by_sequence}
    data = tf.data.Dataset.from_generator(batches, output_signature=specs)
    fit(model, data, 3)
    model.evaluate(data, verbose=0)
    assert [features["input_ids"].shape.as_list() for features in traced] == [[4, None], [4, None]]


def test_several_steps_in_one_call_are_the_same_steps(model):
    fit(model, dataset(), 6)
    expected = [variable.numpy() for variable in state(model).values()]
    several = new_model()
    several.compile(new_optimizer(), jit_compile=False, steps_per_execution=3)
    calls = fit(several, dataset(), 6, callbacks=[calls_counter := CountCalls()])
    assert calls_counter.count == 2 and calls["loss"]
    for name, value in zip(state(model), expected, strict=True):
        if "seconds" not in name:
            np.testing.assert_array_equal(state(several)[name].numpy(), value, err_msg=name)


def test_steps_that_a_call_does_not_divide_are_refused(model):
    several = new_model()
    several.compile(new_optimizer(), jit_compile=False, steps_per_execution=3)
    with pytest.raises(ValueError, match="steps_per_epoch is 7, expected a multiple of steps_per_execution 3"):
        fit(several, dataset(), 7)
    with pytest.raises(ValueError, match="steps_per_epoch is 0, expected at least 1"):
        fit(several, dataset(), 0)


def test_a_batch_taken_in_parts_gives_the_same_update(model):
    whole, parts = new_model(dropout=0), new_model(dropout=0)
    whole.compile(new_optimizer(), jit_compile=False)
    parts.compile(new_optimizer(), jit_compile=False, accumulation=2)
    expected = fit(whole, dataset(), 2)
    assert fit(parts, dataset(), 2) == {name: pytest.approx(value, rel=1e-5) for name, value in expected.items()}
    for variable, other in zip(whole.weights, parts.weights, strict=True):
        np.testing.assert_allclose(other.numpy(), variable.numpy(), atol=1e-5, err_msg=variable.path)
    parts.compile(new_optimizer(), jit_compile=False, accumulation=3)
    with pytest.raises(ValueError, match="batch has 4 rows, expected a multiple of accumulation 3"):
        fit(parts, dataset(), 1)


@pytest.mark.parametrize(
    ("how", "accumulation"),
    [
        pytest.param(True, 1, marks=pytest.mark.long),
        pytest.param("pieces", 1, marks=pytest.mark.long),
        ("pieces", 2),
    ],
)
def test_xla_changes_nothing_but_the_rounding(model, how, accumulation):
    expected = fit(model, dataset(), 2)
    compiled = new_model()
    compiled.compile(new_optimizer(), jit_compile=how, accumulation=accumulation)
    if accumulation == 2:  # which draws masks of its own for each part
        uncompiled = new_model()
        uncompiled.compile(new_optimizer(), jit_compile=False, accumulation=2)
        expected = fit(uncompiled, dataset(), 2)
        model = uncompiled
    assert fit(compiled, dataset(), 2) == {name: pytest.approx(value, rel=1e-4) for name, value in expected.items()}
    for variable, other in zip(model.weights, compiled.weights, strict=True):
        np.testing.assert_allclose(other.numpy(), variable.numpy(), atol=1e-4, err_msg=variable.path)


def test_layers_are_compiled_in_pieces_and_what_is_computed_twice_as_a_whole(monkeypatch):
    once, twice, whole = (new_model(num_hidden_layers=2) for _ in range(3))
    made, compiled = [], pieces.compiled.__wrapped__
    of_loss = tf.function(pieces._exponentials.python_function, autograph=False, jit_compile=True)
    monkeypatch.setattr(pieces, "_exponentials", of_loss)
    monkeypatch.setattr(pieces, "compiled", functools.cache(lambda *what: made.append(compiled(*what)) or made[-1]))
    twice.bert.recompute = True
    for model, jit_compile in ((once, "auto"), (twice, "auto"), (whole, True)):
        model.compile(new_optimizer(), jit_compile=jit_compile)
    assert [model.compiled_by_xla for model in (once, twice, whole)] == [False, True, True]
    expected_pieces = [pieces.compiled_piece, pieces.piece, pieces.piece]
    assert [model.bert.piece for model in (once, twice, whole)] == expected_pieces
    fit(once, dataset(), 2)
    another = new_model(num_hidden_layers=2)
    another.compile(new_optimizer())
    fit(another, dataset(), 1)
    # Products, attention, sums with their LayerNorms, the activation and the loss, for all layers and models alike, and
    # what ends the embeddings: a sum and its dropout.
    assert len(made) == 7
    # The last layer has batches of its own for attention, sums and the activation; the loss compiles a part of itself.
    graphs = [both for both in made if hasattr(both.forward, "get_concrete_function")]
    traced = [{one.experimental_get_tracing_count() for one in both} for both in graphs]
    assert sorted(traced, key=max) == [{1}] * 2 + [{2}] * 3
    assert of_loss.experimental_get_tracing_count() == 1
    once.compile(new_optimizer(), jit_compile=False)
    assert not once.compiled_by_xla and once.bert.piece is pieces.uncompiled_piece
    with pytest.raises(ValueError, match="jit_compile is 'whole', expected 'auto', 'pieces', True or False"):
        once.compile(new_optimizer(), jit_compile="whole")


OF_SHAPES = {"BroadcastGradientArgs"}  # computes axes from shapes alone, as XLA does while it compiles


@pytest.mark.parametrize("accumulation", [1, pytest.param(2, marks=pytest.mark.long)])
def test_the_whole_step_compiles_with_static_shapes_and_holds_no_string(accumulation):
    """The nearest thing to a TPU here: forward, backward, reduction, optimizer and metrics in one XLA program."""
    assert all(one.shape.is_fully_defined() for one in dataset().element_spec.values())
    uncompiled, whole = new_model(), new_model()
    uncompiled.compile(new_optimizer(), jit_compile=False, accumulation=accumulation)
    whole.compile(new_optimizer(), jit_compile=True, accumulation=accumulation)
    gradients_of = whole._graph(whole._gradients, xla=whole.compiled_by_xla)
    step = tf.function(functools.partial(whole._train_step, gradients_of), jit_compile=True, autograph=False)
    features = {name: tf.constant(value) for name, value in batch(0).items()}
    expected = fit(uncompiled, dataset(), 1)
    reached = step(features, tf.constant(0.0))
    assert {name: float(reached[name]) for name in expected} == {
        name: pytest.approx(values[0], rel=1e-4) for name, values in expected.items()
    }
    assert whole.steps_done == 1

    nodes = all_nodes(step.get_concrete_function(features, tf.constant(0.0)).graph)
    assert all(node.attr["_output_shapes"].list.shape for node in nodes if node.op == "MatMul")
    assert "MatMul" in {node.op for node in nodes}  # of the forward pass
    # Of the gradients' norm, and of how each of several shapes moves.
    assert sum(node.op == "Sqrt" for node in nodes) > 1 + len({v.shape for v in whole.learned_variables}) // 2
    assert not [node.name for node in nodes if tf.string.as_datatype_enum in types_of(node)]
    assert not [f"{node.op} {node.name}" for node in nodes if not is_static(node) and node.op not in OF_SHAPES]


def all_nodes(graph) -> list:
    """The operations of a graph and of all functions that it calls."""
    definition = graph.as_graph_def(add_shapes=True)
    return [*definition.node, *(node for function in definition.library.function for node in function.node_def)]


def types_of(node) -> set:
    return {number for value in node.attr.values() for number in (value.type, *value.list.type)}


def is_static(node) -> bool:
    shapes = node.attr["_output_shapes"].list.shape
    return all(not shape.unknown_rank and all(dimension.size >= 0 for dimension in shape.dim) for shape in shapes)


@pytest.mark.parametrize("jit_compile", [False, "pieces"])
@pytest.mark.parametrize("precision", ["bfloat16", pytest.param("float16", marks=pytest.mark.long)])
def test_half_precision_computes_near_single_precision_and_keeps_single_precision_variables(
    model, precision, jit_compile
):
    expected = fit(model, dataset(), 2)
    half = new_model(dtype=f"mixed_{precision}")
    half.compile(new_optimizer(), jit_compile=jit_compile)
    assert fit(half, dataset(), 2)["loss"] == pytest.approx(expected["loss"], rel=0.02)
    assert {variable.dtype for variable in half.weights} == {"float32"} and half.bert.compute_dtype == precision


def test_what_is_computed_twice_for_less_memory_is_the_same(model):
    twice = new_model(num_hidden_layers=2)
    once = new_model(num_hidden_layers=2)
    twice.bert.recompute = True
    for one in (once, twice):
        one.compile(new_optimizer(), jit_compile=False, accumulation=2)
    expected = fit(once, dataset(), 3)
    assert fit(twice, dataset(), 3) == {name: pytest.approx(value, rel=1e-6) for name, value in expected.items()}
    for variable, other in zip(once.variables, twice.variables, strict=True):
        np.testing.assert_allclose(other.numpy(), variable.numpy(), atol=1e-6, err_msg=variable.path)
    calls = []
    twice.bert.encoder_layers[0].recomputed = lambda *arguments: calls.append(1) or arguments[0]
    twice({name: value for name, value in batch(0).items() if name != "data_position"}, training=True)
    assert calls == [1]


def test_a_gradient_that_overflows_in_float16_moves_nothing_and_halves_the_loss_scale():
    half = new_model(dtype="mixed_float16")
    half.compile(new_optimizer(), jit_compile=False)
    before = [weight.numpy() for weight in half.weights]
    half.loss_scale.scale.assign(2.0**40)
    history = fit(half, dataset(), 1)
    assert half.steps_done == 1 and float(half.loss_scale.scale) == 2.0**39 and history["gradient_norm"] == [0.0]
    for weight, value in zip(half.weights, before, strict=True):
        np.testing.assert_array_equal(weight.numpy(), value)
    half.loss_scale.scale.assign(2.0**15)
    half.loss_scale.steps.assign(1999)
    fit(half, dataset(1), 1)
    assert float(half.loss_scale.scale) == 2.0**16 and int(half.loss_scale.steps) == 0
    assert any((weight.numpy() != value).any() for weight, value in zip(half.weights, before, strict=True))
    half.loss_scale.scale.assign(2.0**40)
    assert {"loss_scale", "steps_at_scale"} <= state(half).keys()


def test_a_model_saved_as_keras_saves_goes_on_with_its_optimizer_and_settings(model, tmp_path):
    parts = new_model(dropout=0)  # Keras stores no seeds; kbert's own checkpoints do
    parts.compile(new_optimizer(), jit_compile=False, accumulation=2, steps_per_execution=2)
    fit(parts, dataset(), 2)
    parts.save(tmp_path / "model.keras")
    with warnings.catch_warnings(action="error", category=UserWarning):
        loaded = keras.models.load_model(tmp_path / "model.keras")
    assert (loaded.accumulation, loaded.steps_per_execution, loaded.compiled_by_xla) == (2, 2, False)
    assert loaded.steps_done == 2
    assert fit(loaded, dataset(2), 2) == fit(parts, dataset(2), 2)


def test_a_loss_beside_the_models_own_is_refused(model):
    with pytest.raises(ValueError, match="loss is 'mse', expected none"):
        model.compile(new_optimizer(), jit_compile=False, loss="mse")


class CountCalls(keras.callbacks.Callback):
    count = 0

    def on_train_batch_end(self, batch, logs=None):
        self.count += 1


@pytest.mark.parametrize("accumulation", [1, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", ["masked LM alone", "tags", "spans", "classes"])
def test_a_pooler_that_no_head_reads_is_left_as_it_was(kind, accumulation):
    config = new_model().config
    features = {name: value for name, value in batch(0).items() if name != "data_position"}
    match kind:
        case "masked LM alone":
            model = tiny_run.BertPretrainer(config, next_sentence=False)
        case "tags":
            model = BertTagger(Bert(config), 3)
            features["label_ids"] = features["input_ids"] % 3
        case "spans":
            model = BertSpanPredictor(Bert(config))
            features |= {"start_positions": np.int32([1, 2, 3, 4]), "end_positions": np.int32([1, 3, 3, 5])}
        case "classes":
            model = BertClassifier(Bert(config), 3)
            features["label_ids"] = np.int32([0, 1, 2, 0])
    model.compile(new_optimizer(), jit_compile=False, accumulation=accumulation)
    before = [weight.numpy() for weight in model.bert.pooler.weights]
    fit(model, tf.data.Dataset.from_tensors(features).repeat(3), 3)
    moved = [(one != other.numpy()).any() for one, other in zip(before, model.bert.pooler.weights, strict=True)]
    assert moved == [kind == "classes"] * 2
    assert {variable.path for variable in model.learned_variables} <= {v.path for v in model.trainable_variables}


def test_a_batch_in_lanes_teaches_and_scores_as_the_whole_one(monkeypatch):
    undropped = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    found = []
    for count in (1, 2):
        monkeypatch.setattr(lanes, "there_are", lambda count=count: count)
        model = new_model(**undropped)
        model.compile(new_optimizer(), jit_compile=False)
        assert len(model._lanes_of({"input_ids": tf.constant(batch(0)["input_ids"])})) == count
        found.append((model, fit(model, dataset(), 2), model.evaluate(dataset(), steps=2, verbose=0, return_dict=True)))
    (whole, *expected), (in_lanes, *reached) = found
    for one, other in zip(reached, expected, strict=True):
        assert one == {name: pytest.approx(value, rel=1e-4) for name, value in other.items()}
    for variable, other in zip(whole.weights, in_lanes.weights, strict=True):
        np.testing.assert_allclose(other.numpy(), variable.numpy(), atol=1e-4, err_msg=variable.path)


def test_lanes_draw_from_seeds_of_their_own_and_an_odd_batch_is_in_one(monkeypatch):
    monkeypatch.setattr(lanes, "there_are", lambda: 2)
    model = new_model()
    model.compile(new_optimizer())
    drawn = []

    def gradients_of(features, weights, seeds):
        drawn.append([tuple(seed.numpy()) for seed in seeds])
        return [tf.ones(2)], {"loss": (tf.constant(1.0), tf.constant(2.0))}, [seed + 1 for seed in seeds]

    features = {"input_ids": tf.zeros([4, 8], tf.int32)}
    gradients, sums, seeds = model._in_lanes(gradients_of, features, {}, [tf.constant([5, 7], tf.int64)])
    assert len(drawn) == len({seed for (seed,) in drawn}) == 2
    assert drawn[0] == [(5, 7)] and seeds[0].numpy().tolist() == [6, 8]
    assert gradients[0].numpy().tolist() == [2, 2] and [float(one) for one in sums["loss"]] == [2, 4]
    assert len(model._lanes_of({"input_ids": tf.zeros([3, 8], tf.int32)})) == 1


@pytest.mark.parametrize(
    ("rows", "length", "recompute", "cores", "count"),
    [(32, 128, False, 2, 2), (32, 128, False, 1, 1), (32, 128, False, 4, 1), (33, 128, False, 2, 1)]
    + [(32, 127, False, 2, 1), (32, 128, True, 2, 1)],
)
def test_two_cores_take_an_even_batch_in_lanes_unless_it_is_small_or_computed_twice(
    rows, length, recompute, cores, count, monkeypatch
):
    monkeypatch.setattr(environment, "cores", lambda: cores)
    assert lanes.count(rows, length, recompute) == count


def test_a_process_has_the_lanes_that_it_is_given_before_it_computes_anything():
    begun = "from kbert import lanes; lanes.begin(1); lanes.there_are(); lanes.begin(2); lanes.there_are()"
    told = begun.replace("lanes.there_are()", "print(lanes.there_are())")
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "2"]
    tf.zeros([]), lanes.begin(2)
    assert lanes.there_are() == 1
