"""A problem whose prompts and scores come from an environment of `verifiers`.

Its process is started here, before anything else, because it knows the prompts
(`fields`). During a rollout the environment asks the policy over HTTP, request
by request (`OpenEpisodes`).

Each episode asks for a model of its own, so that its requests are told apart.
The text that a request adds to the conversation is written after the tokens
that are there, which stay as they were sampled. So an episode is one row: a
prompt, the actions of the policy, and the messages between them. If a request
has another past than the one that was sampled, no row can be made of it, and
the episode has failed.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import secrets
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from grpo_jax.data import chat, conversations
from grpo_jax.data.encoder import Encoder
from grpo_jax.rewards.workers import verifiers_process
from grpo_jax.serving import endpoint, engine, http, requests
from grpo_jax.serving.requests import BadRequest, Reply, Request
from grpo_jax.settings import config as config_lib
from grpo_jax.settings import environment as environment_lib
from grpo_jax.settings.environment import ServedConfig
from grpo_jax.training.problem import rewards
from grpo_jax.types import HostEnvironment

MODEL = "policy"
REWRITTEN = "rewritten"  # Kind of failure, beside those of `frames`.


class ServedTurn(NamedTuple):
  """An action.

  Attributes:
    observed: Ids between the action before and this one.
  """

  observed: list[int]
  output: engine.Generated


@dataclasses.dataclass
class Episode:
  """A conversation so far.

  Attributes:
    prompt: Ids that the row continues.
    failed: The reason why no row can be made of it, or "".
    is_full: True if a request had no room.
    is_over: True if nothing more is drawn for it.
    waits: True while a request of it is being answered.
    answered_at: Time of its last reply, by `time.monotonic`.
    answer_s: For each turn but the last, seconds until the next request.
    latest: A request whose answer no client has received yet, and the answer.
  """

  prompt: list[int]
  key: np.ndarray
  turns: list[ServedTurn] = dataclasses.field(default_factory=list)
  failed: str = ""
  is_full: bool = False
  is_over: bool = False
  waits: bool = False
  seen_s: float = 0.0
  answered_at: float = 0.0
  answer_s: list[float] = dataclasses.field(default_factory=list)
  # All ids; the messages that they stand for, as they were sent, and with the
  # complete texts of the policy.
  ids: list[int] = dataclasses.field(default_factory=list)
  history: list[conversations.Message] = dataclasses.field(default_factory=list)
  texts: list[conversations.Message] = dataclasses.field(default_factory=list)
  lock: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)
  latest: tuple[Request, asyncio.Task[dict[str, Any]]] | None = None

  @property
  def size(self) -> int:
    """Tokens after the prompt."""
    return sum(len(turn.observed) + len(turn.output.ids) for turn in self.turns)


class ServedLimits(NamedTuple):
  """Limits and settings of the draws for an episode.

  Attributes:
    max_new_tokens: T, tokens of a row.
    temperature: Temperature at which the policy is trained; requests may not
      ask for another one.
    top_p: Top-p at which it is trained; None for all tokens.
  """

  max_new_tokens: int
  max_action_len: int
  temperature: Any
  top_p: Any


class OpenEpisodes:
  """The episodes that are played now; answers their requests.

  Attributes:
    now: Seconds that the sampler has waited for the environment.
  """

  def __init__(self) -> None:
    self.now = 0.0
    self._number = 0
    self._episodes: Sequence[Episode] = ()
    self._tools: tuple[endpoint.Speaker, engine.Drawer, ServedLimits] | None = (
      None
    )

  def begin(
    self,
    episodes: Sequence[Episode],
    speaker: endpoint.Speaker,
    sampler: engine.Drawer,
    limits: ServedLimits,
  ) -> int:
    """Takes requests of these episodes, and of no others.

    Returns:
      A number for this set of episodes, part of the names of their models.
    """
    self.now = 0.0
    self._number += 1
    self._tools = speaker, sampler, limits
    self._episodes = episodes
    return self._number

  def end(self) -> None:
    """Takes no more requests."""
    for episode in self._episodes:
      episode.is_over = True
    self._episodes = ()

  def model(self, row: int) -> str:
    """The name of the model that an episode asks for."""
    return f"{MODEL}/{self._number}-{row}"

  def models(self) -> list[str]:
    """The name of the model."""
    return [MODEL]

  async def complete(self, body: Any, is_chat: bool) -> dict[str, Any]:
    """Answers a request; see `serving.http.Endpoint`.

    A client that gives up is cancelled here, and its answer is still made: if
    the client asks the same again, it gets that answer, not a second one.
    """
    request = requests.parse(body, is_chat)
    episode = self._episode(request.model)
    if episode.latest is None or episode.latest[0] != request:
      task = asyncio.create_task(self._complete(request, episode))
      # Nobody may come back for an error.
      task.add_done_callback(lambda x: x.cancelled() or x.exception())
      episode.latest = request, task
    latest = episode.latest
    await asyncio.wait([latest[1]])
    if episode.latest is latest:
      episode.latest = None
    return latest[1].result()

  async def _complete(
    self, request: Request, episode: Episode
  ) -> dict[str, Any]:
    # One after the other: a request continues the tokens of the one before.
    async with episode.lock:
      episode.waits, episode.seen_s = True, self.now
      if len(episode.answer_s) < len(episode.turns):
        episode.answer_s.append(time.monotonic() - episode.answered_at)
      try:
        return await self._answer(request, episode)
      finally:
        episode.waits, episode.seen_s = False, self.now
        episode.answered_at = time.monotonic()

  def _episode(self, model: str) -> Episode:
    row = model.removeprefix(f"{MODEL}/{self._number}-")
    is_open = row != model and row.isdecimal()
    if not is_open or int(row) >= len(self._episodes):
      raise BadRequest(
        f"there is no episode {model!r:.40}, or it is over.", status=404
      )
    return self._episodes[int(row)]

  async def _answer(self, request: Request, episode: Episode) -> dict[str, Any]:
    assert self._tools is not None
    speaker, sampler, limits = self._tools
    check(request, limits)
    if episode.failed or episode.is_over:
      raise BadRequest(f"this episode is over: {episode.failed}")
    try:
      ids = await asyncio.to_thread(_context, request, episode, speaker)
    except ValueError as error:
      episode.failed = str(error)
      # A status of which clients do not ask again.
      raise BadRequest(episode.failed, "messages") from None
    size = len(ids) - len(episode.prompt)
    if size >= limits.max_new_tokens:
      episode.is_full = True
      endpoint.check_length(
        ids, len(episode.prompt) + limits.max_new_tokens - 1
      )
    room = min(limits.max_action_len, limits.max_new_tokens - size)
    ask = engine.Ask(
      ids, episode.key, min(request.limit or room, room), first=size
    )
    (output,) = await endpoint.completions_of(sampler, [ask])
    name = uuid.uuid4().hex[:16]
    reply = speaker.reply(request, ids, output, name, limits.temperature == 0)
    if not episode.is_over:
      _note(request, episode, ids, reply)
    name = f"chatcmpl-{name}"
    return requests.answer(request, name, request.model, [ids], [[reply]])


def check(request: Request, limits: ServedLimits) -> None:
  """Raises BadRequest for a request that no row can be drawn for."""
  values = {"temperature": request.temperature, "top_p": request.top_p}
  settings = {
    "temperature": limits.temperature,
    "top_p": 1.0 if limits.top_p is None else limits.top_p,
  }
  for name, value in values.items():
    # In an evaluation at temperature 0, values of requests are ignored.
    if value is not None and limits.temperature and value != settings[name]:
      raise BadRequest(
        f"{name}={value}: this policy is trained, and drawn, with"
        f" {settings[name]} (config.sampling.{name}); leave it out, or set the"
        " config to it.",
        name,
      )
  if request.messages is None:
    raise BadRequest("an episode is a chat; ask /chat/completions.", "prompt")
  if request.num_samples != 1:
    raise BadRequest(
      "an episode has one completion for each request; set n=1.", "n"
    )
  if request.echo or request.num_alternatives:
    raise BadRequest(
      "an episode has the log-probs of its own tokens alone; ask without echo"
      " and without likely tokens in their place (logprobs=0, top_logprobs=0).",
      "echo" if request.echo else "logprobs",
    )
  if request.seed is not None:
    raise BadRequest(
      "the draws of an episode depend on the seed of the run; leave it out.",
      "seed",
    )


def _context(
  request: Request, episode: Episode, speaker: endpoint.Speaker
) -> list[int]:
  """The ids after which the policy writes; they begin with those so far.

  Raises:
    ValueError: They would not begin with those so far.
  """
  if not episode.turns:
    (ids,) = speaker.prompts(request)
    if ids[: len(episode.prompt)] != episode.prompt:
      raise ValueError(
        "the first request of the episode has another prompt than its task, or"
        " other tools than the first task, and the row has room for those alone"
      )
    return ids
  assert request.messages is not None  # `check` has refused others.
  count = len(episode.history)
  is_same = len(request.messages) > count and all(
    chat.is_reply(message, former)
    for message, former in zip(request.messages, episode.history, strict=False)
  )
  if not is_same:
    raise ValueError(
      "a request has other messages than those that were said before: its"
      " context was rewritten, and tokens that were sampled in another one"
      " make no row"
    )
  return speaker.writer.extended(
    episode.ids,
    episode.texts,
    request.messages[count:],
    **endpoint.template_options(request),
  )


def _note(
  request: Request, episode: Episode, ids: list[int], reply: Reply
) -> None:
  """Adds an action to its episode."""
  output = reply.completion
  before = len(episode.ids) if episode.turns else len(episode.prompt)
  episode.turns.append(ServedTurn(ids[before:], output))
  episode.ids = [*ids, *output.ids]
  assert request.messages is not None  # `check` has refused others.
  rest = request.messages[len(episode.history) :]
  episode.history += [*rest, reply.message]
  episode.texts += [*rest, {"role": "assistant", "content": reply.full_text}]


class Served:
  """An environment of `verifiers`, and the server that it asks.

  Attributes:
    row_timeout_s: Timeout of an episode between two requests, seconds.
    step_timeout_s: Timeout of the environment for all episodes of a step,
      seconds.
  """

  def __init__(
    self,
    environment: verifiers_process.VerifiersEnvironment,
    settings: ServedConfig,
    row_timeout_s: float,
    step_timeout_s: float,
  ):
    """Takes over the environment; the server starts with the first play."""
    self.environment, self.settings = environment, settings
    self.row_timeout_s, self.step_timeout_s = row_timeout_s, step_timeout_s
    self.rollouts = OpenEpisodes()
    self.token = secrets.token_urlsafe(32)
    self._server: http.Server | None = None

  @property
  def url(self) -> str:
    """The address for clients; starts the server if it does not run yet."""
    if self._server is None:
      # The sampler's deadlines come first; this one is longer.
      self._server = http.Server(
        self.rollouts,
        token=self.token,
        max_requests=2**20,
        timeout_s=24 * 3600.0,
      )
    return f"{self._server.url}/v1"

  def close(self) -> None:
    """Ends the process and the server. May be called again."""
    self.environment.close()
    if self._server is not None:
      self._server.close()
      self._server = None


RETURN, ACCURACY = "return", "accuracy"


class Examples:
  """The tasks of an environment as a source of prompts."""

  def __init__(
    self, split: str, examples: Sequence[Mapping[str, Any]], writer: chat.Writer
  ):
    """Takes over the examples from the process.

    Args:
      split: Split of the environment.
      examples: Mappings, each with a prompt, an answer and tools.
      writer: Writer of messages as ids.
    """
    self._split, self._examples, self._writer = split, examples, writer

  def __len__(self) -> int:
    return len(self._examples)

  def __getitem__(self, index: int) -> dict[str, Any]:
    example = self._examples[index]
    try:
      ids = self._ids(example)
    except ValueError as error:
      raise ValueError(
        f"task {index} ({self._split}) of the environment: {error}"
      ) from error
    return {
      "prompt": ids,
      "answer": example["answer"],
      "completion": None,
      "extras": {"split": self._split, "example": int(index)},
    }

  def _ids(self, example: Mapping[str, Any]) -> np.ndarray:  # [any] int32
    tools = {"tools": example["tools"]} if example["tools"] else {}

    def ids(*more: Mapping[str, Any]) -> list[int]:
      messages = conversations.checked([*example["prompt"], *more])
      return self._writer.ids(messages, **tools)

    if not example["is_open"]:
      return np.asarray(ids(), np.int32)
    # What comes before the first message, of which nobody knows the text.
    first, second = (ids({"role": "user", "content": text}) for text in "ab")
    pairs = zip(first, second, strict=False)
    stem = [x for x, _ in itertools.takewhile(lambda p: p[0] == p[1], pairs)]
    if not stem:
      raise ValueError(
        "its first message is known only when it is played, and before that"
        " message the policy's template writes nothing that could be a prompt;"
        " set config.data.template='chat'"
      )
    return np.asarray(stem, np.int32)


def environment(config: config_lib.RunConfig, text: Any) -> HostEnvironment:
  """The sizes of a rollout; `text` is the tokenizer."""
  budget = config.sampling.max_new_tokens
  assert budget is not None  # `RunConfig` has checked it.
  return HostEnvironment(
    max_turns=budget,  # Each turn has at least one token.
    max_action_len=min(config.environment.max_action_len or budget, budget),
    max_observation_len=budget,
    action_ends=tuple(text.end_ids),
    path=config.data.environment,
  )


def fields(config: config_lib.RunConfig, text: Any) -> dict[str, Any]:
  """Starts the environment, and returns the fields of its `Problem`.

  Args:
    text: The tokenizer.

  Raises:
    KeyError: A reward is not among the scores of the environment.
    ValueError: There is no such environment, or it cannot be played.
  """
  data, settings = config.data, config.served
  assert data.max_prompt_len is not None  # `RunConfig` has checked it.
  if data.system:
    raise ValueError(
      f"config.data.system={data.system!r:.60} is for prompts of records, and"
      f" config.data.environment={data.environment!r} writes messages of its"
      " own; leave it empty, and set the option of the environment,"
      " config.environment.options={'system_prompt': …}."
    )
  path = data.environment.removeprefix(environment_lib.PREFIX)
  encoder = Encoder(text, data.template, dict(data.chat_options))
  process = verifiers_process.VerifiersEnvironment(
    path,
    dict(config.environment.options),
    config.rewards.variables,
    settings.python,
  )
  try:
    names = frozenset({*process.names, ACCURACY})
    scores = sorted({*names, RETURN})
    rewards.check_names(f"the environment {data.environment!r}", config, scores)
    writer = chat.Writer(encoder)
    train, held_out = (
      Examples(split, process.examples[split], writer)
      for split in verifiers_process.SPLITS
    )
    train[0]  # Raises if its messages cannot be written.
  except BaseException:
    process.close()
    raise
  return {
    "tokenizer": text,
    "train": train,
    "held_out": held_out,
    "supervised": train,
    "encoder": encoder,
    "answer_after": config.rewards.answer_after,
    "max_prompt_len": data.max_prompt_len,
    "max_new_tokens": config.sampling.max_new_tokens,
    "truncate_completions": True,
    "host_environment": environment(config, text),
    "sessions": Served(
      process,
      settings,
      config.rewards.row_timeout_s,
      config.rewards.step_timeout_s,
    ),
    "score_names": names,
    "components": frozenset(scores),
    "reward": rewards.make(
      config,
      rewards.InGraph(rewards.of_episodes),
      config.rewards.correct or ACCURACY,
    ),
    "provides": frozenset({"turns", "state_id"}),
  }
