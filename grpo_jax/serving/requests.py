"""Requests and answers of OpenAI's API, as `grpo-serve` has them.

A body becomes a `Request`, or a `BadRequest` that says what is wrong with it: a
field that would change the answer is never ignored. `return_token_ids` is
vLLM's addition: the answer then has the token ids of prompt and completion.

Log-probs are those of the distribution that a token was drawn from, with
temperature and top_p applied. For a greedy completion, and for a prompt that is
sent back (`echo`), they are at temperature 1.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from grpo_jax.data import conversations
from grpo_jax.serving import engine

MAX_SEED = 2**31 - 1
MAX_SAMPLES = 128
MAX_LOGPROBS = 5  # For /completions.
_MAX_STOPS = 16
_LEAST_TEMPERATURE = 1e-4  # Beside 0.
# Fields on which the answer does not depend.
_IGNORED = frozenset(
  (
    *("user", "metadata", "store", "service_tier", "safety_identifier"),
    *("prompt_cache_key", "parallel_tool_calls", "priority", "cache_salt"),
    "spaces_between_special_tokens",
  )
)
# Fields that are allowed with a value that changes nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
  "best_of": (1,),
  "suffix": ("",),
  "presence_penalty": (0,),
  "frequency_penalty": (0,),
  "repetition_penalty": (1,),
  "length_penalty": (1,),
  "logit_bias": ({},),
  "min_tokens": (0,),
  "min_p": (0,),
  "top_k": (-1, 0),
  "ignore_eos": (False,),
  "use_beam_search": (False,),
  "prompt_logprobs": (0,),
  "tool_choice": ("auto", "none"),
  "functions": ([],),
  "modalities": (["text"],),
  "response_format": ({"type": "text"},),
  "continue_final_message": (False,),
  "add_generation_prompt": (True,),
  "include_stop_str_in_output": (False,),
  "skip_special_tokens": (True,),
}


# Reasons why a field has no other value, if they are not obvious.
_REASONS = {
  "response_format": (
    "nothing here confines tokens to a grammar, so no form can be promised; say"
    " the form in the prompt and check the reply"
  ),
  "tool_choice": "nothing here can make the policy call a tool",
  "logit_bias": "completions are drawn from the policy as it was trained",
}


class BadRequest(Exception):
  """The error of a request that cannot be answered.

  Attributes:
    status: Status code of HTTP.
    param: The field that is at fault, or None.
    code: A word for programs, or None.
  """

  def __init__(
    self,
    message: str,
    param: str | None = None,
    code: str | None = None,
    status: int = 400,
  ):
    super().__init__(message)
    self.status, self.param, self.code = status, param, code


@dataclasses.dataclass(frozen=True)
class Request:
  """A request for completions.

  Attributes:
    model: The model's name; "" if the request has none.
    messages: Messages of a chat; None for a plain prompt.
    tools: Descriptions of tools, as the chat template reads them, or None.
    chat_options: Other variables of the chat template.
    prompts: Texts or token ids; empty for a chat.
    num_samples: Completions of each prompt.
    limit: Most tokens of each completion; None: as many as possible.
    temperature, top_p: As in `sampling.SamplerConfig`; None if the request does
      not set them.
    stop: Texts before which a completion is cut.
    seed: Seed of the draws; None: any.
    logprobs: True if the answer has log-probs.
    num_alternatives: Number of likeliest tokens that are named at each place.
    echo: True if the answer begins with the prompt.
    token_ids: True if the answer has token ids.
  """

  model: str
  messages: list[conversations.Message] | None
  tools: list[Any] | None
  chat_options: dict[str, Any]
  prompts: list[str | list[int]]
  num_samples: int
  limit: int | None
  temperature: float | None
  top_p: float | None
  stop: tuple[str, ...]
  seed: int | None
  logprobs: bool
  num_alternatives: int
  echo: bool
  token_ids: bool

  @property
  def with_alternatives(self) -> bool:
    """True if the request needs log-probs that drawing does not give."""
    return self.logprobs and (self.echo or self.num_alternatives > 0)


def parse(body: Any, is_chat: bool) -> Request:
  """Reads the JSON of a request to /chat/completions, or to /completions.

  Raises:
    BadRequest: The body is not a request, or asks for something unsupported.
  """
  if not isinstance(body, Mapping):
    raise BadRequest("the body is not a JSON object; needs one with a prompt.")
  # A field that is null counts as missing.
  fields = {name: x for name, x in body.items() if x is not None}
  reader = Fields(fields)
  for name, neutral in _NEUTRAL.items():
    value = reader.take(name)
    if value is not None and value not in neutral:
      raise BadRequest(
        f"{name}={value!r:.80} is not supported"
        + (f": {_REASONS[name]}." if name in _REASONS else "; leave it out."),
        name,
        "unsupported",
      )
  names = ("max_tokens", *("max_completion_tokens",) * is_chat)
  echo = not is_chat and reader.flag("echo")
  # With `echo` an answer may have the prompt alone, and no new token.
  bounds = [reader.integer(name, 1 - echo, math.inf) for name in names]
  limits = [limit for limit in bounds if limit is not None]
  logprobs, num_alternatives = _logprob_request(reader, is_chat)
  chat: Any = (None, None, {})
  prompts: list[str | list[int]] = []
  if is_chat:
    chat = _chat(reader)
  else:
    prompts = _prompts(reader.take("prompt"))
  messages, tools, options = chat
  request = Request(
    model=reader.text("model"),
    messages=messages,
    tools=tools,
    chat_options=options,
    prompts=prompts,
    num_samples=reader.integer("n", 1, MAX_SAMPLES) or 1,
    limit=min(limits, default=None),
    temperature=reader.temperature(100),
    top_p=reader.number("top_p", 1e-6, 1),
    stop=_stops(reader.take("stop")),
    seed=reader.integer("seed", 0, MAX_SEED),
    logprobs=logprobs,
    num_alternatives=num_alternatives,
    echo=echo,
    token_ids=reader.flag("return_token_ids"),
  )
  reader.flag("stream")  # The server sends the answer in pieces.
  wants_usage(reader.take("stream_options"))
  if unknown := sorted(fields.keys() - reader.names - _IGNORED):
    raise BadRequest(
      f"unknown: {', '.join(map(str, unknown))[:200]}; leave it out.",
      str(unknown[0])[:80],
      "unknown",
    )
  return request


def _logprob_request(reader: Fields, is_chat: bool) -> tuple[bool, int]:
  """Returns if log-probs are wanted, and the number of likeliest tokens."""
  if not is_chat:
    number = reader.integer("logprobs", 0, MAX_LOGPROBS)
    return number is not None, number or 0
  has_logprobs = reader.flag("logprobs")
  number = reader.integer("top_logprobs", 0, engine.MAX_ALTERNATIVES)
  if number and not has_logprobs:
    raise BadRequest(
      f"top_logprobs={number} needs logprobs=true.", "top_logprobs"
    )
  return has_logprobs, number or 0


class Fields:
  """The fields of a body, and the names of those that have been read."""

  def __init__(self, fields: Mapping[str, Any]):
    self._fields = fields
    self.names: set[str] = set()

  def take(self, name: str) -> Any:
    """Returns the value of a field, or None."""
    self.names.add(name)
    return self._fields.get(name)

  def _checked(
    self, name: str, kinds: tuple[type, ...], words: str, least=None, most=None
  ) -> Any:
    value = self.take(name)
    is_right = type(value) in kinds and (
      least is None or least <= value <= most
    )
    if value is not None and not is_right:
      raise BadRequest(f"{name}={value!r:.80} must be {words}.", name)
    return value

  def flag(self, name: str) -> bool:
    return bool(self._checked(name, (bool,), "true or false"))

  def text(self, name: str) -> str:
    return self._checked(name, (str,), "text") or ""

  def integer(self, name: str, least: float, most: float) -> int | None:
    end = f"to {most}" if math.isfinite(most) else "on"
    words = f"a whole number from {least} {end}"
    return self._checked(name, (int,), words, least, most)

  def number(self, name: str, least: float, most: float) -> float | None:
    words = f"a number from {least} to {most}"
    value = self._checked(name, (int, float), words, least, most)
    return None if value is None else float(value)

  def temperature(self, most: float) -> float | None:
    """The temperature, 0 for the most likely tokens, or None."""
    value = self.number("temperature", 0, most)
    if value and value < _LEAST_TEMPERATURE:
      raise BadRequest(
        f"temperature={value!r} is below {_LEAST_TEMPERATURE:g}, where logits"
        " that are divided by it are beyond float32; set it to 0 for the most"
        " likely tokens.",
        "temperature",
      )
    return value


def _chat(
  reader: Fields,
) -> tuple[list[conversations.Message], list[Any] | None, dict[str, Any]]:
  """Returns messages, tools and other variables of the chat template."""
  try:
    messages = conversations.checked(reader.take("messages"))
  except ValueError as error:
    raise BadRequest(str(error), "messages") from None
  tools = reader.take("tools")
  if tools is not None and not (
    isinstance(tools, list) and all(isinstance(x, Mapping) for x in tools)
  ):
    raise BadRequest(
      f"tools={tools!r:.80} must be a list of descriptions.", "tools"
    )
  options = reader.take("chat_template_kwargs") or {}
  reserved = {"messages", "tools", "add_generation_prompt"}
  if not isinstance(options, Mapping) or reserved & options.keys():
    raise BadRequest(
      f"chat_template_kwargs={options!r:.80} must be an object with what the"
      " template reads beside messages, tools and add_generation_prompt.",
      "chat_template_kwargs",
    )
  if reader.take("tool_choice") == "none":
    tools = None  # The policy does not see them, and nothing reads as a call.
  return messages, tools or None, dict(options)


def _prompts(value: Any) -> list[str | list[int]]:
  """Returns a list of prompts, each a text or token ids."""

  def is_ids(x: Any) -> bool:
    return isinstance(x, list) and all(type(i) is int and i >= 0 for i in x)

  prompts = value
  if isinstance(value, str) or (is_ids(value) and value):
    prompts = [value]
  if (
    not isinstance(prompts, list)
    or not prompts
    or not all(x and (isinstance(x, str) or is_ids(x)) for x in prompts)
  ):
    raise BadRequest(
      f"prompt={value!r:.80} must be a text that is not empty, or a list of"
      " token ids, or a list of these.",
      "prompt",
    )
  return prompts


def wants_usage(options: Any) -> bool:
  """Returns True if the last event of a stream has the numbers of tokens."""
  match options:
    case None:
      return False
    case {"include_usage": bool(usage)}:
      return usage
  raise BadRequest(
    f"stream_options={options!r:.80} may have include_usage, true or false.",
    "stream_options",
  )


def _stops(value: Any) -> tuple[str, ...]:
  stops = [value] if isinstance(value, str) else value or []
  if (
    not isinstance(stops, list)
    or len(stops) > _MAX_STOPS
    or not all(isinstance(x, str) and x for x in stops)
  ):
    raise BadRequest(
      f"stop={value!r:.80} must be a text, or at most {_MAX_STOPS} of them,"
      " and none of them empty.",
      "stop",
    )
  return tuple(stops)


class Token(NamedTuple):
  """A token of an answer with log-probs.

  Attributes:
    piece: Bytes of its text.
    logp: Log-prob of the token, nats; None for the first token of a prompt.
    likeliest: Likely tokens in its place, with log-probs, from the likeliest
      on; the token itself may be among them.
  """

  piece: bytes
  logp: float | None
  likeliest: Sequence[tuple[bytes, float]] = ()


@dataclasses.dataclass(frozen=True)
class Reply:
  """A completion in the form in which it is sent.

  Attributes:
    completion: Tokens, up to the one that completes a stop text.
    full_text: The text of these tokens, without the end token.
    text: The text up to a stop text, without calls; after the prompt, if that
      is sent back.
    tokens: Tokens with log-probs, those of a prompt that is sent back first;
      empty unless log-probs were asked for.
    finish_reason: "stop", "length" or "tool_calls".
    calls: Calls of tools, in OpenAI's form.
  """

  completion: engine.Generated
  full_text: str
  text: str
  tokens: Sequence[Token]
  finish_reason: str
  calls: Sequence[Mapping[str, Any]] = ()

  @property
  def message(self) -> conversations.Message:
    """The assistant's message."""
    message: conversations.Message = {
      "role": "assistant",
      "content": self.text,
    }
    if self.calls:
      message["tool_calls"] = list(self.calls)
    return message


