"""Turns requests into rows of a sampler, and completions into answers."""

from __future__ import annotations

import asyncio
import bisect
import functools
import itertools
import json
import math
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from grpo_jax import ranges
from grpo_jax.data import chat
from grpo_jax.data.encoder import Encoder
from grpo_jax.rewards.agents import call_formats
from grpo_jax.serving import engine, requests
from grpo_jax.serving.requests import BadRequest, Reply, Request, Token

# A text of at most so many characters is encoded whatever the context holds: a
# template may leave out most of it, and one token may stand for much text.
_MIN_CHARS = 2**16

# The log-prob of a token of probability 0, as OpenAI writes it: JSON has no
# infinity.
_MIN_LOGP = -9999.0

# (text of a reply) -> the text without calls, and the calls, each of them
# (name, arguments as JSON).
Calls = Callable[[str], tuple[str, Sequence[tuple[str, str]]]]


class Speaker:
  """Encodes the prompts of requests, and decodes completions into replies."""

  def __init__(
    self,
    encoder: Encoder,
    pieces: Callable[[Sequence[int]], Sequence[bytes]],
    calls: Calls | None = None,
  ):
    """Makes a speaker from an encoder.

    Args:
      encoder: The tokenizer and the chat template of the policy.
      pieces: (ids) -> the bytes of each token.
      calls: Finds calls of tools in a reply; None: calls are left as text.
    """
    self.writer = chat.Writer(encoder)
    self._text = encoder.tokenizer
    self._pieces, self._calls = pieces, calls

  @functools.cached_property
  def most_bytes(self) -> int:
    """The largest number of bytes that a token writes."""
    return max(map(len, self._pieces(range(self._text.vocab_size))))

  def prompts(self, request: Request) -> list[list[int]]:
    """Returns the token ids of the prompts of a request.

    Raises:
      BadRequest: The tokenizer or its template refuses them.
    """
    try:
      if request.messages is not None:
        return [self.writer.ids(request.messages, **template_options(request))]
      return [self._prompt(prompt) for prompt in request.prompts]
    except ValueError as error:
      raise BadRequest(str(error), "messages") from error

  def encode(self, text: str) -> list[int]:
    """Returns the token ids of a text in the middle of a context."""
    return self._text.encode(text)

  def _prompt(self, prompt: str | list[int]) -> list[int]:
    if isinstance(prompt, str):
      return self._text.context_ids(prompt)
    if max(prompt) >= self._text.vocab_size:
      raise BadRequest(
        f"the prompt has the id {max(prompt)}, and the policy has"
        f" {self._text.vocab_size} of them.",
        "prompt",
      )
    return prompt

  def reply(
    self,
    request: Request,
    prompt: Sequence[int],
    completion: engine.Generated,
    name: str,
    is_greedy: bool,
  ) -> Reply:
    """Returns the reply that is sent for a completion.

    Args:
      is_greedy: True if the most likely tokens were taken.
    """
    if request.limit == 0:  # One token is the least that is drawn.
      completion = completion.cut(0)
    completion, text, is_stopped = self.stopped(completion, request.stop)
    is_ended = completion.ended or is_stopped
    full_text = self._text.decode(completion.ids)
    calls: list[dict[str, Any]] = []
    if self._calls is not None and request.tools:
      text, pairs = self._calls(text)
      calls = [
        {
          "id": f"call_{name}_{number}",
          "type": "function",
          "function": {"name": function, "arguments": arguments},
        }
        for number, (function, arguments) in enumerate(pairs)
      ]
    reason = ("tool_calls" if calls else "stop") if is_ended else "length"
    tokens: Sequence[Token] = ()
    if request.logprobs:
      tokens = self._tokens(request, prompt, completion, is_greedy)
    if request.echo:
      text = self._text.exact_text(list(prompt)) + text
    return Reply(
      completion=completion,
      full_text=full_text,
      text=text,
      tokens=tokens,
      finish_reason=reason,
      calls=tuple(calls),
    )

  def _tokens(
    self,
    request: Request,
    prompt: Sequence[int],
    completion: engine.Generated,
    is_greedy: bool,
  ) -> list[Token]:
    """Returns the tokens with log-probs that a request asks for."""
    x = completion.sampler_logp if is_greedy else completion.behavior_logp
    logps: list[float | None] = x.tolist()
    ids = list(completion.ids)
    likeliest: list[tuple[tuple[bytes, float], ...]] = [()] * len(ids)
    alternatives = completion.alternatives
    if alternatives is not None:
      size = len(prompt) - 1 + len(ids)
      ids = [*prompt, *ids]
      logps = [None, *alternatives.logp[: len(prompt) - 1].tolist(), *logps]
      number = request.num_alternatives
      likeliest = [
        (),
        *map(
          self._likeliest,
          ids[1:],
          logps[1:],
          alternatives.ids[:size, :number],
          alternatives.top_logp[:size, :number],
        ),
      ]
      if not request.echo:
        start = len(prompt)
        ids, logps, likeliest = ids[start:], logps[start:], likeliest[start:]
    pieces = self._pieces(ids)
    logps = [None if x is None else max(x, _MIN_LOGP) for x in logps]
    return list(map(Token, pieces, logps, likeliest))

  def _likeliest(
    self,
    own: int,
    own_logp: float | None,
    ids: np.ndarray,  # [k]
    logps: np.ndarray,  # [k]
  ) -> tuple[tuple[bytes, float], ...]:
    """Returns the likely tokens at a place, without those of probability 0."""
    likely = [
      # A drawn token keeps the number with which it was drawn.
      (id_, own_logp if id_ == own and own_logp is not None else logp)
      for id_, logp in zip(ids.tolist(), logps.tolist(), strict=True)
      if logp > -math.inf
    ]
    pieces = self._pieces([id_ for id_, _ in likely])
    return tuple(zip(pieces, (logp for _, logp in likely), strict=True))

  def stopped(
    self, completion: engine.Generated, stops: Sequence[str]
  ) -> tuple[engine.Generated, str, bool]:
    """Cuts a completion at its first stop text.

    Returns:
      The completion, its text, and True if it has a stop text.
    """
    text = self._text.decode(completion.ids)
    places = [at for stop in stops if (at := text.find(stop)) >= 0]
    if not places:
      return completion, text, False

    # The token that completes the stop text is the last that counts.
    def is_there(size: int) -> bool:
      start = self._text.decode(completion.ids[:size])
      return any(stop in start for stop in stops)

    # A text that is there stays there, so few places have to be tried.
    size = 1 + bisect.bisect_left(
      range(1, len(completion.ids) + 1), True, key=is_there
    )
    return completion.cut(size), text[: min(places)], True


