"""How the cost of a real token grows: of a step with length, batch, L and H; of text to batches with the corpus.

What varies does so alone, from a base: one of its values, through whose measured cost goes the arithmetic's line.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from kbert import report
from kbert.benchmark import jobs
from kbert.benchmark.participants import on
from kbert.benchmark.rounds import Result, System, in_turn
from kbert.benchmark.tables import MEGA, write
from kbert.text.sentences import opened
from kbert.training import planning

PARTS = (8, 4, 2, 1)  # of a corpus: every eighth of its documents to all of them
MICRO = 10**-6
COLUMNS = ("us/token", "arithmetic's us/token", "ms", "index s", "peak MB")


class Point(NamedTuple):
    """A value of what varies; the real tokens of a repetition, and the operations of one, in any unit."""

    value: float
    tokens: int
    operations: float
    system: System


@dataclass
class Curve:
    """What varies, and its points, the base first. results: of the points, once measured."""

    name: str
    points: list[Point]
    results: list[Result] | None = None

    def measure(self, rounds: int, limit: float) -> None:
        with report.progress(f"{self.name}: {len(self.points)} values in turn") as progress:
            self.results = in_turn([point.system for point in self.points], rounds, progress, limit)

    def measured(self) -> list[tuple[Point, Result]]:
        """Those that were, by value."""
        both = zip(self.points, self.results, strict=True)
        return sorted((pair for pair in both if not pair[1].reason), key=lambda pair: pair[0].value)

    def line(self) -> dict[float, float]:
        """By value the seconds of a token that the arithmetic tells from the base's, those not measured too."""
        base = self.points[0]
        seconds = self.results[0].seconds / base.tokens / base.operations
        return {point.value: seconds * point.operations for point in sorted(self.points, key=lambda one: one.value)}


