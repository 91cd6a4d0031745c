"""The command line's way to the gateway: admin commands are clients of /api/v1 like anybody else."""

import http.client
import json
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from panal.bus.tunnel import https_connection
from panal.core.errors import BadRequest, BusError, NotAllowed, PanalError, SettingsError
from panal.core.proxies import STRAIGHT, Proxies
from panal.core.settings_reading import loopback

TIMEOUT_S = 15.0


class ApiRefused(PanalError):
    """The gateway said no; the message is its own."""

    code = "api_refused"


@dataclass(frozen=True)
class Api:
    """``url`` of the gateway, the caller's key, and for HTTPS the CA to believe."""

    url: str
    key: str
    ca_pem: str = ""
    proxies: Proxies = field(default=STRAIGHT, repr=False)

    def get(self, path: str, **query: str | int | None) -> Any:
        given = {name: value for name, value in query.items() if value not in (None, "")}
        return self.call("GET", path + ("?" + urlencode(given) if given else ""))

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        return self.call("POST", path, body if body is not None else {})

    def delete(self, path: str) -> Any:
        return self.call("DELETE", path)

    def every(self, path: str, **query: str) -> Iterator[dict[str, Any]]:
        """All items of a list, page after page."""
        following: str = ""
        while True:
            page = self.get(path, **query, after=following)
            yield from page["items"]
            following = page["next"]
            if not following:
                return

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Raises ApiRefused with the gateway's message, BusError when it cannot be reached."""
        connection = self.connect()
        try:
            connection.request(method, path, json.dumps(body) if body is not None else None, self.headers())
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise self.unreachable(error) from error
        finally:
            connection.close()
        return read_answer(answer.status, content)

    def connect(self, timeout_s: float = TIMEOUT_S) -> http.client.HTTPConnection:
        """Raises SettingsError for an address that is none, or to which no key may be sent in the clear."""
        try:
            parts = urlsplit(self.url)
            scheme, host, port = parts.scheme, parts.hostname, parts.port
        except ValueError:
            scheme, host, port = "", None, None
        if scheme not in ("http", "https") or not host:
            raise SettingsError(f"'{self.url}' is not the address of a gateway: write https://host:port.")
        if scheme == "http":
            if loopback(host) is not None:
                raise SettingsError(f"No key is sent to {self.url} in the clear: use its https address.")
            return http.client.HTTPConnection(host, port or 80, timeout=timeout_s)
        context = ssl.create_default_context(cadata=self.ca_pem or None)
        return https_connection(host, port or 443, timeout_s, context, self.proxies)

    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}", "content-type": "application/json"}

    def unreachable(self, error: Exception) -> BusError:
        return BusError(f"The gateway at {self.url} does not answer ({error}). Is 'panal up' running?")


def read_answer(status: int, content: bytes) -> Any:
    """The JSON of a good answer. Raises what the gateway said otherwise."""
    try:
        answer = json.loads(content) if content else {}
    except ValueError:
        answer = {}
    if status < 400:
        return answer
    error = answer.get("error", {}) if isinstance(answer, dict) else {}
    message = error.get("message") or f"the gateway answered {status}"
    raise NotAllowed(message) if status == 403 else ApiRefused(message)


def segment(text: str) -> str:
    """One path segment. Raises BadRequest for what is never a name and would be another path."""
    if not text or "/" in text or text in (".", ".."):
        raise BadRequest(f"'{text}' is neither a name nor an id.")
    return quote(text, safe="")
