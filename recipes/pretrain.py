"""Pre-trains a BERT on plain text with the masked LM and next sentence prediction (paper, sections 3.1 and A.2).

    python recipes/pretrain.py --corpus books/train --held-out books/heldout --vocabulary vocab.txt --size mini
        --sequence-length 64 --batch-size 64 --steps 5000 --text.documents file --output runs/books

On two cores and 105 books that took 65 minutes with other work beside it: held-out masked-LM loss 4.58 (unigram 6.58),
next sentences 66.5% (majority 55.0%).
"""

import os
import string
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from kbert.command_line import run as start
from kbert.devices import DeviceRule, Strategy, check_batch
from kbert.devices import start as start_devices
from kbert.fine_tuning import alike, check_numbers

# Peak learning rates of BertAdam. Tiny's and Mini's are measured at batch 32: twice as much keeps Mini at the unigram
# loss for 250 steps and costs Tiny the next sentences; Base's and Large's are the paper's, the others lie between.
PEAKS = {"tiny": 1e-3, "mini": 5e-4, "small": 4e-4, "medium": 2e-4, "base": 1e-4, "large": 1e-4}
FURTHER_PEAK = 2e-5  # the release's advice for going on from a trained model


@dataclass(frozen=True)
class TextFormat:
    """How the corpus is read.

    Args:
        documents: where a document ends: at each blank line and at the end of a file, or at the end of a file only.
        sentences: split lines (paragraphs) at the ends of sentences, or take each line as one sentence.
        bad_text: refuse a file that is binary or not UTF-8, or skip such files and bytes, with a count.
        lower_case: lower-case and strip accents, as the uncased models do; by default so, or as --start does.
    """

    documents: Literal["blank-line", "file"] = "blank-line"
    sentences: Literal["split", "line"] = "split"
    bad_text: Literal["refuse", "skip"] = "refuse"
    lower_case: bool | None = None


@dataclass(frozen=True)
class MaskingRule:
    """Which tokens are predicted.

    Args:
        rate: share of the tokens, [CLS] and [SEP] counted.
        mask: share of these that becomes [MASK].
        random: share of these that becomes a random token; the rest stays as it is.
        whole_words: hide all pieces of a word together.
        max_predictions: predictions per sequence; by default what a full sequence needs (20 at 128, 77 at 512).
        short_sequences: share of documents (or blocks of long ones) with a shorter target length.
    """

    rate: float = 0.15
    mask: float = 0.8
    random: float = 0.1
    whole_words: bool = False
    max_predictions: int | None = None
    short_sequences: float = 0.1


@dataclass(frozen=True)
class OptimizerRule:
    """How the weights move.

    Args:
        name: BERT's Adam, or LAMB.
        learning_rate: the peak; by default the size's own, and 2e-5 with --start.
        warmup_steps: by default 1% of the steps.
        weight_decay: decoupled, not on biases and LayerNorm.
        clip_norm: limit of the gradients' global norm.
        bias_correction: correct Adam's moments for their start at zero. The release does not, and steps up to 6 times
            too far in the first hundreds; its warm-up of 10,000 hides that, a short run's does not (Tiny, 500 steps
            of batch 32 at 1e-3: 5.98 with, 6.37 without, which is the unigram loss).
        dropout: of hidden vectors and of attention probabilities.
        accumulation: parts that each batch is taken in, one after the other, where memory is short; but for dropout's
            masks the result is the same.
    """

    name: Literal["adam", "lamb"] = "adam"
    learning_rate: float | None = None
    warmup_steps: int | None = None
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    bias_correction: bool = True
    dropout: float = 0.1
    accumulation: int = 1


@dataclass(frozen=True)
class RunRule:
    """What happens around the training; none of it changes the weights.

    Args:
        log_every: steps from one point of the training curves to the next.
        evaluate_every: steps from one evaluation to the next; by default a twentieth of the steps.
        evaluation_instances: held-out instances each time.
        final_evaluation_instances: held-out instances at the end.
        checkpoint_every: steps from one checkpoint to the next; by default a twentieth of the steps.
        keep: checkpoints to keep.
        cache: folder for the index of the corpus; by default <output>/cache.
        token_cache: keep token ids on disk, so that later epochs need not tokenize.
        xla: compile forward and backward with XLA: faster steps, seconds more at the start.
        steps_per_call: steps between two looks at signals, logs and checkpoints.
        data_servers: host:port of processes that make the batches, where the cores of this machine are too few. Each is
            this same command with --run.serve-data; the batches are the same, and made here where one is gone.
        serve_data: a port; make batches for the training of others instead of training.
    """

    log_every: int = 50
    evaluate_every: int | None = None
    evaluation_instances: int = 2048
    final_evaluation_instances: int = 8192
    checkpoint_every: int | None = None
    keep: int = 2
    cache: str | None = None
    token_cache: bool = False
    xla: bool = True
    steps_per_call: int = 1
    data_servers: tuple[str, ...] = ()
    serve_data: int | None = None