def predicted(sequence_length: int) -> int:
    """15% rounded up, as pretrain.py has it."""
    return -(-15 * sequence_length // 100)


def settings(
    base: planning.Setting,
    lengths: Sequence[int],
    batch_sizes: Sequence[int],
    layers: Sequence[int],
    hidden_sizes: Sequence[int],
) -> dict[str, dict[int, planning.Setting]]:
    """By what varies and its value, the base first; what has no other value is left out.

    Predictions follow the length, heads and the feed-forward's size H. Raises ValueError for what cannot be, and where
    nothing varies.
    """
    config, head = base.config, base.config.head_size

    def of_length(length):
        return replace(base, sequence_length=length, predictions=predicted(length))

    def of_width(hidden):
        if hidden < 1 or hidden % head:
            raise ValueError(f"--hidden-sizes {hidden}: expected multiples of {head}, the size of a head")
        heads, inner = hidden // head, config.intermediate_size * hidden // config.hidden_size
        wide = replace(config, hidden_size=hidden, num_attention_heads=heads, intermediate_size=inner)
        return replace(base, config=wide)

    ways = {
        "length": (base.sequence_length, lengths, of_length),
        "batch": (base.batch_size, batch_sizes, lambda size: replace(base, batch_size=size)),
        "L": (config.num_hidden_layers, layers, lambda count: planning.trial(base, count, base.batch_size)),
        "H": (config.hidden_size, hidden_sizes, of_width),
    }
    found = {}
    for name, (own, others, made) in ways.items():
        if values := [value for value in dict.fromkeys(others) if value != own]:
            found[name] = {value: made(value) for value in (own, *values)}
    if not found:
        raise ValueError("nothing varies: expected values of --lengths, --batch-sizes, --layers or --hidden-sizes")
    return found


def of_steps(name: str, varied: dict[int, planning.Setting], folder: Path) -> Curve:
    """Of kbert's step; batches are written to the folder."""
    points = []
    for value, setting in varied.items():
        job = jobs.job_of_step(setting, folder / f"{name}-{value}.npz")
        tokens = setting.batch_size * setting.sequence_length
        operations = sum(sum(both) for both in planning.operations(setting).values()) / tokens
        system = System(f"{name} {value}", "step_kbert", job, environment=on("tensorflow"))
        points.append(Point(value, tokens, operations, system))
    return Curve(name, points)


def of_corpus(job: dict, folder: Path) -> Curve:
    """Of text to batches, over the MB of the corpus; its parts are written to the folder. The smallest is the base."""
    points = []
    for part, files in parts_of(job["files"], job["documents"], folder).items():
        name = f"1/{part} of the corpus" if part > 1 else "the corpus"
        megabytes = sum(Path(file).stat().st_size for file in files) / MEGA
        points.append(Point(megabytes, job["tokens"], 1, System(name, "data_kbert", job | {"files": files})))
    return Curve("corpus", points)


def parts_of(files: Sequence[str], documents: str, folder: Path) -> dict[int, list[str]]:
    """The files of every eighth, fourth, second document, and all; raises ValueError where they are too few."""
    count = 0
    for number, text in enumerate(each_document(files, documents)):
        count += 1
        for part in PARTS[:-1]:
            if number % part == 0:
                path = folder / str(part) / f"{number if documents == 'file' else 0}.txt"
                path.parent.mkdir(exist_ok=True)
                with open(path, "ab") as file:
                    file.write(text + b"\n\n")
    if count < 2 * PARTS[0]:  # a random B is of another document
        raise ValueError(f"--corpus: {count} documents, expected at least {2 * PARTS[0]}, two of an eighth")
    written = {part: sorted(map(str, (folder / str(part)).iterdir())) for part in PARTS[:-1]}
    return written | {1: list(files)}


def each_document(files: Sequence[str], documents: str) -> Iterator[bytes]:
    """Texts, those without any passed over."""
    for path in files:
        lines = []
        with opened(path) as file:
            for line in file:
                if line.strip():
                    lines.append(line)
                elif lines and documents == "blank-line":
                    yield b"".join(lines)
                    lines = []
        if lines:
            yield b"".join(lines)


def follow(curves: Sequence[Curve], rounds: int, limit: float, output: str | None) -> None:
    """Measures one after the other, so that only the processes of one are there at once; tells of all at the end."""
    for curve in curves:
        curve.measure(rounds, limit)
    tell(curves, output)


def tell(curves: Sequence[Curve], output: str | None) -> None:
    """Prints a table of each, and writes the numbers and the plots."""
    metrics = {}
    for curve in curves:
        shown = {}
        for result in curve.results:
            if result.reason:
                report.CONSOLE.print(f"{result.name}: {result.reason}", highlight=False, soft_wrap=True)
        for point, result in curve.measured():
            shown[result.name] = numbers(curve, point, result)
            metrics |= {f"{result.name}, {name}": value for name, value in shown[result.name].items()}
        there = [name for name in COLUMNS if any(name in told for told in shown.values())]
        rows = {
            name: tuple(report.four_figures(told[one]) if one in told else "" for one in there)
            for name, told in shown.items()
        }
        title = f"A token's cost by {curve.name}, median of {len(curve.results[0].rounds)} rounds"
        report.table(title, rows, ("", *there))
    if output:
        write(output, metrics, {f"growth with {curve.name}": curve.results for curve in curves})
        for curve in curves:
            plot(curve).savefig(Path(output) / f"{curve.name}.png")


def numbers(curve: Curve, point: Point, result: Result) -> dict[str, float]:
    found = {"us/token": result.seconds / point.tokens / MICRO}
    found["arithmetic's us/token"] = curve.line()[point.value] / MICRO
    found["ms"] = 1000 * result.seconds
    if "index_seconds" in result.about:
        found["index s"] = result.about["index_seconds"]
    if result.peak_bytes:
        found["peak MB"] = result.peak_bytes / MEGA
    return found


def plot(curve: Curve) -> Figure:
    """The measured cost of a token with the arithmetic's line, above the processes' memory; both from zero on."""
    shown = [(point.value, numbers(curve, point, result)) for point, result in curve.measured()]
    figure = Figure(figsize=(6, 6), dpi=120, layout="constrained")
    cost, memory = figure.subplots(2, sharex=True, height_ratios=(2, 1))
    line = curve.line()
    cost.plot(list(line), [seconds / MICRO for seconds in line.values()], "--", color="gray", label="arithmetic")
    cost.plot([value for value, _ in shown], [told["us/token"] for _, told in shown], "o", label="measured")
    held = [(value, told["peak MB"]) for value, told in shown if "peak MB" in told]
    memory.plot([value for value, _ in held], [most for _, most in held], "o")
    cost.set(ylabel="microseconds per real token")
    memory.set(xlabel="MB of the corpus" if curve.name == "corpus" else curve.name, ylabel="peak MB")
    for axes in (cost, memory):
        axes.set_ylim(0, 1.05 * axes.get_ylim()[1])  # or the highest would be cut in half
    cost.legend()
    return figure
