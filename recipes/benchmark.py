"""kbert beside its peers on this machine: the same work in turn, each system in a process of its own.

    python recipes/benchmark.py step --size base --sequence-length 128 --batch-size 32 --turns.peers peers/bin/python
    python recipes/benchmark.py growth --size tiny --turns.output runs/growth

Peers take part where their libraries are installed, here or in the environments of --turns.peers; the others are named.
Times are medians of rounds in turn, and ratios those of the median round: compare them, not times of different runs.
"""

import os
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from kbert import report
from kbert.benchmark import growth as growing
from kbert.benchmark import jobs, participants, tasks
from kbert.benchmark.participants import ANSWERING, DATA, FINE_TUNING, INFERENCE, SERVING, STEP, STEP_ON_JAX
from kbert.benchmark.rounds import GROWING, in_turn
from kbert.benchmark.tables import Work, tell
from kbert.command_line import import_tensorflow, run
from kbert.config import BertConfig
from kbert.training import planning


@dataclass(frozen=True)
class RoundRule:
    """How often, and where it is written.

    Args:
        rounds: so many times each system works in turn.
        limit: seconds after which a system that does not answer takes no part any more.
        output: folder for metrics.json, rounds.jsonl and plots.
    """

    rounds: int = 5
    limit: float = 3600.0
    output: str | None = None


@dataclass(frozen=True)
class TurnRule(RoundRule):
    """Who takes part, and how often.

    Args:
        peers: interpreters of other environments, where peers are installed that are not here.
        without: who takes no part, by name, for its memory or time.
        apart: begin each system anew for each of its rounds, so that one alone is in memory.
    """

    peers: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    apart: bool = False


Size = Literal["tiny", "mini", "small", "medium", "base", "large"]
Documents = Literal["blank-line", "file"]


def step(
    size: Size = "tiny",
    sequence_length: int = 128,
    batch_size: int = 64,
    predictions: int = 20,
    vocabulary_size: int = 30522,
    backend: Literal["tensorflow", "jax"] = "tensorflow",
    precision: Literal["float32", "bfloat16"] = "float32",
    turns: TurnRule = TurnRule(),
) -> None:
    """A step of pre-training: forward, backward, clipping, AdamW; dropout 0.1, full sequences of random tokens.

    Beside it the step's own matrix products, each alone in the fastest form that the backend has for it: the limit.

    Args:
        size: tiny (2 layers of 128) to large (24 of 1,024).
        sequence_length: tokens per sequence.
        batch_size: sequences per step.
        predictions: per sequence, of the masked LM.
        vocabulary_size: of the model.
        backend: of kbert; on jax Keras's own step, on a GPU where JAX has one.
        precision: of products and what is between them; variables and sums are float32.
        turns: who takes part and how often.
    """
    check(turns)
    chosen = participants.those(STEP_ON_JAX if backend == "jax" else STEP, turns.without)
    config = BertConfig.from_size(size, vocab_size=vocabulary_size)
    setting = planning.Setting(config, batch_size, sequence_length, predictions, precision=precision)
    with tempfile.TemporaryDirectory() as folder:
        job = jobs.job_of_step(setting, Path(folder) / "batch.npz")
        job |= {"products": jobs.products_of_step(setting), "precision": precision}
        total = sum(sum(both) for both in planning.operations(setting).values())
        title = f"A step of {size}, {batch_size} sequences of {sequence_length}, {precision}"
        compare(chosen, job, turns, Work(title, batch_size * sequence_length, total))