def template_options(request: Request) -> dict[str, Any]:
  """Returns what a chat template reads of a request beside its messages."""
  tools = {} if request.tools is None else {"tools": request.tools}
  return {**request.chat_options, **tools}


class Completions:
  """Answers requests that are independent of each other."""

  def __init__(
    self,
    speaker: Speaker,
    sampler: engine.Drawer,
    model: str,
    seed: int = 0,
  ):
    """Takes requests at once; the caller has to call `sampler.work`.

    Args:
      sampler: Draws completions, with the temperatures of the requests.
      seed: The first of the seeds that requests without a seed get; after the
        largest one comes 0.
    """
    self._speaker, self._sampler, self._model = speaker, sampler, model
    most = requests.MAX_SEED
    self._seeds = (number % (most + 1) for number in itertools.count(seed))

  def models(self) -> list[str]:
    """Returns the name of the model."""
    return [self._model]

  async def complete(self, body: Any, is_chat: bool) -> dict[str, Any]:
    """Answers a request; see `http.Endpoint`."""
    # In threads: for a long text a tokenizer and a template take seconds, in
    # which the server has to take other requests.
    request, prompts = await asyncio.to_thread(self._read, body, is_chat)
    seed = next(self._seeds) if request.seed is None else request.seed
    asks = await asyncio.to_thread(self._asks, request, prompts, seed)
    completions = await completions_of(self._sampler, asks)
    answer = await asyncio.to_thread(self._answer, request, asks, completions)
    return {**answer, "seed": seed}

  def _read(self, body: Any, is_chat: bool) -> tuple[Request, list[list[int]]]:
    """Returns a request, and the token ids of its prompts."""
    request = requests.parse(body, is_chat)
    if request.model not in ("", self._model):
      raise BadRequest(
        f"there is no model {request.model!r:.80}; there is {self._model!r}.",
        "model",
        "model_not_found",
        status=404,
      )
    num_prompts = 1 if is_chat else len(request.prompts)
    if num_prompts * request.num_samples > self._sampler.max_waiting:
      raise BadRequest(
        f"n={request.num_samples} for each of"
        f" {ranges.counted(num_prompts, 'prompt')} makes"
        f" {num_prompts * request.num_samples}, and the server takes"
        f" {self._sampler.max_waiting} at most (--max_waiting); send several"
        " requests.",
        "n",
      )
    self._check_text(request)
    prompts = self._speaker.prompts(request)
    for ids in prompts:
      check_length(ids, self._sampler.context_len)
    return request, prompts

  def _check_text(self, request: Request) -> None:
    """Refuses a text that is too long for the context, before it is encoded."""
    texts = [x for x in request.prompts if isinstance(x, str)]
    if request.messages is not None:
      texts = ["".join(message["content"] for message in request.messages)]
    size = max(map(len, texts), default=0)
    context_len = self._sampler.context_len
    if size > max(_MIN_CHARS, context_len * self._speaker.most_bytes):
      raise BadRequest(
        f"This model's maximum context length is {context_len} tokens, and a"
        f" text of {size} characters does not fit; shorten it.",
        "messages" if request.messages is not None else "prompt",
        "context_length_exceeded",
      )

  def _asks(
    self, request: Request, prompts: list[list[int]], seed: int
  ) -> list[engine.Ask]:
    """Returns the contexts to continue, those of a prompt side by side."""
    most = self._sampler.config.max_new_tokens
    return [
      engine.Ask(
        ids,
        engine.key_of(seed, number, sample, 0),
        most if request.limit is None else max(min(request.limit, most), 1),
        temperature=(
          1.0 if request.temperature is None else request.temperature
        ),
        top_p=1.0 if request.top_p is None else request.top_p,
        with_alternatives=request.with_alternatives,
      )
      for number, ids in enumerate(prompts)
      for sample in range(request.num_samples)
    ]

  def _answer(
    self,
    request: Request,
    asks: Sequence[engine.Ask],
    completions: Sequence[engine.Generated],
  ) -> dict[str, Any]:
    """Returns the body of an answer."""
    name = uuid.uuid4().hex[:16]
    replies = [
      self._speaker.reply(request, ask.ids, row, name, ask.temperature == 0)
      for ask, row in zip(asks, completions, strict=True)
    ]
    size = request.num_samples
    starts = range(0, len(replies), size)
    kind = "cmpl" if request.messages is None else "chatcmpl"
    return requests.answer(
      request,
      f"{kind}-{name}",
      self._model,
      [asks[start].ids for start in starts],
      [replies[start : start + size] for start in starts],
    )


