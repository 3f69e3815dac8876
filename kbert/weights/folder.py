"""What the folders of several formats have alike: JSON files, a vocabulary, whether it is an uncased one."""

import json
from pathlib import Path

from kbert.config import BertConfig
from kbert.whole_file import write_whole


def found(directory: Path, name: str) -> Path:
    """A file that has to be in a folder; raises FileNotFoundError naming it."""
    if not (directory / name).exists():
        raise FileNotFoundError(f"{directory / name} is missing")
    return directory / name


def read_json(path: Path) -> dict:
    """The object in a JSON file; raises ValueError naming the file if there is none."""
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}: {error}, expected JSON") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: the JSON is a {type(content).__name__}, expected an object")
    return content


def write_json(path: Path, content: dict) -> None:
    write_whole(path, json.dumps(content, indent=2, ensure_ascii=False).encode() + b"\n")


def write_lines(path: Path, texts) -> None:
    write_whole(path, "".join(f"{text}\n" for text in texts).encode())


def lower_case(directory: Path, told: bool | None) -> bool:
    """Whether text is lower-cased: as told, or as tokenizer_config.json says. Raises ValueError if neither does."""
    path = directory / "tokenizer_config.json"
    written = read_json(path).get("do_lower_case") if path.exists() else None
    if written is not None and not isinstance(written, bool):
        raise ValueError(f"{path}: do_lower_case is {written!r}, expected true or false")
    if told is None and written is None:
        raise ValueError(
            f"{directory} does not say whether its vocabulary is uncased; expected lower_case true or false"
        )
    if told is not None and written is not None and told != written:
        raise ValueError(f"{path}: do_lower_case is {written}, and lower_case {told} was asked for")
    return written if told is None else told


def trained_length(limit, positions: int) -> int | None:
    """A tokenizer's limit, where it is below the number of positions; huge numbers stand for none."""
    return limit if isinstance(limit, int) and 0 < limit < positions else None


def check_vocabulary(where, tokenizer, config: BertConfig) -> None:
    """Raises ValueError if the vocabulary has another size than the model."""
    if tokenizer.vocab_size != config.vocab_size:
        raise ValueError(
            f"{where}: the vocabulary has {tokenizer.vocab_size} pieces, expected the {config.vocab_size} of "
            f"vocab_size in the configuration"
        )


def write_tokenizer(directory: Path, tokenizer) -> None:
    write_lines(directory / "vocab.txt", tokenizer.vocabulary)
    write_json(directory / "tokenizer_config.json", {"do_lower_case": tokenizer.lower_case})
