"""What every recipe shares: flags read from `main`'s signature and docstring, and one line for bad input.

Exit status 0 is success; 2, with one line on standard error, is bad input or a full disk; 75, with one line, is a
training that Ctrl-C or SIGTERM stopped after it was saved: the same command goes on; 130 and 143 are the same where
there was nothing to save; 141, or rich's 1 in a table, without a word, is output that nobody reads any more (`| head`);
anything else is an error of kbert's own and keeps its traceback.
"""

import contextlib
import errno
import functools
import io
import logging
import os
import re
import select
import signal
import sys
import sysconfig
import tempfile
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

BAD_INPUT = 2
NO_SPACE = "No space left on device"
# How TensorFlow tells what Python raised inside a dataset: the file of the last frame, and the message.
FAULTS = "|".join(kind.__name__ for kind in (ValueError, OSError, *OSError.__subclasses__()))
IN_GRAPH = re.compile(rf'File "([^"]+)", line \d+, in [^\n]+\n(?:    [^\n]*\n)+\s*(?:{FAULTS}): ([^\n]+)')


def run(main: Callable | dict[str, Callable], tensorflow: bool = True) -> None:
    """Calls `main` with the command line's flags; ends the process with status 2 and one line on bad input.

    Of a dict the function whose name is the first word of the command line.

    TensorFlow is imported first, without its start-up notes, unless `tensorflow` says that main does not need it, or
    sees to it itself.
    """
    program = Path(sys.argv[0]).name
    try:
        try:
            call = parse(main, sys.argv[1:], program)
            if tensorflow:
                import_tensorflow()
            call()
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt as interruption:
        status = getattr(interruption, "status", 128 + signal.SIGINT)
        _exit(program, str(interruption) or "interrupted", status)
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _nobody_reads(sys.stdout.fileno()):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python still flushes at its end
            sys.exit(128 + signal.SIGPIPE)
        function = next(iter(main.values())) if isinstance(main, dict) else main
        message = explain(error, Path(function.__code__.co_filename).parent)
        if message is None:
            raise
        _exit(program, message)


def parse(main: Callable | dict[str, Callable], arguments: Sequence[str], program: str) -> functools.partial:
    """`main`, or the one of several that is named, with the flags' arguments; an unreadable flag ends with status 2."""
    import tyro

    def collecting(function):
        @functools.wraps(function)
        def collect(**keywords):
            return functools.partial(function, **keywords)

        return collect

    if isinstance(main, dict):
        cli, what = tyro.extras.subcommand_cli_from_dict, {name: collecting(one) for name, one in main.items()}
    else:
        cli, what = tyro.cli, collecting(main)
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            return cli(what, prog=program, args=arguments, config=(tyro.conf.HelptextFromCommentsOff,))
    except SystemExit as end:
        if end.code == BAD_INPUT:
            _exit(program, f"{_first_section(errors.getvalue())} ({program} --help lists the flags)")
        raise


def explain(error: Exception, recipes: Path) -> str | None:
    """One line for an error that the user's input or a full disk caused, None for one that is ours.

    Input is at fault when kbert or the recipe itself raised ValueError or OSError, or when an OSError names a file and
    only the standard library stands between kbert and it; in a dataset, too, where TensorFlow tells of it.
    """
    if full := _no_space(error):
        return full
    ours = (Path(__file__).parent, recipes)
    if in_graph := IN_GRAPH.findall(str(error)):
        file, message = in_graph[-1]
        return message if any(Path(file).is_relative_to(folder) for folder in ours) else None
    if not isinstance(error, ValueError | OSError):
        return None
    files = [Path(frame.filename) for frame in traceback.extract_tb(error.__traceback__)]
    named = isinstance(error, OSError) and error.filename is not None
    while named and files and _in_standard_library(files[-1]):
        files.pop()
    if not files or not any(files[-1].is_relative_to(folder) for folder in ours):
        return None
    return f"{error.strerror}: {error.filename}" if named else str(error)


@contextlib.contextmanager
def brought_by(extra: str):
    """A block of imports: a package that is not installed raises ValueError naming the extra that brings it."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ValueError(f"{error.name} is not installed; pip install -e '.[{extra}]' brings it") from None


def import_tensorflow() -> None:
    """Imports TensorFlow and finds its devices; what it writes to standard error on the way is shown if it fails."""
    # The level hides what follows later; the notes of the import itself obey no setting, and that there is no GPU is
    # an error to TensorFlow.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    logging.getLogger("tensorflow").setLevel(logging.WARNING)
    sys.stderr.flush()
    screen = os.dup(2)
    with tempfile.TemporaryFile() as notes:
        os.dup2(notes.fileno(), 2)
        failed = True
        try:
            import_module("tensorflow").config.list_physical_devices()
            failed = False
        finally:
            os.dup2(screen, 2)
            os.close(screen)
            if failed:
                notes.seek(0)
                os.write(2, notes.read())


def _no_space(error: BaseException | None) -> str | None:
    while error is not None:
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or NO_SPACE in str(error):
            where = getattr(error, "filename", None) or str(error)
            return f"no space left on the device: {where}; free some space and run the same command again"
        error = error.__cause__ or error.__context__
    return None


def _nobody_reads(pipe: int) -> bool:
    poll = select.poll()
    poll.register(pipe, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _in_standard_library(file: Path) -> bool:
    library = Path(sysconfig.get_path("stdlib"))
    frozen = str(file).startswith("<frozen")
    return frozen or (file.is_relative_to(library) and "site-packages" not in file.parts)


def _first_section(box: str) -> str:
    """The message of tyro's error box, without the frame and the help text below its first rule."""
    words = []
    for line in box.splitlines():
        text = line.strip("│ ")
        if text.startswith("─"):
            break
        if not line.startswith(("╭", "╰")):
            words.append(text)
    return " ".join(words) or box.strip()


def _exit(program: str, message: str, status: int = BAD_INPUT) -> None:
    print(f"{program}: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(status)
