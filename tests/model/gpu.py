"""The kernels of kbert/model/gpu/ beside the layer without them, on JAX, interpreted; run by test_backends.py."""

import dataclasses

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

from kbert.config import BertConfig
from kbert.model.bert import Bert
from kbert.model.gpu import layer as gpu
from kbert.model.gpu import programs
from kbert.model.gpu.attention import attention
from kbert.model.gpu.gelu import biased_gelu
from kbert.model.gpu.normed_sum import biased_normed_sum
from kbert.model.pretraining import BertPretrainer
from kbert.model.tokens import Rows, Tokens

CONFIG = BertConfig(
    vocab_size=50,
    hidden_size=192,  # three chunks of 64
    num_hidden_layers=1,
    num_attention_heads=3,
    intermediate_size=320,  # five of 64
    max_position_embeddings=128,
    hidden_dropout_prob=0.1,
    attention_probs_dropout_prob=0.2,
    pooler=False,
)
BATCH, LENGTH = 2, 128  # two blocks of attention


def features(packed: bool):
    random = np.random.default_rng(1)
    found = {
        "input_ids": random.integers(0, 50, (BATCH, LENGTH)),
        "segment_ids": random.integers(0, 2, (BATCH, LENGTH)),
        "input_mask": np.arange(LENGTH) < np.array([[LENGTH], [80]]),
    }
    if packed:
        lengths = np.array([[30, 50, 48], [20, 30, 30]])
        found["sequence_ids"] = np.stack([np.repeat(np.arange(4), [*row, LENGTH - row.sum()]) for row in lengths])
    return {name: value.astype("int32") for name, value in found.items()}


def new_bert(recompute=False, **changes):
    keras.utils.set_random_seed(3)
    bert = Bert(dataclasses.replace(CONFIG, **changes))
    bert.recompute = recompute
    random = np.random.default_rng(2)
    for variable in bert.trainable_variables:  # biases, gamma and beta that matter
        variable.assign(variable + random.normal(0, 0.1, variable.shape))
    return bert


def outputs_and_gradients(bert, given, training=True) -> dict:
    """Of a loss that depends on every token's vector; those of padding, where no score counts, are rounding alone."""
    weights = np.random.default_rng(4).normal(size=(BATCH, LENGTH, CONFIG.hidden_size)) * given["input_mask"][..., None]
    weights = jnp.asarray(weights, "float32")
    fixed = [variable.value for variable in bert.non_trainable_variables]

    def loss(learned):
        outputs, _ = bert.stateless_call(learned, fixed, given, training=training)
        vectors = outputs["sequence_output"].astype("float32")
        return jnp.sum(vectors * weights), vectors * given["input_mask"][..., None]

    gradients, vectors = jax.jit(jax.grad(loss, has_aux=True))([one.value for one in bert.trainable_variables])
    found = {one.path: gradient for one, gradient in zip(bert.trainable_variables, gradients, strict=True)}
    # A key's bias adds as much to all scores of a row, and has no gradient but of rounding.
    return {"vectors": vectors} | {path: one for path, one in found.items() if "self_attention/key/bias" not in path}


def distances(found, wanted) -> dict:
    return {name: float(jnp.linalg.norm(found[name] - one) / jnp.linalg.norm(one)) for name, one in wanted.items()}


@pytest.fixture
def computed(monkeypatch):
    """What the kernels' layer was called with."""
    called, layer = [], gpu.layer
    monkeypatch.setattr(gpu, "layer", lambda *given: called.append(given) or layer(*given))
    return called


@pytest.mark.parametrize(
    ("packed", "training", "changes"),
    [
        (False, True, {}),
        (True, True, {"recompute": True, "hidden_act": "gelu_erf", "hidden_dropout_prob": 0.0}),
        (True, False, {"causal": True, "intermediate_size": 67}),
    ],
)
def test_kernels_compute_what_the_layer_does(packed, training, changes, computed, monkeypatch):
    bert, given = new_bert(**changes), features(packed)
    wanted = outputs_and_gradients(bert, given, training)
    assert not computed
    monkeypatch.setattr(programs, "INTERPRETED", True)
    monkeypatch.setattr(gpu, "PRECISION", "float32")
    found = outputs_and_gradients(bert, given, training)
    assert len(computed) == 1
    assert max(distances(found, wanted).values()) < 3e-6


