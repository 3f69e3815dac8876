"""Equality with transformers' BertForPreTraining on the weights and batch of data/bert_golden.npz, on any backend."""

import pathlib

import keras
import numpy as np
import pytest
from keras import ops

from kbert.config import BertConfig
from kbert.model.pretraining import BertPretrainer
from kbert.training.optimization import BertAdam

GOLDEN = dict(np.load(pathlib.Path(__file__).parents[1] / "data" / "bert_golden.npz"))


def golden(folder):
    return {key.split("/", 1)[1]: value for key, value in GOLDEN.items() if key.startswith(f"{folder}/")}


FEATURES = golden("features")


def golden_model(**fields):
    fields |= {name: int(value) for name, value in golden("config").items()}
    model = BertPretrainer(BertConfig(**fields))
    for variable in model.trainable_variables:
        variable.assign(GOLDEN[f"weights/{variable.path}"])
    return model


def compiled(function):
    """JAX compiles each operation by itself, and slowly, unless told to take them together."""
    if keras.backend.backend() != "jax":
        return function
    import jax

    return jax.jit(function)


@pytest.fixture(scope="module", params=["gelu_tanh", "gelu_erf", "relu"])
def answers(request):
    """(kbert's outputs and losses, transformers') as numpy arrays under kbert's names."""
    model = golden_model(hidden_act=request.param)

    def answer():
        outputs = model(FEATURES, output_all_layers=True, output_attentions=True)
        sums = model.sums(FEATURES, outputs)
        outputs |= {name: ops.divide(*sums[name]) for name in model.loss_names}
        return {name: ops.stack(value) if isinstance(value, list) else value for name, value in outputs.items()}

    ours = {name: ops.convert_to_numpy(value) for name, value in compiled(answer)().items()}
    return ours, golden(request.param)


@pytest.mark.parametrize(
    "output",
    [
        "all_layer_outputs",
        "attention_probabilities",
        "pooled_output",
        "masked_lm_logits",
        "next_sentence_logits",
        "masked_lm_loss",
        "next_sentence_loss",
    ],
)
def test_output_equals_transformers_to_1e_5(answers, output):
    ours, theirs = answers
    assert ours[output].shape == theirs[output].shape
    np.testing.assert_allclose(ours[output], theirs[output], rtol=0, atol=1e-5)


def test_the_three_activations_are_told_apart():
    tanh, erf, relu = (GOLDEN[f"{name}/masked_lm_logits"] for name in ("gelu_tanh", "gelu_erf", "relu"))
    assert np.abs(tanh - erf).max() > 1e-4
    assert np.abs(tanh - relu).max() > 1e-2


def test_every_trainable_variable_is_in_the_golden_file():
    assert {variable.path for variable in golden_model().trainable_variables} == set(golden("weights"))


def test_gradients_equal_torchs():
    model = golden_model(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    for variable, gradient in zip(model.trainable_variables, gradients_of(model), strict=True):
        np.testing.assert_allclose(gradient, GOLDEN[f"gradients/{variable.path}"], atol=2e-5, err_msg=variable.path)


def gradients_of(model):
    """The gradients of the training loss as numpy arrays."""
    variables = [variable.value for variable in model.trainable_variables]
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = model.compute_loss(FEATURES, None, model(FEATURES, training=True))
        gradients = [tf.convert_to_tensor(gradient) for gradient in tape.gradient(loss, variables)]
    elif keras.backend.backend() == "jax":
        import jax

        def loss_of(values):
            state = [variable.value for variable in model.non_trainable_variables]
            outputs, _ = model.stateless_call(values, state, FEATURES, training=True)
            return model.compute_loss(FEATURES, None, outputs)

        gradients = jax.jit(jax.grad(loss_of))(variables)
    else:
        model.compute_loss(FEATURES, None, model(FEATURES, training=True)).backward()
        gradients = [variable.grad for variable in variables]
    return [ops.convert_to_numpy(gradient) for gradient in gradients]


def test_fit_follows_torchs_training_loop():
    model = golden_model(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    theirs = golden("training")
    model.compile(optimizer=BertAdam(float(theirs["rate"]), bias_correction=True))
    steps = len(theirs["masked_lm_loss"])
    ours = model.fit(repeated(FEATURES), epochs=steps, steps_per_epoch=1, verbose=0).history
    for name in model.loss_names:
        assert theirs[name][-1] < theirs[name][0] / 2
        np.testing.assert_allclose(ours[name], theirs[name], atol=1e-4, err_msg=name)
    np.testing.assert_allclose(ours["loss"], np.add(ours["masked_lm_loss"], ours["next_sentence_loss"]), atol=1e-5)


def repeated(features):
    """What `fit` takes on each backend: one batch, again and again."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.data.Dataset.from_tensors(features).repeat()

    class Repeated(keras.utils.PyDataset):
        def __len__(self):
            return 1000

        def __getitem__(self, index):
            return (features,)

    return Repeated()
