"""Files that a kill, a crash, a full disk or another process leaves whole."""

import contextlib
import errno
import fcntl
import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

IN_WORDS = re.compile(r"\(os error (\d+)\)")  # as safetensors puts it
# Network file systems may be mounted without locks; those of NFS are not for what is read alone, as a folder is.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF)


def write_whole(path, content: bytes) -> None:
    """Writes a file that is there whole or, if anything fails, as it was before; OSError names it."""
    with written_whole(path) as temporary:
        temporary.write_bytes(content)


@contextlib.contextmanager
def written_whole(path) -> Iterator[Path]:
    """Yields where to write what then becomes a file, whole or not at all; OSError names the file."""
    temporary = Path(f"{path}.tmp")
    try:
        yield temporary
        to_disk(temporary)
        os.replace(temporary, path)
        to_disk(os.path.dirname(os.path.abspath(path)))
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        number = getattr(error, "errno", None)
        if number is None and (told := IN_WORDS.search(str(error))):
            number = int(told[1])
        if number is not None and getattr(error, "filename", None) in (None, str(temporary)):
            raise OSError(number, os.strerror(number), str(path)) from None
        raise


def to_disk(path) -> None:
    """Waits until what was written to a file or a folder is on the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def locked(file) -> bool:
    """Locks an open file until it is closed; False if another process has it.

    Where the file system has no locks that is told, and the file taken for one's own.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        told = f"cannot be locked here ({error.strerror}): see to it that no other process writes there"
        print(f"{file.name}: {told}", file=sys.stderr, flush=True)
    return True


@contextlib.contextmanager
def one_at_a_time(folder) -> Iterator[None]:
    """A block that one process is in for a folder; others wait, where the file system has locks."""
    number = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(number, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
        yield
    finally:
        os.close(number)


def refuse_to_replace(inputs: Iterable, outputs: Iterable[Path]) -> None:
    """Raises ValueError if a file that will be written is one that is read; inputs may be None."""
    read = {Path(path).resolve() for path in inputs if path}
    for path in outputs:
        if path.resolve() in read:
            raise ValueError(f"{path} is an input and would be replaced; give another --output")
