"""Hugging Face's format, in and out: config.json, model.safetensors, vocab.txt, tokenizer.json (transformers).

bert/encoder_layer_1/self_attention/query/kernel  <->  bert.encoder.layer.0.attention.self.query.weight, transposed
"""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from kbert.config import BertConfig
from kbert.text.wordpiece import WordPiece
from kbert.weights import folder, google
from kbert.weights.by_name import assign, new_model, task_of, values_of
from kbert.whole_file import write_whole, written_whole

HUB = "hf://"
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
FIELDS = {name: name for name in google.CONFIG_FIELDS} | {"layer_norm_eps": "layer_norm_epsilon"}
ACTIVATIONS = {"gelu": "gelu_erf", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}
ACTIVATIONS |= {name: name for name in ("relu", "tanh", "linear")}
# What a BERT of theirs may have and kbert's has not: refused unless it is so.
EXPECTED = {
    "model_type": "bert",
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
    "pruned_heads": {},
}
TOKENIZER_EXPECTED = {"tokenize_chinese_chars": True, "do_basic_tokenize": True, "never_split": None}
HEADS = {
    "BertForSequenceClassification": "BertClassifier",
    "BertForTokenClassification": "BertTagger",
    "BertForQuestionAnswering": "BertSpanPredictor",
    "BertForMultipleChoice": "BertMultipleChoice",
}
ARCHITECTURES = {task: architecture for architecture, task in HEADS.items()}
ARCHITECTURES |= {"BertRegressor": "BertForSequenceClassification"}
PRETRAINED = {
    (True, True): "BertForPreTraining",
    (True, False): "BertForMaskedLM",
    (False, True): "BertForNextSentencePrediction",
    (False, False): "BertModel",
}
# Their classes build no pooler, and kbert's heads of these kinds do not read it.
WITHOUT_POOLER = ("BertForMaskedLM", "BertForTokenClassification", "BertForQuestionAnswering")
BUFFERS = re.compile(r"embeddings\.(position_ids|token_type_ids)$")
OF_BERT = re.compile(r"(embeddings|encoder|pooler)\.")
LAYER_NORM = {".LayerNorm.gamma": ".LayerNorm.weight", ".LayerNorm.beta": ".LayerNorm.bias"}
TIED = {"cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight"}
TIED |= {"cls.predictions.decoder.bias": "cls.predictions.bias"}


def name_of(name: str, task: str = "BertPretrainer") -> str:
    """kbert's name of a weight -> Hugging Face's, which are those that its conversion makes of Google's."""
    if name.startswith("output_layer/"):
        layer = "qa_outputs" if task == "BertSpanPredictor" else "classifier"
        return f"{layer}.{'weight' if name.endswith('kernel') else 'bias'}"
    name = (
        google.name_of(name)
        .replace("cls/predictions/output_bias", "cls/predictions/bias")
        .replace("output_weights", "kernel")
    )
    name = re.sub(r"layer_(\d+)/", r"layer/\1/", name.replace("seq_relationship/output_bias", "seq_relationship/bias"))
    name = re.sub(r"/(kernel|gamma)$", "/weight", re.sub(r"/beta$", "/bias", name))
    return re.sub(r"(_embeddings)$", r"\1/weight", name).replace("/", ".")


def is_transposed(name: str) -> bool:
    return name.endswith("/kernel")


def is_here(directory: Path) -> bool:
    return (directory / "config.json").exists() and any((directory / name).exists() for name in WEIGHTS)


def downloaded(name: str) -> Path:
    """The folder of hf://OWNER/NAME in huggingface_hub's cache, downloaded where it is not there yet.

    Raises ValueError if there is no such model, or no network.
    """
    from huggingface_hub import snapshot_download

    try:
        files = ["config.json", *WEIGHTS, "vocab.txt", "tokenizer.json", "tokenizer_config.json"]
        folder_of_it = Path(
            snapshot_download(name.removeprefix(HUB), allow_patterns=[f for f in files if f != WEIGHTS[1]])
        )
        if not (folder_of_it / WEIGHTS[0]).exists():
            folder_of_it = Path(snapshot_download(name.removeprefix(HUB), allow_patterns=files))
    except Exception as error:  # of the network, of the hub, of a name: each has its own
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{name} cannot be downloaded ({reason}); expected a network, or a folder") from None
    return folder_of_it


