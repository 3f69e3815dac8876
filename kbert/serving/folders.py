"""The folder that is served, <name>/<version>/: what models and versions there are."""

import contextlib
import os
from pathlib import Path


def versions_in(folder: Path) -> dict[str, list[int]]:
    """The numbers of the versions of each model; a version has a saved_model.pb."""
    found = {}
    for name in names_in(folder):
        if not name.startswith("."):
            numbers = [int(entry) for entry in names_in(folder / name) if entry.isdecimal()]
            found[name] = [n for n in numbers if os.path.exists(folder / name / str(n) / "saved_model.pb")]
    return {name: numbers for name, numbers in found.items() if numbers}


def next_version(directory: str | os.PathLike) -> int:
    """One more than the highest number among the names in the directory; 1 where there is none."""
    return 1 + max((int(name) for name in names_in(Path(directory)) if name.isdecimal()), default=0)


def names_in(folder: Path) -> list[str]:
    """What is in a folder, sorted; nothing where it is none, is gone, or may not be read, as lost+found."""
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []


def looks_of(folder: Path) -> tuple:
    """Names, sizes and times of a version's files: it is tried again when they have changed."""
    found = []
    for path in sorted(os.path.join(root, name) for root, _, names in os.walk(folder) for name in names):
        with contextlib.suppress(FileNotFoundError):  # it may be going just now
            found.append((path, os.stat(path).st_size, os.stat(path).st_mtime_ns))
    return tuple(found)
