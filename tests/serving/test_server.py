"""The server speaks TensorFlow Serving's REST API, and versions come and go without a request that fails."""

import json
import logging
import shutil
import socket
import threading
import time
from datetime import UTC, datetime

import numpy as np
import pytest
from google.protobuf import json_format
from served import free_port, running, wait_for
from starlette.testclient import TestClient
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow_serving.apis import get_model_metadata_pb2

from kbert.serving.batching import Batcher, Limits
from kbert.serving.folders import looks_of, names_in, versions_in
from kbert.serving.models import Models, Signature
from kbert.serving.server import Metrics, new_application


@pytest.fixture
def served(versions, tmp_path):
    """A folder with version 1 of the model `capitals`, and a client of a server of it."""
    shutil.copytree(versions / "1", tmp_path / "capitals" / "1")
    models, metrics = Models(tmp_path, seconds=0.05), Metrics()
    models.look()
    batcher = Batcher(Limits(rows=8), metrics.batch)
    application = new_application(models, batcher, metrics, body_bytes=100_000)
    with TestClient(application, raise_server_exceptions=False) as client:
        client.models, client.folder, client.batcher = models, tmp_path, batcher
        yield client


def predict(client, content, path="capitals"):
    return client.post(f"/v1/models/{path}:predict", content=json.dumps(content))


def test_rows_and_columns_are_answered_as_they_are_asked(served):
    answer = predict(served, {"instances": ["ab", "é"]})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    rows = [{"upper": "AB", "length": 2, "version": "1"}, {"upper": "É", "length": 1, "version": "1"}]
    assert answer.json() == {"predictions": rows}
    columns = {"upper": ["AB"], "length": [2], "version": ["1"]}
    assert predict(served, {"inputs": {"text": ["ab"]}}).json() == {"outputs": columns}
    assert predict(served, {"signature_name": "sums", "instances": [[1, 2.5]]}).json() == {"predictions": [3.5]}
    assert predict(served, {"signature_name": "sums", "inputs": [[1, 2]]}).json() == {"outputs": [3.0]}
    assert predict(served, {"instances": []}).json() == {"predictions": []}
    assert predict(served, {"instances": ["ab"]}, "capitals/versions/1").json()["predictions"][0]["upper"] == "AB"
    texts = ["a" * (n % 4) for n in range(10_000)]
    found = predict(served, {"instances": texts}).json()["predictions"]
    assert [row["length"] for row in found] == [n % 4 for n in range(10_000)]
    # Columns need not be as long as each other; what the graph makes of them is the answer.
    columns = {"text_a": ["a"], "text_b": ["b", "c"]}
    assert predict(served, {"signature_name": "pairs", "inputs": columns}).json() == {"outputs": ["a+b", "a+c"]}