def inference(
    model: str | None = None,
    size: Size = "tiny",
    sequence_length: int = 128,
    batch_size: int = 32,
    texts: str | None = None,
    turns: TurnRule = TurnRule(),
) -> None:
    """The encoder's vectors of a batch of token ids, of full sequences or of real sentences of any lengths.

    Peers get the sentences padded to the longest, as they compute them, and compute on CPUs. Answers are compared.

    Args:
        model: any folder that kbert.load knows, instead of random weights of a size.
        size: tiny (2 layers of 128) to large (24 of 1,024).
        sequence_length: tokens per sequence; the most of a sentence.
        batch_size: sequences at once.
        texts: a file whose first lines are the sentences, instead of full sequences of random tokens.
        turns: who takes part and how often.
    """
    check(turns, batch_size)
    chosen = participants.those(INFERENCE, turns.without)
    check_texts(texts, model)
    begin()
    import numpy as np

    with tempfile.TemporaryDirectory() as folder:
        encoder, tokenizer = jobs.write_model(Path(folder), model, size)
        config, random = encoder.config, np.random.default_rng(1)
        if not 2 <= sequence_length <= config.max_position_embeddings:
            limit = f"2 to {config.max_position_embeddings}, the model's positions"
            raise ValueError(f"--sequence-length {sequence_length}: expected {limit}")
        if texts:
            found = tokenizer(jobs.first_lines(texts, batch_size)).to_list()
            ends = ([tokenizer.cls_id], [tokenizer.sep_id])
            rows = [[*ends[0], *pieces[: sequence_length - 2], *ends[1]] for pieces in found]
        else:
            rows = random.integers(5, config.vocab_size, (batch_size, sequence_length)).tolist()
        lengths = [len(row) for row in rows]
        products = jobs.products_of_encoder(config, lengths)
        job = {"folder": folder, "rows": rows, "products": products, "precision": "float32"}
        if len(set(lengths)) > 1:
            chosen.pop("kbert, XLA", None)  # which would compute the padding
        if batch_size > 1:
            chosen.pop("kbert, LiteRT", None)  # which answers one at a time
        if "kbert, LiteRT" in chosen:
            job["litert"] = str(Path(folder) / "encoder.tflite")
            jobs.write_encoder_of_row(encoder, Path(job["litert"]))
        title = f"Encoder, {batch_size} sequences of {min(lengths)} to {max(lengths)} tokens"
        compare(chosen, job, turns, Work(title, sum(lengths), jobs.operations_of_encoder(config, lengths)))


def serving(
    texts: str,
    model: str,
    batch_size: int = 1,
    sequence_length: int = 128,
    turns: TurnRule = TurnRule(),
) -> None:
    """Raw text to probabilities of two classes: kbert's SavedModel beside tokenizers and ONNX Runtime.

    The limit is that of the encoder's matrix products.

    Args:
        texts: a file whose first lines are asked.
        model: any folder that kbert.load knows; its encoder gets a new classifier.
        batch_size: texts at once.
        sequence_length: the most tokens of a text.
        turns: who takes part and how often.
    """
    check(turns, batch_size)
    chosen = participants.those(SERVING, turns.without)
    check_texts(texts, model)
    begin()
    import kbert

    lines = jobs.first_lines(texts, batch_size)
    with tempfile.TemporaryDirectory() as folder:
        classifier, tokenizer = jobs.write_model(Path(folder), model, "tiny", 2, sequence_length)
        if batch_size > 1:
            chosen.pop("kbert, LiteRT", None)
        by_litert = "kbert, LiteRT" in chosen
        saved_model = kbert.export(classifier, tokenizer, Path(folder) / "saved_model", litert=by_litert)
        job = {"folder": folder, "saved_model": saved_model, "texts": lines, "sequence_length": sequence_length}
        lengths = [min(int(length) + 2, sequence_length) for length in tokenizer(lines).row_lengths()]
        products = jobs.products_of_encoder(classifier.config, lengths, read=1)
        job |= {"products": products, "precision": "float32"}
        total = jobs.operations_of_encoder(classifier.config, lengths, read=1)
        compare(chosen, job, turns, Work(f"{batch_size} raw texts to probabilities", sum(lengths), total))


