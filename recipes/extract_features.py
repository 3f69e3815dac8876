"""Writes the vectors that a BERT gives texts, the feature-based approach (section 5.3, Table 7).

python recipes/extract_features.py --model runs/books --input lines.txt --output vectors.jsonl
"""

import os
from pathlib import Path
from typing import Literal

from kbert.command_line import run
from kbert.fine_tuning import check_length, tell_untrained
from kbert.whole_file import refuse_to_replace

USUAL_LAYERS = 4  # as the release takes them, the last first
ENDINGS = (".jsonl", ".npz", ".tfrecord")


def main(
    model: str,
    input: str,
    output: str,
    layers: tuple[int, ...] | None = None,
    mix: Literal["none", "concatenation", "sum", "weighted_sum"] = "none",
    weights: tuple[float, ...] | None = None,
    unit: Literal["piece", "word", "mean", "pooled"] = "piece",
    sequence_length: int = 128,
    lower_case: bool | None = None,
) -> None:
    """Writes the vectors of every line of a file, however large; a line may be a pair, parted by |||.

    Args:
        model: a model directory, or what else convert_weights.py takes; its task does not matter.
        input: a text a line, UTF-8.
        output: file to write: .jsonl as the release's extract_features.py, .npz or .tfrecord.
        layers: 1 to L, 0 the embeddings, negative from the end; by default the last four, or all where there are fewer.
        mix: what becomes of several layers: each on its own, or one vector.
        weights: of a weighted sum, one for each layer.
        unit: vectors of every piece, of every word (its first piece's), or of the text: the mean of its pieces, or the
            pooled [CLS], which needs no layers.
        sequence_length: tokens per text; longer ones are cut at the back, and counted.
        lower_case: whether the vocabulary is an uncased one, where the model does not say.
    """
    check_flags(output, layers, mix, weights, unit)
    refuse_to_replace((input,), (Path(output),))
    # Not at the top, so that --help answers at once.
    import kbert
    from kbert import report
    from kbert.tasks import vectors

    npz = Path(output).suffix.lower() == ".npz"
    if npz and os.path.exists(input) and not os.path.isfile(input):  # its lines can be read once
        told = "is no file whose lines can be counted; expected .tfrecord or .jsonl"
        raise ValueError(f"--output {output}: {input} {told}")
    if npz and (count := sum(1 for _ in vectors.lines(input))) > vectors.MOST_ARRAYS:
        told = f"an .npz has at most {vectors.MOST_ARRAYS} texts; expected .tfrecord or .jsonl"
        raise ValueError(f"--output {output}: {input} has {count} lines, {told}")
    trained, tokenizer = kbert.load(model, lower_case=lower_case)
    check_length(sequence_length, trained)
    tell_untrained(trained, sequence_length)
    if layers is None:
        layers = tuple(range(-1, -1 - min(USUAL_LAYERS, trained.config.num_hidden_layers), -1))
    per_token = "piece" if unit == "word" else unit  # a word's vector is its first piece's
    of_layers = {} if unit == "pooled" else {"layers": layers, "mix": mix, "weights": weights}
    call = graph(kbert.BertFeatures(trained.bert, **of_layers, unit=per_token))
    size, seen = max(os.path.getsize(input), 1), 0
    of_unit = unit if unit in ("piece", "word") else "text"
    with report.progress("Extracting") as progress:

        def told(texts):
            nonlocal seen
            for text in texts:
                seen += len(text.encode()) + 1
                yield text
                progress(min(seen, size), size)

        found = vectors.vectors_of(told(vectors.lines(input)), call, tokenizer, of_unit, sequence_length)
        counts = vectors.write(found, output, list(layers) if mix == "none" and unit != "pooled" else [])
    report.table(output, counts | {"bytes": os.path.getsize(output)})


def check_flags(output: str, layers: tuple | None, mix: str, weights, unit: str) -> None:
    """Raises ValueError for flags that do not go together."""
    if Path(output).suffix.lower() not in ENDINGS:
        raise ValueError(f"--output {output}: expected a file that ends in {', '.join(ENDINGS)}")
    if not Path(output).absolute().parent.is_dir():
        raise ValueError(f"--output {output}: there is no such folder; expected one to write to")
    if unit == "pooled" and (layers, mix, weights) != (None, "none", None):
        raise ValueError("--unit pooled: the pooled vector has no --layers, --mix or --weights; expected none of them")


def graph(model):
    """A model as a graph for batches of any shape."""
    import tensorflow as tf

    features = dict.fromkeys(("input_ids", "input_mask", "segment_ids"), tf.TensorSpec([None, None], tf.int32))
    return tf.function(model, input_signature=[features], autograph=False)


if __name__ == "__main__":
    run(main)
