"""What TensorBoard shows of a run: curves over steps, guesses at held-out masks, the token embeddings, the settings."""

import math
import re
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from google.protobuf import text_format
from tensorboard.plugins.hparams import api as hparams
from tensorboard.plugins.projector import ProjectorConfig

from kbert.training.distribution import workers
from kbert.training.step import is_due
from kbert.whole_file import write_whole

SUBSCRIPT = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
BEGIN_OF_FILE = re.compile(r"\.from-step-(\d+)$")


class EventFiles:
    """TensorBoard's files under one folder, in which a run that was killed and resumed has each step once.

    `train`, `held_out` and `baseline` are folders beside each other, so that equal tags share a chart. A file begins
    after one checkpoint and ends at the next. What a killed run wrote after its last checkpoint is removed here: make
    this after `checkpoint.restore`. Of several processes the one that writes checkpoints writes these too.
    """

    def __init__(self, folder, checkpoint):
        self.folder, self.checkpoint = Path(folder), checkpoint
        self.writers, self.begin = {}, checkpoint.last_step
        for file in self.folder.glob("*/events.out.tfevents.*") if checkpoint.writes else ():
            begin = BEGIN_OF_FILE.search(file.name)
            if begin and int(begin[1]) >= checkpoint.last_step:
                file.unlink()

    def scalars(self, run: str, step: int, values: dict) -> None:
        writer = self._writer(run)
        with writer.as_default(step):
            for tag, value in values.items():
                tf.summary.scalar(tag, value)
        writer.flush()

    def text(self, run: str, step: int, tag: str, markdown: str) -> None:
        writer = self._writer(run)
        with writer.as_default(step):
            tf.summary.text(tag, markdown)
        writer.flush()

    def trial(self, run: str, values: dict) -> None:
        """The settings of one run of a search, for the panel HParams."""
        writer = self._writer(run)
        with writer.as_default(0):
            hparams.hparams(values)
        writer.flush()

    def _writer(self, run):
        if self.begin != self.checkpoint.last_step:
            self.begin = self.checkpoint.last_step
            while self.writers:
                self.writers.popitem()[1].close()
        if not self.checkpoint.writes:
            return tf.summary.create_noop_writer()
        if run not in self.writers:
            self.writers[run] = tf.summary.create_file_writer(
                str(self.folder / run), filename_suffix=f".from-step-{self.begin:08d}"
            )
        return self.writers[run]


class Monitor(keras.callbacks.Callback):
    """Writes to `train`, every `every` steps, the means over these steps, and the settings when a run begins."""

    def __init__(self, events: EventFiles, settings: dict, every: int = 100):
        super().__init__()
        self.events, self.settings, self.every = events, settings, every
        self.logs = {}

    def on_train_begin(self, logs=None):
        if self.model.steps_done == 0:
            rows = [(name, value) for name, value in self.settings.items()]
            self.events.text("train", 0, "settings", table(("setting", "value"), rows))

    def on_train_batch_end(self, batch, logs=None):
        self.logs = logs
        if is_due(self.model, self.every):
            self._write()

    def on_train_end(self, logs=None):
        if self.model.token_slots.result() > 0:
            self._write()

    def _write(self):
        model = self.model
        real_tokens, token_slots, seconds, waiting = (
            float(metric.result())
            for metric in (model.real_tokens, model.token_slots, model.seconds, model.seconds_waiting)
        )
        learning = {f"learning/{name}": value for name, value in self.logs.items() if name != "gradient_norm"}
        self.events.scalars(
            "train",
            model.steps_done,
            learning
            | {
                "optimization/gradient_norm": self.logs["gradient_norm"],
                "optimization/learning_rate": float(model.optimizer.learning_rate),
                "throughput/real_tokens_per_second": real_tokens / seconds,
                "throughput/share_of_padding": 1 - real_tokens / token_slots,
                "throughput/share_of_time_waiting": waiting / seconds,
            },
        )
        model.reset_metrics()


class AtIntervals(keras.callbacks.Callback):
    """Calls `act` every `every` steps and at the end of training, unless the loss is not finite."""

    def __init__(self, every: int):
        super().__init__()
        self.every, self.last_step, self.batch = every, None, None

    def on_train_batch_end(self, batch, logs=None):
        if is_due(self.model, self.every) and math.isfinite(logs["loss"]):
            self.last_step, self.batch = self.model.steps_done, batch
            self.act()

    def on_train_end(self, logs=None):
        if self.last_step != self.model.steps_done:
            self.last_step, self.batch = self.model.steps_done, None
            self.act()


class LeaveToGoOn(keras.callbacks.Callback):
    """Ends an evaluation when a signal is there, and has the checkpoint say that it is to be made again."""

    def __init__(self, checkpoint, trained_batch: int):
        super().__init__()
        self.checkpoint, self.trained_batch = checkpoint, trained_batch

    def on_test_batch_end(self, batch, logs=None):
        if self.checkpoint.signal_received is not None and not self.checkpoint.is_last(self.trained_batch):
            self.checkpoint.to_evaluate = self.model.stop_evaluating = True


