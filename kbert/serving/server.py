"""The server: TensorFlow Serving's REST API, metrics, and a page that asks the models, as an ASGI application.

GET  /v1/models/NAME[/versions/N]            the state of each version
GET  /v1/models/NAME[/versions/N]/metadata   the signatures
POST /v1/models/NAME[/versions/N]:predict    see rest.py
GET  /v1/models                              the names of the models (kbert's own)
GET  /v1/models/NAME[/versions/N]/about      {"labels": [...], "config": {...}}: names of the classes, if they have
                                             names, and the Bert's bert_config.json (kbert's own)
GET  /metrics                                for Prometheus
GET  /                                       the page, and its files (page/)
"""

import asyncio
import contextlib
import json
import logging
import re
import time
from concurrent.futures import Future
from datetime import UTC, datetime
from pathlib import Path

import orjson
import prometheus_client
import tensorflow as tf
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from kbert.serving import rest
from kbert.serving.batching import Batcher
from kbert.serving.models import Models, metadata
from kbert.serving.rest import Refused

ACCESS = logging.getLogger("kbert.serving.access")
LOG = logging.getLogger("kbert.serving")
MODEL = r"/v1/models/(?P<model>[^/:]+)(?:/versions/(?P<number>\d+)|/labels/(?P<label>[^/:]+))?"
PREDICT = re.compile(MODEL + r":(?P<method>classify|regress|predict)", re.IGNORECASE)
STATUS = re.compile(MODEL + r"(?:/(?P<method>metadata|about))?", re.IGNORECASE)
# Where in a graph it failed, before and after what the graph says.
PLACE = re.compile(r"^Graph execution error:.*?(<stack traces unavailable> |(?=assertion failed: ))| \[\[\{\{node .*$")
SMALL = 64_000  # bytes of JSON that are read and written beside other requests' waiting
PAGE_HEADERS = {
    # What is shown comes from users and models: nothing but the page's own files is loaded, run or framed.
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # asked for again, and answered with 304 where it is the same
}


class Metrics:
    """What Prometheus is told."""

    def __init__(self):
        self.registry = prometheus_client.CollectorRegistry()
        names = {"registry": self.registry}
        self.requests = prometheus_client.Counter(
            "kbert_requests_total", "Requests by model, method and HTTP status", ("model", "method", "status"), **names
        )
        self.seconds = prometheus_client.Histogram(
            "kbert_request_seconds", "Seconds from request to answer", ("model",), **names
        )
        self.batch_rows = prometheus_client.Histogram(
            "kbert_batch_rows", "Rows computed together", buckets=(1, 2, 4, 8, 16, 32, 64, 128), **names
        )
        self.batch_seconds = prometheus_client.Histogram("kbert_batch_seconds", "Seconds of a batch", **names)
        self.waiting_rows = prometheus_client.Gauge("kbert_waiting_rows", "Rows that wait", **names)

    def batch(self, rows: int, seconds: float) -> None:
        self.batch_rows.observe(rows)
        self.batch_seconds.observe(seconds)


