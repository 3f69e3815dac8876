"""Fine-tunes a BERT to choose the ending that goes on from a context, SWAG and its like (section 4.4).

python recipes/fine_tune_swag.py --model runs/books --train train.csv --dev val.csv --output runs/swag
"""

from pathlib import Path

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


def main(
    model: str,
    train: str,
    dev: str,
    output: str,
    test: str | None = None,
    learning_rates: tuple[float, ...] = (2e-5,),
    batch_sizes: tuple[int, ...] = (16,),
    epochs: tuple[int, ...] = (3,),
    restarts: int = 1,
    sequence_length: int = 128,
    strategy: Strategy = "one",
    seed: int = 1,
    lower_case: bool | None = None,
    layers: LayerRule = LayerRule(),
    optimizer: OptimizerRule = OptimizerRule(),
    devices: DeviceRule = DeviceRule(),
) -> None:
    """Fine-tunes a BERT to choose endings: one run for each rate, batch size, number of epochs and restart.

    The best run on dev is the model in OUTPUT; its choices in dev and test are beside it, a number a line. The same
    command goes on where it stopped; finished runs are not done again.

    Args:
        model: a BERT to start from: a folder or a name, as convert_weights.py takes.
        train: SWAG's .csv, CODAH's .tsv, or .jsonl of {"context": text, "endings": [texts], "label": number}.
        dev: the same, to choose the best run by.
        output: folder of the search and of the best model.
        test: the same, to choose in; the labels may be empty.
        learning_rates: peaks to try; by default the paper's.
        batch_sizes: choices per update, to try; by default the paper's.
        epochs: numbers of passes to try; by default the paper's.
        restarts: runs of each setting, which differ in data order, output layer and dropout.
        sequence_length: tokens of a context and an ending; longer ones are cut at the back, and counted.
        strategy: one device; all GPUs of this machine, or parts of its CPU; those of several processes; a TPU.
        seed: of the first restart.
        lower_case: whether the vocabulary is an uncased one, where the model does not say.
        layers: which layers learn, and how much.
        optimizer: how the weights move.
        devices: on what the runs train.
    """
    # Not at the top, so that --help answers at once.
    import kbert
    from kbert import report
    from kbert.tasks import swag
    from kbert.tasks.batches import logits_of
    from kbert.tasks.examples import digest
    from kbert.training.distribution import is_chief
    from kbert.training.run_directory import begin_run
    from kbert.whole_file import write_whole

    # Read: everything that can be refused is looked at before long work begins.
    files = {"train": train, "dev": dev, "test": test}
    sets = {name: swag.read(path) for name, path in files.items() if path}
    check_sets(sets)
    check_rules(layers, optimizer, seed, restarts)
    tokens = len(sets["train"][0].endings) * sequence_length
    replicas = start_runs(strategy, devices, optimizer, tokens, learning_rates, batch_sizes, epochs)
    of_start = (model, lower_case, sequence_length)
    tokenizer, new_model, settings = start_of(*of_start, kbert.BertMultipleChoice, layers, optimizer, devices)
    encoded = {name: swag.encode(of, tokenizer, sequence_length) for name, of in sets.items()}
    check_rows(batch_sizes, encoded["train"])
    settings |= {"sets": digest({name: sets[name] for name in ("train", "dev")})}  # not test, which changes no run
    settings |= {"sequence_length": sequence_length, "seed": seed}
    begin_run(output, settings, replicas, alike(optimizer, devices))
    facts = {f"{name}: choices": len(one.lengths) for name, one in encoded.items()}
    facts |= {f"{name}: sequences longer than {sequence_length}, cut": one.truncated for name, one in encoded.items()}
    report.table("Fine-tuning", facts | {"endings": encoded["train"].count})

    # Build, compile, fit and evaluate each run; the best on dev is saved as it is found.
    def chosen_by(trained, name: str):
        return logits_of(trained, encoded[name]).argmax(axis=1)

    def accuracy(name: str, chosen) -> dict:
        return {f"{name}_accuracy": float((chosen == encoded[name].targets["label_ids"].numpy()).mean())}

    def score(trained) -> dict:
        return accuracy("dev", chosen_by(trained, "dev"))

    run = {"settings": settings, "new_model": new_model, "strategy": replicas}
    run["save"] = lambda best: kbert.save(best, tokenizer, output)
    search = new_search(output, encoded["train"], layers, optimizer, score=score, best_by="dev_accuracy", **run)
    best = search_all(search, learning_rates, batch_sizes, epochs, restarts)

    # Choose and tell.
    if not is_chief(replicas):
        return
    trained, _ = kbert.load(output)
    chosen = {name: chosen_by(trained, name) for name in sets if name != "train"}
    for name, numbers in chosen.items():
        write_whole(Path(output) / f"{name}_predictions.txt", "".join(f"{number}\n" for number in numbers).encode())
    best |= accuracy("test", chosen["test"]) if test and encoded["test"].targets else {}
    report.finish(f"Best: {best.pop('run')}", output, best)


def check_sets(sets: dict) -> None:
    """Raises ValueError for choices to learn from or to score by that have no label, and for unlike endings."""
    for name, choices in sets.items():
        for choice in choices if name != "test" else []:
            if choice.label is None:
                raise ValueError(f"{choice.where}: no label; expected the number of the ending that follows")
        count, expected = len(choices[0].endings), len(sets["train"][0].endings)
        if count != expected:
            raise ValueError(f"{choices[0].where}: {count} endings; expected {expected}, as in --train")


if __name__ == "__main__":
    start(main)
