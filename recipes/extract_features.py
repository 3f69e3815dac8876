"""Writes the vectors that a BERT gives texts, the feature-based approach (section 5.3, Table 7).

python recipes/extract_features.py --model runs/books --input lines.txt --output vectors.jsonl
"""

import os
from pathlib import Path
from typing import Literal

from kbert.command_line import run

ENDINGS = (".jsonl", ".npz", ".tfrecord")


def main(
    model: str,
    input: str,
    output: str,
    layers: tuple[int, ...] = (-1, -2, -3, -4),
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
        layers: 1 to L, 0 the embeddings, negative from the end.
        mix: what becomes of several layers: each on its own, or one vector.
        weights: of a weighted sum, one for each layer.
        unit: vectors of every piece, of every word (its first piece's), or of the text: the mean of its pieces, or the
            pooled [CLS], which needs no layers.
        sequence_length: tokens per text; longer ones are cut at the back, and counted.
        lower_case: whether the vocabulary is an uncased one, where the model does not say.
    """
    check_flags(output, mix, weights, layers, unit)
    # Not at the top, so that --help answers at once.
    import kbert
    from kbert import report
    from kbert.model.features import layer_numbers
    from kbert.tasks import vectors

    trained, tokenizer = kbert.load(model, lower_case=lower_case)
    limit = trained.config.max_position_embeddings
    if not 8 <= sequence_length <= limit:
        raise ValueError(f"--sequence-length {sequence_length}: expected 8 to {limit}, the model's positions")
    if unit == "pooled" and not trained.config.pooler:
        raise ValueError(f"--unit pooled: {model} has no pooler; expected mean, or another model")
    numbers = layer_numbers(layers, trained.config.num_hidden_layers)
    call = new_call(trained.bert, numbers, mix, weights, unit)
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


def check_flags(output: str, mix: str, weights, layers, unit: str) -> None:
    """Raises ValueError for flags that do not go together."""
    if Path(output).suffix.lower() not in ENDINGS:
        raise ValueError(f"--output {output}: expected a file that ends in {', '.join(ENDINGS)}")
    if (weights is not None) != (mix == "weighted_sum"):
        raise ValueError(f"--weights {weights} with --mix {mix}: expected weights with a weighted_sum, and only there")
    if weights is not None and len(weights) != len(layers):
        raise ValueError(f"--weights has {len(weights)} numbers, expected one for each of {len(layers)} layers")
    if unit == "pooled" and mix != "none":
        raise ValueError(f"--mix {mix}: the pooled vector is one already; expected none")


def new_call(bert, numbers: list[int], mix: str, weights, unit: str):
    """A graph: features [n, S] -> vectors [n, S, layers, H] or [n, S, width], or without S for a text."""
    import tensorflow as tf

    names = ("input_ids", "input_mask", "segment_ids")

    @tf.function(input_signature=[dict.fromkeys(names, tf.TensorSpec([None, None], tf.int32))], autograph=False)
    def call(features):
        outputs = bert(features, training=False, output_all_layers=True)
        if unit == "pooled":
            return outputs["pooled_output"]
        chosen = [outputs["all_layer_outputs"][number] for number in numbers]
        if mix == "none":
            mixed = tf.stack(chosen, axis=2)
        elif mix == "concatenation":
            mixed = tf.concat(chosen, axis=-1)
        else:
            mixed = tf.add_n([share * one for share, one in zip(weights or [1.0] * len(chosen), chosen, strict=True)])
        if unit != "mean":
            return mixed
        mask = tf.cast(features["input_mask"], mixed.dtype)
        mask = tf.reshape(mask, [*tf.unstack(tf.shape(mask)), *[1] * (mixed.shape.rank - 2)])
        return tf.reduce_sum(mixed * mask, axis=1) / tf.reduce_sum(mask, axis=1)

    return call


if __name__ == "__main__":
    run(main)
