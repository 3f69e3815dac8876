"""Processes find each other before TensorFlow starts, or say in a line why not."""

import json
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from kbert.training.meeting import meet
from tests.training.tiny_run import free_addresses


def results(addresses, said, seconds=10.0, numbers=None):
    """What each of several processes, here threads, is told; None where all is well."""

    def one(number):
        try:
            return meet(addresses, number, said[number], seconds)
        except ValueError as error:
            return str(error)

    numbers = range(len(said)) if numbers is None else numbers
    with ThreadPoolExecutor(len(numbers)) as pool:
        return list(pool.map(one, numbers))


def test_processes_that_say_the_same_meet_whoever_comes_first_and_leave_their_ports_free():
    addresses = free_addresses(3)
    for order in ([0, 1, 2], [2, 1, 0]):
        assert results(addresses, [{"seed": 1}] * 3, numbers=order) == [None] * 3
    for address in addresses:
        socket.create_server(("", int(address.rpartition(":")[2]))).close()


def test_what_differs_is_told_to_all():
    told = results(free_addresses(3), [{"seed": 1, "a": 2}, {"seed": 1, "a": 2}, {"seed": 7, "a": 2}])
    assert told == ["worker 0 and worker 2 were started with other settings: seed is 1 and 7"] * 3


def test_who_does_not_come_is_named_to_all_who_wait():
    addresses = free_addresses(3)
    for missing, numbers in ((1, [0, 2]), (0, [1, 2])):
        told = results(addresses, [{}] * 3, seconds=1.0, numbers=numbers)
        expected = rf"no sign of worker {missing} \({addresses[missing]}\) in (\d+) seconds"
        # How many they are is the machine's affair, but soon.
        assert all(1 <= int(re.fullmatch(expected, one)[1]) < 60 for one in told) and len(told) == 2


def test_two_of_the_same_number_are_refused():
    chief, one, of_another_machine = free_addresses(3)
    with ThreadPoolExecutor(3) as pool:
        processes = [
            # A port for each, as on two machines; on one the second may be refused its port before it is heard.
            pool.submit(meet, (chief, own, "localhost:1"), number, {}, 10.0)
            for number, own in ((0, one), (1, one), (1, of_another_machine))
        ]
    assert [str(process.exception()) for process in processes] == ["two processes say that they are worker 1"] * 3


def test_who_is_no_process_of_the_run_is_not_listened_to_and_who_went_may_come_back():
    addresses = free_addresses(2)
    port = int(addresses[0].rpartition(":")[2])
    told = []
    chief = threading.Thread(target=lambda: told.extend(results(addresses, [{}] * 2, numbers=[0])))
    chief.start()
    for words in (b"GET / HTTP/1.1\r\n\r\n", b"[]\n", b'{"number": 7}\n', json.dumps({"number": 1}).encode() + b"\n"):
        while True:
            try:
                knocking = socket.create_connection(("localhost", port))
                break
            except ConnectionRefusedError:
                time.sleep(0.01)
        knocking.sendall(words)
        knocking.close()
    chief.join()
    # The last one was worker 1, which is gone again before it is told; whoever comes then meets nobody.
    assert told == [None]


def test_a_port_that_is_taken_is_named():
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for number in (0, 1):
            addresses = [f"localhost:{port}", f"localhost:{port}"]
            with pytest.raises(ValueError, match=f"worker {number}: port {port} of localhost: Address already in use"):
                meet(tuple(addresses), number, {}, 1.0)
