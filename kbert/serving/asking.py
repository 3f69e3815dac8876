"""Batches of lines answered by a served model, several at a time and yet in order; who is to blame for a refusal."""

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass

from kbert.serving.client import Client, Unavailable
from kbert.serving.lines import Batch, Source, batches
from kbert.serving.rest import Refused

# Refusals of what was sent (too much of it: 413); any other status would be every line's.
OF_THE_LINES = (400, 413, 422)


@dataclass
class Asker:
    """Answers batches of lines; may be used by many threads at once.

    read: a line -> its row, or Refused. skip_errors: a line that cannot be answered gets {"error": why}; otherwise it
    is a ValueError that names it.
    """

    client: Client
    signature: str
    read: Callable[[bytes], dict]
    source: Source
    skip_errors: bool = False

    def answers(self, batch: Batch) -> list[dict]:
        """An answer for each line. Nothing is sent before all lines of the batch are read."""
        rows, found = {}, {}
        for number, line in enumerate(batch.lines, start=batch.first):
            try:
                rows[number] = self.read(line)
            except Refused as refused:
                found[number] = self._error(number, refused)
        found |= self._answered(rows) if rows else {}
        return [found[number] for number in range(batch.first, batch.last + 1)]

    def _answered(self, rows: dict[int, dict]) -> dict[int, dict]:
        """By number. Rows that are refused together are asked again by halves, as one's fault is not the others'."""
        try:
            return dict(zip(rows, self.client.predict(self.signature, list(rows.values())), strict=True))
        except Refused as refused:
            if refused.status not in OF_THE_LINES:
                raise ValueError(f"{self._place(rows)}: HTTP status {refused.status}: {refused.message}") from None
            if len(rows) == 1:
                return {number: self._error(number, refused) for number in rows}
        except Unavailable as error:
            retries = self.client.patience.retries
            raise Unavailable(f"{self._place(rows)}: {error}; {retries} retries did not help") from None
        numbers = list(rows)
        halves = numbers[: len(rows) // 2], numbers[len(rows) // 2 :]
        first, second = (self._answered({number: rows[number] for number in half}) for half in halves)
        return first | second

    def _error(self, number: int, refused: Refused) -> dict:
        if not self.skip_errors:
            raise ValueError(f"{self._place([number])}: {refused.message}")
        return Error(error=refused.message)

    def _place(self, numbers) -> str:
        first, last = min(numbers), max(numbers)
        return f"{self.source.name}, line{f' {first}' if first == last else f's {first} to {last}'}"


def answer_all(asker: Asker, answers, size: int, parallel: int, progress: Callable) -> tuple[int, int, int]:
    """Asks what has no answer yet, `size` lines together -> the numbers of lines, of those asked, of errors among them.

    answers: a StandardOutput or AnswerFile. Raises ValueError where that has more answers than there are lines.
    """
    kept, done, errors, last = answers.kept, 0, 0, 0

    def new_batches():
        nonlocal last
        for batch in batches(asker.source.lines, size):
            last = batch.last
            if last > kept:
                yield batch

    with contextlib.closing(in_order(new_batches(), asker.answers, parallel)) as found:
        for batch, of_lines in found:
            answers.write(batch.first, of_lines)
            done += len(of_lines)
            errors += sum(isinstance(one, Error) for one in of_lines)
            progress(batch.read, asker.source.size)
    if last < kept:
        raise ValueError(f"{answers.path} has {kept} answers, {asker.source.name} {last} lines; give another file")
    return last, done, errors


class Error(dict):
    """What stands in the place of an answer."""


def in_order(batches: Iterable[Batch], answer: Callable, parallel: int) -> Iterator[tuple[Batch, list[dict]]]:
    """Each batch and its answers, in the order of the batches; `parallel` of them are asked at a time.

    What reading or asking raises is raised after all answers before it. The batches are read in a thread of their own,
    so that answers do not wait for lines that have not come yet, and threads do not outlive the process.
    """
    tasks, order = queue.SimpleQueue(), queue.Queue(2 * parallel)
    stopped = threading.Event()

    def read():
        try:
            for batch in batches:
                future = Future()
                order.put((batch, future))
                tasks.put((batch, future))
                if stopped.is_set():
                    break
        except BaseException as error:
            future = Future()
            future.set_exception(error)
            order.put((None, future))
        order.put(None)
        for _ in range(parallel):
            tasks.put(None)

    def work():
        # A batch that was taken is asked, so that every one before a failure has its answer.
        while not stopped.is_set() and (task := tasks.get()) is not None:
            batch, future = task
            try:
                future.set_result(answer(batch))
            except BaseException as error:
                stopped.set()  # what comes before it is under way, and nothing more is sent
                future.set_exception(error)

    for run in (read, *[work] * parallel):
        threading.Thread(target=run, daemon=True).start()
    try:
        while (task := order.get()) is not None:
            batch, future = task
            yield batch, future.result()
    finally:
        stopped.set()
        while not order.empty():  # the reader may wait for a place
            order.get_nowait()