def main(
    corpus: list[str],
    held_out: list[str],
    output: str,
    steps: int,
    vocabulary: str | None = None,
    start: str | None = None,
    size: Literal["tiny", "mini", "small", "medium", "base", "large"] | None = None,
    sequence_length: int = 128,
    batch_size: int = 256,
    objectives: Literal["mlm+nsp", "mlm", "left-to-right"] = "mlm+nsp",
    strategy: Strategy = "one",
    seed: int = 1,
    text: TextFormat = TextFormat(),
    masking: MaskingRule = MaskingRule(),
    optimizer: OptimizerRule = OptimizerRule(),
    run: RunRule = RunRule(),
    devices: DeviceRule = DeviceRule(),
) -> None:
    """Pre-trains a BERT on plain text.

    Run the same command again to go on where a run stopped; watch it with `tensorboard --logdir OUTPUT/logs`. The
    model directory is OUTPUT itself, the numbers are in OUTPUT/metrics.json.

    Args:
        corpus: text files (also .gz), folders and globs; or TFRecords of create_pretraining_data.py (*.tfrecord).
        held_out: the same, for evaluation only.
        output: folder of the run.
        steps: updates of the weights.
        vocabulary: vocab.txt, from learn_vocabulary.py or any BERT.
        start: a BERT to go on from, with its size and its vocabulary: a folder or a name, as convert_weights.py takes.
        size: tiny (2 layers of 128, the default) to large (24 of 1,024); or that of --start.
        sequence_length: tokens per sequence, 8 to 512.
        batch_size: sequences per update, over all replicas.
        objectives: masked LM with or without next sentence prediction; left-to-right is the causal ablation.
        strategy: one device; all GPUs of this machine, or parts of its CPU; those of several processes; a TPU.
        seed: of every random choice.
        text: how the corpus is read.
        masking: which tokens are predicted.
        optimizer: how the weights move.
        run: what happens around the training.
        devices: on what the run trains.
    """
    if steps < 1 or run.steps_per_call < 1 or steps % run.steps_per_call:
        told = f"a multiple of --run.steps-per-call {run.steps_per_call}" if run.steps_per_call > 1 else "at least 1"
        raise ValueError(f"--steps {steps}: expected {told}")
    check_start(start, vocabulary, size)
    check_flags(steps, seed, optimizer, run)
    # Not at the top, so that --help answers at once.
    import keras
    import tensorflow as tf

    import kbert
    from kbert import lanes, report
    from kbert.text.baselines import baselines
    from kbert.training.checkpointing import Checkpoint
    from kbert.training.distribution import agree, chief_first, is_chief, loss_is_told
    from kbert.training.monitoring import Evaluate, EventFiles, Monitor, Panels
    from kbert.training.run_directory import begin_run
    from kbert.weights.by_name import digest, take_over

    # Read: everything that can be refused is looked at before long work begins.
    if run.serve_data:  # and trains nothing, on whatever devices those train for whom it works
        strategy, devices = "one", DeviceRule()
    in_part = batch_size // max(1, optimizer.accumulation)
    in_lanes = 1 if run.serve_data else lanes.count(in_part, sequence_length, devices.recompute)
    replicas = start_devices(strategy, devices, os.environ.get("TF_CONFIG"), in_lanes)
    check_batch(batch_size, replicas, optimizer.accumulation)
    if start:
        first, tokenizer = kbert.load(start, lower_case=text.lower_case)
    else:
        first, tokenizer = None, kbert.WordPiece(vocabulary, lower_case=text.lower_case is not False)
        check_case(vocabulary, set(tokenizer.vocabulary), text.lower_case)
        size = size or "tiny"
    rule = new_instance_rule(sequence_length, objectives, masking)
    config = new_config(first, size, tokenizer, rule, optimizer.dropout)
    settings = {"size": size, "steps": steps, "batch_size": batch_size, "seed": seed, **asdict(rule)}
    settings |= {f"optimizer.{name}": v for name, v in asdict(optimizer).items() if name != "accumulation"}
    settings |= {"precision": devices.precision} | ({"start": digest(first)} if start else {})
    of_process = ("cache", "data_servers", "serve_data")
    how_run = {f"run.{name}": value for name, value in asdict(run).items() if name not in of_process}
    agree(replicas, settings | how_run | alike(optimizer, devices))  # before the text is looked through
    cache = run.cache or str(Path(output) / "cache")
    with chief_first(replicas):
        train, held = read_corpora((corpus, held_out), tokenizer, rule, text, cache)
    if run.serve_data:
        if run.token_cache:
            train.use_token_cache(cache, progress=lambda done, total: None)
        told = f"making batches for others on port {run.serve_data}"
        train.serve(seed, run.serve_data, ready=lambda: report.CONSOLE.print(told))
    settings = {"vocabulary": tokenizer.digest, "corpus": train.digest, "held_out": held.digest, **settings}
    begin_run(output, settings, replicas)
    if run.token_cache:
        with chief_first(replicas), report.progress("Tokenizing") as progress:
            train.use_token_cache(cache, progress)
    if run.data_servers:
        train.use_servers(seed, run.data_servers)
    counts, sample = train.token_counts(), held.sample(run.evaluation_instances, batch_size, seed)
    to_beat = baselines(counts, sample)

    # Build and compile.
    keras.utils.set_random_seed(seed)
    tf.config.experimental.enable_op_determinism()  # on a GPU; a CPU gives the same bits without
    changes = getattr(first, "masked_lm_changes", None)
    peak = optimizer.learning_rate if optimizer.learning_rate is not None else FURTHER_PEAK if start else PEAKS[size]
    how = {
        "jit_compile": "auto" if run.xla else False,
        "accumulation": optimizer.accumulation,
        "steps_per_execution": run.steps_per_call,
    }
    with loss_is_told(replicas), replicas.scope():
        model = kbert.BertPretrainer(config, next_sentence=rule.next_sentence, masked_lm_changes=changes)
        if start:
            new = ", ".join(take_over(model, first)) or "nothing"
            report.CONSOLE.print("new, as the start has none:", new, highlight=False, soft_wrap=True)
        del first  # which would stay in memory beside the model
        model.bert.recompute = devices.recompute
        model.compile(new_optimizer(optimizer, peak, steps), **how)
    checkpoint = Checkpoint(output, settings, every=run.checkpoint_every or max(1, steps // 20), keep=run.keep)
    done = checkpoint.restore(model)
    if (steps - done) % run.steps_per_call:
        told = f"{steps - done} steps are left, which it does not divide"
        raise ValueError(f"--run.steps-per-call {run.steps_per_call}: {told}")
    facts = {f"{name} in the corpus": count for name, count in train.facts.items()}
    facts |= {"parameters": model.count_params(), "steps done": done, "steps": steps}
    facts |= {"devices": ", ".join(device.name for device in tf.config.list_logical_devices())}
    facts |= {"replicas": replicas.num_replicas_in_sync, "precision": devices.precision}
    facts |= {"unigram loss to beat": to_beat["masked_lm_loss"], "watch": f"tensorboard --logdir {output}/logs"}
    report.table("Pre-training", facts)

    # Fit.
    every = run.evaluate_every or max(1, steps // 20)
    events = EventFiles(Path(output) / "logs", checkpoint)
    observers = [
        Monitor(events, settings, run.log_every),
        Evaluate(sample, events, every, to_beat, show=lambda line: report.CONSOLE.print(f"\n{line}", soft_wrap=True)),
        Panels(next(iter(sample)), tokenizer.vocabulary, events, every),
    ]
    if done < steps:
        batches = train.batches(batch_size, seed, position=tuple(model.data_position.numpy().tolist()))
        verbose = "auto" if is_chief(replicas) else 0
        model.fit(batches, steps_per_epoch=steps - done, verbose=verbose, callbacks=[*observers, checkpoint])

    # Evaluate and save.
    if is_chief(replicas):
        kbert.save(model, tokenizer, output)
    final = held.sample(run.final_evaluation_instances, batch_size, seed)
    reached = model.evaluate(final, return_dict=True, verbose=0)
    metrics = {f"held_out_{name}": float(value) for name, value in reached.items()}
    metrics |= {f"baseline_{name}": value for name, value in baselines(counts, final).items()}
    if is_chief(replicas):
        report.finish("Held out", output, {"steps": steps, "parameters": model.count_params(), **metrics})


def check_flags(steps: int, seed: int, optimizer: OptimizerRule, run: RunRule) -> None:
    """Raises ValueError for numbers that no run can be made of."""
    check_numbers(optimizer, seed)
    if optimizer.learning_rate is not None and not 0 < optimizer.learning_rate < float("inf"):
        raise ValueError(f"--optimizer.learning-rate {optimizer.learning_rate}: expected a number above 0")
    if optimizer.warmup_steps is not None and not 0 <= optimizer.warmup_steps <= steps:
        raise ValueError(f"--optimizer.warmup-steps {optimizer.warmup_steps}: expected 0 to the steps, {steps}")
    if not 0 <= optimizer.dropout < 1:
        raise ValueError(f"--optimizer.dropout {optimizer.dropout}: expected a share, 0 or more and below 1")
    if run.serve_data and run.data_servers:
        raise ValueError("--run.serve-data and --run.data-servers: expected one of them")
    for name, value in asdict(run).items():
        if type(value) is int and value < 1:
            raise ValueError(f"--run.{name.replace('_', '-')} {value}: expected at least 1")


def check_start(start: str | None, vocabulary: str | None, size: str | None) -> None:
    """Raises ValueError unless either a new model or a start is asked for."""
    if start is None and vocabulary is None:
        raise ValueError("neither --vocabulary nor --start: expected one of them")
    for name, value in (("vocabulary", vocabulary), ("size", size)):
        if start is not None and value is not None:
            raise ValueError(f"--{name} {value}: the start {start} brings its own; expected one of both flags")


def check_case(path: str, pieces: set[str], lower_case: bool | None) -> None:
    """Raises ValueError for a vocabulary with capitals where nothing says so, and for one without where it is said."""
    capitals, others = (pieces.intersection(letters) for letters in (string.ascii_uppercase, string.ascii_lowercase))
    if lower_case is None and capitals:
        raise ValueError(f"--vocabulary {path}: it has capitals; expected --text.lower-case, False for a cased one")
    if lower_case is False and others and not capitals:
        told = f"{path} has no capitals, and every word with one would be [UNK]"
        raise ValueError(f"--text.lower-case False: {told}; expected a cased vocabulary")


def new_instance_rule(sequence_length: int, objectives: str, masking: MaskingRule):
    """The rule that the flags describe; warns where it predicts less than it masks."""
    from kbert import report
    from kbert.text.masking import Masking
    from kbert.text.pretraining_data import InstanceRule

    rule = InstanceRule(
        sequence_length,
        masking.max_predictions,
        objectives,
        masking.short_sequences,
        Masking(masking.rate, masking.mask, masking.random, masking.whole_words),
    )
    if rule.share_lost:
        report.CONSOLE.print(
            f"warning: {rule.predictions} predictions a sequence cut off {rule.share_lost:.0%} of a full one's",
            soft_wrap=True,
        )
    return rule


def read_corpora(corpora: tuple[list[str], ...], tokenizer, rule, text: TextFormat, cache: str) -> list:
    """A source of batches for each corpus."""
    from kbert import report
    from kbert.text.documents import expand_paths
    from kbert.text.sentences import CorpusFormat
    from kbert.text.source import source

    form = CorpusFormat(text.documents, text.sentences, text.bad_text)
    files = [expand_paths(paths) for paths in corpora]
    trained_on = set(map(os.path.realpath, files[0]))
    for path in files[1]:
        if os.path.realpath(path) in trained_on:
            raise ValueError(f"--held-out: {path} is trained on too; expected text that --corpus does not have")
    with report.progress("Looking through the text") as progress:
        train, held = (source(paths, tokenizer, rule, form, cache, progress) for paths in files)
    if train.digest == held.digest:
        raise ValueError(f"--held-out: {' '.join(corpora[1])} is the text that is trained on; expected other text")
    return [train, held]


def new_config(first, size: str, tokenizer, rule, dropout: float):
    """The configuration of the start, or else of the size, with the run's dropout."""
    import kbert

    dropouts = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    causal = rule.objectives == "left-to-right"
    length = rule.sequence_length
    if first is None:
        changes = {"vocab_size": tokenizer.vocab_size, "causal": causal, "sequence_length": length}
        return kbert.BertConfig.from_size(size, **changes, **dropouts)
    if rule.sequence_length > first.config.max_position_embeddings:
        limit = first.config.max_position_embeddings
        raise ValueError(f"sequence_length {rule.sequence_length}; expected at most {limit}, the start's positions")
    pooler, trained = first.config.pooler or rule.next_sentence, max(length, first.config.trained_length)
    return replace(first.config, pooler=pooler, causal=causal, sequence_length=trained, **dropouts)


def new_optimizer(rule: OptimizerRule, peak: float, steps: int):
    from kbert.training.optimization import LAMB, BertAdam, WarmupLinearDecay

    warmup = rule.warmup_steps if rule.warmup_steps is not None else steps // 100
    schedule = WarmupLinearDecay(peak, steps, warmup)
    kind = BertAdam if rule.name == "adam" else LAMB
    return kind(
        schedule, weight_decay=rule.weight_decay, clip_norm=rule.clip_norm, bias_correction=rule.bias_correction
    )


if __name__ == "__main__":
    start(main)
