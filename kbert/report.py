"""What a recipe tells while it works and at its end: a progress bar, a table, metrics.json."""

import contextlib
import json
import math
import os
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from kbert.whole_file import write_whole

CONSOLE = Console()


@contextlib.contextmanager
def progress(title: str, console: Console = CONSOLE) -> Iterator[Callable[[int, int], None]]:
    """A bar with the time that remains; yields what is to be called with (done, total)."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bars:
        task = bars.add_task(title, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


def table(title: str, rows: dict[str, object], columns: tuple[str, ...] = ("", "value")) -> None:
    """Prints names and values; a value may be a tuple, one item a column."""
    printed = Table(*columns, title=title, title_justify="left")
    for name, values in rows.items():
        values = values if isinstance(values, tuple) else (values,)
        cells = (f"{value:.6g}" if isinstance(value, float) else str(value) for value in (name, *values))
        printed.add_row(*map(escape, cells))  # names of labels may have brackets
    CONSOLE.print(printed)


def four_figures(value: float) -> str:
    """The number with four figures, or with all that stand before its point."""
    return f"{value:,.4g}" if abs(value) < 9_999.5 else f"{value:,.0f}"


def finish(title: str, output: str, metrics: dict[str, float]) -> None:
    """Writes <output>/metrics.json and prints it. Raises ValueError for a number that JSON has not."""
    write(output, metrics)
    table(title, metrics)


def write(output: str, metrics: dict[str, float]) -> None:
    """Writes <output>/metrics.json, flat. Raises ValueError for a number that JSON has not."""
    for name, value in metrics.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name} is {value}; metrics.json holds finite numbers")
    path = os.path.join(output, "metrics.json")
    write_whole(path, json.dumps(metrics, indent=1).encode() + b"\n")