def data(
    corpus: str,
    vocabulary: str,
    documents: Documents = "blank-line",
    sequence_length: int = 128,
    batch_size: int = 256,
    tokens: int = 20_000_000,
    turns: TurnRule = TurnRule(),
) -> None:
    """Text files to finished batches by kbert, beside what others need for the tokens alone.

    Args:
        corpus: a file, or a folder of .txt files.
        vocabulary: a vocab.txt.
        documents: where a document ends: at each blank line and at the end of a file, or at the end of a file only.
        sequence_length: tokens per sequence.
        batch_size: sequences per batch.
        tokens: real tokens of a round. kbert makes some million at once on each core: of few, many are made in vain.
        turns: who takes part and how often.
    """
    check(turns, batch_size)
    chosen = participants.those(DATA, turns.without)
    job = jobs.job_of_data(corpus, vocabulary, documents, sequence_length, batch_size, tokens)
    compare(chosen, job, turns, Work(f"Text to batches of {batch_size} x {sequence_length}", tokens))


def fine_tuning(
    model: str,
    task: str,
    data: str,
    epochs: int = 3,
    learning_rate: float = 5e-5,
    batch_size: int = 32,
    sequence_length: int | None = None,
    questions: int = 5000,
    dev_questions: int = 2000,
    precision: Literal["float32", "bfloat16"] = "float32",
    turns: TurnRule = TurnRule(rounds=1),
) -> None:
    """A task from the start of the process to the scores of dev.

    transformers pads each batch of GLUE to its longest text and each window of SQuAD to the sequence length, as its
    recipes do. Tokens, operations and the limit are those of the training steps. No one predicts a test file.

    Args:
        model: any folder that kbert.load knows.
        task: mrpc, cola, sst-2, sts-b and so on, or squad.
        data: its folder; of squad, with train-v1.1.json and dev-v1.1.json.
        epochs: of both.
        learning_rate: of both.
        batch_size: of both.
        sequence_length: the most tokens of both; by default 128, of squad's windows 384.
        questions: of squad to learn from, drawn at random.
        dev_questions: of squad to answer, the first.
        precision: of both: Keras's mixed policy and torch's autocast.
        turns: who takes part and how often.
    """
    check(turns, batch_size)
    taking_part = participants.those(ANSWERING if task == tasks.SQUAD else FINE_TUNING, turns.without)
    begin()
    length = sequence_length or (384 if task == tasks.SQUAD else 128)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        encoder, tokenizer = jobs.write_model(folder, model, "tiny")
        if task == tasks.SQUAD:
            chosen = tasks.of_squad(Path(data), folder, tokenizer, length, questions, dev_questions)
        else:
            chosen = tasks.of_glue(task, Path(data), folder, tokenizer, length)
        steps = epochs * len(chosen.lengths) // batch_size
        config = replace(encoder.config, pooler=chosen.read == 1)
        products = jobs.products_of_fine_tuning(config, batch_size, chosen.lengths, steps, chosen.read)
        job = chosen.job | {"folder": name, "recipe": str(Path(__file__).with_name(f"{chosen.job['recipe']}.py"))}
        job |= {"epochs": epochs, "learning_rates": learning_rate, "batch_sizes": batch_size}
        job |= {"products": products, "precision": precision}
        total = 3 * epochs * jobs.operations_of_encoder(config, chosen.lengths, chosen.read)  # and two gradients
        work = Work(f"{task}, {epochs} epochs, {precision}", epochs * sum(chosen.lengths), total)
        results = compare(taking_part, job, turns, work)
    scores = {"kbert": results[0].rounds[-1]["scores"]}
    for result in results[1:]:
        if result.rounds and result.name != "limit":
            scores[result.name] = chosen.scores(result.rounds[-1])
    rows = {name: ", ".join(f"{metric} {value:.4f}" for metric, value in of.items()) for name, of in scores.items()}
    report.table(f"Scores of {chosen.dev}", rows)


