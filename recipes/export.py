"""Writes a model directory as a SavedModel that takes raw text, for TensorFlow Serving and for tf.saved_model.load.

    python recipes/export.py --model runs/mine --name mine

The export is loaded again and asked once before the recipe ends; a BERT Mini takes 15 s of one core.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from kbert.command_line import run

BLANKS = "The [MASK] of the list is [MASK]."
# What each input of a signature is asked with at the end.
EXAMPLES = {
    "text": ["The cat in the box was a surprise."],
    "text_a": ["She opened the box."],
    "text_b": ["A cat jumped out."],
    "question": ["What is in the box?"],
    "passage": ["There is a cat in the box."],
    "context": ["She opened the box."],
    "endings": [["A cat jumped out.", "The list is long."]],
}


@dataclass(frozen=True)
class VectorFlags:
    """Vectors as the answer, whatever the model was trained for.

    Args:
        unit: vectors of every piece, or of the text: the mean of its pieces, or the pooled [CLS].
        layers: 1 to L, 0 the embeddings, negative from the end.
        mix: what becomes of several layers.
        weights: of a weighted sum, one for each layer.
    """

    unit: Literal["piece", "mean", "pooled"] | None = None
    layers: tuple[int, ...] = (-1,)
    mix: Literal["none", "concatenation", "sum", "weighted_sum"] = "concatenation"
    weights: tuple[float, ...] | None = None


def main(
    model: str,
    name: str,
    k: int | None = None,
    threshold: float | None = None,
    output: str = "saved_models",
    lower_case: bool | None = None,
    precision: Literal["float32", "bfloat16"] = "float32",
    litert: bool = False,
    vectors: VectorFlags = VectorFlags(),
) -> None:
    """Writes a model directory as the next version of a SavedModel that takes raw text.

    Args:
        model: a model directory, as pretrain.py or kbert.save writes it, or what else convert_weights.py takes.
        name: the name that clients ask for; the SavedModel is OUTPUT/NAME/<version>.
        k: how many pieces to answer for each [MASK]; by default 5.
        threshold: of the null odds, over which a passage has no answer; by default the one that fine_tune_squad.py
            found on dev in version 2.0.
        output: the folder of all served models.
        lower_case: whether the vocabulary is an uncased one, where the model does not say.
        precision: of weights and of what is computed: bfloat16 takes half the space, and less time where the server has
            a GPU or a CPU for it. Answers are float32.
        litert: write the weights once more, as LiteRT has them, by which kbert's server answers a text that comes alone
            on CPUs in less time, the less the shorter it is. For classes, numbers and vectors, in float32.
        vectors: vectors as the answer, whatever the model was trained for.
    """
    if vectors.unit is None and vectors != VectorFlags():
        raise ValueError("--vectors says which vectors are the answer; expected --vectors.unit beside it")
    if litert and precision != "float32":
        raise ValueError(f"--litert --precision {precision}: LiteRT's weights are float32; expected one of the two")
    import keras

    import kbert
    from kbert import report
    from kbert.devices import lacks_instructions
    from kbert.serving.export import check_name, models_config
    from kbert.serving.litert import FILE as LITERT_FILE
    from kbert.serving.litert import LiteRT
    from kbert.serving.warm_up import is_possible
    from kbert.whole_file import one_at_a_time, write_whole

    check_name(name)
    keras.config.set_dtype_policy(precision)  # also of variables, as nothing learns any more
    trained, tokenizer = kbert.load(model, lower_case=lower_case)
    if vectors.unit is not None:
        trained = kbert.BertFeatures(trained.bert, **asdict(vectors))
    options = {name: value for name, value in (("k", k), ("threshold", threshold)) if value is not None}
    kind = type(trained).__name__
    fits = {"k": "masked_lm_loss" in trained.loss_names, "threshold": kind == "BertSpanPredictor"}
    for flag, expected in (("k", "BertPretrainer with masked LM"), ("threshold", "BertSpanPredictor")):
        if flag in options and not fits[flag]:
            raise ValueError(f"--{flag} {options[flag]}: expected a {expected}, {model} is a {kind}")
    if lacks_instructions(precision):
        report.CONSOLE.print(f"this CPU has no instructions for {precision}: it would answer sooner in float32")
    with report.CONSOLE.status("Writing the SavedModel"):
        path = kbert.export(trained, tokenizer, Path(output) / name, litert=litert, **options)
    with one_at_a_time(output):
        write_whole(Path(output) / "models.config", models_config(output).encode())
    signatures, asked, answer = ask(path)
    if litert:
        LiteRT(Path(path) / LITERT_FILE)  # asks it once, too

    size = sum(file.stat().st_size for file in Path(path).rglob("*") if file.is_file())
    report.table(f"{path}, {size / 1e6:.1f} MB", signatures, ("signature", "inputs", "outputs"))
    if not is_possible():
        print("without warm-up requests, as tensorflow-serving-api is not installed (pip install -e '.[serve]')")
    report.table("Its answer", answer, ("", "; ".join(str(value[0]) for value in asked.values())))
    print("To ask it from Python:\n")
    print("    import tensorflow as tf, tensorflow_text")
    print(f'    answer = tf.saved_model.load("{path}").signatures["serving_default"]')
    print(f"    answer({', '.join(f'{name}=tf.constant({value!r})' for name, value in asked.items())})")


def ask(path: str) -> tuple[dict, dict, dict]:
    """Loads a SavedModel -> its signatures (name -> inputs, outputs), what it is asked, its answer, to be shown."""
    import tensorflow as tf

    loaded = tf.saved_model.load(path)
    signatures = {
        name: (described(function.structured_input_signature[1]), described(function.structured_outputs))
        for name, function in loaded.signatures.items()
    }
    default = loaded.signatures["serving_default"]
    asked = {name: EXAMPLES[name] for name in sorted(default.structured_input_signature[1], reverse=True)}
    fills_blanks = {"pieces", "probabilities"} <= default.structured_outputs.keys()
    if fills_blanks:
        asked["text"] = [BLANKS]
    answer = {k: v.numpy()[0] for k, v in default(**{k: tf.constant(v) for k, v in asked.items()}).items()}
    if not fills_blanks:
        return signatures, asked, {name: readable(value) for name, value in sorted(answer.items())}
    shown = {}
    for place, (pieces, shares) in enumerate(zip(answer["pieces"], answer["probabilities"], strict=True)):
        guesses = zip(pieces, shares, strict=True)
        shown[f"[MASK] {place + 1}"] = ", ".join(f"{piece.decode()} {share:.1%}" for piece, share in guesses)
    return signatures, asked, shown


def readable(value) -> str:
    """A text, a number or several of them, as they are read."""
    if getattr(value, "ndim", 0):
        more = f", ... {list(value.shape)}" if len(value) > 8 else ""
        return ", ".join(readable(one) for one in value[:8]) + more or "none"
    return value.decode() if isinstance(value, bytes) else f"{value:.4g}"


def described(tensors: dict) -> str:
    """`name type [shape]` of each tensor, a line each."""
    lines = []
    for name, tensor in sorted(tensors.items()):
        shape = ", ".join("?" if size is None else str(size) for size in tensor.shape)
        lines.append(f"{name} {tensor.dtype.name} [{shape}]".replace("[", r"\["))
    return "\n".join(lines)


if __name__ == "__main__":
    run(main)
