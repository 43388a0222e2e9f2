"""Clients of Tinker's API, and their requests.

Ids are those that the SDK makes: a session is S, a client that trains is
S:train:0, weights to sample from are S:sample:0, and a request is S:train:0:5,
with its sequence number. So what belongs to a session begins with its id, and a
request that is sent again has the name of the first, and is not worked on
twice.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from grpo_jax.serving import endpoint, engine, requests
from grpo_jax.serving.requests import BadRequest
from grpo_jax.serving.tinker import device as device_lib
from grpo_jax.serving.tinker import jobs, losses, store, wire
from grpo_jax.serving.tinker.jobs import Outcome

_MAX_SESSIONS = 1024
_SESSION_S = 3600.0  # A session is over after so long without a sign of life.
_MAX_WEIGHTS = 64  # Weights to sample from that stay in memory.
_MAX_STOPS = 16
# Fields of requests on which no answer depends. Files are kept, whatever their
# `ttl_seconds`, and a client of any `kind` samples from fixed weights.
_IGNORED = frozenset(
  (
    *("type", "user_metadata", "ttl_seconds", "kind", "tags", "sdk_version"),
    *("project_id", "display_name", "seq_id"),
  )
)
# Settings of a step, with their default and largest values.
_ADAM = {
  "learning_rate": (1e-4, 1e3),
  "beta1": (0.9, 1 - 1e-7),
  "beta2": (0.95, 1 - 1e-7),
  "eps": (1e-12, 1.0),
  "weight_decay": (0.0, 1e3),
  "grad_clip_norm": (0.0, 1e9),
}


@dataclasses.dataclass
class _Weights:
  """Weights to sample from.

  Attributes:
    path: Their path, or None.
    adapters: Rank, projections and arrays; None: the base, or not yet read.
  """

  path: str | None
  adapters: device_lib.Adapters | None


class SampleRequest(NamedTuple):
  """A request for completions.

  Attributes:
    ids: Tokens of the prompt.
    asks: Contexts to continue, one for each sample.
    stop_ids, stop_texts: Tokens and texts that end a completion.
    can_end: True if the end tokens of the tokenizer end it.
    last: Number of the prompt's last tokens whose log-probs are given.
  """

  ids: list[int]
  asks: list[engine.Ask]
  stop_ids: frozenset[int]
  stop_texts: tuple[str, ...]
  can_end: bool
  last: int


class Body(requests.Fields):
  """The fields of a JSON object; `close` refuses those that nobody has read."""

  def __init__(self, value: Any):
    """Takes an object.

    Raises:
      BadRequest: It is none.
    """
    if not isinstance(value, Mapping):
      raise BadRequest(f"the body must be an object, not {value!r:.80}.")
    super().__init__({k: x for k, x in value.items() if x is not None})

  def required(self, name: str) -> str:
    """A text that must be there."""
    if not (text := self.text(name)):
      raise BadRequest(f"{name} is missing.", name)
    return text

  def count(self, name: str) -> int:
    """A whole number from 0 on that must be there."""
    if (number := self.integer(name, 0, 2**62)) is None:
      raise BadRequest(f"{name} is missing.", name)
    return number

  def inner(self, name: str) -> Body:
    """An object; empty if it is missing."""
    return Body(self.take(name) or {})

  def close(self) -> None:
    """Raises BadRequest if a field that was not read asks for something."""
    rest = self._fields.keys() - self.names - _IGNORED
    for name in sorted(rest):
      if self._fields[name]:
        raise BadRequest(f"{name!r:.80} is not supported here.", name)


def _refuse(problem: BadRequest) -> Outcome:
  raise problem


class Service:
  """The clients of a server, with what each of them has.

  It holds in memory, up to a number of each:

    sessions         one for each `ServiceClient`; ends when that is closed, or
                     has been silent for an hour
    adapters         one for each client that trains: weights, moments of the
                     optimizer, and the gradient since the last step
    weights          to sample from; of too many, those used longest ago go
    requests         that wait or have a result, in `queue`

  When a session ends, so does all that begins with its id. When the process
  ends, all is lost but the files of `store.Store`. The base, and the programs
  over it, are those of the `device.Device`.

  Methods for requests are called by the threads of the server. They check what
  they can, and queue a function that does the rest in the thread of the device,
  request after request. So nothing else touches adapters meanwhile; a lock
  guards the tables of ids alone.

  A request that is wrong raises `BadRequest` at once, or in its turn, which is
  then its result. Either way adapters are as before it, and the other requests
  go on.

  Attributes:
    model: Name of the base.
    tokenizer_id: Folder or hub name of its tokenizer, or None.
    max_len: Most tokens of a row, and of a prompt.
    queue: Requests, and their results.
  """

  def __init__(
    self,
    device: device_lib.Device,
    speaker: endpoint.Speaker,
    files: store.Store,
    model: str,
    *,
    tokenizer_id: str | None = None,
    max_models: int = 16,
    max_samples: int = 128,
  ):
    """Takes requests at once; the caller has to call `queue.work`.

    Args:
      device: Runs adapters.
      speaker: Finds stop texts in completions.
      files: Saved adapters.
      model: Name of the base.
      tokenizer_id: Folder or hub name of its tokenizer, for clients; or None.
      max_models: Most clients that train at a time.
      max_samples: Most completions of one prompt.
    """
    self.model, self.tokenizer_id = model, tokenizer_id
    self.max_len = device.max_len
    self._device, self._speaker, self._files = device, speaker, files
    self._max_models, self._max_samples = max_models, max_samples
    self.queue = jobs.JobQueue()
    self._changed = threading.RLock()
    self._sessions: dict[str, float] = {}
    self._models: dict[str, device_lib.Adapters | None] = {}
    self._last: dict[str, int] = {}  # Number of a model's last request.
    self._weights: collections.OrderedDict[str, _Weights] = (
      collections.OrderedDict()
    )

  # Requests, in the thread of the server.

  def session(self) -> str:
    """Begins a session."""
    with self._changed:
      now = time.monotonic()
      for name, last_time in list(self._sessions.items()):
        if now - last_time > _SESSION_S:
          self._end(name)
      if len(self._sessions) >= _MAX_SESSIONS:
        raise BadRequest(
          f"{len(self._sessions)} sessions are open, and no more may be.",
          status=503,
        )
      name = secrets.token_hex(8)
      self._sessions[name] = now
      return name

  def alive(self, session: str) -> None:
    """Takes a sign of life.

    Raises:
      BadRequest: There is no such session.
    """
    with self._changed:
      if session not in self._sessions:
        raise BadRequest(
          f"there is no session {session!r:.80}; it is over, or the server has"
          " started again: make a new client, from saved weights.",
          "session_id",
          status=404,
        )
      self._sessions[session] = time.monotonic()

  def finish(self, session: str) -> None:
    """Ends a session, with all its models and the requests that wait."""
    with self._changed:
      self._end(session)

  def _end(self, session: str) -> None:
    self._sessions.pop(session, None)
    for of_session in (self._models, self._weights, self._last):
      for name in [x for x in of_session if x.startswith(f"{session}:")]:
        of_session.pop(name)
    self.queue.drop(f"{session}:", "the session of the request is over.")

  def create_model(self, body: Body) -> str:
    """Makes fresh adapters; returns the number of the request."""
    model_id = self._new_id(body, "train", "model_seq_id")
    fields = body.inner("lora_config")
    base = body.required("base_model")
    rank = fields.count("rank")
    flags = [fields.take(f"train_{x}") is not False for x in ("mlp", "attn")]
    fields.take("train_unembed")  # The session's message says what it does.
    seed = fields.integer("seed", 0, requests.MAX_SEED)
    optimizer = body.inner("optimizer_config")

    def run():
      self._check_new(base, optimizer)
      fields.close()
      config = self._device.config(rank, *flags)
      draw = secrets.randbelow(requests.MAX_SEED) if seed is None else seed
      self._add(model_id, self._device.new_adapters(config, draw))
      return jobs.outcome(model_id=model_id, type="create_model")

    body.close()
    return self._submit(f"{model_id}:create", jobs.alone(model_id, run))

  def _add(self, model_id: str, adapters: device_lib.Adapters) -> None:
    with self._changed:
      if model_id.partition(":")[0] not in self._sessions:
        raise BadRequest("the session of the request is over.")
      if len(self._models) >= self._max_models and model_id not in self._models:
        raise BadRequest(
          f"{len(self._models)} models are trained, and no more may be"
          " (--max_models); end a session that is not needed: close its"
          " ServiceClient."
        )
      self._models[model_id] = adapters

  def _new_id(self, body: Body, kind: str, field: str) -> str:
    """The id of something new in a session, as the SDK makes it."""
    session = body.required("session_id")
    self.alive(session)
    return f"{session}:{kind}:{body.count(field)}"

  def _check_new(self, base: str, optimizer: Body) -> None:
    self._check_base(base)
    if (name := optimizer.text("type")) not in ("", "adamw"):
      raise BadRequest(
        f"the optimizer {name!r:.40} is not supported; leave it adamw.",
        "optimizer_config",
      )
    optimizer.close()

  def _check_base(self, name: str) -> None:
    if name != self.model:
      raise BadRequest(
        f"there is no base_model {name!r:.80}; there is {self.model!r}.",
        "base_model",
        status=404,
      )

  def adapters(self, model_id: str) -> device_lib.Adapters:
    """The adapters of a client.

    Raises:
      BadRequest: There are none.
    """
    adapters = self._models.get(model_id)
    if adapters is None:
      raise BadRequest(
        f"there is no model {model_id!r:.80}; its session is over, or the"
        " server has started again: make a new client, from saved weights.",
        "model_id",
        status=404,
      )
    return adapters

  def info(self, body: Body) -> dict[str, Any]:
    """Describes a client's adapters."""
    model_id = body.required("model_id")
    tokenizer = {"tokenizer_id": self.tokenizer_id} if self.tokenizer_id else {}
    data = {"arch": "transformer", "model_name": self.model}
    return {
      "type": "get_info",
      "model_data": data | tokenizer,
      "model_id": model_id,
      "is_lora": True,
      "lora_rank": self.adapters(model_id).config.rank,
      "model_name": self.model,
    }

  def weights_info(self, body: Body) -> dict[str, Any]:
    """Describes saved adapters."""
    about = self._files.about(body.required("tinker_path"))
    return {
      "base_model": self.model,
      "is_lora": True,
      "lora_rank": about["rank"],
    }

  def run_pass(self, body: bytes) -> str:
    """Runs the rows of a message; returns the number of the request."""
    pass_, problem = wire.read_pass(body)
    config = self.adapters(pass_.model_id).config
    try:
      if problem is not None:
        raise problem
      loss = self._loss(pass_)
      kind = config, pass_.is_forward, loss.number, loss.algorithm
      job = jobs.DeviceJob(
        *(pass_.model_id, self._run_passes, (pass_, loss), kind, len(body))
      )
    except BadRequest as error:  # The client hears of it in its turn.
      refuse = functools.partial(_refuse, error)
      job = jobs.alone(pass_.model_id, refuse, len(body))
    return self._numbered(pass_.seq_id, job)

  def _loss(self, pass_: wire.Pass) -> losses.NamedLoss:
    """The loss of a pass, whose rows must fit."""
    loss = losses.named(pass_.loss, pass_.settings)
    losses.check(pass_.loss, loss, pass_.rows, self._device.vocab_size)
    longest = max(len(row.ids) for row in pass_.rows)
    if longest > self.max_len:
      raise BadRequest(
        f"a row of data has {longest} tokens, and at most {self.max_len} fit"
        " (--max_len).",
        "data",
      )
    return loss

  def _run_passes(
    self, passes: Sequence[tuple[wire.Pass, losses.NamedLoss]]
  ) -> Iterator[tuple[int, Outcome]]:
    """Runs rows of clients with adapters of one kind, and one loss."""
    rows = [
      device_lib.ClientRows(
        self.adapters(pass_.model_id), pass_.rows, loss, pass_.is_forward
      )  # Adapters of now: others may have been loaded since.
      for pass_, loss in passes
    ]
    for i, logps, total in self._device.run(rows):
      body = wire.of_pass(logps, {"loss:sum": total})
      yield i, Outcome(body, wire.CONTENT_TYPE)

  def optim_step(self, body: Body) -> str:
    """Takes a step; returns the number of the request."""
    model_id, seq_id = body.required("model_id"), body.count("seq_id")
    self.adapters(model_id)

    def run():
      fields = body.inner("adam_params")
      numbers = {}
      for name, (default, most) in _ADAM.items():
        x = fields.number(name, 0, most)
        numbers[name] = default if x is None else x
      fields.close()
      body.close()  # Parameters of another optimizer have another name.
      norm = self._device.step(self.adapters(model_id), numbers)
      return jobs.outcome(metrics={"gradient_norm": norm})

    return self._numbered(seq_id, jobs.alone(model_id, run))

  def save(self, body: Body, kind: str) -> str:
    """Saves adapters, or keeps them to sample from; returns the number."""
    model_id, seq_id = body.required("model_id"), body.count("seq_id")
    self.adapters(model_id)
    name, number = body.text("path"), body.take("sampling_session_seq_id")
    can_replace = body.flag("overwrite")
    answer = "save_weights" + "_for_sampler" * (kind != "weights")

    def run():
      body.close()
      adapters = self.adapters(model_id)
      if not name and type(number) is int:
        sampler = f"{model_id.partition(':')[0]}:sample:{number}"
        # The arrays of later steps are others: these are kept as they are.
        self._keep(sampler, _Weights(None, adapters.without_moments()))
        return jobs.outcome(sampling_session_id=sampler, type=answer)
      path = self._files.path(model_id, kind, name or f"step-{seq_id}")
      if self._files.file(path).exists() and not can_replace:
        raise BadRequest(
          f"there is something at {path!r}; choose another name, or"
          " overwrite=True.",
          "path",
        )
      saved = self._device.saved(adapters, with_moments=kind == "weights")
      self._files.write(path, *saved)
      return jobs.outcome(path=path, type=answer)

    return self._numbered(seq_id, jobs.alone(model_id, run))

  def load(self, body: Body) -> str:
    """Loads adapters into a model, new or not; returns the number."""
    path, with_moments = body.required("path"), body.flag("optimizer")
    is_new = not body.text("model_id")
    if is_new:
      model_id = self._new_id(body, "train", "model_seq_id")
      base = body.text("base_model") or self.model
    else:
      model_id, base = body.required("model_id"), self.model
      self.adapters(model_id)
    optimizer = body.inner("optimizer_config")

    def run():
      body.close()
      self._check_new(base, optimizer)
      saved = self._device.loaded(self._files, path, with_moments)
      if not is_new and saved.config != self.adapters(model_id).config:
        raise BadRequest(
          f"{path!r:.200} has rank {saved.config.rank} or projections that the"
          " model does not have; make a new client from it.",
          "path",
        )
      self._add(model_id, saved)
      return jobs.outcome(path=path, model_id=model_id, type="load_weights")

    if is_new:
      return self._submit(f"{model_id}:create", jobs.alone(model_id, run))
    return self._numbered(body.count("seq_id"), jobs.alone(model_id, run))

  def sampler(self, body: Body) -> str:
    """Begins to sample from the base, or from saved weights; returns its id."""
    name = self._new_id(body, "sample", "sampling_session_seq_id")
    path, base = body.text("model_path"), body.text("base_model")
    body.close()
    if base or not path:
      self._check_base(base)
    if path:
      self._files.about(path)  # Raises, if there is nothing to read.
    with self._changed:
      self._keep(name, _Weights(path or None, None))
    return name

  def described(self, sampler: str) -> dict[str, Any]:
    """Describes what a client samples from."""
    description = {"sampler_id": sampler, "base_model": self.model}
    path = self._weights_of(sampler).path
    return description | ({"model_path": path} if path else {})

  def _keep(self, name: str, weights: _Weights) -> None:
    with self._changed:
      self._weights[name] = weights
      while len(self._weights) > _MAX_WEIGHTS:
        self._weights.popitem(last=False)

  def _weights_of(self, sampler: str) -> _Weights:
    with self._changed:
      weights = self._weights.get(sampler)
      if weights is None:
        raise BadRequest(
          f"there is no sampling session {sampler!r:.80}; it is over, or"
          f" {_MAX_WEIGHTS} others were used since: save weights under a name"
          " to come back to them.",
          "sampling_session_id",
          status=404,
        )
      self._weights.move_to_end(sampler)
      return weights

  def sample(self, body: Body) -> tuple[str, list[str]]:
    """Draws completions; returns the request's number and those of sequences.

    Raises:
      BadRequest: The request is refused.
    """
    sampler = body.required("sampling_session_id")
    self.alive(sampler.partition(":")[0])
    weights = self._weights_of(sampler)
    samples = self._samples(body)
    name = f"{sampler}:{body.count('seq_id')}"
    # Numbers of Python lists, and their keys, take more than those of arrays.
    size = 64 * (len(samples.ids) + 8 * len(samples.asks))
    of = weights.adapters.config if weights.adapters else weights.path
    kind = of, samples.can_end
    # Weights to sample from do not change: the order of samples is free.
    job = jobs.DeviceJob(name, self._draw, (weights, samples), kind, size)
    self._submit(name, job)
    return name, [f"{name}:{i}" for i in range(len(samples.asks))]

  def _samples(self, body: Body) -> SampleRequest:
    """Reads a request for completions."""
    ids = self._ids(body.inner("prompt"))
    params = body.inner("sampling_params")
    if params.take("top_k") not in (None, -1):
      raise BadRequest("top_k is not supported; leave it -1.", "top_k")
    most = self._device.max_new_tokens
    limit = params.integer("max_tokens", 1, most) or most
    seed = params.integer("seed", 0, requests.MAX_SEED)
    if seed is None:
      seed = secrets.randbelow(requests.MAX_SEED)
    temperature = params.temperature(1e4)
    top_p = params.number("top_p", 1e-6, 1)
    stop = params.take("stop")
    params.close()
    stops = [stop] if isinstance(stop, str) else [] if stop is None else stop
    if (
      not isinstance(stops, list)
      or len(stops) > _MAX_STOPS
      or not all((x and isinstance(x, str)) or type(x) is int for x in stops)
    ):
      raise BadRequest(
        f"stop={stop!r:.80} must be a text, or at most {_MAX_STOPS} texts or"
        " token ids.",
        "stop",
      )
    texts = tuple(x for x in stops if isinstance(x, str))
    stop_ids = frozenset(x for x in stops if type(x) is int)
    num_samples = body.integer("num_samples", 1, self._max_samples) or 1
    has_prompt = body.flag("prompt_logprobs")
    last = body.integer("prompt_logprobs_last_n", 1, max(len(ids) - 1, 1))
    if body.flag("record_stability_info"):
      raise BadRequest(losses.NO_STABLE_REINFORCE, "record_stability_info")
    for name in ("base_model", "model_path", "seq_id"):
      body.take(name)
    body.close()
    asks = [
      engine.Ask(
        ids,
        engine.key_of(seed, 0, i, 0),
        limit,
        temperature=1.0 if temperature is None else temperature,
        top_p=1.0 if top_p is None else top_p,
        with_alternatives=has_prompt and i == 0,
      )
      for i in range(num_samples)
    ]
    return SampleRequest(
      *(ids, asks, stop_ids, texts, stop is None or bool(stops)),
      len(ids) if last is None else last,
    )

  def _ids(self, prompt: Body) -> list[int]:
    """Reads the tokens of a prompt."""
    chunks, ids = prompt.take("chunks"), []
    if not isinstance(chunks, list):
      raise BadRequest("prompt.chunks must be a list.", "prompt")
    for chunk in chunks:
      tokens = chunk.get("tokens") if isinstance(chunk, Mapping) else None
      if not isinstance(tokens, list):
        raise BadRequest("prompt has a chunk that is not text.", "prompt")
      ids += tokens
    size = self._device.vocab_size
    if not ids or not all(type(x) is int and 0 <= x < size for x in ids):
      raise BadRequest(
        f"prompt must have at least one token, and ids from 0 to {size - 1}.",
        "prompt",
      )
    if len(ids) > self.max_len:
      raise BadRequest(
        f"prompt has {len(ids)} tokens, and at most {self.max_len} fit"
        " (--max_len).",
        "prompt",
      )
    return ids

  def _numbered(self, seq_id: int, job: jobs.DeviceJob) -> str:
    """Queues the request of a model with this number, unless it is there."""
    model_id = job.owner
    name = f"{model_id}:{seq_id}"
    if not seq_id:  # As in a message without a number.
      raise BadRequest(
        "seq_id is missing or 0; number the requests of a model from 1 on: one"
        " with a number that was used gets the result of the first.",
        "seq_id",
      )
    with self._changed:
      if name not in self.queue and seq_id <= self._last.get(model_id, -1):
        raise BadRequest(
          f"seq_id={seq_id} was used, and its result is gone; numbers of"
          " requests grow.",
          "seq_id",
        )
      self._submit(name, job)
      self._last[model_id] = max(seq_id, self._last.get(model_id, -1))
    return name

  def _submit(self, name: str, job: jobs.DeviceJob) -> str:
    """Queues a request, unless it is there; it is a sign of life too."""
    self.queue.submit(name, job)
    with self._changed:
      session = job.owner.partition(":")[0]
      if session in self._sessions:
        self._sessions[session] = time.monotonic()
    return name

  def _draw(
    self, requests: Sequence[tuple[_Weights, SampleRequest]]
  ) -> Iterator[tuple[int, Outcome]]:
    """Draws completions of weights of one kind."""
    places: dict[int, list[int]] = {}  # Requests of the same weights.
    for i, (weights, _) in enumerate(requests):
      if weights.adapters is None and weights.path is not None:
        saved = self._device.loaded(self._files, weights.path, False)
        weights.adapters = saved.without_moments()
      places.setdefault(id(weights.adapters), []).append(i)
    groups = list(places.values())
    samples = [
      (
        requests[group[0]][0].adapters,
        [ask for i in group for ask in requests[i][1].asks],
      )
      for group in groups
    ]
    for n, rows in self._device.draw(samples, requests[0][1].can_end):
      for i in groups[n]:
        request = requests[i][1]
        own, rows = rows[: len(request.asks)], rows[len(request.asks) :]
        yield i, Outcome(self._write(request, own), wire.CONTENT_TYPE)

  def _write(
    self, request: SampleRequest, rows: Sequence[engine.Generated]
  ) -> bytes:
    """Writes completions as they are sent."""
    samples = []
    for ask, row in zip(request.asks, rows, strict=True):
      places = [n for n, id_ in enumerate(row.ids) if id_ in request.stop_ids]
      is_stopped = bool(places)
      if places:
        row = row.cut(places[0] + 1)
      if request.stop_texts:
        row, _, by_text = self._speaker.stopped(row, request.stop_texts)
        is_stopped |= by_text
      logp = row.sampler_logp if ask.temperature == 0 else row.behavior_logp
      samples.append(wire.SentTokens(row.ids, logp, row.ended or is_stopped))
    prompt_logp = None
    if (others := rows[0].alternatives) is not None:
      size = len(request.ids)
      first = max(size - request.last, 1)  # The first token has none.
      prompt_logp = np.full(size, np.nan, np.float32)
      prompt_logp[first:] = others.logp[first - 1 : size - 1]
    return wire.of_samples(samples, prompt_logp)
