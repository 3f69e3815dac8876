"""The processes of one run find each other before TensorFlow starts, which waits an hour for one that never comes.

The chief listens at its address. Each of the others says a line of JSON, its number and what has to be alike, and is
told `null` when all are there, or why the run cannot be.
"""

import contextlib
import json
import os
import socket
import time

ANSWER_SECONDS = 5  # for a line that is on its way


def meet(addresses: tuple[str, ...], number: int, said: dict, seconds: float) -> None:
    """Waits until processes 0 to N - 1 are there, of which this is one.

    Raises ValueError in all that are there for one that is not after so many seconds, for two of the same number, for
    what they do not say alike, and for a port of this process that is taken.
    """
    deadline = time.monotonic() + seconds
    with listening(addresses, number) as door:
        if number == 0:
            told = chief(door, addresses, said, deadline)
    if number > 0:
        told = other(addresses, number, said, deadline)
    if told:
        raise ValueError(told)


def listening(addresses: tuple[str, ...], number: int) -> socket.socket:
    host, _, port = addresses[number].rpartition(":")
    both = {"family": socket.AF_INET6, "dualstack_ipv6": True} if socket.has_dualstack_ipv6() else {}
    try:
        return socket.create_server(("", int(port)), **both)
    except OSError as error:
        raise ValueError(f"worker {number}: port {port} of {host}: {os.strerror(error.errno)}") from None


def chief(door: socket.socket, addresses: tuple[str, ...], said: dict, deadline: float) -> str | None:
    """Receives the others and tells them, and returns, why the run cannot be, or None."""
    begin, found, lines, waiting = time.monotonic(), {0: said}, {}, []
    with contextlib.ExitStack() as opened:
        told = None
        while len(found) < len(addresses) and told is None:
            door.settimeout(max(deadline - time.monotonic(), 0.01))
            try:
                line = opened.enter_context(door.accept()[0])
            except TimeoutError:
                missing = [f"{n} ({address})" for n, address in enumerate(addresses) if n not in found]
                told = f"no sign of worker {', '.join(missing)} in {time.monotonic() - begin:.0f} seconds"
                break
            number, what = heard(line, len(addresses))
            if number is None:
                continue
            if number in lines and is_open(lines[number]):
                told = f"two processes say that they are worker {number}"
            found[number], lines[number] = what, line
            waiting.append(line)
        told = told or difference([found[number] for number in range(len(addresses))])
        for line in waiting:
            with contextlib.suppress(OSError):
                line.sendall(json.dumps(told).encode() + b"\n")
        for line in waiting:
            with contextlib.suppress(OSError):
                line.recv(1)  # its end: who closes first leaves the port in use for a minute
        return told


def heard(line: socket.socket, count: int) -> tuple[int | None, dict]:
    """Number and words of who speaks; None for what is no process of a run, such as one that looks for open ports."""
    line.settimeout(ANSWER_SECONDS)
    try:
        what = json.loads(line.makefile(encoding="utf-8").readline())
        number = what.pop("number")
        return (number, what) if number in range(1, count) else (None, {})
    except (OSError, ValueError, TypeError, AttributeError, KeyError):
        return None, {}


def is_open(line: socket.socket) -> bool:
    """Whether the other side is there still; nobody speaks twice."""
    line.setblocking(False)
    try:
        return line.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        line.settimeout(ANSWER_SECONDS)


def other(addresses: tuple[str, ...], number: int, said: dict, deadline: float) -> str | None:
    """Says to the chief who this is; what the chief says when all are there or somebody is missing."""
    host, _, port = addresses[0].rpartition(":")
    host = host.strip("[]")  # of an IPv6 address
    begin = time.monotonic()
    while (left := deadline - time.monotonic()) > 0:
        with contextlib.suppress(OSError, ValueError), socket.create_connection((host, int(port)), left) as line:
            line.sendall(json.dumps({"number": number} | said).encode() + b"\n")
            line.settimeout(left + ANSWER_SECONDS)
            return json.loads(line.makefile(encoding="utf-8").readline())
        time.sleep(0.1)
    return f"no sign of worker 0 ({addresses[0]}) in {time.monotonic() - begin:.0f} seconds"


def difference(of_all: list[dict]) -> str | None:
    """What processes say that is not as the first one says it, or None."""
    first, *others = of_all
    for number, one in enumerate(others, start=1):
        different = sorted(name for name in first.keys() | one.keys() if first.get(name) != one.get(name))
        if different:
            told = "; ".join(f"{name} is {first.get(name)!r} and {one.get(name)!r}" for name in different)
            return f"worker 0 and worker {number} were started with other settings: {told}"
    return None
