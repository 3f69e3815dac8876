"""Serves SavedModels over TensorFlow Serving's REST API, and a page that asks them.

python recipes/serve.py --models saved_models

6 layers of 384 on two cores: the first answer 5 s after the start, 350 short texts a second from 64 clients.
"""

import logging
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from kbert.command_line import brought_by, import_tensorflow, run


@dataclass(frozen=True)
class BatchLimits:
    """Which requests are computed together.

    Args:
        rows: of a batch at most.
        characters: of a batch at most, filled up to its longest row.
        wait_ms: how long a batch may gather although nothing else is computed.
        queue: rows that may wait; more are refused with status 503.
    """

    rows: int = 64
    characters: int = 32_768
    wait_ms: float = 0.0
    queue: int = 4096


def main(
    models: str = "saved_models",
    host: str = "127.0.0.1",
    port: int = 8501,
    seconds: float = 1.0,
    body_megabytes: float = 4.0,
    access_log: bool = True,
    batch: BatchLimits = BatchLimits(),
) -> None:
    """Answers requests to every model of a folder, the highest version of each; new versions are found as they appear.

    Ctrl-C or SIGTERM answers what waits and then stops.

    Args:
        models: folder of <name>/<version>/, as export.py writes it.
        host: address to listen on; 0.0.0.0 for all.
        port: TensorFlow Serving's.
        seconds: between two looks for new versions.
        body_megabytes: longest request; longer ones are refused with status 413.
        access_log: a line of JSON on standard error for every request.
        batch: which requests are computed together.
    """
    folder = Path(models)
    if not folder.is_dir():
        raise ValueError(f"--models {models}: no such folder; expected one that export.py has written to")
    for name, value in {"seconds": seconds, "body-megabytes": body_megabytes}.items():
        if value <= 0:
            raise ValueError(f"--{name} {value:g}: expected a number above 0")
    for name, least in {"rows": 1, "characters": 1, "queue": 1, "wait_ms": 0}.items():
        if (value := getattr(batch, name)) < least:
            raise ValueError(f"--batch.{name.replace('_', '-')} {value:g}: expected {least} or more")
    if not 0 < port < 65536:
        raise ValueError(f"--port {port}: expected 1 to 65535")
    with brought_by("serve"):
        import uvicorn

        import_tensorflow_alone()
        from kbert.serving.batching import Batcher, Limits
        from kbert.serving.models import Models
        from kbert.serving.server import Metrics, new_application

    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(address)
    except OSError as error:
        raise ValueError(f"--host {host} --port {port}: {error.strerror}") from None
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    logging.getLogger("kbert.serving.access").setLevel(logging.INFO if access_log else logging.WARNING)
    served, metrics = Models(folder, seconds), Metrics()
    served.look()
    served.watch()
    limits = Limits(batch.rows, batch.characters, batch.wait_ms / 1000, batch.queue)
    application = new_application(served, Batcher(limits, metrics.batch), metrics, int(body_megabytes * 1e6))
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    print(f"{len(served.served)} models ({served.names() or 'none yet'}) at http://{place}", flush=True)
    uvicorn.run(application, host=host, port=port, log_level="warning", access_log=False, timeout_graceful_shutdown=30)


def import_tensorflow_alone() -> None:
    """Imports TensorFlow without what it imports where it finds it: a third of the seconds, and no answer needs it."""
    hidden = [name for name in ("keras", "jax") if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))
    import_tensorflow()
    for name in hidden:
        del sys.modules[name]


if __name__ == "__main__":
    run(main, tensorflow=False)
