"""Pieces computed in ways of their own: the same outputs and gradients as the functions themselves have."""

import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from kbert.model import between
from kbert.training import pieces
from tests.optimized import optimized_nodes

SEED = tf.constant([5, 7], tf.int64)


def drawn(*shape, seed=1):
    return tf.constant(np.random.default_rng(seed).normal(0, 3, shape), tf.float32)


def loss(scale=1.0, times=1):
    """Of seven rows the first five are predicted right, the more certainly the larger the scale; one label repeats."""
    vectors, table, bias = scale * drawn(7, 16), drawn(101, 16, seed=2) / 3, drawn(101, seed=3) / 10
    labels = tf.argmax(between.tied_logits(vectors, table, bias), -1)[:5]
    labels, vectors = tf.concat([labels, [7], labels[:1]], 0), tf.tile(vectors, [times, 1])
    return between.tied_cross_entropy, (vectors, table, bias), (tf.tile(labels, [times]),), {}


def attention(length):
    mask = tf.where(tf.range(length) < length - 2, 0.0, -10000.0) * tf.constant([[1.0], [0.0]])
    return between.attention_weights, (drawn(2, 3, 4, length),), (mask[:, None, None, :], SEED), {"rate": 0.2}


def normed_sum(width, seed=SEED):
    inputs = drawn(6, width), drawn(6, width, seed=2), drawn(width, seed=3), drawn(width, seed=4)
    return between.normed_sum, inputs, (seed,), {"rate": 0.2, "epsilon": 1e-12}


def affine(inputs, units):
    return between.affine, (drawn(6, inputs), drawn(inputs, units, seed=2) / 3, drawn(units, seed=3)), (), {}


CASES = {
    "attention": attention(64),
    "attention to an odd number": attention(37),
    "sum": normed_sum(48),
    "sum of an odd width": normed_sum(33),
    "sum without dropout": normed_sum(48, None),
    "product that widens": affine(16, 40),
    "product that narrows": affine(40, 16),
    "loss": loss(1 / 3),
    "loss of what is nearly certain": loss(2.0),
    "loss of many rows": loss(1 / 3, times=10),
    "activation": (between.ACTIVATIONS["gelu_tanh"], (drawn(6, 33),), (), {}),
    "activation in its exact form": (between.ACTIVATIONS["gelu_erf"], (drawn(6, 33),), (), {}),
}
WHOLE = tf.function(pieces.piece, jit_compile=True, autograph=False)
PIECES = {"compiled": pieces.compiled_piece, "compiled whole": WHOLE, "not compiled": pieces.uncompiled_piece}
ALONE = [pieces.compiled_piece, pieces.uncompiled_piece]


def outputs_and_gradients(piece, case, dtype, like=None):
    function, inputs, others, constants = case
    inputs = [tf.cast(one, dtype) for one in inputs]
    # As Keras does, of what a layer is called with.
    others = [tf.cast(one, dtype) if one is not None and one.dtype.is_floating else one for one in others]
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = tf.nest.flatten(piece(function, inputs, others, **constants))
        # The second output of the loss, whether it was right, has no gradient.
        weights = drawn(*(like or outputs)[0].shape, seed=9)
        total = tf.reduce_sum(tf.cast(outputs[0], tf.float32) * weights)
    return [*outputs, *tape.gradient(total, inputs)]


@pytest.mark.parametrize("piece", PIECES.values(), ids=PIECES)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_piece_is_the_function_and_its_gradient(case, piece):
    expected, found = (outputs_and_gradients(how, case, tf.float32) for how in (between.directly, piece))
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("piece", ALONE)
@pytest.mark.parametrize("name", ["attention", "attention to an odd number", "sum"])
def test_in_a_graph_for_any_length_it_is_so_too(name, piece):
    function, inputs, (*masks, seed), constants = CASES[name]
    any_length = [tf.TensorSpec([None] * (one.shape.rank - (name == "sum")) + [48] * (name == "sum")) for one in inputs]
    specs = [*any_length, *(tf.TensorSpec([None] * 4) for _ in masks)]

    def computed(*given):
        case = function, given[: len(inputs)], (*given[len(inputs) :], seed), constants
        return outputs_and_gradients(piece, case, tf.float32, inputs)

    expected = outputs_and_gradients(between.directly, CASES[name], tf.float32)
    found = tf.function(computed, input_signature=specs, autograph=False)(*inputs, *masks)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("name", "turned"), [("product that widens", 1), ("product that narrows", 0)])
@pytest.mark.parametrize("piece", ALONE)
def test_a_kernel_that_widens_is_turned_in_memory_for_its_inputs_gradient(piece, name, turned):
    function, inputs, others, constants = CASES[name]

    def gradient(x):
        return outputs_and_gradients(piece, (function, (x, *inputs[1:]), others, constants), tf.float32)[1]

    graph = tf.function(gradient, autograph=False).get_concrete_function(tf.TensorSpec(inputs[0].shape)).graph
    nodes = optimized_nodes(graph)
    across = [node.attr["transpose_b"].b for node in nodes if node.op == "MatMul"]
    assert across == [not turned]
    assert [node.op for node in nodes].count("Transpose") == turned


HALF = [("compiled", name) for name in ("attention", "sum", "activation", "activation in its exact form")]
HALF += [("not compiled", name) for name in ("sum", "activation", "activation in its exact form")]


