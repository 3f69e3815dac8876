"""A run's folder belongs to one run, told by its settings, and to one that trains in it at a time."""

import json
import zlib
from pathlib import Path

import tensorflow as tf

from kbert.training.distribution import agree, chief_first, is_chief
from kbert.whole_file import locked, one_at_a_time, write_whole


def begin_run(output, settings: dict, strategy: tf.distribute.Strategy, alike: dict | None = None) -> None:
    """Begins or goes on with the run in a folder: notes its settings, and keeps others out while this process lives.

    alike: what else all processes do alike, and may do otherwise when they go on. Raises ValueError in all processes if
    any of this differs, if the folder has another run, or another process that trains in it, or is not one that all
    see.
    """
    agree(strategy, settings | (alike or {}))
    path = Path(output) / "run.json"
    with chief_first(strategy):
        if is_chief(strategy):
            path.parent.mkdir(parents=True, exist_ok=True)
            with one_at_a_time(path.parent):
                check_settings(output, settings)
                claim(path)
    there = f"a run.json of {zlib.crc32(path.read_bytes()):08x}" if path.exists() else "no run.json"
    agree(strategy, {"what the folder of the run, which all have to see, holds": there})


CLAIMED = {}  # by path: files that this process keeps locked, as a lock ends where its file is closed


def claim(path: Path) -> None:
    """Locks a file until this process ends, however it ends; raises ValueError if another one has it."""
    path = path.resolve()
    if path in CLAIMED:
        return
    file = open(path, "r+b")
    if not locked(file):
        file.close()
        raise ValueError(f"{path.parent}: another process trains there; wait for it, or give another folder")
    CLAIMED[path] = file


def check_settings(output, settings: dict) -> None:
    """Notes a new run's settings in `<output>/run.json`; raises ValueError if other ones or another model is there."""
    path = Path(output) / "run.json"
    if not path.exists():
        for name in ("model.weights.h5", "bert_config.json", "config.json", "checkpoints"):
            if (path.parent / name).exists():
                raise ValueError(f"{path.parent} has a {name} that no run.json tells of; give another output folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(settings, indent=2).encode() + b"\n")
        return
    try:
        there = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}: not JSON ({error}), expected the settings of the run in this folder") from None
    given = json.loads(json.dumps(settings))
    differences = [
        f"{name} is {there.get(name, 'not set')!r} there and {given.get(name, 'not set')!r} now"
        for name in [*there, *(name for name in given if name not in there)]
        if there.get(name, path) != given.get(name, path)
    ]
    if differences:
        raise ValueError(f"{path} holds another run's settings: {'; '.join(differences)}; give another output folder")