def growth(
    size: Size = "tiny",
    sequence_length: int = 128,
    batch_size: int = 32,
    lengths: tuple[int, ...] = (32, 64, 256, 512),
    batch_sizes: tuple[int, ...] = (8, 16, 64),
    layers: tuple[int, ...] = (1, 4, 8),
    hidden_sizes: tuple[int, ...] = (256, 384, 512),
    vocabulary_size: int = 30522,
    turns: RoundRule = RoundRule(),
) -> None:
    """What a token of kbert's step costs as one thing grows alone: a table, and plots with the arithmetic's line.

    The line has the operations of the matrix products and goes through the cost of the base: the size, the sequence
    length and the batch size given. 15% of the tokens are predicted. A flag without values leaves its plot out.

    Args:
        size: of the base, tiny (2 layers of 128) to large (24 of 1,024).
        sequence_length: of the base, tokens per sequence.
        batch_size: of the base, sequences per step.
        lengths: others to measure beside it.
        batch_sizes: others to measure beside it.
        layers: other L.
        hidden_sizes: other H; heads stay as wide, and the feed-forward 4 H.
        vocabulary_size: of all models.
        turns: how often.
    """
    check(turns)
    config = BertConfig.from_size(size, vocab_size=vocabulary_size)
    base = planning.Setting(config, batch_size, sequence_length, growing.predicted(sequence_length))
    varied = growing.settings(base, lengths, batch_sizes, layers, hidden_sizes)
    with tempfile.TemporaryDirectory() as folder:
        curves = [growing.of_steps(name, settings, Path(folder)) for name, settings in varied.items()]
        growing.follow(curves, turns.rounds, turns.limit, turns.output)


def data_growth(
    corpus: str,
    vocabulary: str,
    documents: Documents = "blank-line",
    sequence_length: int = 128,
    batch_size: int = 256,
    tokens: int = 20_000_000,
    turns: RoundRule = RoundRule(),
) -> None:
    """What a token of kbert's batches costs, and the memory, with an eighth, a fourth, a half and all of a corpus.

    Every eighth, fourth and second document is written to a temporary folder. The line is flat, through the eighth's.

    Args:
        corpus: a file, or a folder of .txt files.
        vocabulary: a vocab.txt.
        documents: where a document ends: at each blank line and at the end of a file, or at the end of a file only.
        sequence_length: tokens per sequence.
        batch_size: sequences per batch.
        tokens: real tokens of a round. kbert makes some million at once on each core: of few, many are made in vain.
        turns: how often.
    """
    check(turns, batch_size)
    job = jobs.job_of_data(corpus, vocabulary, documents, sequence_length, batch_size, tokens)
    with tempfile.TemporaryDirectory() as folder:
        growing.follow([growing.of_corpus(job, Path(folder))], turns.rounds, turns.limit, turns.output)


def begin() -> None:
    """Imports TensorFlow; of a GPU's memory this process takes what it needs alone, as the systems do."""
    os.environ.update(GROWING)
    import_tensorflow()


def check(turns: RoundRule, batch_size: int = 1) -> None:
    """Raises ValueError for no round, for interpreters that are not there, and for an empty batch."""
    if batch_size < 1:
        raise ValueError(f"--batch-size {batch_size}: expected at least 1")
    if turns.rounds < 1:
        raise ValueError(f"--turns.rounds {turns.rounds}: expected at least 1")
    if not turns.limit > 0:
        raise ValueError(f"--turns.limit {turns.limit:g}: expected more than 0")
    for python in turns.peers if isinstance(turns, TurnRule) else ():
        if not Path(python).is_file():
            raise ValueError(f"--turns.peers {python}: no such file; expected an environment's python")


def check_texts(texts: str | None, model: str | None) -> None:
    """Raises ValueError for texts without a model, whose vocabulary they need, and for files that are not there."""
    if texts and not model:
        raise ValueError(f"--texts {texts}: expected --model, whose vocabulary has their tokens")
    if texts and not Path(texts).is_file():
        raise ValueError(f"--texts {texts}: no such file; expected one text a line")


def compare(chosen: dict, job: dict, turns: TurnRule, work: Work) -> list:
    """All systems' results, with progress, told."""
    systems = participants.systems(chosen, job, turns.peers)
    with report.progress(f"{len(systems)} systems in turn") as progress:
        results = in_turn(systems, turns.rounds, progress, turns.limit, turns.apart)
    tell(work, results, turns.output)
    return results


COMMANDS = (step, inference, serving, data, fine_tuning, growth, data_growth)
main = {command.__name__: command for command in COMMANDS}

if __name__ == "__main__":
    run(main, tensorflow=False)
