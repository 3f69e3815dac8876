"""The kernels of kbert/model/gpu/ beside the layer without them; interpreted, on JAX, by test_backends.py."""

import dataclasses

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

from kbert.config import BertConfig
from kbert.model.bert import Bert
from kbert.model.gpu import kernels
from kbert.model.gpu import layer as gpu
from kbert.model.tokens import Rows, Tokens

CONFIG = BertConfig(
    vocab_size=50,
    hidden_size=192,  # three chunks of 64
    num_hidden_layers=1,
    num_attention_heads=3,
    intermediate_size=320,  # five of 64
    max_position_embeddings=96,
    pooler=False,
)
BATCH, LENGTH = 2, 96  # two blocks of attention, one of them in part padding


def features(packed: bool):
    random = np.random.default_rng(1)
    found = {
        "input_ids": random.integers(0, 50, (BATCH, LENGTH)),
        "segment_ids": random.integers(0, 2, (BATCH, LENGTH)),
        "input_mask": np.arange(LENGTH) < np.array([[LENGTH], [40]]),
    }
    if packed:
        lengths = np.array([[30, 50, 16], [10, 10, 20]])
        found["sequence_ids"] = np.stack([np.repeat(np.arange(4), [*row, LENGTH - row.sum()]) for row in lengths])
    return {name: value.astype("int32") for name, value in found.items()}


def new_bert(**changes):
    keras.utils.set_random_seed(3)
    bert = Bert(dataclasses.replace(CONFIG, **changes))
    random = np.random.default_rng(2)
    for variable in bert.trainable_variables:  # biases, gamma and beta that matter
        variable.assign(variable + random.normal(0, 0.1, variable.shape))
    return bert


def outputs_and_gradients(bert, given, training=True):
    """Of a loss that depends on every token's vector; those of padding, where no score counts, are rounding alone."""
    weights = np.random.default_rng(4).normal(size=(BATCH, LENGTH, CONFIG.hidden_size)) * given["input_mask"][..., None]
    weights = jnp.asarray(weights, "float32")
    fixed = [variable.value for variable in bert.non_trainable_variables]

    def loss(learned):
        outputs, _ = bert.stateless_call(learned, fixed, given, training=training)
        vectors = outputs["sequence_output"].astype("float32")
        return jnp.sum(vectors * weights), vectors * given["input_mask"][..., None]

    gradients, vectors = jax.jit(jax.grad(loss, has_aux=True))([one.value for one in bert.trainable_variables])
    return [vectors, *gradients]


def distance(found, wanted):
    return float(jnp.linalg.norm(found - wanted) / (jnp.linalg.norm(wanted) + 1e-9))


@pytest.fixture
def interpreted(monkeypatch):
    monkeypatch.setattr(kernels, "INTERPRETED", True)
    called = []
    layer = gpu.layer
    monkeypatch.setattr(gpu, "layer", lambda *given: called.append(given) or layer(*given))
    return called


@pytest.mark.parametrize(
    ("packed", "training", "activation"),
    [(False, True, "gelu_tanh"), (True, True, "gelu_erf"), (True, False, "gelu_tanh")],
)
def test_kernels_compute_what_the_layer_does(packed, training, activation, interpreted, monkeypatch):
    bert, given = new_bert(hidden_act=activation), features(packed)
    wanted = outputs_and_gradients(bert, given, training)
    assert not interpreted
    monkeypatch.setattr(gpu, "PRECISIONS", ("float32",))
    found = outputs_and_gradients(bert, given, training)
    assert len(interpreted) == CONFIG.num_hidden_layers
    paths = ["vectors", *(variable.path for variable in bert.trainable_variables)]
    for path, one, other in zip(paths, found, wanted, strict=True):
        # A key's bias adds as much to all scores of a row, and has no gradient but of rounding.
        assert "self_attention/key/bias" in path or distance(one, other) < 3e-6, path


def test_kernels_round_no_more_than_the_layer_does(interpreted, monkeypatch):
    exact = outputs_and_gradients(new_bert(), features(packed=False))
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        bert = new_bert()
        found = outputs_and_gradients(bert, features(packed=False))
        assert len(interpreted) == CONFIG.num_hidden_layers
        monkeypatch.setattr(gpu, "know", lambda *given: False)
        plain = outputs_and_gradients(bert, features(packed=False))
    finally:
        keras.config.set_dtype_policy("float32")
    ours, theirs = ([distance(*both) for both in zip(some, exact, strict=True)] for some in (found, plain))
    assert 1e-4 < ours[0] < 1.1 * theirs[0]
    assert np.median(np.divide(ours, theirs)) < 1


def test_kernels_are_left_out_where_they_do_not_know_the_work(interpreted, monkeypatch):
    def known(dtype="bfloat16", batch=2, length=48, heads=3, width=64, kind=Rows):
        tokens = Rows(batch, length, heads)
        tokens.__class__ = kind
        return gpu.know(jnp.zeros((batch * length, heads * width), dtype), tokens)

    assert known() and known(width=32, heads=4)
    assert not known("float32") and not known("float16") and not known(kind=Tokens)
    assert not known(length=40) and not known(batch=1) and not known(width=48, heads=4) and not known(width=256)
    monkeypatch.setattr(kernels, "INTERPRETED", False)
    assert not known()  # on this CPU
