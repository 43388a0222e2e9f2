"""A chat model of OpenAI's interface on this machine, that may misbehave."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator


class Server:
  """Server that answers questions by a function, and keeps its calls.

  Attributes:
    url: Address of the interface.
    asked: Headers and body of each call.
    most: Largest number of calls that were answered at the same time.
  """

  def __init__(self, url: str):
    self.url = url
    self.asked: list[tuple[dict[str, str], dict]] = []
    self.most = 0
    self.now = 0
    self.lock = threading.Lock()


@contextlib.contextmanager
def serving(
  answer: Callable[[int, str], tuple[int, dict[str, str], str]],
) -> Iterator[Server]:
  """A server that calls (number of the call, question) -> (status, …)."""

  class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
      size = int(self.headers["Content-Length"])
      body = json.loads(self.rfile.read(size))
      with server.lock:
        number = len(server.asked)
        server.asked.append((dict(self.headers), body | {"path": self.path}))
        server.now += 1
        server.most = max(server.most, server.now)
      question = body["messages"][0]["content"]
      try:
        status, headers, said = answer(number, question)
      finally:
        with server.lock:
          server.now -= 1
      with contextlib.suppress(OSError):  # Who asked may have gone.
        self.send_response(status)
        for name, value in headers.items():
          self.send_header(name, value)
        self.end_headers()
        self.wfile.write(said.encode())

    def log_message(self, *_):
      pass

  made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
  made.daemon_threads = True
  server = Server(f"http://127.0.0.1:{made.server_port}/v1")
  thread = threading.Thread(target=made.serve_forever, args=(0.01,))
  thread.start()
  try:
    yield server
  finally:
    made.shutdown()
    made.server_close()
    thread.join()


def says(text: str) -> tuple[int, dict[str, str], str]:
  """Makes the answer of a model."""
  body = {"choices": [{"message": {"role": "assistant", "content": text}}]}
  return 200, {}, json.dumps(body)


def slow(seconds: float) -> tuple[int, dict[str, str], str]:
  """Makes the answer of a model, too late."""
  time.sleep(seconds)
  return says("yes")
