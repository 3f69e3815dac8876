"""The work that systems are given: models of a size, products of a step, sentences of a file, a corpus."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from kbert import lanes
from kbert.config import BertConfig
from kbert.training import measurement, planning


def job_of_step(setting: planning.Setting, batch: Path) -> dict:
    """A step on random tokens, which are written to `batch`, in the lanes that it has on this machine."""
    np.savez(batch, **measurement.random_batch(setting))
    told = asdict(setting) | {"lanes": lanes.count(setting.in_part, setting.sequence_length, setting.recompute)}
    return {"config": told.pop("config"), "setting": told, "batch": str(batch)}


def products_of_step(setting: planning.Setting) -> list[dict]:
    """The matrix products of a step, forward and backward; those of attention as batches of a layer."""
    shape = (setting.batch_size, setting.sequence_length, setting.predictions)
    return of_training(planning.products(setting.config, *shape))


def products_of_fine_tuning(
    config: BertConfig, batch_size: int, lengths: Sequence[int], steps: int, read: int | None
) -> list[dict]:
    """Those of so many steps, forward and backward, of batches as long as the mean of `lengths`; read: as below."""
    length = mean(lengths)
    return of_training(planning.encoder_products(config, batch_size, length, read or length), steps)


def products_of_encoder(config: BertConfig, lengths: Sequence[int], read: int | None = None) -> list[dict]:
    """Those of a forward pass with sequences of these lengths, taken as as many of the mean length.

    read: how many final vectors of a sequence are, [CLS]'s first; None is all.
    """
    length = mean(lengths)
    return [one._asdict() for one in planning.encoder_products(config, len(lengths), length, read or length)]


def mean(lengths: Sequence[int]) -> int:
    return round(sum(lengths) / len(lengths))


def of_training(forward: Sequence[planning.Product], steps: int = 1) -> list[dict]:
    found = []
    for product in forward:
        gradients = zip(("", ", left gradient", ", right gradient"), (product, *product.backward), strict=True)
        found += [one._replace(name=one.name + way, times=one.times * steps)._asdict() for way, one in gradients]
    return found


def operations_of_encoder(config: BertConfig, lengths: Sequence[int], read: int | None = None) -> int:
    """Of sequences of these lengths, without padding."""
    every = (planning.encoder_products(config, 1, length, read or length) for length in lengths)
    return sum(product.operations for products in every for product in products)


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
        random = np.random.default_rng(0)
        for weight in model.trainable_weights:
            if len(weight.shape) == 1:  # LiteRT leaves out a product with 1 and a sum with 0, as no trained model has
                weight.assign(weight + random.normal(0, 0.02, weight.shape))
    encoder = without_heads(model)
    if labels:
        config = replace(encoder.config, pooler=True, sequence_length=sequence_length)
        model = BertClassifier(Bert(config), labels)
        take_over(model, encoder)
    else:
        model = encoder
    huggingface.write(model, tokenizer, folder)
    return model, tokenizer


def write_encoder_of_row(encoder, path: Path) -> None:
    """A Bert's vectors of one text, as LiteRT computes them."""
    from kbert.model.kernels import weights_final
    from kbert.serving import litert

    with weights_final(encoder.bert):  # as in a SavedModel
        litert.write_with_digest(path, litert.as_litert(encoder.bert, encoder.bert))


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
