"""A small model served over REST and over gRPC, with faults to be given."""

import pytest
from asked import new_server
from served import Service, free_port, running, running_grpc

from kbert.serving.models import Models


@pytest.fixture(scope="module")
def models(versions, tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    (folder / "capitals").mkdir()
    (folder / "capitals" / "1").symlink_to(versions / "1", target_is_directory=True)
    models = Models(folder)
    models.look()
    return models


@pytest.fixture(scope="module")
def rest(models):
    """kbert's server over REST, with faults to be given."""
    server, port = new_server(models), free_port()
    server.url = f"http://127.0.0.1:{port}"
    with running(server, port):
        yield server


@pytest.fixture(scope="module")
def service(models):
    """The same model over gRPC."""
    service, port = Service(models), free_port()
    service.url = f"grpc://127.0.0.1:{port}"
    with running_grpc(service, port):
        yield service


@pytest.fixture
def server(rest):
    rest.faults.clear()
    rest.asked = rest.under_way = rest.most = 0
    return rest


@pytest.fixture
def over_grpc(service):
    service.faults.clear()
    service.asked = 0
    return service


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path
