"""Golden steps against arithmetic written out in numpy (float64) and against torch, on any backend."""

import gc
import pathlib
import weakref

import keras
import numpy as np
import pytest
from keras import ops

from kbert.config import BertConfig
from kbert.model.pretraining import BertPretrainer
from kbert.training import optimization
from kbert.training.optimization import LAMB, BertAdam, WarmupLinearDecay, clip_by_global_norm, decays, global_norm

STEPS = 5


def random_problem(seed=0):
    """A matrix and a vector, and gradients for some steps, of norms below and above 1."""
    random = np.random.default_rng(seed)
    shapes = [(4, 3), (3,)]
    values = [random.normal(size=shape) for shape in shapes]
    gradients = [[random.normal(size=shape) * 10.0 ** (step - 2) for shape in shapes] for step in range(STEPS)]
    return values, gradients


def run(optimizer, values, gradients, apply=None):
    """The values after each step, as float32 arrays."""
    variables = [keras.Variable(value.astype("float32"), name=f"value_{i}") for i, value in enumerate(values)]
    optimizer.build(variables)
    history = []
    for step in gradients:
        (apply or optimizer.apply)([ops.convert_to_tensor(g.astype("float32")) for g in step], variables)
        history.append([ops.convert_to_numpy(variable) for variable in variables])
    return history


def clipped(gradients, limit=1.0):
    norm = np.sqrt(sum((gradient**2).sum() for gradient in gradients))
    return [gradient * min(1.0, limit / norm) for gradient in gradients]


def release_adam(values, gradients, rate, decay=0.01, beta_1=0.9, beta_2=0.999, epsilon=1e-6):
    """AdamWeightDecayOptimizer of the release's optimization.py with its clipping: matrices decay, vectors do not."""
    values = [value.copy() for value in values]
    m, v = [0.0] * len(values), [0.0] * len(values)
    history = []
    for step, gradient in enumerate(map(clipped, gradients)):
        for i, g in enumerate(gradient):
            m[i] = beta_1 * m[i] + (1 - beta_1) * g
            v[i] = beta_2 * v[i] + (1 - beta_2) * g * g
            update = m[i] / (np.sqrt(v[i]) + epsilon)
            if values[i].ndim == 2:
                update = update + decay * values[i]
            values[i] = values[i] - rate(step) * update
        history.append([value.copy() for value in values])
    return history


def published_lamb(values, gradients, rate, decay=0.01, beta_1=0.9, beta_2=0.999, epsilon=1e-6):
    """Algorithm 2 of the paper; vectors are neither decayed nor scaled, as in the authors' code."""
    values = [value.copy() for value in values]
    m, v = [0.0] * len(values), [0.0] * len(values)
    history = []
    for step, gradient in enumerate(map(clipped, gradients), start=1):
        for i, g in enumerate(gradient):
            m[i] = beta_1 * m[i] + (1 - beta_1) * g
            v[i] = beta_2 * v[i] + (1 - beta_2) * g * g
            ratio = (m[i] / (1 - beta_1**step)) / (np.sqrt(v[i] / (1 - beta_2**step)) + epsilon)
            if values[i].ndim == 2:
                ratio = ratio + decay * values[i]
                ratio = ratio * np.linalg.norm(values[i]) / np.linalg.norm(ratio)
            values[i] = values[i] - rate * ratio
        history.append([value.copy() for value in values])
    return history


def assert_equal_histories(ours, theirs, tolerance=2e-6):
    assert len(ours) == len(theirs)
    for step, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        for i in range(len(one)):
            np.testing.assert_allclose(one[i], other[i], rtol=0, atol=tolerance, err_msg=f"step {step}, variable {i}")


def test_bert_adam_steps_as_the_release_does():
    values, gradients = random_problem()
    ours = run(BertAdam(0.01, weight_decay=0.1), values, gradients)
    assert_equal_histories(ours, release_adam(values, gradients, lambda step: 0.01, decay=0.1))


def test_bert_adam_follows_the_schedule_from_a_first_rate_of_0():
    values, gradients = random_problem()
    schedule = WarmupLinearDecay(0.02, steps=STEPS, warmup_steps=2)
    rates = [0.0, 0.01, 0.02, 0.02 * 2 / 3, 0.02 * 1 / 3]
    ours = run(BertAdam(schedule), values, gradients)
    assert_equal_histories(ours, release_adam(values, gradients, rates.__getitem__))
    np.testing.assert_array_equal(ours[0][0], values[0].astype("float32"))


