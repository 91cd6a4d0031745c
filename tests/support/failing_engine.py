"""An OpenAI-compatible program that answers 500 the first times it hears a prompt, whoever sends it."""

import contextlib
import json
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PROMPT_TOKENS = 7
COMPLETION_TOKENS = 3


class FailingEngine(ThreadingHTTPServer):
    """``failures``: how often a prompt is answered 500. ``asked`` counts prompts by their text."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, failures: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.failures = failures
        self.asked: Counter[str] = Counter()
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def fails(self, prompt: str) -> bool:
        with self.lock:
            self.asked[prompt] += 1
            return self.asked[prompt] <= self.failures

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is nothing to tell of."""


class _Handler(BaseHTTPRequestHandler):
    server: FailingEngine
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        listed = {"object": "list", "data": [{"id": "echo", "object": "model"}]}
        self._answer(200 if self.path == "/v1/models" else 404, "application/json", json.dumps(listed))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.server.fails(body["messages"][0]["content"]):
            self._answer(500, "application/json", json.dumps({"error": {"message": "as asked"}}))
            return
        usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": COMPLETION_TOKENS}
        usage["total_tokens"] = PROMPT_TOKENS + COMPLETION_TOKENS
        events = [
            _chunk([{"index": 0, "delta": {"role": "assistant", "content": "one two"}}]),
            _chunk([{"index": 0, "delta": {"content": " three"}, "finish_reason": "stop"}]),
            _chunk([], usage=usage),
            "[DONE]",
        ]
        self._answer(200, "text/event-stream", "".join(f"data: {event}\n\n" for event in events))

    def _answer(self, status: int, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing on the screen."""


def _chunk(choices: list[Any], **more: Any) -> str:
    return json.dumps(
        {"id": "x", "object": "chat.completion.chunk", "model": "echo", "choices": choices, **more}
    )


@contextlib.contextmanager
def failing_engine(failures: int) -> Iterator[FailingEngine]:
    engine = FailingEngine(failures)
    thread = threading.Thread(target=engine.serve_forever)
    thread.start()
    try:
        yield engine
    finally:
        engine.shutdown()
        thread.join()
        engine.server_close()
