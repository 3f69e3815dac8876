"""The work that systems are given: models of a size, products of a step, sentences of a file, a corpus."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from kbert.config import BertConfig
from kbert.training import measurement, planning


def job_of_step(setting: planning.Setting, batch: Path) -> dict:
    """A step on random tokens, which are written to `batch`."""
    np.savez(batch, **measurement.random_batch(setting))
    told = asdict(setting)
    return {"config": told.pop("config"), "setting": told, "batch": str(batch)}


def products_of_step(setting: planning.Setting) -> list[dict]:
    """The matrix products of a step, forward and backward; those of attention as batches of a layer."""
    shape = (setting.batch_size, setting.sequence_length, setting.predictions)
    return of_training(setting.config, planning.products(setting.config, *shape))


def products_of_fine_tuning(config: BertConfig, batch_size: int, lengths: Sequence[int], steps: int) -> list[dict]:
    """Those of the encoder in so many steps, forward and backward, of batches as long as the mean of `lengths`."""
    return of_training(config, planning.products(config, batch_size, mean(lengths), 0), steps)


def products_of_encoder(config: BertConfig, lengths: Sequence[int]) -> list[dict]:
    """Those of a forward pass with sequences of these lengths, taken as as many of the mean length."""
    return [of_layers(config, product) for product in planning.products(config, len(lengths), mean(lengths), 0)]


def mean(lengths: Sequence[int]) -> int:
    return round(sum(lengths) / len(lengths))


def of_training(config: BertConfig, forward: Sequence[planning.Product], steps: int = 1) -> list[dict]:
    told = []
    for product in forward:
        gradients = zip(("", ", left gradient", ", right gradient"), (product, *product.backward), strict=True)
        told += [of_layers(config, one, way, steps) for way, one in gradients]
    return told


def of_layers(config: BertConfig, product: planning.Product, way: str = "", steps: int = 1) -> dict:
    layers = config.num_hidden_layers
    times = 1 if product.count % layers else layers
    shape = {"m": product.m, "n": product.n, "k": product.k}
    return {"name": product.name + way, "times": times * steps, "batch": product.count // times, **shape}


def operations_of_encoder(config: BertConfig, lengths: Sequence[int]) -> int:
    """Of sequences of these lengths, without padding."""
    return sum(product.operations for length in lengths for product in planning.products(config, 1, length, 0))


def write_model(folder: Path, start: str | None, size: str, labels: int = 0, sequence_length: int | None = None):
    """An encoder, with a new classifier on it if labels are given, in Hugging Face's format; the model, the tokenizer.

    start: any folder that kbert.load knows; None: random weights of a published size. sequence_length: the most tokens
    of a text to the classifier. Raises ValueError where it has not so many positions.
    """
    from kbert.model.bert import Bert
    from kbert.model.fine_tuning import BertClassifier
    from kbert.model.pretraining import BertPretrainer
    from kbert.model_directory import load
    from kbert.text.vocabulary import SPECIAL_TOKENS
    from kbert.text.wordpiece import WordPiece
    from kbert.weights import huggingface
    from kbert.weights.by_name import take_over, without_heads

    if start:
        model, tokenizer = load(start)
    else:
        config = BertConfig.from_size(size)
        pieces = [*SPECIAL_TOKENS, *(f"piece{number}" for number in range(config.vocab_size - len(SPECIAL_TOKENS)))]
        model, tokenizer = BertPretrainer(config), WordPiece(pieces)
    encoder = without_heads(model)
    if labels:
        config = replace(encoder.config, pooler=True, sequence_length=sequence_length)
        model = BertClassifier(Bert(config), labels)
        take_over(model, encoder)
    else:
        model = encoder
    huggingface.write(model, tokenizer, folder)
    return model, tokenizer


def job_of_data(
    corpus: str, vocabulary: str, documents: str, sequence_length: int, batch_size: int, tokens: int
) -> dict:
    """A file, or a folder's .txt files, to batches. Raises ValueError for what is not there, and for no tokens."""
    for path in (corpus, vocabulary):
        if not Path(path).exists():
            raise ValueError(f"{path}: no such file or folder")
    files = sorted(str(path) for path in Path(corpus).rglob("*.txt")) if Path(corpus).is_dir() else [corpus]
    if not files:
        raise ValueError(f"--corpus {corpus}: holds no .txt files; expected some")
    if tokens < 1:
        raise ValueError(f"--tokens {tokens}: expected at least 1")
    job = {"files": files, "vocabulary": vocabulary, "documents": documents, "tokens": tokens}
    return job | {"sequence_length": sequence_length, "batch_size": batch_size}


def first_lines(path: str, count: int) -> list[str]:
    """Raises ValueError for a file with fewer lines that are not empty."""
    with open(path, encoding="utf-8") as file:
        lines = [line.strip() for line in file if line.strip()][:count]
    if len(lines) < count:
        raise ValueError(f"{path}: {len(lines)} lines with text, expected at least {count}")
    return lines