class Evaluate(AtIntervals):
    """Writes to `held_out` the means over held-out batches, and to `baseline` the numbers to beat.

    `values` is what the last evaluation gave; `show` gets it as a line of text. Who asks a run to stop need not wait
    for the end of an evaluation: it is made when the run goes on (but at the end of training, and where several
    processes evaluate together).
    """

    def __init__(
        self,
        dataset: tf.data.Dataset,
        events: EventFiles,
        every: int = 1000,
        baselines: dict | None = None,
        show: Callable[[str], None] = lambda line: None,
    ):
        super().__init__(every)
        self.dataset, self.events, self.values, self.baselines, self.show = dataset, events, {}, baselines or {}, show

    def on_train_begin(self, logs=None):
        if self.events.checkpoint.to_evaluate:
            self.last_step = self.model.steps_done
            self.act()

    def act(self):
        checkpoint = self.events.checkpoint
        checkpoint.to_evaluate = False
        alone = workers(self.model.distribute_strategy) == 1
        leave = [LeaveToGoOn(checkpoint, self.batch)] if alone and self.batch is not None else []
        # Evaluating resets the metrics, which hold the training steps since the last log.
        in_training = [(variable, variable.numpy()) for variable in self.model.metrics_variables]
        self.values = self.model.evaluate(self.dataset, verbose=0, return_dict=True, callbacks=leave)
        for variable, value in in_training:
            variable.assign(value)
        if checkpoint.to_evaluate:
            return
        for run, values in (("held_out", self.values), ("baseline", self.baselines)):
            self.events.scalars(run, self.last_step, {f"learning/{name}": value for name, value in values.items()})
        to_beat = {name: f" (to beat: {value:.3f})" for name, value in self.baselines.items()}
        shown = [f"{name} {value:.3f}{to_beat.get(name, '')}" for name, value in self.values.items() if name != "loss"]
        self.show(f"held out after step {self.last_step}: {', '.join(shown)}")


class Panels(AtIntervals):
    """Writes to `held_out` guesses at the masks of some sequences, and to `train` the token embeddings."""

    def __init__(
        self, features: dict, vocabulary: list[str], events: EventFiles, every: int = 1000, sentences: int = 8
    ):
        super().__init__(every)
        self.features = {name: value[:sentences] for name, value in features.items() if name != "data_position"}
        self.vocabulary, self.events = vocabulary, events

    def act(self):
        logits = self.model(self.features, training=False)["masked_lm_logits"]
        probabilities = keras.ops.convert_to_numpy(keras.ops.softmax(logits))
        sequences = zip(rows(self.features), probabilities, strict=True)
        panels = [guesses(features, p, self.vocabulary) for features, p in sequences]
        self.events.text("held_out", self.last_step, "guesses", "\n\n---\n\n".join(panels))
        if not self.events.checkpoint.writes:
            return
        embeddings = self.model.bert.embeddings.token_embeddings.numpy()
        write_embeddings(self.events.folder / "train", "token_embeddings", self.vocabulary, embeddings)


def rows(features: dict):
    """A batch as one dict of arrays per sequence."""
    arrays = {name: np.asarray(value) for name, value in features.items()}
    count = len(arrays["input_ids"])
    return [{name: array[row] for name, array in arrays.items()} for row in range(count)]


def guesses(features: dict, probabilities, vocabulary: list[str], best: int = 3) -> str:
    """One sequence as Markdown: the text as the model sees it, its masks numbered, and a table of what was guessed.

    features of one sequence, probabilities [P, V].
    """
    predicted = [p for p, weight in enumerate(features["masked_lm_weights"]) if weight > 0]
    number_at = {int(features["masked_lm_positions"][p]): number for number, p in enumerate(predicted, start=1)}
    text = ""
    for position, token in enumerate(features["input_ids"][: features["input_mask"].sum()]):
        piece = vocabulary[token]
        if position in number_at:
            piece = f" **{escaped(piece)}**{str(number_at[position]).translate(SUBSCRIPT)}"
        else:
            piece = escaped(piece[2:]) if piece.startswith("##") else f" {escaped(piece)}"
        text += piece
    lines = []
    for p in predicted:
        position, truth = features["masked_lm_positions"][p], features["masked_lm_ids"][p]
        order = np.argsort(-probabilities[p])
        lines.append(
            (
                number_at[int(position)],
                vocabulary[features["input_ids"][position]],
                vocabulary[truth],
                int(np.flatnonzero(order == truth)[0]) + 1,
                *(f"{vocabulary[token]} {probabilities[p][token]:.1%}" for token in order[:best]),
            )
        )
    header = ("mask", "seen", "truth", "its rank", *(f"guess {number}" for number in range(1, best + 1)))
    return f"{text.strip()}\n\n{table(header, lines)}"


def table(header: tuple, lines: list[tuple]) -> str:
    """A table in Markdown."""
    cells = [header, ["---"] * len(header), *([escaped(str(cell)) for cell in line] for line in lines)]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def escaped(text: str) -> str:
    """Text whose characters mean themselves in Markdown and HTML."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_{}\[\]()#+\-.!|~])", r"\\\1", text)


def write_embeddings(folder, name: str, labels: list[str], vectors: np.ndarray) -> None:
    """Files for TensorBoard's projector: vectors [N, H] with a label each."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = ProjectorConfig()
    info = config.embeddings.add(tensor_name=name, tensor_path=f"{name}.bytes", metadata_path=f"{name}.tsv")
    info.tensor_shape.extend(vectors.shape)
    write_whole(folder / info.tensor_path, vectors.astype("<f4").tobytes())
    write_whole(folder / info.metadata_path, "".join(f"{label}\n" for label in labels).encode())
    write_whole(folder / "projector_config.pbtxt", text_format.MessageToString(config).encode())