@pytest.mark.parametrize(("piece", "name"), HALF)
def test_in_half_precision_it_rounds_what_goes_in_and_out_alone(name, piece):
    function, inputs, others, constants = CASES[name]
    case = function, [tf.cast(tf.cast(one, tf.bfloat16), tf.float32) for one in inputs], others, constants
    expected = outputs_and_gradients(between.directly, case, tf.float32)
    found = outputs_and_gradients(PIECES[piece], case, tf.bfloat16)
    assert {one.dtype for one in found} == {tf.bfloat16}
    output, *gradients = (tf.cast(one, tf.float32) for one in found)
    exact, *exact_gradients = expected
    np.testing.assert_allclose(output, exact, rtol=1.01 * 2**-8, atol=1e-5)  # rounded once
    for one, other in zip(gradients, exact_gradients, strict=True):  # of an output that was rounded
        np.testing.assert_allclose(one, other, atol=np.abs(other).max() / 128)


@pytest.mark.parametrize("shape", [(3, 5), (1, 2), (2, 2**15), (3, 5, 12345), (9, 2**15 - 1)])
def test_what_dropout_draws_is_the_same_where_only_that_is_compiled(shape):
    def dropped(x, seed, *, rate):
        return between.dropped(x, seed, rate)

    ways = between.directly, pieces.uncompiled_piece
    expected, found = (how(dropped, (tf.ones(shape),), (SEED,), rate=0.25).numpy() for how in ways)
    np.testing.assert_array_equal(found, expected)
    assert set(expected.flat) == {0, np.float32(1 / 0.75)} or expected.size < 20


def test_of_many_lengths_few_sizes_are_drawn_and_none_much_larger_than_it_has_to_be(monkeypatch):
    drawn_sizes = []

    def draw(places, seed, rate):
        drawn_sizes.append(places.shape[0])
        return tf.ones(places.shape)

    monkeypatch.setattr(pieces, "_draw", draw)
    counts = [32 * 12 * length**2 for length in range(16, 257, 2)]
    for length in range(16, 257, 2):
        pieces._drawn.python_function([32, 12, length, length], SEED, 0.1)
    assert len(set(drawn_sizes)) <= 40
    excess = [size / count for size, count in zip(drawn_sizes, counts, strict=True) if count > pieces.DRAWN_AT_ONCE]
    assert min(excess) >= 1 and max(excess) < 1.3


@pytest.mark.parametrize(("scale", "times"), [(1 / 3, 1), (2.0, 1), (1 / 3, 20)])
def test_in_half_precision_the_gradient_of_the_loss_is_that_of_the_logits(scale, times):
    """Also where a likelihood is nearly 1, and less 1 it would vanish in a difference of rounded products."""
    function, (vectors, table, bias), (labels,), _ = loss(scale)
    vectors, labels = tf.tile(vectors[:5], [times, 1]), tf.tile(labels[:5], [times])  # what is wrong would outweigh
    narrow = [tf.cast(vectors, tf.bfloat16), tf.cast(table, tf.bfloat16), bias]
    found = []
    for piece in (between.directly, pieces.compiled_piece):
        with tf.GradientTape() as tape:
            tape.watch(narrow)
            total = tf.reduce_sum(piece(function, narrow, (labels,))[0])
        found.append([tf.cast(one, tf.float32) for one in tape.gradient(total, narrow)])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, atol=np.abs(other).max() / 128)


WIDE, PLAIN = "--xla_cpu_prefer_vector_width=512", "--xla_cpu_experimental_ynn_fusion_type="


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, f"{WIDE} {PLAIN}"),
        ("--xla_dump_to=/tmp", f"--xla_dump_to=/tmp {WIDE} {PLAIN}"),
        ("--xla_cpu_prefer_vector_width=256", f"--xla_cpu_prefer_vector_width=256 {PLAIN}"),
        (f"{PLAIN}dot", f"{PLAIN}dot {WIDE}"),
    ],
)
def test_xla_has_its_options_unless_it_is_told_otherwise(before, after, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", before or "")
    pieces.piece_of(in_pieces=False, whole=False)
    assert os.environ["XLA_FLAGS"] == after


@pytest.mark.parametrize("width", [1, 16, 17, 64, 101])
def test_the_largest_of_a_row_is_found_wherever_it_is(width):
    rows = tf.eye(width) - 2
    np.testing.assert_array_equal(pieces.row_maxima(rows), np.full((width, 1), -1.0))


def test_a_row_that_may_look_at_nothing_has_weights_all_the_same():
    mask = tf.fill([1, 1, 1, 8], -10000.0)
    weights = pieces.compiled_piece(between.attention_weights, (tf.zeros([1, 1, 1, 8]),), (mask, None), rate=0.2)
    np.testing.assert_allclose(weights, np.full((1, 1, 1, 8), 0.125), rtol=1e-6)


AT_ONCE = """
import threading

import tensorflow as tf

from kbert.training import pieces

pieces.set_xla_options()
for rows in range(1000, 1015):  # each a program of its own
    gradient, begin = tf.ones([rows, 64]), threading.Barrier(8)
    compute = pieces._sum_of_rows.get_concrete_function(gradient)

    def sum_up():
        begin.wait()
        for _ in range(3):
            compute(gradient)

    threads = [threading.Thread(target=sum_up) for _ in range(8)]
    [one.start() for one in threads]
    [one.join() for one in threads]
"""


def test_threads_may_compute_the_same_piece_for_the_first_time_at_once():
    done = subprocess.run([sys.executable, "-c", AT_ONCE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
