"""keras-hub's format, in and out: presets of BertBackbone, BertMaskedLM and BertTextClassifier (keras-nlp, of old).

bert/encoder_layer_1/self_attention/query/kernel [H, H]
transformer_layer_0/self_attention_layer/query/kernel [H, A, D]
"""

import re
from pathlib import Path

import keras

from kbert.config import BertConfig
from kbert.text.wordpiece import WordPiece
from kbert.weights import folder
from kbert.weights.by_name import assign, new_model, renamed, task_of, values_of

PARTS = {
    "bert/embeddings/token_embeddings": "token_embedding/embeddings",
    "bert/embeddings/segment_embeddings": "segment_embedding/embeddings",
    "bert/embeddings/position_embeddings": "position_embedding/embeddings",
    "bert/embeddings/layer_norm": "embeddings_layer_norm",
    "/self_attention/projection": "/self_attention_layer/attention_output",
    "/self_attention/": "/self_attention_layer/",
    "/attention_norm": "/self_attention_layer_norm",
    "/intermediate": "/feedforward_intermediate_dense",
    "/projection": "/feedforward_output_dense",
    "/feed_forward_norm": "/feedforward_layer_norm",
    "bert/pooler": "pooled_dense",
    "masked_lm_dense": "mlm_head/intermediate_dense",
    "masked_lm_norm": "mlm_head/intermediate_layer_norm",
    "masked_lm_bias": "mlm_head/output_bias",
    "output_layer": "logits",
}
FIELDS = {
    "vocabulary_size": "vocab_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "hidden_dim": "hidden_size",
    "intermediate_dim": "intermediate_size",
    "max_sequence_length": "max_position_embeddings",
    "num_segments": "type_vocab_size",
}
# Written into their code, not into their files.
ENCODER = {"hidden_act": "gelu_tanh", "layer_norm_epsilon": 1e-12, "pooler": True, "causal": False}
HEAD = {"hidden_act": "gelu_erf", "layer_norm_epsilon": 1e-5}
OLD_KINDS = {"BertClassifier": "BertTextClassifier"}  # as keras-nlp called it
KINDS = ("BertBackbone", "BertMaskedLM", "BertTextClassifier")


def name_of(name: str) -> str:
    name = re.sub(r"bert/encoder_layer_(\d+)", lambda found: f"transformer_layer_{int(found[1]) - 1}", name)
    return renamed(name, PARTS)


def flat(name: str, value):
    """A weight with the heads' axes joined, [H, A, D], [A, D, H] or [A, D] -> [H, H] or [H]; others as they are."""
    if "/self_attention_layer/" not in name:
        return value
    if name.endswith("/bias"):
        return value.reshape(-1)
    return value.reshape(-1, value.shape[-1]) if "attention_output" in name else value.reshape(len(value), -1)


def is_here(directory: Path) -> bool:
    path = directory / "config.json"
    return path.exists() and str(folder.read_json(path).get("registered_name")).startswith(("keras_hub>", "keras_nlp>"))


def knows(name: str) -> bool:
    """Whether a name is that of a preset of BERT, or kaggle's."""
    if name.startswith("kaggle://"):
        return True
    if not re.fullmatch(r"\w+", name):
        return False
    import keras_hub

    return name in keras_hub.models.BertBackbone.presets


def read(directory, lower_case: bool | None = None) -> tuple:
    """The model and the tokenizer of a preset, a folder or a name that keras-hub knows (downloaded then, and cached).

    The tokenizer follows Google's rule: an uncased vocabulary is of text without accents, whatever the preset says.
    Raises ValueError naming the preset for one that is damaged, no BERT, or cannot be downloaded.
    """
    import keras_hub  # slow to import, and only this format needs it

    path = Path(directory)
    try:
        kind = kind_of(str(directory))
        tokenizer = keras_hub.models.BertTokenizer.from_preset(str(directory))
        options = {"preprocessor": None} if kind in KINDS[1:] else {}
        theirs = getattr(keras_hub.models, kind).from_preset(str(directory), **options) if kind in KINDS else None
    except Exception as error:  # of h5py, json, the hubs: each has its own
        reason, expected = " ".join(str(error).split())[:200], "a whole preset of BERT"
        if not path.is_dir():
            expected = "a preset that keras-hub knows and a network, or a folder"
        raise ValueError(f"{directory}: {reason}; expected {expected}") from None
    if theirs is None:
        raise ValueError(f"{directory} is a preset of {kind}; expected one of {', '.join(KINDS)}")
    backbone = getattr(theirs, "backbone", theirs)
    fields = {ours: getattr(backbone, name) for name, ours in FIELDS.items()} | ENCODER
    fields |= dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), backbone.dropout)
    fields["sequence_length"] = folder.trained_length(limit_of(str(directory)), fields["max_position_embeddings"])
    config = BertConfig.from_dict(fields, source=str(directory))
    model = new_model(config, task_in(theirs, directory), directory)
    if lower_case not in (None, tokenizer.lowercase):
        raise ValueError(f"{directory}: lowercase is {tokenizer.lowercase}, and lower_case {lower_case} was asked for")
    values = {weight.path: flat(weight.path, weight.numpy()) for weight in theirs.weights}
    assign(model, values, directory, name_of)
    return model, WordPiece(list(tokenizer.vocabulary), lower_case=tokenizer.lowercase)


