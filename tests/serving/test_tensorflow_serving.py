"""Every export runs in TensorFlow Serving: it holds only ops linked there, and a program without Python answers alike.

The program, loader.c, is compiled against the headers and libraries of the installed TensorFlow: it loads models as
TensorFlow Serving does.
"""

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text
from tensorflow.core.framework import op_def_pb2
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.client import pywrap_tf_session

from kbert.config import BertConfig
from kbert.model.bert import Bert
from kbert.model.features import BertFeatures, BertLSTMTagger
from kbert.model.fine_tuning import BertClassifier, BertMultipleChoice, BertRegressor, BertSpanPredictor, BertTagger
from kbert.model.pretraining import BertPretrainer
from kbert.serving.export import PYTHON_OPS, export, nodes_of, questions
from kbert.text.wordpiece import WordPiece
from tests.serving.loader import answers_of, request

LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS), *".,[]"]
CONFIG = BertConfig(
    vocab_size=len(VOCABULARY),
    hidden_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=32,
    initializer_range=0.4,
)
HEADS = {
    "fill-mask": lambda: BertPretrainer(CONFIG),
    "classifier": lambda: BertClassifier(Bert(CONFIG), num_labels=3),
    "regressor": lambda: BertRegressor(Bert(CONFIG)),
    "spans": lambda: BertSpanPredictor(Bert(CONFIG)),
    "tags": lambda: BertTagger(Bert(CONFIG), num_labels=5),
    "lstm tags": lambda: BertLSTMTagger(Bert(CONFIG), num_labels=5, layers=[-1], lstm_layers=1, lstm_units=8),
    "endings": lambda: BertMultipleChoice(Bert(CONFIG)),
    "vectors": lambda: BertFeatures(Bert(CONFIG), [0, -1], mix="none", unit="piece"),
}
TAGS = ["O", "B-X", "I-X", "B-Y", "I-Y"]
LABELS = {"classifier": ["red", "green", "blue"], "tags": TAGS, "lstm tags": TAGS}

# The ops that TensorFlow Serving's binary links beside TensorFlow's own: SUPPORTED_TENSORFLOW_OPS in its
# tensorflow_serving/model_servers/BUILD is Decision Forests' inference, of no use here, and tensorflow_text's ops_lib.
# These are the parts of ops_lib in tensorflow_text/BUILD of version 2.20.0, which tensorflow_serving/workspace.bzl
# fetches; each is a library of the wheel, by its folder. Servers that still had 2.12.1 lack some (serving issue 2267).
OPS_LIB = {
    "metrics": ["text_similarity_metric_ops"],
    "ops": [
        *("boise_offset_converter", "byte_splitter", "constrained_sequence_op", "fast_bert_normalizer"),
        *("fast_sentencepiece_tokenizer", "fast_wordpiece_tokenizer", "mst_ops", "ngrams_op", "normalize_ops"),
        *("phrase_tokenizer", "regex_split_ops", "sentence_breaking_ops", "sentencepiece_tokenizer"),
        *("split_merge_from_logits_tokenizer", "split_merge_tokenizer", "state_based_sentence_breaker_op"),
        *("trimmer_ops", "unicode_script_tokenizer", "utf8_binarize_op", "whitespace_tokenizer"),
        *("whitespace_tokenizer_v2", "wordpiece_tokenizer"),
    ],
}
LONG = "ab c.d zq, e " * 20  # many windows of 32 positions
# What every signature is asked, by the name of the input: four of each.
ASKED = {
    "text": ["ab [MASK] cd [MASK].", "", f"{LONG}[MASK]", "é\u0301 \xff 日本 [MASK] \0 Ⅻ ﬁ [mask]\U0001f600"],
    "text_a": ["ab c", "", LONG, "日本 é"],
    "text_b": ["d", "x", LONG, ""],
    "question": ["a b", "é?", "", "zz " * 30],
    "passage": [LONG, "日本 ab\u0301 c. é", "c d", ""],
    "context": ["ab", "", LONG, "é"],
    "endings": [["c", "d e"], ["", "日本"], ["a", LONG], ["\xff", "x"]],
    "input_ids": [[2, 5, 4, 3, 0], [2, 6, 40, 7, 3], [2, 9, 3, 0, 0], [2, 4, 4, 4, 3]],
    "input_mask": [[1, 1, 1, 1, 0], [1] * 5, [1, 1, 1, 0, 0], [1] * 5],
    "segment_ids": [[0] * 5, [0, 0, 1, 1, 1], [0] * 5, [0] * 5],
    "masked_lm_positions": [[2, 0], [1, 4], [0, 0], [3, 1]],
    "layer": [1, 1, 1, 1],
}


@pytest.fixture(scope="session")
def ops_lib() -> list[Path]:
    folder = Path(tensorflow_text.__file__).parent / "python"
    return [folder / part / f"_{name}.so" for part, names in OPS_LIB.items() for name in names]


