"""The server speaks TensorFlow Serving's REST API, and versions come and go without a request that fails."""

import json
import logging
import shutil
import threading
import time

import numpy as np
import pytest
from served import wait_for
from starlette.testclient import TestClient

from kbert.serving.batching import Batcher, Limits
from kbert.serving.models import Models
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
        client.models, client.folder = models, tmp_path
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
    texts = ["a" * (n % 50) for n in range(1000)]
    found = predict(served, {"instances": texts}).json()["predictions"]
    assert [row["length"] for row in found] == [n % 50 for n in range(1000)]


def test_status_metadata_and_names_are_told(served):
    status = {"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    for path in ("capitals", "capitals/versions/1"):
        assert served.get(f"/v1/models/{path}").json() == {"model_version_status": [status]}
    told = served.get("/v1/models/capitals/metadata").json()
    assert told["model_spec"] == {"name": "capitals", "signature_name": "", "version": "1"}
    signatures = told["metadata"]["signature_def"]["signature_def"]
    assert signatures["sums"]["inputs"]["x"] == {
        "dtype": "DT_FLOAT",
        "tensor_shape": {"dim": [{"size": "-1", "name": ""}, {"size": "2", "name": ""}], "unknown_rank": False},
        "name": "x",
    }
    assert {name: one["dtype"] for name, one in signatures["serving_default"]["outputs"].items()} == {
        "upper": "DT_STRING",
        "length": "DT_INT32",
        "version": "DT_STRING",
    }
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
        (
            "POST",
            "/v1/models/capitals:predict",
            b"x" * 100_001,
            413,
            "the body has 100001 bytes, expected at most 100000",
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
    assert "{{node" not in answer.text, "where in the graph it failed is nothing to a client"
    assert predict(served, {"instances": ["a"]}).status_code == 200


def test_a_body_without_a_length_is_not_read_for_ever(served):
    parts = (b"x" * 10_000 for _ in range(20))
    answer = served.post("/v1/models/capitals:predict", content=parts)
    assert answer.status_code == 413 and "more than 100000 bytes" in answer.json()["error"]


def test_requests_are_counted_and_logged(served, caplog):
    with caplog.at_level(logging.INFO, "kbert.serving.access"):
        predict(served, {"instances": ["a"]})
        predict(served, {}, "none")
    lines = [json.loads(record.message) for record in caplog.records]
    assert [(line["path"], line["status"]) for line in lines] == [
        ("/v1/models/capitals:predict", 200),
        ("/v1/models/none:predict", 404),
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
    time.sleep(0.3)
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
