"""A small model that the tests of the server and of its clients ask."""

import pytest
import tensorflow as tf


def save(folder, version: str) -> None:
    """A model that answers each text with the text in capitals, its length and the model's version."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    def serve(text):
        told = tf.repeat(tf.constant([version]), tf.size(text))
        length = tf.strings.length(text, unit="UTF8_CHAR")
        tf.debugging.assert_less(length, 1000, message="a text of 1000 characters")
        return {"upper": tf.strings.upper(text, encoding="utf-8"), "length": length, "version": told}

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, name="x")])
    def sums(x):
        return {"sum": tf.reduce_sum(x, axis=1)}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name=name) for name in ("text_b", "text_a")])
    def pairs(text_b, text_a):
        return {"pair": text_a + "+" + text_b}

    specs = [tf.TensorSpec([None], tf.string, name="context"), tf.TensorSpec([None, None], tf.string, name="endings")]

    @tf.function(input_signature=specs)
    def endings(context, endings):
        return {"all": context + tf.strings.reduce_join(endings, 1, separator="|")}

    functions = {"serving_default": serve, "sums": sums, "pairs": pairs, "endings": endings}
    root = tf.Module()
    root.functions = list(functions.values())
    tf.saved_model.save(root, str(folder), signatures=functions)


@pytest.fixture(scope="session")
def versions(tmp_path_factory):
    """Two versions of a model, to be copied."""
    folder = tmp_path_factory.mktemp("versions")
    for version in ("1", "2"):
        save(folder / version, version)
    return folder