def answer(
  request: Request,
  name: str,
  model: str,
  prompts: Sequence[Sequence[int]],
  replies: Sequence[Sequence[Reply]],
) -> dict[str, Any]:
  """Returns the body of an answer to a request, with replies to each prompt."""
  choices: list[dict[str, Any]] = []
  for ids, group in zip(prompts, replies, strict=True):
    for reply in group:
      choice: dict[str, Any] = {
        "index": len(choices),
        "finish_reason": reply.finish_reason,
        "stop_reason": None,
        "logprobs": None,
      }
      if request.messages is not None:
        choice["message"] = reply.message
        if request.logprobs:
          choice["logprobs"] = {"content": _chat_logprobs(reply.tokens)}
      else:
        choice["text"] = reply.text
        if request.logprobs:
          choice["logprobs"] = _logprobs(reply.tokens)
      if request.token_ids:
        choice["token_ids"] = list(reply.completion.ids)
        if request.messages is None:
          choice["prompt_token_ids"] = list(ids)
      choices.append(choice)
  count = sum(map(len, prompts))
  num_new = sum(len(x.completion.ids) for group in replies for x in group)
  is_chat = request.messages is not None
  body: dict[str, Any] = {
    "id": name,
    "object": "chat.completion" if is_chat else "text_completion",
    "created": int(time.time()),
    "model": model,
    "choices": choices,
    "usage": {
      "prompt_tokens": count,
      "completion_tokens": num_new,
      "total_tokens": count + num_new,
    },
  }
  if request.token_ids and is_chat:
    body["prompt_token_ids"] = list(prompts[0])
  return body