def test_the_first_step_without_bias_correction_is_3_16_times_the_rate_long():
    # (1 - beta_1) / sqrt(1 - beta_2); Adam's own is 1 (TRAPS 11).
    for bias_correction, length in [(False, 0.1 / np.sqrt(0.001)), (True, 1.0)]:
        optimizer = BertAdam(1e-3, weight_decay=0.0, bias_correction=bias_correction)
        ((after,),) = run(optimizer, [np.zeros(4)], [[np.full(4, 0.5)]])
        np.testing.assert_allclose(after, -1e-3 * length, rtol=1e-3)


def test_with_bias_correction_bert_adam_is_torchs_adamw():
    golden = np.load(pathlib.Path(__file__).parents[1] / "data" / "adamw_golden.npz")
    steps = range(1, 7)
    gradients = [[golden[f"kernel_gradient/{step}"], golden[f"bias_gradient/{step}"]] for step in steps]
    optimizer = BertAdam(float(golden["rate"]), weight_decay=0.1, bias_correction=True)
    ours = run(optimizer, [golden["kernel/0"], golden["bias/0"]], gradients)
    assert_equal_histories(ours, [[golden[f"kernel/{step}"], golden[f"bias/{step}"]] for step in steps])
    for step, gradient in zip(steps, gradients, strict=True):
        assert float(global_norm(gradient)) == pytest.approx(float(golden[f"norm/{step}"]), rel=1e-6)


def test_lamb_steps_as_published():
    values, gradients = random_problem(1)
    ours = run(LAMB(0.01, weight_decay=0.1), values, gradients)
    assert_equal_histories(ours, published_lamb(values, gradients, 0.01, decay=0.1))


def test_a_lamb_update_is_as_long_as_its_variable_times_the_rate():
    values, gradients = random_problem(2)
    ((kernel, _),) = run(LAMB(0.01), values, gradients[:1])
    step = np.linalg.norm(kernel - values[0].astype("float32"))
    assert step == pytest.approx(0.01 * np.linalg.norm(values[0]), rel=1e-4)


def test_lamb_moves_a_matrix_of_zeros_and_leaves_one_without_gradient():
    ((moved, _),) = run(LAMB(0.01), [np.zeros((2, 2)), np.zeros(2)], [[np.ones((2, 2)), np.ones(2)]])
    np.testing.assert_allclose(moved, -0.01, rtol=1e-4)
    ((still, _),) = run(LAMB(0.01, weight_decay=0.0), [np.ones((2, 2)), np.ones(2)], [[np.zeros((2, 2)), np.zeros(2)]])
    np.testing.assert_array_equal(still, 1)


