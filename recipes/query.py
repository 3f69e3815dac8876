"""Asks a served model: texts in, answers as JSON lines out, over REST or gRPC.

python recipes/query.py --url http://127.0.0.1:8501 --model books --input lines.txt --output answers.jsonl

2,000 short lines and a BERT Tiny on kbert's server: 1.4 s over REST, on two cores that had other work besides.
"""

import contextlib
import sys
import time
from typing import Literal

from kbert.command_line import brought_by, import_tensorflow, run


def main(
    model: str,
    text: tuple[str, ...] = (),
    input: str | None = None,
    url: str = "http://127.0.0.1:8501",
    output: str | None = None,
    format: Literal["text", "tsv", "jsonl"] = "text",
    columns: tuple[str, ...] = (),
    signature: str = "serving_default",
    version: int | None = None,
    batch_size: int = 32,
    parallel: int = 4,
    timeout: float = 60.0,
    retries: int = 6,
    pause: float = 0.5,
    skip_errors: bool = False,
) -> None:
    r"""Asks a model of kbert's server or of TensorFlow Serving and writes an answer a line, in the order of the input.

    An answer is a JSON object of the signature's outputs. With --output the same command goes on where an earlier call
    was interrupted. At the end, standard error has a line with the numbers of inputs and errors and the latencies.

    Args:
        model: the name that the server has for it.
        text: the inputs, each as a line of a file would be.
        input: a file with an input a line, UTF-8; - is standard input. An empty line is an empty text. To go on with
            --output, standard input must be the same from its first line on, which cannot be checked.
        url: http://HOST:PORT for REST, or grpc://HOST:PORT, which takes seconds to start; 8501 and 8500 are usual.
        output: file for the answers, instead of standard output; what was asked is noted in OUTPUT.query.json.
        format: of a line. text: the only input as it stands. tsv: a column for each input, parted by tabs, without
            quotes or escapes. jsonl: a JSON object of all inputs by name, also for numbers and lists.
        columns: the names of tsv's columns; by default the inputs in the order of the alphabet: passage, question.
        signature: what is asked of the model.
        version: of the model, by default the newest.
        batch_size: inputs of a request; 1 answers lines of standard input as they come.
        parallel: requests at a time.
        timeout: seconds that a request may take.
        retries: of a request whose answer fails to come: no connection, too slow, HTTP status 429, 502, 503 or 504;
            gRPC's UNAVAILABLE, RESOURCE_EXHAUSTED or DEADLINE_EXCEEDED.
        pause: seconds before the first retry; each further pause is about twice as long, up to 30 seconds.
        skip_errors: write {"error": ...} for a line that is refused and go on, instead of stopping there.
    """
    check_flags(
        text, input, {"batch-size": batch_size, "parallel": parallel, "timeout": timeout, "pause": pause}, retries
    )
    if url.startswith("grpc:"):
        import_tensorflow()  # its messages are TensorFlow's
    with brought_by("serve"):
        from kbert.serving.answers import AnswerFile, StandardOutput
        from kbert.serving.asking import Asker, answer_all
        from kbert.serving.client import Client, Patience, connect
        from kbert.serving.lines import digest_of, row_reader, source_of
        from kbert.serving.rest import Refused

        server = connect(url, model, version, timeout, parallel)
    begin = time.perf_counter()
    client = Client(server, Patience(retries, pause))
    source, answering = source_of(text, input), client.describe()
    read = row_reader(format, columns, client.signature(signature).inputs)
    asker = Asker(client, signature, read, source, skip_errors)
    asked = {"model": model, "version": answering, "signature": signature, "format": format, "columns": list(columns)}
    answers = AnswerFile(output, asked | {"input": digest_of(text, input)}) if output else StandardOutput()
    try:
        with contextlib.closing(answers), bar(output) as progress:
            lines, done, errors = answer_all(asker, answers, batch_size, parallel, progress)
    except KeyboardInterrupt:
        then = f"; {answers.kept} answers are there, the same command goes on with them" if output else ""
        raise KeyboardInterrupt(f"interrupted{then}") from None
    tell(done, lines - done, errors, time.perf_counter() - begin, client)
    with contextlib.suppress(OSError, Refused):  # all is answered, whatever the server does now
        if client.version() != answering:
            print(f"version {answering} answered first, and then another; --version N asks one alone", file=sys.stderr)


def check_flags(text: tuple, input: str | None, positive: dict, retries: int) -> None:
    """Raises ValueError for flags that cannot be; positive: name -> value of those that are above 0."""
    if bool(text) == (input is not None):
        raise ValueError("expected --text or --input, one of them")
    for name, value in positive.items():
        if value <= 0:
            raise ValueError(f"--{name} {value:g}: expected a number above 0")
    if retries < 0:
        raise ValueError(f"--retries {retries}: expected 0 or more")


def bar(output: str | None):
    """A progress bar on standard error if that is a terminal, and not one that shows the answers."""
    from rich.console import Console

    from kbert import report

    is_shown = sys.stderr.isatty() and (output is not None or not sys.stdout.isatty())
    return report.progress("Asking", Console(stderr=True, quiet=not is_shown))


def tell(done: int, before: int, errors: int, seconds: float, client) -> None:
    """A line on standard error."""
    line = f"{done} inputs, {errors} errors, {seconds:.1f} s; {len(client.seconds)} requests, {client.retried} retries"
    if client.seconds:
        import numpy as np

        middle, slowest = np.percentile(client.seconds, (50, 99)) * 1000
        line += f", p50 {middle:.1f} ms, p99 {slowest:.1f} ms"
    print(f"{line}; {before} were answered before" if before else line, file=sys.stderr)


if __name__ == "__main__":
    run(main, tensorflow=False)