def test_kernels_round_no_more_than_the_layer_does(computed, monkeypatch):
    exact = outputs_and_gradients(new_bert(), features(packed=False))
    monkeypatch.setattr(programs, "INTERPRETED", True)
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        bert = new_bert()
        found = distances(outputs_and_gradients(bert, features(packed=False)), exact)
        assert len(computed) == 1
        monkeypatch.setattr(gpu, "can_compute", lambda *given: False)
        plain = distances(outputs_and_gradients(bert, features(packed=False)), exact)
    finally:
        keras.config.set_dtype_policy("float32")
    assert found["vectors"] > 1e-4
    ratios = [found[name] / plain[name] for name in found]
    assert np.median(ratios) < 1 and max(ratios) < 1.2


def test_a_models_own_products_are_in_the_precision_asked_for():
    """And of classes that a GPU's memory is aligned to: without a cast JAX would have the table's float32."""
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = BertPretrainer(CONFIG, next_sentence=False)
    finally:
        keras.config.set_dtype_policy("float32")
    given = features(packed=False) | {"masked_lm_positions": np.ones((BATCH, 5), "int32")}

    def logits(learned):
        fixed = [variable.value for variable in model.non_trainable_variables]
        return model.stateless_call(learned, fixed, given)[0]["masked_lm_logits"]

    lowered = jax.jit(logits).lower([variable.value for variable in model.trainable_variables])
    assert lowered.out_info.shape == (BATCH, 5, 50)
    products = [line for line in lowered.as_text().splitlines() if "dot_general" in line]
    assert products and not [line for line in products if "f32" in line.replace("bf16", "")]
    assert "tensor<192x64xbf16>" in products[-1]


def test_a_segment_that_a_table_has_not_is_not_a_number():
    table = jnp.arange(6.0).reshape(2, 3)
    found = np.array(gpu.rows_of_few(table, jnp.array([1, 0, 2])))
    np.testing.assert_array_equal(found[:2], [[3, 4, 5], [0, 1, 2]])
    assert np.isnan(found[2]).all()


def test_kernels_are_left_out_where_they_cannot_compute(monkeypatch):
    monkeypatch.setattr(programs, "INTERPRETED", True)

    def known(dtype="bfloat16", batch=2, length=48, heads=3, width=64, tokens=None):
        vectors = jax.ShapeDtypeStruct((batch * length, heads * width), dtype)
        return gpu.can_compute(vectors, tokens or Rows(batch, length, heads))

    assert known() and known(width=32, heads=4) and known(width=128, heads=64)
    assert not known("float32") and not known("float16") and not known(tokens=Tokens.__new__(Tokens))
    assert not known(batch=4, length=40) and not known(batch=1) and not known(tokens=Rows(2, jnp.int32(48), 3))
    assert not known(width=48, heads=4) and not known(width=256) and not known(width=16) and not known(heads=65)
    monkeypatch.setattr(programs, "INTERPRETED", False)
    assert not known()  # on this CPU


@pytest.mark.parametrize("length", [16, 96, 512])
@pytest.mark.parametrize(("heads", "width", "rate"), [(4, 16, 0.1), (12, 64, 0.1), (16, 128, 0.0)])
def test_triton_knows_the_kernels(length, heads, width, rate):
    """Interpreted they could have what no GPU has. JAX makes Triton's programs without one."""
    batch, hidden = 2, heads * width
    tokens = batch * length

    def work(joined, mask, seed, x, bias, gamma, wide, wide_bias):
        seed = seed if rate else None
        found = attention(joined, jnp.tile(bias, 3), mask, seed, heads, rate)
        found = biased_normed_sum(x, found, bias, gamma, gamma, seed, rate=rate, epsilon=1e-12)
        return jnp.sum(found.astype("float32")) + jnp.sum(biased_gelu(wide, wide_bias).astype("float32"))

    def shape(*lengths, dtype="bfloat16"):
        return jax.ShapeDtypeStruct(lengths, dtype)

    given = (shape(tokens, 3 * hidden), shape(batch, 1, 1 if rate else length, length, dtype="float32"))
    given += (shape(2, dtype="int32"), shape(tokens, hidden), shape(hidden), shape(hidden, dtype="float32"))
    given += (shape(tokens, 4 * hidden), shape(4 * hidden))
    both = jax.jit(jax.value_and_grad(work, argnums=(0, 3, 4, 5, 6, 7)))
    lowered = both.trace(*given).lower(lowering_platforms=("cuda",)).as_text()
    assert lowered.count("__gpu$xla.gpu.triton") == 6
