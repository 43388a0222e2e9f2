"""The paths of Tinker's API over HTTP.

    GET  /api/v1/healthz                      GET  …/get_server_capabilities
    POST /api/v1/client/config                POST …/client/dynamic_config
    POST /api/v1/create_session               POST …/session_heartbeat
    POST /api/v1/sessions/ID/finish           POST …/telemetry
    POST /api/v1/create_model                 POST …/get_info, weights_info
    POST /api/v1/forward_backward             POST …/optim_step
    POST /api/v1/save_weights                 POST …/save_weights_for_sampler
    POST /api/v1/load_weights                 POST …/create_sampling_session
    GET  /api/v1/samplers/ID                  POST …/asample
    POST /api/v1/retrieve_future

A token comes in the header X-API-Key, and addresses are guarded as those of
`http.Server`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from grpo_jax.serving import http
from grpo_jax.serving.requests import BadRequest
from grpo_jax.serving.tinker import jobs, wire
from grpo_jax.serving.tinker.service import Body, Service

_POLL_S = 25.0  # The SDK waits for 45.
_MAX_BODIES = 32  # Bodies that are read or parsed at a time.
# What the SDK reads of its server. The order of parts of a request decides the
# last bits of a sum, so it sends them one after another.
_CLIENT = {
  "use_pyqwest_transport": False,
  "parallel_fwdbwd_chunks": False,
  "fwdbwd_max_chunk_bytes_count": 2_000_000,
  "sample_max_concurrent_requests": 256,
}


class TinkerServer(http.Server):
  """A server of Tinker's API, in a thread, until it is closed."""

  token_header = ("X-API-Key", "{}")

  def __init__(self, service: Service, *arguments: Any, **options: Any):
    """Starts a thread, and waits until the port is open.

    Args:
      service: Answers the requests.
      *arguments, **options: As for `http.Server`.
    """
    self._service = service
    self._num_bodies = 0
    super().__init__(service, *arguments, **options)  # type: ignore[arg-type]

  def add_routes(self, router: Any) -> None:
    """Adds the paths of the API."""
    service = self._service

    def numbered(begin: Callable[..., str], *more: str) -> Callable:
      return lambda body: {"request_id": begin(body, *more)}

    answers: dict[str, Callable[[Body], Any]] = {
      "client/config": lambda body: _CLIENT,
      "client/dynamic_config": lambda body: {},
      "create_session": self._session,
      "session_heartbeat": self._heartbeat,
      "telemetry": lambda body: {"status": "accepted"},
      "get_info": service.info,
      "weights_info": service.weights_info,
      "create_sampling_session": lambda body: {
        "type": "create_sampling_session",
        "sampling_session_id": service.sampler(body),
      },
      "asample": self._sample,
      "create_model": numbered(service.create_model),
      "optim_step": numbered(service.optim_step),
      "save_weights": numbered(service.save, "weights"),
      "save_weights_for_sampler": numbered(service.save, "sampler_weights"),
      "load_weights": numbered(service.load),
    }
    for name, answer in answers.items():
      router.add_post(f"/api/v1/{name}", self.guarded(self._json(answer)))
    for name, handler in (
      ("forward_backward", self._pass),
      ("retrieve_future", self._retrieve),
      ("sessions/{session}/finish", self._finish),
    ):
      router.add_post(f"/api/v1/{name}", self.guarded(handler))
    for name, handler in (
      ("healthz", self._health),
      ("get_server_capabilities", self._capabilities),
      ("samplers/{sampler}", self._sampler),
    ):
      router.add_get(f"/api/v1/{name}", self.guarded(handler))
    router.add_route("*", "/{path:.*}", self.guarded(_nowhere))

  async def _body(self, request: Any) -> bytes:
    """The body of a request, if not too many are read at a time."""
    if self._num_bodies >= _MAX_BODIES:
      raise BadRequest(
        f"{_MAX_BODIES} requests are read; ask again later.", status=429
      )
    self._num_bodies += 1
    try:
      return await http.body_of(request)
    finally:
      self._num_bodies -= 1

  def _json(self, answer: Callable[[Body], Any]) -> Callable:
    """Makes the handler of a request that has a JSON body."""

    async def handle(request: Any) -> Any:
      body = Body(await http.json_of(await self._body(request)))
      result = await asyncio.to_thread(answer, body)
      return self._web.json_response(result)

    return handle

  def _session(self, body: Body) -> dict[str, Any]:
    del body
    return {
      "type": "create_session",
      "session_id": self._service.session(),
      "info_message": (
        "Served by grpo_jax: the unembedding has no adapters, whatever"
        " train_unembed says."
      ),
    }

  def _heartbeat(self, body: Body) -> dict[str, Any]:
    self._service.alive(body.required("session_id"))
    return {"type": "session_heartbeat"}

  def _sample(self, body: Body) -> dict[str, Any]:
    name, sequences = self._service.sample(body)
    return {"request_id": name, "sample_sequence_ids": sequences}

  async def _pass(self, request: Any) -> Any:
    kind = request.headers.get("Content-Type", "")
    if kind != wire.CONTENT_TYPE:
      raise BadRequest(
        f"Content-Type is {kind!r:.80}, and rows come as {wire.CONTENT_TYPE},"
        " as the SDK from 0.25 on sends them.",
        status=415,
      )
    body = await self._body(request)
    name = await asyncio.to_thread(self._service.run_pass, body)
    return self._web.json_response({"request_id": name})

  async def _retrieve(self, request: Any) -> Any:
    body = Body(await http.json_of(await self._body(request)))
    name = body.required("request_id")
    future = self._service.queue.result(name)
    if self._num_requests >= self._max_requests:
      raise BadRequest("too many results are waited for.", status=429)
    self._num_requests += 1
    try:
      waits = asyncio.shield(asyncio.wrap_future(future))
      result: jobs.Outcome = await asyncio.wait_for(waits, _POLL_S)
    except TimeoutError:  # The SDK asks again.
      return self._web.json_response({"queue_state": "active"}, status=408)
    finally:
      self._num_requests -= 1
    return self._web.Response(
      body=result.body, content_type=result.content_type
    )

  async def _finish(self, request: Any) -> Any:
    self._service.finish(request.match_info["session"])
    return self._web.json_response({})

  async def _capabilities(self, request: Any) -> Any:
    del request
    model = {
      "model_name": self._service.model,
      "max_context_length": self._service.max_len,
      "trainable": True,
      "sampleable": True,
    }
    return self._web.json_response({"supported_models": [model]})

  async def _sampler(self, request: Any) -> Any:
    description = self._service.described(request.match_info["sampler"])
    return self._web.json_response(description)


async def _nowhere(request: Any) -> Any:
  raise BadRequest(
    f"there is no {request.method} {request.path:.80} here;"
    " docs/guides/tinker.md has a table of what there is.",
    status=404,
  )
