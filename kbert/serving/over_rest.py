"""A model asked over TensorFlow Serving's REST API."""

import json
from urllib.parse import quote

import httpx

from kbert.serving.client import Signature, Unavailable, signature_of
from kbert.serving.rest import Refused

# Too many requests, and what a server or a gateway before it says while it is not ready or too slow.
BUSY = (429, 502, 503, 504)


class Rest:
    """One model at http://HOST:PORT; may be used by many threads at once."""

    def __init__(self, url: str, model: str, version: int | None, timeout: float, connections: int):
        self.url, self.model = url, model
        of_version = "" if version is None else f"/versions/{version}"
        self.path = f"{url}/v1/models/{quote(model, safe='')}{of_version}"
        limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
        # Certificates take a while to load, and plain HTTP has none.
        self.http = httpx.Client(timeout=timeout, limits=limits, verify=url.startswith("https"))

    def metadata(self) -> tuple[int, dict[str, Signature]]:
        """The version that answers, and its signatures by name."""
        told = self._ask("GET", f"{self.path}/metadata")
        try:
            found = told["metadata"]["signature_def"]["signature_def"]
            return int(told["model_spec"]["version"]), {
                name: signature_of(
                    {key: (info["dtype"], sizes_of(info)) for key, info in one["inputs"].items()}, one["outputs"]
                )
                for name, one in found.items()
                if one.get("inputs")  # TensorFlow's __saved_model_init_op has none
            }
        except (KeyError, TypeError, ValueError):
            raise ValueError(f"{self.path}/metadata: no metadata of a model; {EXPECTED}") from None

    def predict(self, name: str, signature: Signature, columns: dict[str, list]):
        """The values of the outputs by name, or of the only one; columns: input -> a value for each row."""
        content = json.dumps({"signature_name": name, "inputs": columns}, ensure_ascii=False).encode()
        told = self._ask("POST", f"{self.path}:predict", content)
        if not isinstance(told, dict) or "outputs" not in told:
            raise ValueError(f"{self.path}:predict: an answer without outputs; {EXPECTED}")
        return told["outputs"]

    def close(self) -> None:
        self.http.close()

    def _ask(self, method: str, url: str, content: bytes | None = None):
        try:
            response = self.http.request(method, url, content=content)
        except (httpx.RequestError, httpx.InvalidURL) as error:
            raise Unavailable(f"{self.url}: {error or type(error).__name__}") from None
        status, text = response.status_code, response.content.decode("utf-8", "replace")
        try:
            told = json.loads(text)
        except ValueError:
            told = None
        if status == 200 and told is not None:
            return told
        if status == 200:
            raise ValueError(f"{url}: the answer is no JSON; {EXPECTED}")
        message = told["error"] if isinstance(told, dict) and "error" in told else " ".join(text.split())[:200]
        message = str(message) or response.reason_phrase
        if status in BUSY:
            raise Unavailable(f"{self.url}: HTTP status {status}: {message}", is_busy=True)
        raise Refused(status, message)


EXPECTED = "expected TensorFlow Serving's REST API"


def sizes_of(info: dict) -> list[int] | None:
    """The sizes of a TensorInfo in JSON."""
    shape = info["tensor_shape"]
    return None if shape.get("unknown_rank") else [int(dim["size"]) for dim in shape["dim"]]
