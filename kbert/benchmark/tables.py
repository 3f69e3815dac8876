"""What a benchmark found, as tables, metrics.json and rounds.jsonl."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from kbert import report
from kbert.benchmark.rounds import Result, best_forms, ratio

GIGA, MEGA = 10**9, 10**6
COLUMNS = ("", "ms", "tokens/s", "GFLOP/s", "of the limit", "times kbert's", "peak MB")


class Work(NamedTuple):
    """What a repetition is of: real tokens, and the operations of their matrix products; none of padding."""

    title: str
    tokens: int
    operations: int | None = None


def tell(work: Work, results: Sequence[Result], output: str | None) -> None:
    """Prints a row for each system and writes the numbers; a result named limit is what the others are a share of."""
    ours, limits = results[0], [result for result in results if result.name == "limit" and not result.reason]
    limit = limits[0].seconds if limits else None
    for result in limits:
        forms = {name: (form, 1000 * seconds) for name, (form, seconds) in best_forms(result).items()}
        report.table("Products alone, in their fastest form", forms, ("", "form", "ms"))
    metrics, rows = {}, {}
    for result in results:
        if result.reason:
            report.CONSOLE.print(f"{result.name}: {result.reason}", highlight=False, soft_wrap=True)
        if not result.rounds or result.reason:
            continue
        shown = numbers(work, result, ours, limit)
        rows[result.name] = tuple(report.four_figures(shown[name]) if name in shown else "" for name in COLUMNS[1:])
        metrics |= {f"{result.name}, {name}": value for name, value in shown.items()}
    report.table(f"{work.title}, median of {len(ours.rounds)} rounds", rows, COLUMNS)
    for result in results:
        if "versions" in result.about and not result.reason:
            report.CONSOLE.print(f"{result.name}: {result.about['versions']}", highlight=False, soft_wrap=True)
    if output:
        write(output, metrics, {work.title: results})


def write(output: str, metrics: dict[str, float], told: dict[str, Sequence[Result]]) -> None:
    """metrics.json, and rounds.jsonl with the results of each work, by its title."""
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    report.write(output, metrics)
    lines = (json.dumps({"work": title, **asdict(one)}) for title, results in told.items() for one in results)
    (folder / "rounds.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def numbers(work: Work, result: Result, ours: Result, limit: float | None) -> dict[str, float]:
    found = {"ms": 1000 * result.seconds, "tokens/s": work.tokens / result.seconds}
    if work.operations:
        found["GFLOP/s"] = work.operations / result.seconds / GIGA
    if limit:
        found["of the limit"] = limit / result.seconds
    found["times kbert's"] = ratio(result, ours)
    if result.peak_bytes:
        found["peak MB"] = result.peak_bytes / MEGA
    return found
