"""An OpenAI-compatible program that takes requests and then, once told to, says nothing: not even headers."""

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class SilentEngine(ThreadingHTTPServer):
    """``silent`` is set by the test; until then every prompt is answered with one word."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.silent = threading.Event()
        self.over = threading.Event()
        self.asked = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is what the tests want."""


class _Handler(BaseHTTPRequestHandler):
    server: SilentEngine
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        listed = {"object": "list", "data": [{"id": "echo", "object": "model"}]}
        self._answer(
            200 if self.path == "/v1/models" else 404, "application/json", json.dumps(listed).encode()
        )

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        if self.server.silent.is_set():
            self.server.asked += 1
            self.server.over.wait()
            self.close_connection = True
            return
        choice = {"index": 0, "delta": {"content": "word"}, "finish_reason": "stop"}
        chunk = {"id": "x", "object": "chat.completion.chunk", "model": "echo", "choices": [choice]}
        self._answer(200, "text/event-stream", f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode())

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing on the screen."""


@contextlib.contextmanager
def silent_engine() -> Iterator[SilentEngine]:
    """The engine, listening on loopback in a thread of its own."""
    engine = SilentEngine()
    thread = threading.Thread(target=engine.serve_forever, daemon=True)
    thread.start()
    try:
        yield engine
    finally:
        engine.over.set()
        engine.shutdown()
        thread.join(10.0)
        engine.server_close()