@pytest.mark.parametrize(("steps", "warmup_steps"), [(100, 10), (100, 0), (7, 7), (1_000_000, 10_000)])
def test_the_rate_rises_to_its_peak_and_falls_to_zero_in_straight_lines(steps, warmup_steps):
    schedule = WarmupLinearDecay(1e-4, steps, warmup_steps)
    corners = ([0, warmup_steps, steps, steps + 9], [0.0 if warmup_steps else 1e-4, 1e-4, 0.0, 0.0])
    for step in sorted({0, 1, abs(warmup_steps - 1), warmup_steps + 1, steps // 2, steps - 1, steps, steps + 9}):
        assert float(schedule(step)) == pytest.approx(np.interp(step, *corners), rel=1e-5, abs=1e-11), step


@pytest.mark.parametrize(("steps", "warmup_steps"), [(0, 0), (10, 11), (10, -1)])
def test_an_impossible_schedule_is_refused(steps, warmup_steps):
    with pytest.raises(ValueError, match=f"warmup_steps is {warmup_steps} and steps {steps}, expected"):
        WarmupLinearDecay(1e-4, steps, warmup_steps)


def test_only_kernels_and_embeddings_of_a_bert_decay():
    model = BertPretrainer(BertConfig.from_size("tiny", vocab_size=100))
    decaying = {"/".join(v.path.split("/")[1:]) for v in model.trainable_variables if decays(v)}
    layer_kernels = {
        f"bert/encoder_layer_{number}/{name}/kernel"
        for number in (1, 2)
        for name in (
            "self_attention/query",
            "self_attention/key",
            "self_attention/value",
            "self_attention/projection",
            "intermediate",
            "projection",
        )
    }
    tables = {f"bert/embeddings/{name}_embeddings" for name in ("token", "segment", "position")}
    heads = {"bert/pooler/kernel", "masked_lm_dense/kernel", "next_sentence_dense/kernel"}
    assert decaying == layer_kernels | tables | heads
    rest = {v.name for v in model.trainable_variables if not decays(v)}
    assert rest == {"gamma", "beta", "bias", "masked_lm_bias"}


@pytest.mark.parametrize("optimizer", [BertAdam, LAMB])
def test_without_gradients_only_what_decays_shrinks(optimizer):
    model = BertPretrainer(BertConfig.from_size("tiny", vocab_size=100, num_hidden_layers=1, hidden_size=8))
    variables = model.trainable_variables
    for variable in variables:
        variable.assign(np.ones(variable.shape))
    optimizer = optimizer(0.1, weight_decay=0.5)
    optimizer.build(variables)
    optimizer.apply([ops.zeros(v.shape) for v in variables], variables)
    expected = 0.95 if type(optimizer) is BertAdam else 0.9
    for variable in variables:
        np.testing.assert_allclose(ops.convert_to_numpy(variable), expected if decays(variable) else 1, rtol=1e-5)


def test_clipping_keeps_directions_and_reports_the_norm_before():
    gradients = [np.array([[3.0, 0.0]], "float32"), None, np.array([4.0], "float32")]
    scaled, norm = clip_by_global_norm(gradients, 1.0)
    assert float(norm) == pytest.approx(5)
    assert scaled[1] is None
    np.testing.assert_allclose(ops.convert_to_numpy(scaled[0]), [[0.6, 0]], rtol=1e-6)
    np.testing.assert_allclose(ops.convert_to_numpy(scaled[2]), [0.8], rtol=1e-6)


@pytest.mark.parametrize("limit", [None, 6.0])
def test_gradients_within_the_limit_stay_as_they_are(limit):
    (gradient,), norm = clip_by_global_norm([np.array([3.0, 4.0], "float32")], limit)
    np.testing.assert_array_equal(ops.convert_to_numpy(gradient), [3, 4])
    assert float(norm) == pytest.approx(5)


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_one_bad_gradient_makes_all_nan(bad):
    gradients, norm = clip_by_global_norm([np.array([bad, 1.0], "float32"), np.array([2.0], "float32")], 1.0)
    assert not np.isfinite(float(norm))
    assert all(np.isnan(ops.convert_to_numpy(gradient)).all() for gradient in gradients)


def test_apply_clips_by_the_norm_of_all_gradients():
    values, gradients = random_problem()
    free = BertAdam(0.01, clip_norm=None)

    def clip_first(step, variables):
        free.apply(clip_by_global_norm(step, 1.0)[0], variables)

    assert_equal_histories(run(free, values, gradients, clip_first), run(BertAdam(0.01), values, gradients), 0)
    free = run(BertAdam(0.01, clip_norm=None), values, gradients)
    assert np.abs(free[-1][0] - run(BertAdam(0.01), values, gradients)[-1][0]).max() > 1e-3


@pytest.mark.parametrize("optimizer", [BertAdam, LAMB])
def test_an_optimizer_survives_serialization(optimizer):
    schedule = WarmupLinearDecay(2e-3, 50, 5)
    original = optimizer(
        schedule, beta_1=0.8, beta_2=0.9, epsilon=1e-5, weight_decay=0.2, clip_norm=2.0, bias_correction=True
    )
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(original))
    assert type(copy) is optimizer
    assert copy.get_config() == original.get_config()
    values, gradients = random_problem()
    assert_equal_histories(run(copy, values, gradients), run(original, values, gradients), 0)


def test_a_restored_state_goes_on_to_the_bit():
    values, gradients = random_problem()
    whole = run(BertAdam(WarmupLinearDecay(0.01, 9, 3)), values, gradients)
    first = BertAdam(WarmupLinearDecay(0.01, 9, 3))
    half = run(first, values, gradients[:2])
    state = [ops.convert_to_numpy(variable) for variable in first.variables]
    variables = [keras.Variable(value) for value in half[-1]]
    second = BertAdam(WarmupLinearDecay(0.01, 9, 3))
    second.build(variables)
    for variable, value in zip(second.variables, state, strict=True):
        variable.assign(value)
    for step in gradients[2:]:
        second.apply([ops.convert_to_tensor(g.astype("float32")) for g in step], variables)
    for variable, value in zip(variables, whole[-1], strict=True):
        np.testing.assert_array_equal(ops.convert_to_numpy(variable), value)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="several replicas are TensorFlow's")
