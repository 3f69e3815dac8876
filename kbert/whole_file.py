"""Files that are there whole or not at all, also after a kill, a crash or a full disk."""

import os
from collections.abc import Iterable
from pathlib import Path


def write_whole(path, content: bytes) -> None:
    """Writes a file that is there whole or, if anything fails, as it was before; OSError names it."""
    temporary = Path(f"{path}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


def refuse_to_replace(inputs: Iterable, outputs: Iterable[Path]) -> None:
    """Raises ValueError if a file that will be written is one that is read; inputs may be None."""
    read = {Path(path).resolve() for path in inputs if path}
    for path in outputs:
        if path.resolve() in read:
            raise ValueError(f"{path} is an input and would be replaced; give another --output")
