import keras
import numpy as np
import pytest
from keras import ops

from kbert.model.dropout import Dropout, dropped, factors, random_bits, random_shorts


def zeros_of(x):
    return ops.convert_to_numpy(x) == 0


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_an_element_is_dropped_with_the_given_probability(rate):
    dropped = zeros_of(Dropout(rate)(np.ones((200, 500), "float32"), training=True))
    assert abs(dropped.mean() - rate) < 4 * np.sqrt(rate * (1 - rate) / dropped.size)


def test_a_seed_draws_the_same_numbers_on_every_backend():
    # Under TensorFlow what they are was looked at; of an odd length, as two come from each hash.
    drawn = ops.convert_to_numpy(random_shorts((4, 7, 33), ops.convert_to_tensor([123456789, 5], "int32")))
    assert (drawn.dtype, drawn.shape, int(drawn.sum(dtype="int64"))) == (np.int16, (4, 7, 33), 656008)
    assert drawn[0, 0, :6].tolist() == [9510, 29121, 14465, 6595, 5774, 20178]


def test_what_is_kept_grows_so_that_the_mean_stays():
    output = ops.convert_to_numpy(Dropout(0.2)(np.full((100, 100), 3.0, "float32"), training=True))
    np.testing.assert_allclose(np.unique(output), [0, 3.75], rtol=1e-6)


@pytest.mark.parametrize("drawn_before", [False, True])
def test_in_half_precision_it_grows_by_as_much(drawn_before):
    x = ops.cast(np.random.default_rng(1).uniform(1, 2, (256, 256)), "bfloat16")
    seed = ops.convert_to_tensor([5, 7], "int32")
    found = dropped(x, factors((256, 256), seed, 0.1) if drawn_before else seed, 0.1)
    assert keras.backend.standardize_dtype(found.dtype) == "bfloat16"
    found, x = (ops.convert_to_numpy(ops.cast(one, "float32")) for one in (found, x))
    assert found.sum() / x[found > 0].sum() == pytest.approx(1 / 0.9, rel=2e-4)  # bfloat16 has 1.1094


def test_nothing_is_dropped_outside_training_or_at_rate_0():
    x = np.random.default_rng(0).normal(size=(50, 50)).astype("float32")
    np.testing.assert_array_equal(ops.convert_to_numpy(Dropout(0.5)(x)), x)
    np.testing.assert_array_equal(ops.convert_to_numpy(Dropout(0.0)(x, training=True)), x)


def test_each_draw_and_each_layer_has_its_own_mask():
    x = np.ones((100, 100), "float32")
    first, second = Dropout(0.5), Dropout(0.5)
    masks = [zeros_of(layer(x, training=True)) for layer in (first, first, second)]
    for one, other in [(0, 1), (0, 2), (1, 2)]:
        assert abs((masks[one] == masks[other]).mean() - 0.5) < 4 * 0.5 / 100


def test_a_restored_state_draws_the_same_masks_again():
    x = np.ones((100, 100), "float32")
    layer = Dropout(0.5)
    (state,) = layer.variables
    saved = ops.convert_to_numpy(state)
    masks = [zeros_of(layer(x, training=True)) for _ in range(3)]
    state.assign(saved)
    for mask in masks:
        np.testing.assert_array_equal(zeros_of(layer(x, training=True)), mask)


def test_equal_seeds_of_the_program_draw_equal_masks():
    masks = []
    for _ in range(2):
        keras.utils.set_random_seed(9)
        masks.append(zeros_of(Dropout(0.5)(np.ones((50, 50), "float32"), training=True)))
    np.testing.assert_array_equal(*masks)


def test_gradients_pass_where_values_do():
    # The product with its mask, so that doubling the input doubles the output and nothing else.
    layer, x = Dropout(0.5), np.random.default_rng(1).normal(size=(50, 50)).astype("float32")
    (state,) = layer.variables
    saved = ops.convert_to_numpy(state)
    single = ops.convert_to_numpy(layer(x, training=True))
    state.assign(saved)
    np.testing.assert_array_equal(ops.convert_to_numpy(layer(2 * x, training=True)), 2 * single)


SEEDS = np.array([[1, 0], [1, 1], [1, 2], [2, 0], [2, 1], [12345, 0], [999_999_999, 7]])


def bits_of(seed, shape=(256, 256)):
    """The 32 bits of each element, [elements, 32] of 0 and 1."""
    values = ops.convert_to_numpy(random_bits(shape, seed.astype("int32"))).astype("int64").ravel() & 0xFFFFFFFF
    return (values[:, None] >> np.arange(32)) & 1


def test_each_bit_is_fair():
    for seed in SEEDS:
        shares = bits_of(seed).mean(axis=0)
        # The largest of 224 shares.
        assert np.abs(shares - 0.5).max() < 5 * 0.5 / 256


def test_neighbours_and_draws_are_independent():
    masks = np.stack([bits_of(seed)[:, 31].reshape(256, 256) * 2.0 - 1 for seed in SEEDS])
    pairs = [(masks[i], masks[j]) for i in range(7) for j in range(i)]
    for shift in ((0, 1), (1, 0), (1, 1), (0, 2), (0, 64), (64, 0)):
        pairs += [(mask, np.roll(mask, shift, axis=(0, 1))) for mask in masks]
    # The largest of 63 correlations of 65,536 signs.
    assert max(abs((one * other).mean()) for one, other in pairs) < 4.5 / 256


def test_dropped_elements_of_a_row_spread_as_by_chance():
    # Row sums of a fair mask are binomial; too even or too uneven rows would show in their variance.
    rows = np.concatenate([bits_of(seed, (512, 512))[:, 31].reshape(512, 512).sum(axis=1) for seed in SEEDS])
    ratio = rows.var() / (512 / 4)
    assert abs(ratio - 1) < 4 * np.sqrt(2 / len(rows))


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="XLA against the graph is TensorFlow's choice")
def test_compiled_by_xla_the_masks_are_the_same():
    import tensorflow as tf

    layer, x = Dropout(0.3), tf.ones((64, 64))
    (state,) = layer.variables
    saved = state.numpy()
    masks = []
    for compiled in (False, True):
        state.assign(saved)
        masks.append(zeros_of(tf.function(lambda: layer(x, training=True), jit_compile=compiled)()))
    np.testing.assert_array_equal(*masks)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="the graph is TensorFlow's")
def test_nothing_as_large_as_a_mask_is_a_constant_of_the_graph():
    import tensorflow as tf

    graph = (
        tf.function(lambda seed: random_bits((64, 32), seed)).get_concrete_function(tf.TensorSpec([2], "int32")).graph
    )
    drawn = set()  # what depends on the seed
    for node in graph.get_operations():
        if node.type == "Placeholder" or any(value.op in drawn for value in node.inputs):
            drawn.add(node)
    constant = [node for node in graph.get_operations() if node not in drawn]
    assert constant and max(value.shape.num_elements() for node in constant for value in node.outputs) == 64