@pytest.mark.parametrize("optimizer", [BertAdam, LAMB])
def test_in_place_the_steps_are_those_of_several_replicas(optimizer, monkeypatch):
    values, gradients = random_problem()
    found = run(optimizer(0.01, epsilon=1e-5), values, gradients)
    monkeypatch.setattr(optimization, "is_alone_on_tensorflow", lambda: False)
    in_place = optimization._move_in_place.cache_info().misses
    assert_equal_histories(found, run(optimizer(0.01, epsilon=1e-5), values, gradients), 1e-6)
    assert optimization._move_in_place.cache_info().misses == in_place > 0


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="in place is TensorFlow's way")
def test_what_a_checkpoint_holds_stays_as_it_was_while_an_update_writes():
    import tensorflow as tf

    optimizer, variable = BertAdam(0.1), keras.Variable(np.ones((300, 400), "float32"))
    optimizer.build([variable])
    for step in range(3):
        held = [tf.identity(one.value) for one in (variable, *optimizer.first_moments, *optimizer.second_moments)]
        before = [np.array(memoryview(one)) for one in held]
        optimizer.apply([tf.ones((300, 400))], [variable])
        for one, value in zip(held, before, strict=True):
            np.testing.assert_array_equal(np.asarray(memoryview(one)), value, err_msg=f"step {step}")
        assert (variable.numpy() < before[0]).all()


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="in place is TensorFlow's way")
def test_no_variable_is_kept_after_its_model():
    freed = []
    for _ in range(2):
        optimizer, variable = BertAdam(0.1), keras.Variable(np.ones((7, 11), "float32"))
        optimizer.build([variable])
        optimizer.apply([ops.ones((7, 11))], [variable])
        weakref.finalize(variable.value.handle, freed.append, True)
        del optimizer, variable
        gc.collect()
    assert freed == [True, True]


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="IndexedSlices are TensorFlow's")
def test_sparse_gradients_of_an_embedding_count_repeated_rows_as_one():
    import tensorflow as tf

    slices = tf.IndexedSlices(tf.constant([[3.0], [3.0], [8.0]]), tf.constant([1, 1, 0]), tf.constant([3, 1]))
    (gradient,), norm = clip_by_global_norm([slices], 5.0)
    assert float(norm) == pytest.approx(10)
    np.testing.assert_allclose(gradient.numpy(), [[4], [3], [0]], rtol=1e-6)


def test_with_layer_decay_each_layer_moves_less_than_the_one_above():
    config = BertConfig.from_size("tiny", vocab_size=100, num_hidden_layers=3, hidden_size=8)
    moved = {}
    for decay in (1.0, 0.5):
        keras.utils.set_random_seed(1)
        model = BertPretrainer(config)
        before = {v.path: v.numpy() for v in model.trainable_variables}
        optimizer = BertAdam(1e-2, layer_decay=decay, weight_decay=0.0)
        optimizer.apply([keras.ops.ones_like(v) for v in model.trainable_variables], model.trainable_variables)
        moved[decay] = {v.path: np.abs(v.numpy() - before[v.path]).max() for v in model.trainable_variables}
    ratios = {path: moved[0.5][path] / moved[1.0][path] for path in moved[1.0]}
    expected = {"masked_lm_dense": 1, "pooler": 1, "encoder_layer_3": 0.5, "encoder_layer_2": 0.25}
    expected |= {"encoder_layer_1": 0.125, "embeddings": 0.0625}
    for part, ratio in expected.items():
        found = [value for path, value in ratios.items() if f"/{part}/" in path]
        assert found and found == pytest.approx([ratio] * len(found), rel=1e-3), part
