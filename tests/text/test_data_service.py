"""Batches whose groups other processes make are the same batches, also when a server goes."""

import multiprocessing
import socket

import numpy as np
import pytest
from small_corpus import VOCABULARY, write_corpus

from kbert.text import data_service
from kbert.text.documents import Corpus, CorpusFormat
from kbert.text.pretraining_data import InstanceRule
from kbert.text.source import TextSource
from kbert.text.wordpiece import WordPiece

FORM = CorpusFormat(documents="file", sentences="line")


def text_source(folder) -> TextSource:
    return TextSource(Corpus([folder], FORM), WordPiece(VOCABULARY), InstanceRule(64))


def serve(folder, port, seed, is_ready):
    text_source(folder).serve(seed, port, is_ready.set)


@pytest.fixture
def serving(start_process):
    """Starts data servers, until the test ends."""
    begun = []

    def begin(folder, port, seed):
        is_ready = multiprocessing.get_context("forkserver").Event()
        begun.append(start_process(serve, folder, port, seed, is_ready))
        assert is_ready.wait(120)
        return begun[-1]

    yield begin
    for process in begun:
        process.kill()


@pytest.fixture
def server(serving, tmp_path):
    """A data server and its address."""
    write_corpus(tmp_path, [9_000] * 9)
    with socket.socket() as one:
        one.bind(("", 0))
        port = one.getsockname()[1]
    return serving(tmp_path, port, 7), f"localhost:{port}"


def test_a_trainer_gets_the_batches_that_it_would_make_also_when_the_server_goes(server, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr("kbert.text.pretraining_data.GROUP_BLOCKS", 2)
    monkeypatch.setattr(data_service, "SECONDS", 5)
    process, address = server
    alone, with_server = text_source(tmp_path), text_source(tmp_path)
    expected = list(alone.batches(16, 7).take(200).as_numpy_iterator())
    with_server.use_servers(7, [address])
    batches = with_server.batches(16, 7, tuple(expected[9]["data_position"].tolist())).as_numpy_iterator()
    for number in range(10, 200):
        if number == 30:
            process.kill()
            process.join()
        batch = next(batches)
        for name, values in expected[number].items():
            np.testing.assert_array_equal(batch[name], values, name)
    told = f"data server {address} does not answer, groups are made here for 600 s"
    # Once for each call that was waiting; no other group waits for it.
    assert 1 <= capfd.readouterr().err.count(told) <= data_service.CALLS


def batch_of(source) -> dict:
    return next(source.batches(16, 7).as_numpy_iterator())


def assert_told_and_made_here(source, expected, told, capfd):
    """The batch is the same one, and why it was made here is told."""
    for name, values in batch_of(source).items():
        np.testing.assert_array_equal(values, expected[name], name)
    assert told in capfd.readouterr().err


def test_a_server_of_other_text_is_refused_and_one_that_is_not_there_is_done_without(
    server, tmp_path, monkeypatch, capfd
):
    _, address = server
    with pytest.raises(ValueError, match=f"data server {address} has other text or flags: .*seed 7.*expected .*seed 8"):
        text_source(tmp_path).use_servers(8, [address])
    monkeypatch.setattr(data_service, "SECONDS", 1)
    source = text_source(tmp_path)
    source.use_servers(7, ["localhost:1"])
    told = "data server localhost:1 does not answer, groups are made here until the run is started again: "
    assert_told_and_made_here(source, batch_of(text_source(tmp_path)), told, capfd)


@pytest.mark.long
def test_a_server_that_comes_back_with_other_flags_is_not_listened_to(server, serving, tmp_path, capfd):
    process, address = server
    source = text_source(tmp_path)
    source.use_servers(7, [address])
    process.kill()
    process.join()
    serving(tmp_path, int(address.partition(":")[2]), 8)
    assert_told_and_made_here(source, batch_of(text_source(tmp_path)), "it has other text or flags now", capfd)


def test_a_port_that_another_server_has_is_refused(tmp_path):
    write_corpus(tmp_path, [9_000] * 2)
    with socket.create_server(("", 0), reuse_port=True) as taken:  # as a data server has it
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=f"^port {port}: Address already in use$"):
            text_source(tmp_path).serve(7, port, ready=lambda: pytest.fail("it serves"))