def check_length(ids: Sequence[int], most: int) -> None:
  """Raises BadRequest for a context of more than `most` tokens.

  Clients recognise this error by its code and message.
  """
  if len(ids) > most:
    raise BadRequest(
      f"This model's maximum context length is {most} tokens, and the messages"
      f" have {len(ids)}; shorten them.",
      "messages",
      "context_length_exceeded",
    )


async def completions_of(
  sampler: engine.Drawer, asks: Sequence[engine.Ask]
) -> list[engine.Generated]:
  """Returns completions of a sampler, once another thread has called `work`.

  Raises:
    BadRequest: Too many rows wait, or the sampler is closed.
  """
  try:
    return await asyncio.wrap_future(sampler.submit(asks))
  except engine.Full as error:
    raise BadRequest(str(error), status=429) from None
  except engine.Closed as error:
    raise BadRequest(str(error), status=503) from None


def calls_of(parse: Callable[[str], Any]) -> Calls:
  """Returns a finder of calls that uses a parser of `agents.call_formats`.

  If a call in a reply cannot be read, the whole reply is text, as with other
  servers.

  Args:
    parse: (action) -> text and calls, each with a name, arguments and a flag
      that it is malformed.
  """

  def calls(text: str) -> tuple[str, Sequence[tuple[str, str]]]:
    parsed = parse(text)
    if any(call.malformed for call in parsed.calls):
      return text, ()
    return parsed.text, [
      (call.name, json.dumps(call.arguments, ensure_ascii=False))
      for call in parsed.calls
    ]

  return calls


def calls_named(name: str) -> Calls | None:
  """Returns the finder of calls in a named format of `agents.call_formats`.

  An empty name gives None.

  Raises:
    ValueError: The format does not exist.
  """
  return calls_of(call_formats.named(name).parse) if name else None
