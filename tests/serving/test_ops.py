"""Every op of an export is one that TensorFlow Serving links: there it loads, and no Python is called for."""

from pathlib import Path

import pytest
import tensorflow as tf
import tensorflow_text
from tensorflow.core.framework import op_def_pb2
from tensorflow.python.client import pywrap_tf_session

from kbert.config import BertConfig
from kbert.model.bert import Bert
from kbert.model.fine_tuning import BertRegressor
from kbert.serving.export import PYTHON_OPS, export, nodes_of
from kbert.text.wordpiece import WordPiece


def ops_of(library: Path) -> set[str]:
    """What a library of ops registers."""
    handle = pywrap_tf_session.TF_LoadLibrary(str(library))
    return {op.name for op in op_def_pb2.OpList.FromString(pywrap_tf_session.TF_GetOpList(handle)).op}


@pytest.fixture(scope="module")
def linked(ops_lib) -> set[str]:
    """The ops that TensorFlow Serving links, of use here."""
    # TensorFlow's own are those of tf.raw_ops: what else its Python package has registered (ops of its tests, of TPUs)
    # says nothing about a server. All but PYTHON_OPS are also in libtensorflow_cc, the library without Python.
    return (set(dir(tf.raw_ops)) - PYTHON_OPS).union(*map(ops_of, ops_lib))


def not_linked(graph, linked: set[str]) -> set[str]:
    """The ops of a GraphDef and its functions that are outside `linked`."""
    return {node.op for node in nodes_of(graph)} - {f.signature.name for f in graph.library.function} - linked


def is_forced_through_xla(graph) -> bool:
    return any(one.attr["_XlaMustCompile"].b for one in [*graph.library.function, *nodes_of(graph)])


def graph_of(function, *inputs: tf.TensorSpec, **options):
    """The GraphDef of a function that calls the given one, as those of an export do."""
    inner = tf.function(function, autograph=False, **options)
    return tf.function(lambda *x: inner(*x)).get_concrete_function(*inputs).graph.as_graph_def()


TEXT = tf.TensorSpec([None], tf.string)


def test_every_op_of_every_export_is_linked_into_tensorflow_serving(exports, linked):
    found = {name: not_linked(exported.meta_graph().graph_def, linked) for name, exported in exports.items()}
    assert found == {name: set() for name in exports}


def test_of_tensorflow_text_an_export_needs_two_ops_and_where_words_are_tagged_three(exports):
    core = set(dir(tf.raw_ops))
    found = {name: not_linked(exported.meta_graph().graph_def, core) for name, exported in exports.items()}
    two = {"FastWordpieceTokenizeWithOffsets", "NormalizeUTF8"}
    assert found == dict.fromkeys(exports, two) | {"tags": two | {"TFText>WhitespaceTokenizeWithOffsetsV2"}}


def test_nothing_of_an_export_is_forced_through_xla(exports):
    assert not any(is_forced_through_xla(exported.meta_graph().graph_def) for exported in exports.values())
    assert is_forced_through_xla(graph_of(tf.sin, tf.TensorSpec([2]), jit_compile=True))


def test_every_library_of_tensorflow_text_is_linked(ops_lib):
    # What a later wheel adds is in no server until its ops_lib has it as well.
    assert sorted(Path(tensorflow_text.__file__).parent.glob("python/*/*.so")) == sorted(ops_lib)


def test_ops_of_python_of_this_process_and_of_newer_servers_are_found(linked, ops_lib):
    numpy_function = graph_of(lambda x: tf.numpy_function(str.upper, [x], tf.string), TEXT)
    assert not_linked(numpy_function, linked) == {"PyFunc"}
    py_function = graph_of(lambda x: tf.py_function(str.upper, [x], tf.string), TEXT)
    assert not_linked(py_function, linked) == {"EagerPyFunc"}
    # One of TensorFlow's own tests, registered in the libraries of its Python package.
    custom = graph_of(lambda x: x.graph.create_op("Simple", [x], [tf.float32]).outputs[0], tf.TensorSpec([], tf.int32))
    assert not_linked(custom, linked) == {"Simple"}
    trimmer = tensorflow_text.RoundRobinTrimmer(7)
    trim = graph_of(lambda x: trimmer.trim([tf.strings.split(x)])[0].flat_values, TEXT)
    assert not_linked(trim, linked) == set()
    older = linked - ops_of(next(library for library in ops_lib if "trimmer" in library.name))
    assert not_linked(trim, older) == {"TFText>RoundRobinTrim"}


class InPython:
    """A tokenizer that asks Python what its texts are."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def __getattr__(self, name):
        return getattr(self.tokenizer, name)

    def __call__(self, text):
        return self.tokenizer(tf.ensure_shape(tf.numpy_function(lambda texts: texts, [text], tf.string), [None]))


def test_an_export_that_would_call_python_is_refused(tmp_path):
    tokenizer = InPython(WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]))
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    model = BertRegressor(Bert(BertConfig(vocab_size=6, max_position_embeddings=8, **sizes)))
    with pytest.raises(ValueError, match=r"serving_default calls Python \(PyFunc\), as no server can"):
        export(model, tokenizer, tmp_path / "it")
    assert not (tmp_path / "it").exists()