def kind_of(preset: str) -> str | None:
    """The class that a preset says it is: its task's, or else its backbone's."""
    # Its public functions want to be told the class; asking for a backbone would leave a task's head behind.
    from keras_hub.src.utils.preset_utils import CONFIG_FILE, TASK_CONFIG_FILE, check_file_exists, get_file

    file = TASK_CONFIG_FILE if check_file_exists(preset, TASK_CONFIG_FILE) else CONFIG_FILE
    kind = folder.read_json(Path(get_file(preset, file))).get("class_name")
    return OLD_KINDS.get(kind, kind)


def limit_of(preset: str) -> int | None:
    """How many tokens a preset's preprocessor makes of a text."""
    from keras_hub.src.utils.preset_utils import PREPROCESSOR_CONFIG_FILE, check_file_exists, get_file

    if not check_file_exists(preset, PREPROCESSOR_CONFIG_FILE):
        return None
    return folder.read_json(Path(get_file(preset, PREPROCESSOR_CONFIG_FILE))).get("config", {}).get("sequence_length")


def task_in(theirs, directory) -> dict:
    match type(theirs).__name__:
        case "BertMaskedLM":
            return {"model": "BertPretrainer", "next_sentence": False, "masked_lm_changes": HEAD}
        case "BertTextClassifier":
            if theirs.activation not in (keras.activations.linear, keras.activations.softmax):
                raise ValueError(f"{directory}: activation is {theirs.activation}; expected none or softmax")
            return {"model": "BertClassifier", "num_labels": theirs.num_classes, "dropout": theirs.dropout}
    return {"model": "BertPretrainer", "masked_lm": False, "next_sentence": False}


def write(model, tokenizer, directory) -> None:
    """Writes a preset folder, with the preprocessor that its class has; an encoder alone with a classifier's.

    Raises ValueError for a config or a head that keras-hub's code would compute otherwise or has no place for.
    """
    import keras_hub

    task, config = task_of(model), model.config
    folder.check_vocabulary("the tokenizer", tokenizer, config)
    check(task, config)
    fields = {name: getattr(config, ours) for name, ours in FIELDS.items()} | {"dropout": config.hidden_dropout_prob}
    backbone = keras_hub.models.BertBackbone(**fields)
    # Google's rule: an uncased model's text loses its accents too.
    rule = {"lowercase": tokenizer.lower_case, "strip_accents": tokenizer.lower_case}
    their_tokenizer = keras_hub.models.BertTokenizer(vocabulary=tokenizer.vocabulary, **rule)
    preprocessing = {"tokenizer": their_tokenizer, "sequence_length": config.trained_length}
    theirs = backbone
    if task["model"] == "BertClassifier":
        dropout = config.hidden_dropout_prob if task.get("dropout") is None else task["dropout"]
        theirs = keras_hub.models.BertTextClassifier(
            backbone,
            num_classes=task["num_labels"],
            dropout=dropout,
            preprocessor=keras_hub.models.BertTextClassifierPreprocessor(**preprocessing),
        )
    elif task["masked_lm"]:
        preprocessor = keras_hub.models.BertMaskedLMPreprocessor(**preprocessing)
        theirs = keras_hub.models.BertMaskedLM(backbone, preprocessor=preprocessor)
    values = values_of(model, name_of)
    for weight in theirs.weights:
        weight.assign(values[weight.path].reshape(weight.shape))
    theirs.save_to_preset(str(directory))
    if theirs is backbone:  # whose class has no preprocessor to bring
        keras_hub.models.BertTextClassifierPreprocessor(**preprocessing).save_to_preset(str(directory))


def check(task: dict, config: BertConfig) -> None:
    """Raises ValueError for what keras-hub does not compute, with the reason."""
    for name, expected in ENCODER.items():
        if getattr(config, name) != expected:
            raise ValueError(f"{name} is {getattr(config, name)}, and keras-hub's BertBackbone has {expected} only")
    if config.hidden_dropout_prob != config.attention_probs_dropout_prob:
        raise ValueError("hidden and attention dropout differ, and keras-hub's BertBackbone has one for both")
    hint = "; expected one that it has, or none (encoder-only)"
    if task.get("next_sentence"):
        raise ValueError(f"keras-hub has no next sentence head{hint}")
    if task.get("masked_lm") and task.get("masked_lm_changes") != HEAD:
        raise ValueError(f"keras-hub's masked-LM head has the exact GELU and epsilon 1e-5, this one not{hint}")
    if task["model"] not in ("BertPretrainer", "BertClassifier") or task.get("multi_label"):
        raise ValueError(f"keras-hub has no {task['model']} of this kind{hint}")