def new_application(models: Models, batcher: Batcher, metrics: Metrics, body_bytes: int) -> Starlette:
    """The ASGI application; body_bytes: the longest body that is read."""
    metrics.waiting_rows.set_function(lambda: batcher.rows)
    server = Server(models, batcher, metrics, body_bytes)

    @contextlib.asynccontextmanager
    async def lifespan(application):
        yield
        models.stopped.set()
        await run_in_threadpool(batcher.stop)

    routes = [
        Route("/metrics", server.prometheus, methods=["GET"]),
        Route("/v1/{path:path}", server.api, methods=["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"]),
        Mount("/", Page(directory=Path(__file__).parent / "page", html=True)),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


class Page(StaticFiles):
    """The page's files."""

    async def get_response(self, path, scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(PAGE_HEADERS)
        return response


class Server:
    """The handlers of the routes."""

    def __init__(self, models: Models, batcher: Batcher, metrics: Metrics, body_bytes: int):
        self.models, self.batcher, self.metrics, self.body_bytes = models, batcher, metrics, body_bytes

    async def prometheus(self, request: Request) -> Response:
        content = prometheus_client.generate_latest(self.metrics.registry)
        return Response(content, media_type=prometheus_client.CONTENT_TYPE_LATEST)

    async def api(self, request: Request) -> Response:
        """Any request under /v1: answered, counted, logged."""
        begin, path = time.perf_counter(), request.url.path
        pattern = {"POST": PREDICT, "GET": STATUS}.get(request.method)
        called = pattern.fullmatch(path) if pattern else None
        model, method = (called["model"], (called["method"] or "status").lower()) if called else ("", "unknown")
        status, content = 200, b""
        try:
            content = await self.answer(request, called)
        except Refused as refused:
            status, content = refused.status, rest.error(refused.message)
        except tf.errors.InvalidArgumentError as error:
            status, content = 400, rest.error(PLACE.sub("", " ".join(str(error).split()))[:500])
        except ClientDisconnect:
            status = 499  # nobody is there to read an answer
        except Exception:
            LOG.exception("a request to %s failed", path)
            status, content = 500, rest.error("the server failed; its log says why")
        seconds = time.perf_counter() - begin
        known = model if model in self.models.served else ""
        self.metrics.requests.labels(known, method, status).inc()
        self.metrics.seconds.labels(known).observe(seconds)
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        client = request.client.host if request.client else ""
        line = {"time": now, "client": client, "method": request.method, "path": path}
        ACCESS.info(json.dumps(line | {"status": status, "seconds": round(seconds, 6), "bytes": len(content)}))
        return Response(content, status, media_type="application/json")

    async def answer(self, request: Request, called) -> bytes:
        if request.method == "GET" and request.url.path.rstrip("/") == "/v1/models":
            return orjson.dumps({"models": sorted(self.models.served)})
        if called is None:
            raise Refused(404, f"Malformed request: {request.method} {request.url.path}")
        name, number = called["model"], version_number(called["number"])
        if called["label"]:
            raise Refused(404, f"Servable not found for request: Label({name}, {called['label']}); there are no labels")
        if request.method == "POST":
            return await self.predict(request, name, number, called["method"].lower())
        if called["method"]:
            version = self.models.version(name, number)
            told = version.about if called["method"].lower() == "about" else metadata(version)
            return orjson.dumps(told, option=orjson.OPT_INDENT_2)
        return orjson.dumps({"model_version_status": self.models.status(name, number)}, option=orjson.OPT_INDENT_2)

    async def predict(self, request: Request, name: str, number: int | None, method: str) -> bytes:
        version = self.models.version(name, number)
        if method != "predict":
            raise Refused(400, f"{name} has no signature on tf.Example for {method}; ask :predict")
        body = await self.body(request)

        def begin():
            asked = rest.read_request(body, lambda signature: version.signature(signature).inputs)
            return asked.rows, self.batcher.submit(version.signature(asked.signature), asked.inputs)

        rows, answer = await run_in_threadpool(begin) if len(body) > SMALL else begin()
        outputs = await answer_or_leave(answer, request)
        large = sum(values.size for values in outputs.values()) * 8 > SMALL
        if large:
            return await run_in_threadpool(rest.write_answer, outputs, rows)
        return rest.write_answer(outputs, rows)

    async def body(self, request: Request) -> bytes:
        told = request.headers.get("content-length", "0")
        parts, size = [], 0
        if not told.isdecimal() or int(told) > self.body_bytes:
            raise Refused(413, f"the body has {told} bytes, expected at most {self.body_bytes}; send less at a time")
        async for part in request.stream():
            size += len(part)
            if size > self.body_bytes:
                raise Refused(413, f"the body has more than {self.body_bytes} bytes; send less at a time")
            parts.append(part)
        return b"".join(parts)


def version_number(digits: str | None) -> int | None:
    """The version that a path names; raises Refused for one that no version can have."""
    if digits is None:
        return None
    if len(digits) > 19 or int(digits) >= 2**63:
        raise Refused(400, f"Failed to convert version: {digits[:40]} to numeric.")
    return int(digits)


async def answer_or_leave(answer: Future, request: Request) -> dict:
    """The answer when it is there; where the client leaves before, it is not computed, and ClientDisconnect raised."""

    async def leave():
        while (await request.receive())["type"] != "http.disconnect":
            pass

    answer, leaving = asyncio.wrap_future(answer), asyncio.ensure_future(leave())
    try:
        await asyncio.wait({answer, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise ClientDisconnect
        return answer.result()
    finally:
        answer.cancel()
        leaving.cancel()
