"""Fine-tunes a BERT to find named entities in CoNLL columns (section 5.3).

python recipes/fine_tune_ner.py --model runs/books --train train.conll --dev dev.conll --output runs/entities
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from kbert.command_line import run as start
from kbert.devices import DeviceRule, Strategy
from kbert.fine_tuning import (
    LayerRule,
    OptimizerRule,
    alike,
    check_rows,
    check_rules,
    new_search,
    search_all,
    start_of,
    start_runs,
)
from kbert.whole_file import refuse_to_replace


@dataclass(frozen=True)
class ReadingRule:
    """How files and vocabulary are read.

    Args:
        separator: what parts the columns; by default tabs where a line has any, else spaces.
        word: column of the word, from 0; negative from the end.
        tag: column of the tag.
        lower_case: whether the vocabulary is an uncased one, where the model does not say.
    """

    separator: str | None = None
    word: int = 0
    tag: int = -1
    lower_case: bool | None = None


@dataclass(frozen=True)
class FeatureRule:
    """What a BiLSTM reads, with --head bilstm.

    Args:
        layers: 1 to L, 0 the embeddings, negative from the end.
        mix: how they become one vector; a weighted_sum learns its weights.
        lstm_layers: LSTMs in each direction, one on the other.
        lstm_units: of each.
        frozen: keep the BERT as it is, the feature-based approach; it then wants learning rates of about 1e-3.
    """

    layers: tuple[int, ...] = (-4, -3, -2, -1)
    mix: Literal["concatenation", "sum", "weighted_sum"] = "concatenation"
    lstm_layers: int = 2
    lstm_units: int = 768
    frozen: bool = True


def main(
    model: str,
    train: str,
    dev: str,
    output: str,
    test: str | None = None,
    scheme: Literal["IOB2", "IOB1", "IOBES"] = "IOB2",
    context: Literal["sentence", "document"] = "sentence",
    head: Literal["linear", "bilstm"] = "linear",
    learning_rates: tuple[float, ...] = (5e-5,),
    batch_sizes: tuple[int, ...] = (32,),
    epochs: tuple[int, ...] = (3,),
    restarts: int = 1,
    sequence_length: int = 128,
    strategy: Strategy = "one",
    seed: int = 1,
    reading: ReadingRule = ReadingRule(),
    features: FeatureRule = FeatureRule(),
    layers: LayerRule = LayerRule(),
    optimizer: OptimizerRule = OptimizerRule(),
    devices: DeviceRule = DeviceRule(),
) -> None:
    """Fine-tunes a BERT to tag words: one run for each rate, batch size, number of epochs and restart.

    The best run on dev is the model in OUTPUT; its tags of dev and test are beside it, dev.conll (word, true tag, its
    tag) and dev.jsonl (words, tags, entities with their characters). The same command goes on where it stopped.

    Args:
        model: a BERT to start from: a folder or a name, as convert_weights.py takes.
        train: a word and its tag a line, a blank line after each sentence, -DOCSTART- before each document.
        dev: the same, to choose the best run by.
        output: folder of the search and of the best model.
        test: the same, tagged and scored at the end.
        scheme: how the tags mark entities.
        context: what a window shows: a sentence, or as much around it as fits of its document (the paper's way).
        head: one layer on the last vectors, or a BiLSTM on mixed layers (tables 5 and 7).
        learning_rates: peaks to try.
        batch_sizes: to try.
        epochs: numbers of passes to try.
        restarts: runs of each setting, which differ in data order, output layer and dropout.
        sequence_length: tokens per window; longer sentences are tagged in parts, no word is lost.
        strategy: one device; all GPUs of this machine, or parts of its CPU; those of several processes; a TPU.
        seed: of the first restart.
        reading: how files and vocabulary are read.
        features: what a BiLSTM reads.
        layers: which layers learn, and how much.
        optimizer: how the weights move.
        devices: on what the runs train.
    """
    # Not at the top, so that --help answers at once.
    import kbert
    from kbert import report
    from kbert.tasks import ner
    from kbert.tasks.examples import digest
    from kbert.training.distribution import is_chief
    from kbert.training.run_directory import begin_run

    # Read: everything that can be refused is looked at before long work begins.
    check_rules(layers, optimizer, seed, restarts)
    replicas = start_runs(strategy, devices, optimizer, sequence_length, learning_rates, batch_sizes, epochs)
    columns = ner.Columns(reading.separator, reading.word, reading.tag)
    sets = {
        name: ner.read(path, scheme, columns) for name, path in (("train", train), ("dev", dev), ("test", test)) if path
    }
    written = [Path(output) / f"{name}{ending}" for name in sets for ending in (".conll", ".jsonl")]
    refuse_to_replace((train, dev, test), written)
    labels = ner.tag_names(sets["train"])
    if head == "linear" and features != FeatureRule():
        raise ValueError("--features is what a BiLSTM reads; expected --head bilstm beside it")
    if head == "bilstm" and features.frozen and (layers.frozen, layers.reinitialized, layers.decay) != (0, 0, 1.0):
        raise ValueError("--layers: the BERT that a BiLSTM reads does not learn; expected --features.no-frozen too")
    new_head = head_of(labels, features if head == "bilstm" else None)
    tokenizer, new_model, settings = start_of(
        model, reading.lower_case, sequence_length, new_head, layers, optimizer, devices
    )
    encoded = {name: ner.encode(of, tokenizer, labels, sequence_length, context) for name, of in sets.items()}
    check_rows(batch_sizes, encoded["train"])
    settings |= {"labels": labels, "sequence_length": sequence_length, "context": context, "seed": seed}
    settings |= {"sets": digest({name: sets[name] for name in ("train", "dev")})}  # not test, which changes no run
    settings |= {"features": asdict(features)} if head == "bilstm" else {}
    begin_run(output, settings, replicas, alike(optimizer, devices))
    report.table("Fine-tuning", facts_of(sets, encoded, labels))

    # Build, compile, fit and evaluate each run; the best on dev is saved as it is found.
    def tags_of(trained, name: str) -> list:
        return ner.tags_of(trained, encoded[name], sets[name], labels)

    def scores(name: str, tags: list) -> dict:
        return {f"{name}_{metric}": value for metric, value in ner.scores(sets[name], tags).items()}

    def score(trained) -> dict:
        return scores("dev", tags_of(trained, "dev"))

    run = {"settings": settings, "new_model": new_model, "strategy": replicas}
    run["save"] = lambda best: kbert.save(best, tokenizer, output)
    search = new_search(output, encoded["train"], layers, optimizer, score=score, best_by="dev_f1", **run)
    best = search_all(search, learning_rates, batch_sizes, epochs, restarts)

    # Tag and tell.
    if not is_chief(replicas):
        return
    trained, _ = kbert.load(output)
    tags = {name: tags_of(trained, name) for name in sets if name != "train"}
    for name, of in tags.items():
        ner.write(sets[name], of, Path(output) / name)
    best |= scores("test", tags["test"]) if test else {}
    report.finish(f"Best: {best.pop('run')}", output, best)


def head_of(labels: list[str], features: FeatureRule | None):
    """Makes the tagger of a Bert."""
    import kbert
    from kbert.model.features import BertLSTMTagger

    def head(bert, **options):
        if features is None:
            model = kbert.BertTagger(bert, len(labels), **options)
        else:
            model = BertLSTMTagger(bert, len(labels), **asdict(features), **options)
        model.labels = labels
        return model

    return head


def facts_of(sets: dict, encoded: dict, labels: list[str]) -> dict:
    """What was read, and what of it is laid out otherwise than as it stands."""
    facts = {}
    for name, sentences in sets.items():
        unseen = sum(tag not in labels for sentence in sentences for tag in sentence.tags)
        facts |= {f"{name}: sentences": len(sentences), f"{name}: words": len(encoded[name].firsts)}
        facts |= {f"{name}: windows more than sentences": len(encoded[name].lengths) - len(sentences)}
        facts |= {f"{name}: tags that training has not": unseen} if unseen else {}
    return facts | {"tags": ", ".join(labels)}


if __name__ == "__main__":
    start(main)
