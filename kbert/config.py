"""BertConfig: what makes one BERT differ from another."""

import dataclasses
import json
import os

from kbert.whole_file import write_whole

ACTIVATIONS = ("gelu_tanh", "gelu_erf", "relu", "tanh", "linear")

# Section 3 of the paper and the release's small models: layers, hidden size, heads, feed-forward size.
SIZES = {
    "tiny": (2, 128, 2, 512),
    "mini": (4, 256, 4, 1024),
    "small": (4, 512, 8, 2048),
    "medium": (8, 512, 8, 2048),
    "base": (12, 768, 12, 3072),
    "large": (24, 1024, 16, 4096),
}

# Fields of Google's published bert_config.json files that no code of the release reads.
UNREAD_FIELDS = {
    "directionality",
    "pooler_fc_size",
    "pooler_num_attention_heads",
    "pooler_num_fc_layers",
    "pooler_size_per_head",
    "pooler_type",
}


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """The hyper-parameters of one BERT, under the names of Google's bert_config.json.

    `sequence_length` is that of the longest sequences the weights were trained on: position vectors beyond it are as
    they were drawn. None is all positions. Raises ValueError, naming the field and the value received, if no model can
    be built from them.
    """

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu_tanh"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    layer_norm_epsilon: float = 1e-12
    pooler: bool = True
    causal: bool = False
    sequence_length: int | None = None

    def __post_init__(self):
        for field in dataclasses.fields(self):
            _check_field(field, getattr(self, field.name))
        if self.hidden_act not in ACTIVATIONS:
            hint = "; plain gelu does not say which: tanh in Google's files, erf in Hugging Face's"
            raise ValueError(
                f"hidden_act is {self.hidden_act!r}, expected one of {', '.join(ACTIVATIONS)}"
                f"{hint if self.hidden_act == 'gelu' else ''}"
            )
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads {self.num_attention_heads}"
            )
        if self.trained_length > self.max_position_embeddings:
            limit = f"max_position_embeddings {self.max_position_embeddings}"
            raise ValueError(f"sequence_length is {self.sequence_length}, expected at most {limit}")

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def trained_length(self) -> int:
        """The longest sequence, in tokens, that a served model reads."""
        return self.sequence_length or self.max_position_embeddings

    @classmethod
    def from_size(cls, size: str, **changes) -> "BertConfig":
        """The configuration of a published size, "tiny" to "large"; `changes` replace single fields."""
        if size not in SIZES:
            raise ValueError(f"size is {size!r}, expected one of {', '.join(SIZES)}")
        layers, hidden, heads, feed_forward = SIZES[size]
        fields = {
            "num_hidden_layers": layers,
            "hidden_size": hidden,
            "num_attention_heads": heads,
            "intermediate_size": feed_forward,
        }
        return cls.from_dict({**fields, **changes}, source="BertConfig")

    @classmethod
    def from_dict(cls, fields: dict, source: str = "bert_config.json", gelu: str | None = None) -> "BertConfig":
        """A configuration from a mapping; `gelu` says which activation its owner means by plain "gelu"."""
        fields = {name: value for name, value in fields.items() if name not in UNREAD_FIELDS}
        known = [field.name for field in dataclasses.fields(cls)]
        unknown = sorted(set(fields) - set(known))
        if unknown:
            raise ValueError(f"{source}: unknown field {unknown[0]!r}, expected some of {', '.join(known)}")
        if gelu is not None and fields.get("hidden_act") == "gelu":
            fields["hidden_act"] = gelu
        try:
            return cls(**fields)
        except ValueError as error:
            raise ValueError(f"{source}: {error}") from None

    @classmethod
    def from_json(cls, path, gelu: str | None = None) -> "BertConfig":
        """Reads a bert_config.json.

        `gelu` ("gelu_tanh" for Google's files, "gelu_erf" for Hugging Face's) is what plain "gelu" stands for in it;
        without it such a file is refused. Raises ValueError naming the file and the line or field.
        """
        with open(path, "rb") as file:
            content = file.read()
        try:
            fields = json.loads(content)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {error.lineno}: {error.msg}, expected JSON") from None
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}, byte {error.start}: not UTF-8, expected JSON") from None
        if not isinstance(fields, dict):
            raise ValueError(f"{path}: the JSON is a {type(fields).__name__}, expected an object with BERT's fields")
        return cls.from_dict(fields, source=os.fspath(path), gelu=gelu)

    def to_dict(self) -> dict:
        return dataclasses.asdict(self)

    def to_json(self, path) -> None:
        """Writes a bert_config.json; a reader sees the old file or the whole new one."""
        write_whole(path, json.dumps(self.to_dict(), indent=2).encode() + b"\n")


def _check_field(field: dataclasses.Field, value) -> None:
    """Raises ValueError if the value's type or range is not the field's."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if field.default is None and value is None:
        return
    if field.type in (int, int | None):
        valid, expected = is_number and isinstance(value, int) and value > 0, "a positive integer"
    elif field.type is float and field.name.endswith("_prob"):
        valid, expected = is_number and 0 <= value < 1, "a number from 0 up to, not including, 1"
    elif field.type is float:
        valid, expected = is_number and 0 < value < float("inf"), "a positive number"
    elif field.type is bool:
        valid, expected = isinstance(value, bool), "true or false"
    else:
        valid, expected = isinstance(value, str), "a name"
    if not valid:
        raise ValueError(f"{field.name} is {value!r}, expected {expected}")