class Exported(NamedTuple):
    """path: of the SavedModel. in_python: signature -> the function that answers in this process."""

    path: str
    in_python: dict

    def meta_graph(self):
        content = (Path(self.path) / "saved_model.pb").read_bytes()
        return saved_model_pb2.SavedModel.FromString(content).meta_graphs[0]


@pytest.fixture(scope="session")
def exports(tmp_path_factory) -> dict[str, Exported]:
    """Every head, exported."""
    keras.utils.set_random_seed(7)
    tokenizer, folder, exports = WordPiece(VOCABULARY), tmp_path_factory.mktemp("saved_models"), {}
    for name, new in HEADS.items():
        model = new()
        if name in LABELS:
            model.labels = LABELS[name]
        asked = questions(model, tokenizer)
        with pytest.MonkeyPatch.context() as patch:
            # Python is asked the very questions that are exported: to trace each a second time takes as long again.
            patch.setattr("kbert.serving.export.questions", lambda *model_and_tokenizer, asked=asked: asked)
            path = export(model, tokenizer, folder / name, litert=name == "classifier")
        exports[name] = Exported(path, {n: f for question in asked for n, f in question.signatures().items()})
    return exports


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
    three = two | {"TFText>WhitespaceTokenizeWithOffsetsV2"}
    assert found == dict.fromkeys(exports, two) | {"tags": three, "lstm tags": three}


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


@pytest.fixture(scope="session")
def loader(tmp_path_factory) -> Path:
    """The compiled program."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        pytest.skip("needs a C compiler: there is no cc, gcc or clang")
    source, program = Path(__file__).with_name("loader.c"), tmp_path_factory.mktemp("loader") / "loader"
    folder = Path(tf.sysconfig.get_lib())
    libraries = [path for name in ("cc", "framework") for path in sorted(folder.glob(f"libtensorflow_{name}.*"))]
    # The usual linker takes four times as long over the symbols of a gigabyte.
    faster = ["-fuse-ld=gold"] if shutil.which("ld.gold") else []
    command = [compiler, "-I", tf.sysconfig.get_include(), source, *libraries, f"-Wl,-rpath,{folder}", *faster]
    run = subprocess.run([*command, "-o", program], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return program


def inputs_of(definition) -> dict[str, tf.Tensor]:
    """What a signature is asked, by the names of its inputs."""
    inputs = {}
    for name, info in definition.inputs.items():
        value = tf.constant(ASKED[name], info.dtype)
        is_of_endings = len(info.tensor_shape.dim) > value.shape.rank  # ids, [B, N, S]
        inputs[name] = tf.stack([value, value[::-1]], axis=1) if is_of_endings else value
    return inputs


def test_a_program_without_python_answers_as_python_does(loader, exports, ops_lib):
    requests, asked = [], []
    for head, exported in exports.items():
        definitions = exported.meta_graph().signature_def
        assert set(exported.in_python) == {name for name in definitions if not name.startswith("__")}
        for signature, function in exported.in_python.items():
            definition = definitions[signature]
            inputs = inputs_of(definition)
            in_graph = {definition.inputs[name].name: value for name, value in inputs.items()}
            requests.append(request(exported.path, in_graph, [info.name for info in definition.outputs.values()]))
            asked.append((head, signature, function(**inputs), list(definition.outputs)))
    for (head, signature, expected, names), found in zip(asked, answers_of(loader, ops_lib, requests), strict=True):
        assert not isinstance(found, str), f"{head}, {signature}: {found}"
        for name, value in zip(names, found, strict=True):
            message = f"{head}, {signature}, {name}"
            expected_value = expected[name].numpy()
            assert (value.shape, value.dtype) == (expected_value.shape, expected_value.dtype), message
            if value.dtype.kind == "f":
                np.testing.assert_allclose(value, expected_value, atol=1e-5, err_msg=message)
            else:
                assert value.tolist() == expected_value.tolist(), message


def test_what_needs_python_or_other_ops_is_not_answered(loader, exports, ops_lib, tmp_path):
    signature = [tf.TensorSpec([None], tf.string, name="text")]
    root = tf.Module()
    root.serve = tf.function(lambda text: {"it": tf.numpy_function(str, [text], tf.string)}, signature)
    tf.saved_model.save(root, tmp_path, signatures=root.serve)
    names = {"serving_default_text:0": tf.constant(["a"])}
    (why,) = answers_of(loader, ops_lib, [request(str(tmp_path), names, ["StatefulPartitionedCall:0"])])
    assert "No OpKernel was registered to support Op 'PyFunc'" in why
    others = [library for library in ops_lib if library.stem != "_normalize_ops"]
    with pytest.raises(ChildProcessError, match="Op type not registered 'NormalizeUTF8'"):
        answers_of(loader, others, [request(exports["regressor"].path, {}, [])])
