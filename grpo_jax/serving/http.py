"""An HTTP server in a thread, with the paths of OpenAI's API.

    GET  /health                 200 while requests are taken
    GET  /v1/models              the models
    GET  /v1/models/NAME         one of them
    POST /v1/chat/completions    `Endpoint.complete`
    POST /v1/completions         the same

To be reached from other machines, the server needs a token, which every request
but /health then has to bring. Without a token it accepts only the names of this
machine (Host) and pages from there (Origin): otherwise a browser on this
machine would pass on the requests of any page.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import json
import threading
import time
import urllib.parse
from collections.abc import Callable
from typing import Any, Protocol

from grpo_jax import optional, strict_json
from grpo_jax.serving import requests
from grpo_jax.serving.requests import BadRequest

MAX_BYTES = 4 * 2**20
_START_S = 30.0
# Timeouts, for the body of a request and for an idle connection.
_BODY_S = 20.0
_IDLE_S = 75.0


class Endpoint(Protocol):
  """The object that answers requests."""

  def models(self) -> list[str]:
    """Returns the names of the models."""
    ...

  async def complete(self, body: Any, is_chat: bool) -> dict[str, Any]:
    """Returns the body of an answer.

    Args:
      body: JSON data.
      is_chat: True for /chat/completions.

    Raises:
      BadRequest: The request is refused.
    """
    ...


def check_address(host: str, token: str) -> None:
  """Raises ValueError if other machines reach the address without a token."""
  if not _is_loopback(host) and not token:
    raise ValueError(
      f"--host={host} is reached from other machines, and whoever reaches it"
      " may use the policy; set a token (--token_file), which each request has"
      " to bring, or leave the host at 127.0.0.1."
    )


def _is_loopback(host: str) -> bool:
  try:
    return ipaddress.ip_address(host).is_loopback
  except ValueError:
    return host == "localhost"


class Server:
  """A server that takes requests until it is closed.

  Attributes:
    host, port: The address on which the server listens.
    url: http://HOST:PORT
    token_header: The header that brings the token, and its form.
  """

  token_header = ("Authorization", "Bearer {}")

  def __init__(
    self,
    endpoint: Endpoint,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str = "",
    max_requests: int = 256,
    timeout_s: float = 600.0,
  ):
    """Starts a thread, and waits until the port is open.

    Args:
      endpoint: Answers the requests; called in that thread.
      host: Address or name.
      port: Port; 0 for a free one.
      token: The token that requests have to bring; empty for none.
      max_requests: Most requests at the same time; more are refused.
      timeout_s: Longest time for an answer, in seconds.

    Raises:
      ImportError: aiohttp is not installed.
      OSError: The port is taken.
      ValueError: See `check_address`.
    """
    check_address(host, token)
    self._web = optional.package("aiohttp", "serve", __name__, "web").web
    self._endpoint, self._token = endpoint, token
    self._max_requests, self._timeout_s = max_requests, timeout_s
    self._num_requests = 0
    self.host, self.port = host, port
    self._loop = asyncio.new_event_loop()
    self._stop: asyncio.Event | None = None
    self._started = threading.Event()
    self._error: BaseException | None = None
    self._thread = threading.Thread(
      target=self._run, name="serving", daemon=True
    )
    self._thread.start()
    self._started.wait(_START_S)
    if self._error is not None:
      raise self._error

  @property
  def url(self) -> str:
    host = f"[{self.host}]" if ":" in self.host else self.host
    return f"http://{host}:{self.port}"

  def close(self) -> None:
    """Ends the thread; requests that wait get no answer."""
    if self._stop is not None:
      with contextlib.suppress(RuntimeError):  # The loop is closed already.
        self._loop.call_soon_threadsafe(self._stop.set)
    self._thread.join(_START_S)

  def _run(self) -> None:
    try:
      self._loop.run_until_complete(self._serve())
    except BaseException as error:
      self._error = error
    finally:
      self._started.set()
      self._loop.close()

  async def _serve(self) -> None:
    web = self._web
    self._stop = asyncio.Event()
    app = web.Application(client_max_size=MAX_BYTES)
    self.add_routes(app.router)
    runner = web.AppRunner(
      app,
      access_log=None,
      shutdown_timeout=1.0,
      keepalive_timeout=_IDLE_S,
      lingering_time=1.0,  # For the rest of a body after its refusal.
      auto_decompress=False,  # A few bytes may be gigabytes.
      handler_cancellation=True,  # If the client has gone, nobody waits.
    )
    await runner.setup()
    try:
      site = web.TCPSite(runner, self.host, self.port)
      await site.start()
      self.port = runner.addresses[0][1]
      self._started.set()
      await self._stop.wait()
    finally:
      await runner.cleanup()

  def add_routes(self, router: Any) -> None:
    """Adds the paths of the server, each with its handler."""
    router.add_get("/health", self._health)
    router.add_get("/v1/models", self.guarded(self._models))
    router.add_get("/v1/models/{name:.+}", self.guarded(self._model))
    for name in ("chat/completions", "completions"):
      router.add_post(f"/v1/{name}", self.guarded(self._complete))
    router.add_route("*", "/{path:.*}", self.guarded(_nowhere))

  async def _health(self, request: Any) -> Any:
    del request
    return self._web.json_response({"status": "ok"})

  async def _models(self, request: Any) -> Any:
    del request
    data = list(map(_described, self._endpoint.models()))
    return self._web.json_response({"object": "list", "data": data})

  async def _model(self, request: Any) -> Any:
    name, names = request.match_info["name"], self._endpoint.models()
    if name not in names:
      raise BadRequest(
        f"there is no model {name!r:.80}; there is {', '.join(names)}.",
        "model",
        "model_not_found",
        status=404,
      )
    return self._web.json_response(_described(name))

  async def _complete(self, request: Any) -> Any:
    body = await json_of(await body_of(request))
    if self._num_requests >= self._max_requests:
      raise BadRequest(
        f"{self._num_requests} requests are worked on, and"
        f" {self._max_requests} may be; ask again later.",
        status=429,
      )
    self._num_requests += 1
    try:
      answer = await asyncio.wait_for(
        self._endpoint.complete(
          body, request.path.endswith("/chat/completions")
        ),
        self._timeout_s,
      )
    except TimeoutError:
      raise BadRequest(
        f"no answer in {self._timeout_s:g} s.", status=504
      ) from None
    finally:
      self._num_requests -= 1
    if body.get("stream"):
      usage = requests.wants_usage(body.get("stream_options"))
      return await self._stream(request, requests.events(answer, usage))
    return self._web.json_response(answer)

  async def _stream(self, request: Any, events: list[dict[str, Any]]) -> Any:
    """Sends events, each as JSON, and then [DONE]."""
    response = self._web.StreamResponse(
      headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
    )
    await response.prepare(request)
    for text in (*map(json.dumps, events), "[DONE]"):
      await response.write(f"data: {text}\n\n".encode())
    await response.write_eof()
    return response

  def guarded(self, handler: Callable) -> Callable:
    """Checks the token before a handler, and answers with its exceptions."""

    async def guarded(request: Any) -> Any:
      try:
        self._check_token(request)
        return await handler(request)
      except BadRequest as problem:
        refused = problem
      except self._web.HTTPRequestEntityTooLarge:
        refused = BadRequest(
          f"the body has more than {MAX_BYTES} bytes.", status=413
        )
      except (asyncio.CancelledError, self._web.HTTPException):
        raise
      except Exception as error:
        refused = BadRequest(f"{type(error).__name__}: {error}", status=500)
      return self._web.json_response(
        requests.error(refused), status=refused.status
      )

    return guarded

  def _check_token(self, request: Any) -> None:
    if not self._token:
      self._check_names(request)
      return
    name, form = self.token_header
    # Bytes that are not UTF-8 come as half surrogate pairs.
    token = request.headers.get(name, "").encode("utf-8", "surrogateescape")
    if not hmac.compare_digest(token, form.format(self._token).encode()):
      raise BadRequest(
        f"the header '{name}: {form.format('TOKEN')}' is missing, or has"
        " another token.",
        status=401,
      )

  def _check_names(self, request: Any) -> None:
    """Refuses requests that a page of another site sends through a browser."""
    origin = request.headers.get("Origin")
    for field, url in (("Host", f"//{request.host}"), ("Origin", origin)):
      try:
        name = (
          "localhost" if url is None else urllib.parse.urlsplit(url).hostname
        )
      except ValueError:
        name = None
      if name is None or not _is_loopback(name):
        raise BadRequest(
          f"{field} is {url!r:.80}, and this server answers to localhost and to"
          " pages from there; start it with a token (--token_file) to use"
          " another name.",
          status=403,
        )


async def body_of(request: Any) -> bytes:
  """Returns the body of a request, which must not be compressed.

  Raises:
    BadRequest: It is compressed, or comes too slowly.
  """
  coding = request.headers.get("Content-Encoding", "identity")
  if coding.lower() != "identity":
    raise BadRequest(
      f"Content-Encoding is {coding!r:.80}, and bodies are read as they come;"
      " send it without compression.",
      status=415,
    )
  try:
    return await asyncio.wait_for(request.read(), _BODY_S)
  except TimeoutError:
    raise BadRequest(
      f"the body has not come in {_BODY_S:g} s.", status=408
    ) from None


async def json_of(body: bytes) -> Any:
  """Parses a body in a thread.

  Raises:
    BadRequest: It is not JSON.
  """
  try:
    return await asyncio.to_thread(strict_json.loads, body)
  except (ValueError, RecursionError) as error:
    raise BadRequest(f"the body is not JSON: {error}") from None


def _described(name: str) -> dict[str, Any]:
  """Returns a model as clients list it."""
  return {
    "id": name,
    "object": "model",
    "created": int(time.time()),
    "owned_by": "grpo_jax",
  }


async def _nowhere(request: Any) -> Any:
  raise BadRequest(
    f"there is no {request.method} {request.path:.80}; there are GET"
    " /v1/models, GET /v1/models/NAME, POST /v1/chat/completions and POST"
    " /v1/completions.",
    status=404,
  )
