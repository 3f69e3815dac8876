"""What the tests of exports share: every head with random weights, exported, and what TensorFlow Serving links."""

from pathlib import Path
from typing import NamedTuple

import keras
import pytest
import tensorflow_text
from tensorflow.core.protobuf import saved_model_pb2

from kbert.config import BertConfig
from kbert.model.bert import Bert
from kbert.model.features import BertFeatures
from kbert.model.fine_tuning import BertClassifier, BertMultipleChoice, BertRegressor, BertSpanPredictor, BertTagger
from kbert.model.pretraining import BertPretrainer
from kbert.serving.export import export, questions
from kbert.text.wordpiece import WordPiece

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
    "endings": lambda: BertMultipleChoice(Bert(CONFIG)),
    "vectors": lambda: BertFeatures(Bert(CONFIG), [0, -1], mix="none", unit="piece"),
}
LABELS = {"classifier": ["red", "green", "blue"], "tags": ["O", "B-X", "I-X", "B-Y", "I-Y"]}

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
            path = export(model, tokenizer, folder / name)
        exports[name] = Exported(path, {n: f for question in asked for n, f in question.signatures().items()})
    return exports