def events(answer: Mapping[str, Any], usage: bool) -> list[dict[str, Any]]:
  """Returns the body of an `answer` as the events of a stream.

  With `usage`, the last event has the numbers of tokens.
  """
  is_chat = answer["object"] == "chat.completion"
  same = {
    name: answer[name] for name in answer.keys() - {"choices", "usage"}
  } | ({"object": "chat.completion.chunk"} if is_chat else {})
  stream = []
  for choice in answer["choices"]:
    first = dict(choice)
    end: dict[str, Any] = {"text": ""}
    if is_chat:
      message = first.pop("message")
      calls = [
        {"index": number, **call}
        for number, call in enumerate(message.get("tool_calls", ()))
      ]
      first["delta"] = {**message, **({"tool_calls": calls} if calls else {})}
      end = {"delta": {}}
    end |= {"index": first["index"], "finish_reason": first["finish_reason"]}
    stream += [
      {**same, "choices": [{**first, "finish_reason": None}]},
      {**same, "choices": [end]},
    ]
  if usage:
    stream.append({**same, "choices": [], "usage": answer["usage"]})
  return stream


def _as_text(piece: bytes) -> str:
  """Returns the text of a token, or the bytes of a part of a character."""
  try:
    return piece.decode("utf-8")
  except UnicodeDecodeError:
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def _chat_logprobs(tokens: Sequence[Token]) -> list[dict[str, Any]]:
  def described(piece: bytes, logp: float | None) -> dict[str, Any]:
    return {"token": _as_text(piece), "bytes": list(piece), "logprob": logp}

  return [
    {
      **described(token.piece, token.logp),
      "top_logprobs": [described(*likely) for likely in token.likeliest],
    }
    for token in tokens
  ]


