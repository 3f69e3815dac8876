"""The whole journey in minutes: text that is on this machine, a vocabulary, a BERT, a task, a SavedModel, answers.

On two slow cores it took 7 and a half minutes, 66 seconds of them outside training: held-out masked-LM loss 5.1
(unigram 6.5), next sentences 71% (majority 65%), the library of a paragraph 56% from the pre-trained weights and 41%
from scratch (12.5% by chance). The text is that of the packages that are there: with others 4.9, and 58% and 46%.
"""

import json
import runpy
import sys
import time
from pathlib import Path

from kbert.command_line import run

RECIPES = Path(__file__).parent
# Small enough for two cores and a few minutes; every one of these is a flag of the recipe that is called.
VOCABULARY_SIZE = 8192
PRETRAINING = {
    "size": "tiny",
    # Short sequences, as a small model finds the neighbours of a blank sooner among 32 tokens than among 128: after 850
    # steps of as many tokens its loss is 5.41 instead of 5.86.
    "sequence-length": 32,
    "batch-size": 128,
    "steps": 2000,
    "optimizer.dropout": 0.0,  # which so few epochs do not need
    "run.log-every": 50,
    "run.evaluate-every": 350,
    "run.evaluation-instances": 1024,
    "run.final-evaluation-instances": 4096,
}
# One run from each start: nothing is chosen on the test set.
FINE_TUNING = {"text-a": "text", "label": "label", "learning-rates": 3e-4, "batch-sizes": 32, "sequence-length": 128}
BLANKS = (
    "Return True [MASK] the file exists, False otherwise.",
    "The default value [MASK] None.",
    "Returns: A [MASK] of the same shape and type as x.",
    "If None, the default [MASK] is used.",
)


def main(
    output: str = "runs/quickstart",
    name: str = "quickstart",
    steps: int = PRETRAINING["steps"],
    epochs: int = 1,
    seed: int = 1,
) -> None:
    """The whole journey in minutes, on the documentation that the installed Python packages carry.

    A vocabulary is learned, a small BERT pre-trained, then fine-tuned to say which library a paragraph is from, and
    the same model from scratch beside it; the pre-trained model is exported and fills in blanks. The recipes called on
    the way are printed, so that they can be called on other text. Run again, it goes on where it stopped.

    Args:
        output: folder of everything that is made.
        name: of the SavedModel, under saved_models.
        steps: of pre-training.
        epochs: of each of the two fine-tunings.
        seed: of every random choice.
    """
    from kbert import report
    from kbert.serving.export import check_name
    from kbert.text import embedded_corpus
    from kbert.whole_file import write_whole

    # What the recipes would refuse after minutes.
    check_name(name)
    for flag, number in (("steps", steps), ("epochs", epochs)):
        if number < 1:
            raise ValueError(f"--{flag} {number}: expected at least 1")
    if not 0 <= seed < 2**32:
        raise ValueError(f"--seed {seed}: expected 0 to {2**32 - 1}")
    begin, folder = time.perf_counter(), Path(output)
    corpus, model = folder / "corpus", folder / "model"
    if not (folder / "corpus.json").exists():
        with report.progress("Reading documentation strings") as progress:
            summary = vars(embedded_corpus.write(folder, progress=progress))
        write_whole(folder / "corpus.json", json.dumps(summary, indent=1).encode())  # the sign that all is there
        report.table("Corpus", {**summary, "labels": ", ".join(summary["labels"])})

    if not (folder / "vocab.txt").exists():
        call("learn_vocabulary", {"corpus": corpus / "train", "size": VOCABULARY_SIZE, "output": folder / "vocab.txt"})
    paths = {"corpus": corpus / "train", "held-out": corpus / "held_out", "vocabulary": folder / "vocab.txt"}
    call("pretrain", {**paths, **PRETRAINING, "steps": steps, "output": model, "seed": seed})

    files = {"train": folder / "classification" / "train.tsv", "dev": folder / "classification" / "test.tsv"}
    starts = {"pre-trained": model, "from scratch": write_untrained(folder / "untrained", model, seed)}
    scores = {}
    for start, directory in starts.items():
        tuned = folder / f"libraries-from-{directory.name}"
        flags = {"model": directory, **files, **FINE_TUNING, "epochs": epochs, "output": tuned, "seed": seed}
        call("fine_tune_glue", flags)
        scores[f"accuracy, {start}"] = metrics_of(tuned)["dev_accuracy"]
    call("export", {"model": model, "name": name})
    answers = fill_blanks(model)

    numbers = metrics_of(model) | scores
    numbers |= {"accuracy, one class for all": 1 / embedded_corpus.CLASSES, "seconds": time.perf_counter() - begin}
    report.table("Blanks filled in, likeliest first", answers, ("", "[MASK]"))
    report.finish("Quickstart", output, numbers)
    print(f"Watch the training: {Path(sys.executable).parent / 'tensorboard'} --logdir {model / 'logs'}")


def call(recipe: str, flags: dict) -> None:
    """Runs a recipe as a user would, and shows the command; its failure is this one's.

    Not in a process of its own, which would have TensorFlow to import first: the folder that it trains in is locked
    until this process ends.
    """
    words = [word for flag, value in flags.items() for word in (f"--{flag}", str(value))]
    print("\n$", " ".join(["python", f"recipes/{recipe}.py", *words]), flush=True)
    sys.argv = [str(RECIPES / f"{recipe}.py"), *words]
    runpy.run_path(sys.argv[0], run_name="__main__")


def metrics_of(directory: Path) -> dict[str, float]:
    return json.loads((directory / "metrics.json").read_text(encoding="utf-8"))


def write_untrained(directory: Path, trained: Path, seed: int) -> Path:
    """A model directory with the trained model's configuration and vocabulary, and weights as they are drawn."""
    import keras

    import kbert

    if not (directory / "model.weights.h5").exists():  # which is written last
        model, tokenizer = kbert.load(trained)
        keras.utils.set_random_seed(seed)
        kbert.save(kbert.BertPretrainer(model.config), tokenizer, directory)
    return directory


def fill_blanks(directory: Path) -> dict[str, str]:
    """What the pre-trained model puts in the blank of each text, likeliest first."""
    import kbert
    from kbert.serving.questions import FillBlanks

    answers = FillBlanks(*kbert.load(directory))(list(BLANKS))
    pieces, probabilities = answers["pieces"].numpy()[:, 0], answers["probabilities"].numpy()[:, 0]
    return {
        text: ", ".join(f"{piece.decode()} {share:.0%}" for piece, share in zip(*row, strict=True))
        for text, *row in zip(BLANKS, pieces, probabilities, strict=True)
    }


if __name__ == "__main__":
    run(main)