def read(directory, lower_case: bool | None = None) -> tuple:
    """The model and the tokenizer of a folder of transformers, with whichever heads it has.

    Raises ValueError or FileNotFoundError naming file and field or weights for what kbert's BERT does not compute and
    for what is missing, unknown or damaged.
    """
    directory = Path(directory)
    path = folder.found(directory, "config.json")
    fields = folder.read_json(path)
    for name, expected in EXPECTED.items():
        if fields.get(name, expected) != expected:
            raise ValueError(f"{path}: {name} is {fields[name]!r}; expected {expected!r}")
    values = read_weights(directory)
    config = config_of(fields, path, pooler="bert.pooler.dense.weight" in values)
    path_of_limit = directory / "tokenizer_config.json"
    limit = folder.read_json(path_of_limit).get("model_max_length") if path_of_limit.exists() else None
    config = replace(config, sequence_length=folder.trained_length(limit, config.max_position_embeddings))
    tokenizer = read_tokenizer(directory, lower_case)
    folder.check_vocabulary(directory, tokenizer, config)
    task = task_in(fields, values, path)
    model = new_model(config, task, path)
    assign(model, values, directory, lambda name: name_of(name, task["model"]), is_transposed)
    labels = fields.get("id2label", {})
    if labels and len(labels) == getattr(model, "num_labels", 0):
        if set(labels) != {str(number) for number in range(len(labels))}:
            raise ValueError(f"{path}: id2label has the numbers {', '.join(labels)}; expected 0 to {len(labels) - 1}")
        model.labels = [labels[str(number)] for number in range(len(labels))]
    return model, tokenizer


def config_of(fields: dict, path: Path, pooler: bool) -> BertConfig:
    taken = {ours: fields[theirs] for theirs, ours in FIELDS.items() if theirs in fields}
    if taken.get("hidden_act", "gelu") not in ACTIVATIONS:
        raise ValueError(f"{path}: hidden_act is {taken['hidden_act']!r}; expected one of {', '.join(ACTIVATIONS)}")
    taken["hidden_act"] = ACTIVATIONS[taken.get("hidden_act", "gelu")]
    return BertConfig.from_dict(taken | {"pooler": pooler}, source=str(path))


def task_in(fields: dict, values: dict, path: Path) -> dict:
    """Which model config.json and the names of the weights are of."""
    if not any(name.startswith(("classifier.", "qa_outputs.")) for name in values):
        starts = {"masked_lm": "cls.predictions.", "next_sentence": "cls.seq_relationship."}
        heads = {head: any(name.startswith(start) for name in values) for head, start in starts.items()}
        return {"model": "BertPretrainer", **heads}
    architecture = (fields.get("architectures") or ["none"])[0]
    if architecture not in HEADS:
        raise ValueError(f"{path}: architectures is {architecture}; expected one of {', '.join(HEADS)}")
    task = {"model": HEADS[architecture]}
    labels = len(values["classifier.weight"]) if "classifier.weight" in values else 0
    problem = fields.get("problem_type")
    if task["model"] == "BertClassifier" and (problem == "regression" or (problem is None and labels == 1)):
        if labels != 1:
            raise ValueError(f"{path}: problem_type is regression with {labels} numbers; expected 1")
        task = {"model": "BertRegressor"}
    elif task["model"] in ("BertClassifier", "BertTagger"):
        task |= {"num_labels": labels}
        task |= {"multi_label": True} if problem == "multi_label_classification" else {}
    dropout = fields.get("classifier_dropout")
    return task | ({"dropout": dropout} if dropout is not None and task["model"] != "BertSpanPredictor" else {})


def read_weights(directory: Path) -> dict:
    """Arrays by today's names: with `bert.`, LayerNorm's weight and bias, nothing twice and no buffers."""
    path = next((directory / name for name in WEIGHTS if (directory / name).exists()), directory / WEIGHTS[0])
    folder.found(directory, path.name)
    values = read_safetensors(path) if path.name == WEIGHTS[0] else read_torch(path)
    values = {name: value for name, value in values.items() if not BUFFERS.search(name)}
    for old, new in LAYER_NORM.items():
        values = {name.replace(old, new): value for name, value in values.items()}
    if not any(name.startswith("bert.") for name in values):
        values = {f"bert.{name}" if OF_BERT.match(name) else name: value for name, value in values.items()}
    for copy, original in TIED.items():
        if copy in values and original not in values:
            values[original] = values[copy]
        elif copy in values and not np.array_equal(values[copy], values[original]):
            raise ValueError(f"{path}: {copy} differs from {original}; expected tied weights")
        values.pop(copy, None)
    return values


def read_safetensors(path: Path) -> dict:
    try:
        with safetensors.safe_open(path, framework="np") as file:
            return {name: file.get_tensor(name).astype(np.float32) for name in file.keys() if not BUFFERS.search(name)}
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path}: damaged, or no safetensors file ({error})") from None


def read_torch(path: Path) -> dict:
    try:
        import torch
    except ImportError:
        raise ValueError(f"{path} is read by torch, which is not installed; expected {WEIGHTS[0]}, or torch") from None
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # it has no class of its own for a damaged file
        raise ValueError(f"{path}: damaged, or no file of torch ({str(error).splitlines()[0]})") from None
    return {name: value.float().numpy() for name, value in state.items()}