def _logprobs(tokens: Sequence[Token]) -> dict[str, Any]:
  texts = [_as_text(token.piece) for token in tokens]
  sizes = [len(token.piece.decode("utf-8", "replace")) for token in tokens]
  offsets = list(itertools.accumulate(sizes, initial=0))
  likeliest = None
  if any(token.likeliest for token in tokens):
    likeliest = [_by_text(token) for token in tokens]
  return {
    "tokens": texts,
    "token_logprobs": [token.logp for token in tokens],
    "top_logprobs": likeliest,
    "text_offset": offsets[: len(texts)],
  }


def _by_text(token: Token) -> dict[str, float] | None:
  """Returns log-probs by text, the larger one of two equal texts."""
  if token.logp is None:
    return None
  logps: dict[str, float] = {}
  for piece, logp in (*token.likeliest, (token.piece, token.logp)):
    logps.setdefault(_as_text(piece), logp)
  return logps


def error(problem: BadRequest) -> dict[str, Any]:
  """Returns the body of a refusal."""
  kinds = {401: "authentication_error", 429: "rate_limit_error"}
  kind = "server_error" if problem.status >= 500 else "invalid_request_error"
  return {
    "error": {
      "message": str(problem),
      "type": kinds.get(problem.status, kind),
      "param": problem.param,
      "code": problem.code,
    }
  }