def test_status_metadata_and_names_are_told(served, versions):
    status = {"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    for path in ("capitals", "capitals/versions/1"):
        assert served.get(f"/v1/models/{path}").json() == {"model_version_status": [status]}
    told = served.get("/v1/models/capitals/metadata").json()
    assert told["model_spec"] == {"name": "capitals", "signature_name": "", "version": "1"}
    signatures = told["metadata"]["signature_def"]["signature_def"]
    assert signatures["sums"]["inputs"]["x"] == {
        "dtype": "DT_FLOAT",
        "tensor_shape": {"dim": [{"size": "-1", "name": ""}, {"size": "2", "name": ""}], "unknown_rank": False},
        "name": "sums_x:0",
    }
    assert signatures["sums"]["method_name"] == "tensorflow/serving/predict"
    assert signatures["sums"]["outputs"].keys() == {"sum"}
    assert signatures["sums"]["outputs"]["sum"]["tensor_shape"]["dim"] == [{"size": "-1", "name": ""}]
    assert {name: one["dtype"] for name, one in signatures["serving_default"]["outputs"].items()} == {
        "upper": "DT_STRING",
        "length": "DT_INT32",
        "version": "DT_STRING",
    }
    # As the file has it, which is what TensorFlow Serving tells.
    [graph] = saved_model_pb2.SavedModel.FromString((versions / "1" / "saved_model.pb").read_bytes()).meta_graphs
    told = get_model_metadata_pb2.SignatureDefMap()
    json_format.ParseDict({"signature_def": signatures}, told)
    assert told.signature_def == graph.signature_def
    assert served.get("/v1/models").json() == {"models": ["capitals"]}


def test_names_of_classes_and_the_config_are_told_where_there_are_some(served):
    assert served.get("/v1/models/capitals/about").json() == {"labels": [], "config": {}}
    folder, unfinished = served.folder / "capitals" / "2", served.folder / "unfinished"
    shutil.copytree(served.folder / "capitals" / "1", unfinished)
    (unfinished / "assets.extra").mkdir()
    (unfinished / "assets.extra" / "labels.txt").write_text("yes\nno\u2028never\n", encoding="utf-8")
    (unfinished / "assets.extra" / "bert_config.json").write_text('{"hidden_size": 8}')
    unfinished.rename(folder)
    served.models.look()
    expected = {"labels": ["yes", "no\u2028never"], "config": {"hidden_size": 8}}
    assert served.get("/v1/models/capitals/versions/2/about").json() == expected
    assert served.get("/v1/models/none/about").status_code == 404


@pytest.mark.parametrize(
    ("path", "kind", "begin"),
    [
        ("/", "text/html; charset=utf-8", "<!doctype html>"),
        ("/page.js", "text/javascript; charset=utf-8", "//"),
        ("/answers.js", "text/javascript; charset=utf-8", "//"),
        ("/attention.js", "text/javascript; charset=utf-8", "//"),
        ("/page.css", "text/css; charset=utf-8", ":root"),
        ("/icon.svg", "image/svg+xml", "<svg"),
    ],
)
def test_the_page_and_its_files_come_with_their_types_and_may_load_nothing_else(served, path, kind, begin):
    answer = served.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (200, kind) and answer.text.startswith(begin)
    assert answer.headers["content-security-policy"].startswith("default-src 'self';")
    assert answer.headers["x-content-type-options"] == "nosniff"
    again = served.get(path, headers={"If-None-Match": answer.headers["etag"]})
    assert again.status_code == 304 and again.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("path", ["/none", "/page", "/../server.py", "/%2e%2e/server.py", "/page.js/x"])
def test_there_is_no_other_page(served, path):
    assert served.get(path).status_code == 404 and served.post("/").status_code == 405


@pytest.mark.parametrize(
    ("method", "path", "content", "status", "message"),
    [
        (
            "POST",
            "/v1/models/none:predict",
            b"{}",
            404,
            "Servable not found for request: Latest(none); there are capit",
        ),
        ("POST", "/v1/models/capitals/versions/2:predict", b"{}", 404, "Specific(capitals, 2); capitals has version 1"),
        ("POST", f"/v1/models/capitals/versions/{2**63}:predict", b"{}", 400, "Failed to convert version"),
        ("POST", f"/v1/models/capitals/versions/{'9' * 5000}:predict", b"{}", 400, "Failed to convert version: 999"),
        ("POST", "/v1/models/capitals/labels/new:predict", b"{}", 404, "Label(capitals, new); there are no labels"),
        ("GET", "/v1/models/capitals/labels/new/metadata", b"", 404, "Label(capitals, new); there are no labels"),
        ("GET", "/v1/models/none", b"", 404, "Could not find any versions of model name: none"),
        ("GET", "/v1/models/capitals/versions/7", b"", 404, "Could not find any versions of model name: capitals, ver"),
        ("GET", "/v1/models/none/metadata", b"", 404, "Servable not found for request: Latest(none)"),
        ("GET", "/v1/models/capitals:predict", b"", 404, "Malformed request: GET /v1/models/capitals:predict"),
        ("PUT", "/v1/models/capitals", b"", 404, "Malformed request: PUT /v1/models/capitals"),
        ("POST", "/v1/models/capitals", b"", 404, "Malformed request: POST"),
        ("GET", "/v1/nothing", b"", 404, "Malformed request: GET /v1/nothing"),
        ("POST", "/v1/models/capitals:classify", b"{}", 400, "no signature on tf.Example for classify; ask :predict"),
        ("POST", "/v1/models/capitals:regress", b"{}", 400, "no signature on tf.Example for regress; ask :predict"),
        ("POST", "/v1/models/capitals:predict", b"{", 400, "JSON Parse error"),
        ("POST", "/v1/models/capitals:predict", b'{"instances": [1]}', 400, "text: 1 is no string"),
        ("POST", "/v1/models/capitals:predict", b'{"signature_name": "no", "instances": []}', 400, "capitals has endi"),
        ("POST", "/v1/models/capitals:predict", b'{"signature_name": "\\ud800", "instances": []}', 400, "\\ud800"),
        (
            "POST",
            "/v1/models/capitals:predict",
            b"x" * 10_000_000,
            413,
            "the body has 10000000 bytes, expected at most 100000",
        ),
        (
            "POST",
            "/v1/models/capitals:predict",
            b'{"signature_name": "pairs", "inputs": {"text_a": ["a", "b"], "text_b": ["a", "b", "c"]}}',
            400,
            "Incompatible shapes: [2] vs. [3]",
        ),
        (
            "POST",
            "/v1/models/capitals:predict",
            b'{"instances": ["%s"]}' % (b"x" * 1000),
            400,
            "assertion failed: [a text of 1000 char",
        ),
    ],
)
def test_what_cannot_be_answered_is_said(served, method, path, content, status, message):
    answer = served.request(method, path, content=content)
    assert answer.status_code == status and answer.json().keys() == {"error"} and message in answer.json()["error"]
    assert "{{node" not in answer.text and "Graph execution" not in answer.text, (
        "where in the graph it failed is nothing to a client"
    )
    assert predict(served, {"instances": ["a"]}).status_code == 200


def test_a_body_without_a_length_is_not_read_for_ever(served):
    parts = (b"x" * 10_000 for _ in range(20))
    answer = served.post("/v1/models/capitals:predict", content=parts)
    assert answer.status_code == 413 and "more than 100000 bytes" in answer.json()["error"]


def test_requests_are_counted_and_logged(served, caplog):
    with caplog.at_level(logging.INFO, "kbert.serving.access"):
        predict(served, {"instances": ["a"]})
        served.post("/v1/models/none:PREDICT")
    lines = [json.loads(record.message) for record in caplog.records]
    assert all(abs(datetime.now(UTC) - datetime.fromisoformat(line["time"])).seconds < 60 for line in lines)
    assert [(line["path"], line["status"]) for line in lines] == [
        ("/v1/models/capitals:predict", 200),
        ("/v1/models/none:PREDICT", 404),
    ]
    told = served.get("/metrics").text
    assert 'kbert_requests_total{method="predict",model="capitals",status="200"} 1.0' in told
    assert 'kbert_requests_total{method="predict",model="",status="404"} 1.0' in told
    assert "kbert_waiting_rows 0.0" in told
    wait_for(lambda: "kbert_batch_rows_count 1.0" in served.get("/metrics").text)  # told after the answer


def test_versions_come_and_go_without_a_request_that_fails(served, versions, caplog):
    """A whole one, a corrupt one, one without variables, one copied slowly; then the model itself goes."""
    served.models.watch()
    folder, statuses, seen, over = served.folder / "capitals", [], set(), threading.Event()

    def ask():
        while not over.is_set():
            answer = predict(served, {"instances": ["a", "b"]})
            statuses.append(answer.status_code)
            seen.update(row["version"] for row in answer.json()["predictions"])

    asking = [threading.Thread(target=ask) for _ in range(3)]
    for thread in asking:
        thread.start()

    def answers(version):
        return predict(served, {"instances": ["a"]}).json()["predictions"][0]["version"] == version

    wait_for(lambda: answers("1"))
    (folder / "3").mkdir()
    (folder / "3" / "saved_model.pb").write_bytes(b"no graph")
    wait_for(lambda: "version 3 cannot be loaded" in caplog.text)
    # Half copied: the graph is there, its variables are not yet.
    (folder / "2").mkdir()
    shutil.copy(versions / "2" / "saved_model.pb", folder / "2")
    wait_for(lambda: "version 2 cannot be loaded" in caplog.text)
    shutil.copytree(versions / "2", folder / "2", dirs_exist_ok=True)
    wait_for(lambda: answers("2"))
    shutil.rmtree(folder / "1")
    time.sleep(0.3)
    over.set()
    for thread in asking:
        thread.join()
    assert set(statuses) == {200} and len(statuses) > 10 and seen == {"1", "2"}
    states = {one["version"]: one for one in served.get("/v1/models/capitals").json()["model_version_status"]}
    assert {version: one["state"] for version, one in states.items()} == {"2": "AVAILABLE", "3": "END"}
    assert states["3"]["status"]["error_code"] == "UNKNOWN" and states["3"]["status"]["error_message"]
    shutil.rmtree(folder)
    wait_for(lambda: predict(served, {"instances": ["a"]}).status_code == 404)


def test_a_look_that_fails_is_not_the_last_and_what_goes_meanwhile_is_not_there(served, versions, caplog, monkeypatch):
    look, failures = served.models.look, [OSError("stale file handle")]
    monkeypatch.setattr(served.models, "look", lambda: look() if not failures else fail(failures.pop()))
    served.models.watch()
    shutil.copytree(versions / "2", served.folder / "capitals" / "2")
    wait_for(lambda: served.models.version("capitals").number == 2)
    assert "cannot be looked through, tried again" in caplog.text and "stale file handle" in caplog.text
    assert looks_of(served.folder / "gone") == () and names_in(served.folder / "gone") == []
    (served.folder / "a file").write_text("")
    assert names_in(served.folder / "a file") == [] and list(versions_in(served.folder)) == ["capitals"]
    # A file that is listed and is gone when it is looked at.
    (served.folder / "goes").symlink_to(served.folder / "gone")
    monkeypatch.setattr("os.walk", lambda folder: [(folder, [], ["goes"])])
    assert looks_of(served.folder) == ()


def fail(error):
    raise error


def test_what_a_client_asked_that_left_is_not_computed(served):
    port, begun, goes_on = free_port(), threading.Event(), threading.Event()

    def wait(inputs):
        begun.set()
        return {"x": np.zeros(int(goes_on.wait(60)))}

    with running(served.app, port):
        first = served.batcher.submit(Signature({}, {}, {}, wait), {})
        assert begun.wait(60)
        with socket.create_connection(("127.0.0.1", port)) as client:
            body = b'{"instances": ["a"]}'
            client.sendall(b"POST /v1/models/capitals:predict HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\n\r\n" + body)
            wait_for(lambda: served.batcher.waiting)
        [waiting] = served.batcher.waiting
        wait_for(waiting.answer.cancelled)
        wait_for(lambda: 'model="capitals",status="499"' in served.get("/metrics").text)
        goes_on.set()
        assert len(first.result(60)["x"]) == 1
        assert predict(served, {"instances": ["a"]}).status_code == 200


def test_many_clients_get_each_its_own_answer(served):
    wrong = []

    def ask(number):
        random = np.random.default_rng(number)
        for _ in range(20):
            texts = ["".join(random.choice(list("abcé"), random.integers(0, 40))) for _ in range(random.integers(1, 5))]
            found = predict(served, {"instances": texts}).json().get("predictions", [])
            if [row["upper"] for row in found] != [text.upper() for text in texts]:
                wrong.append((texts, found))

    threads = [threading.Thread(target=ask, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
