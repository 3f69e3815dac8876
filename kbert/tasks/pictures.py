"""Pictures of what a task's model answers, as pixels for TensorBoard."""

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


def confusion_matrix(truth: np.ndarray, answer: np.ndarray, labels: list[str]) -> np.ndarray:
    """How often each true label got each answer, label ids [N], [N] -> a picture uint8 [height, width, 3].

    The colour is the share of the true label, the number (up to 30 labels) the count.
    """
    counts = np.zeros((len(labels), len(labels)), np.int64)
    np.add.at(counts, (truth, answer), 1)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    size = 2 + min(0.5 * len(labels), 20)
    figure = Figure(figsize=(size + 1, size), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    axes.imshow(shares, vmin=0, vmax=1, cmap="Blues")
    axes.set(xlabel="answer", ylabel="truth", xticks=range(len(labels)), yticks=range(len(labels)))
    # A label is no formula, dollars or not.
    axes.set_xticklabels(labels, rotation=45, ha="right", parse_math=False)
    axes.set_yticklabels(labels, parse_math=False)
    for row, column in np.ndindex(counts.shape) if len(labels) <= 30 else ():
        color = "white" if shares[row, column] > 0.5 else "black"
        axes.text(column, row, counts[row, column], ha="center", va="center", color=color)
    return pixels(figure)


def attention(weights: np.ndarray, rows: list[str], columns: list[str]) -> np.ndarray:
    """How much each of some tokens looks at each of others, [N, M] -> a picture uint8 [height, width, 3]."""
    figure = Figure(figsize=(2 + 0.2 * len(columns), 2 + 0.2 * len(rows)), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    axes.imshow(weights, vmin=0, cmap="Blues", aspect="auto")
    axes.set(xticks=range(len(columns)), yticks=range(len(rows)))
    axes.set_xticklabels(columns, rotation=90, parse_math=False)
    axes.set_yticklabels(rows, parse_math=False)
    return pixels(figure)


def pixels(figure: Figure) -> np.ndarray:
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()