def read_tokenizer(directory: Path, lower_case: bool | None) -> WordPiece:
    """The tokenizer of vocab.txt or tokenizer.json; raises ValueError for rules that are not Google's."""
    path = directory / "tokenizer_config.json"
    settings = folder.read_json(path) if path.exists() else {}
    for name, expected in TOKENIZER_EXPECTED.items():
        if settings.get(name, expected) not in (expected, []):
            raise ValueError(f"{path}: {name} is {settings[name]!r}; expected {expected!r}")
    pieces, normalizer = directory / "vocab.txt", {}
    if (directory / "tokenizer.json").exists():
        whole = folder.read_json(directory / "tokenizer.json")
        model, normalizer = whole.get("model", {}), whole.get("normalizer") or {}
        if (
            model.get("type", "WordPiece") != "WordPiece"
            or normalizer.get("type", "BertNormalizer") != "BertNormalizer"
        ):
            raise ValueError(f"{directory / 'tokenizer.json'}: expected a WordPiece model and a BertNormalizer")
        if not pieces.exists():
            pieces = sorted(model["vocab"], key=model["vocab"].get)
    else:
        folder.found(directory, "vocab.txt")
    if lower_case is None and settings.get("do_lower_case") is None and "lowercase" in normalizer:
        lower_case = normalizer["lowercase"]
    lower_case = folder.lower_case(directory, lower_case)
    for where in (settings, normalizer):
        if where.get("strip_accents") not in (None, lower_case):
            raise ValueError(
                f"{directory}: strip_accents is {where['strip_accents']} where text is "
                f"{'' if lower_case else 'not '}lower-cased; expected both or neither, as in the release"
            )
    return WordPiece(pieces, lower_case=lower_case)


def write(model, tokenizer, directory) -> None:
    """Writes a folder that transformers loads with no weight missing and none unexpected.

    But for an encoder alone that has no pooler: the BertModel of transformers makes a new one.
    Raises ValueError for what a BERT of transformers does not compute.
    """
    task, config = task_of(model), model.config
    folder.check_vocabulary("the tokenizer", tokenizer, config)
    if config.causal:
        raise ValueError("causal is True, which transformers computes in another class; expected False")
    if task.get("masked_lm_changes"):
        raise ValueError(f"config.json has no place for masked_lm_changes {task['masked_lm_changes']}; expected none")
    if task["model"] not in ("BertPretrainer", *ARCHITECTURES):
        raise ValueError(f"transformers has no {task['model']}; expected one that it has, or none (encoder-only)")
    theirs = {ours: name for name, ours in ACTIVATIONS.items() if name != "gelu_new"}
    fields = {name: getattr(config, ours) for name, ours in FIELDS.items()}
    fields |= {"model_type": "bert", "hidden_act": theirs[config.hidden_act], "pad_token_id": tokenizer.pad_id}
    fields |= {"architectures": [architecture_of(task)], **task_fields(model, task)}
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    values = values_of(model, lambda name: name_of(name, task["model"]), is_transposed)
    if architecture_of(task) in WITHOUT_POOLER:
        values = {name: value for name, value in values.items() if not name.startswith("bert.pooler.")}
    if architecture_of(task) == "BertModel":
        values = {name.removeprefix("bert."): value for name, value in values.items()}
    values = {name: np.ascontiguousarray(value) for name, value in values.items()}
    with written_whole(directory / WEIGHTS[0]) as temporary:
        safetensors.numpy.save_file(values, temporary, {"format": "pt"})
    folder.write_json(directory / "config.json", fields)
    write_tokenizer(tokenizer, directory, config.trained_length)


def architecture_of(task: dict) -> str:
    if task["model"] == "BertPretrainer":
        return PRETRAINED[task["masked_lm"], task["next_sentence"]]
    return ARCHITECTURES[task["model"]]


def task_fields(model, task: dict) -> dict:
    """What config.json says of an output layer."""
    fields = {} if task.get("dropout") is None else {"classifier_dropout": task["dropout"]}
    if task["model"] == "BertRegressor":
        return fields | {"problem_type": "regression", "id2label": {"0": "value"}, "label2id": {"value": 0}}
    if "num_labels" not in task:
        return fields
    labels = getattr(model, "labels", None) or [f"LABEL_{number}" for number in range(task["num_labels"])]
    fields |= {"id2label": {str(number): label for number, label in enumerate(labels)}}
    fields |= {"label2id": {label: number for number, label in enumerate(labels)}}
    if task["model"] == "BertClassifier":
        kind = "multi_label_classification" if task.get("multi_label") else "single_label_classification"
        fields |= {"problem_type": kind}
    return fields


def write_tokenizer(tokenizer: WordPiece, directory: Path, length: int) -> None:
    """vocab.txt, and the files of transformers that make of it the tokenizer it was."""
    folder.write_lines(directory / "vocab.txt", tokenizer.vocabulary)
    ids = {piece: number for number, piece in enumerate(tokenizer.vocabulary)}
    # 200, as Google's tokenizer; the default there is 100.
    whole = Tokenizer(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=200))
    whole.normalizer = normalizers.BertNormalizer(lowercase=tokenizer.lower_case)
    whole.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    whole.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", tokenizer.cls_id), ("[SEP]", tokenizer.sep_id)],
    )
    whole.decoder = decoders.WordPiece(prefix="##")
    whole.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    write_whole(directory / "tokenizer.json", whole.to_str(pretty=True).encode())
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "sep", "pad", "cls", "mask")}
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": tokenizer.lower_case, "model_max_length": length}
    folder.write_json(directory / "tokenizer_config.json", settings | special)
