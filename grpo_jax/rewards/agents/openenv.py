"""Environments that servers of OpenEnv run, as sessions (`HostEnvironment`).

    config.data.environment = "grpo_jax.rewards.agents.openenv:make"
    config.environment.options = {
      "servers": {
        "guess": {"url": "http://10.0.0.7:8000", "action": "text"},
        "shop": {"url": ["http://10.0.0.8:8000", "http://10.0.0.9:8000"]},
      },
      "calls": "qwen",
    }

An episode is one WebSocket to `URL/ws`, and messages in JSON, one answer to
each question:

    {"type": "reset", "data": {"seed": 7, …}}
    {"type": "step", "data": {"text": "4"}}
    {"type": "step", "data": {"type": "call_tool", "tool_name": …,
                              "arguments": {…}}}
    {"type": "observation", "data": {"observation": {…}, "reward": 1.0,
                                     "done": true}}
    {"type": "state"}, {"type": "close"}, {"type": "error", "data": {…}}

The package `openenv` is not needed here. An action is a text in a field of the
environment's action (`RemoteEnvironment.action`), or calls of its tools, in the
format of the chat template (`OpenEnvOptions.calls`).

The server is not trusted. A message has at most `MAX_BYTES`, is JSON by its
standard, and comes in time, or the connection is cut. It is an answer to a
question, and has the form of one; redirects are not followed. Messages have no
number, so the state is asked for at the end of each episode: its answer is of
another type, and shows that there was one answer to each question. Anything
else raises `ServerError`, which costs the row of the session.

With config.data.source = "environment" a prompt is what an environment shows
after a reset. If a server does not answer then, the prompt is `UNKNOWN`, and
its rows are unscored: they have no session.

Source: github.com/huggingface/OpenEnv, 0.10.0, `openenv.core.EnvClient` and
`MCPToolClient`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import threading
import time
import urllib.parse
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from grpo_jax import optional, ranges, strict_json
from grpo_jax.rewards import registry
from grpo_jax.rewards.agents import call_formats, games, tools
from grpo_jax.rewards.agents.interceptor import Observation

MAX_BYTES = 1 << 20  # Of a message.
UNKNOWN = "?"  # The prompt of an episode that no server has begun.
_SCHEMES = {"http": 80, "ws": 80, "https": 443, "wss": 443}
_CLOSE_S = 1.0
_PAUSE_S = 0.1  # Between two tries at a server whose places are all taken.
_MAX_CALLS = 4  # Of an action; the others are not made.
_MAX_SHOWN = 300  # Characters of a message of a server.


class ServerError(RuntimeError):
  """The error of a server that fails, or does not keep to the protocol.

  Attributes:
    code: The server's code of the error, or "".
  """

  def __init__(self, message: str, code: str = ""):
    super().__init__(message)
    self.code = code


@dataclasses.dataclass(frozen=True)
class RemoteEnvironment:
  """An environment, an entry of `OpenEnvOptions.servers`.

  Attributes:
    url: Address of the server, http, https, ws or wss. Of several, which run
      the same environment, the row's seed chooses one, and the next one is
      taken if it cannot be reached.
    action: The field of an action that gets the policy's text; or the import
      path of a function (text) -> action, a dictionary. Empty: the policy calls
      the tools of the environment.
    view: The field of an observation that the policy reads; or the import path
      of a function (observation) -> text. Empty: all fields, as JSON, without
      "metadata". What a tool returns is read as it is.
    reset: Arguments of `reset`. The field "reset" of a record has more.
    scores: Name of a score -> field of the environment's state, which has its
      value at the end of an episode.
    token: Name of the environment variable with the token that the server asks
      for ("Authorization: Bearer …"); config.rewards.variables needs it too.
  """

  url: str | Sequence[str]
  action: str = ""
  view: str = ""
  reset: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  scores: Mapping[str, str] = dataclasses.field(default_factory=dict)
  token: str = ""

  @property
  def urls(self) -> list[str]:
    """All addresses."""
    return [self.url] if isinstance(self.url, str) else list(self.url)

  def action_of(self, text: str) -> dict[str, Any]:
    """Returns the action of a text."""
    if ":" not in self.action:
      return {self.action: text}
    fields = registry.load(self.action, "action", {})(text)
    if not isinstance(fields, dict):
      raise TypeError(
        f"openenv: {self.action!r} returned {fields!r:.60}; needs a"
        " dictionary, the fields of the action."
      )
    return fields

  def text(self, observation: Any) -> str:
    """Returns the text of an observation that the policy reads."""
    if ":" in self.view:
      return _clean(registry.load(self.view, "view", {})(observation))
    if not self.view:
      rest = {x: y for x, y in observation.items() if x != "metadata"}
      return _clean(json.dumps(rest, ensure_ascii=False, sort_keys=True))
    if self.view not in observation:
      raise ServerError(
        f"openenv: an observation has no field {self.view!r}, but"
        f" {sorted(observation)!r:.200}."
      )
    return _text(observation[self.view])


@dataclasses.dataclass(frozen=True)
class OpenEnvOptions:
  """Settings of a session, `config.environment.options`.

  Attributes:
    servers: Settings of a `RemoteEnvironment` by the name of its environment.
    field: The field of a record that names its environment; not needed if there
      is one. Prompts of source "environment" come from all environments alike.
    calls: Format of tool calls, "qwen", "hermes" or "llama"; needed if a server
      has no `action`.
    around: Texts before and after each observation after a text, which may have
      special tokens, such as those of a chat.
    ends: Texts of end tokens, which are removed from the end of a text.
    timeout_s: Seconds for a connection, and for each answer; keep it below
      config.rewards.row_timeout_s.

  Raises:
    ValueError: A setting has an impossible value.
  """

  servers: Mapping[str, Mapping[str, Any]]
  field: str = "environment"
  calls: str = ""
  around: Sequence[str] = ("", "")
  ends: Sequence[str] = games.ENDS
  timeout_s: float = 5.0

  def __post_init__(self):
    if not isinstance(self.servers, Mapping) or not self.servers:
      raise ValueError(
        f"openenv: servers={self.servers!r:.60}; needs"
        " {'NAME': {'url': 'http://HOST:PORT', …}}."
      )
    for name, server in self.remotes.items():
      for url in server.urls or [""]:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in _SCHEMES or not parts.hostname:
          raise ValueError(
            f"openenv: the server {name!r} has the url {url!r:.60}; needs"
            " an address as 'http://HOST:PORT', or several."
          )
      if not server.action and not self.calls:
        raise ValueError(
          f"openenv: the server {name!r} has no action, the field that gets the"
          " policy's text; name it, or set calls to a format of tool calls."
        )
      if server.token and server.token not in os.environ:
        raise ValueError(
          f"openenv: the server {name!r} has the token {server.token!r}, and"
          " there is no environment variable of that name; set it, and name it"
          " in config.rewards.variables."
        )
    if self.calls:
      self.chat_format()

  @property
  def remotes(self) -> dict[str, RemoteEnvironment]:
    """The servers by name."""
    try:
      return {
        name: RemoteEnvironment(**settings)
        for name, settings in self.servers.items()
      }
    except TypeError as error:
      own = ", ".join(x.name for x in dataclasses.fields(RemoteEnvironment))
      raise ValueError(
        f"openenv: servers: {error}; a server has {own}."
      ) from None

  def chat_format(self) -> call_formats.Format:
    """Returns the format of calls and results."""
    return call_formats.named(self.calls)

  def name_of(self, extras: Mapping[str, Any]) -> str:
    """Returns the name of a record's environment.

    Raises:
      ValueError: The record names none of them.
    """
    names = list(self.servers)
    name = extras.get(self.field, names[0] if len(names) == 1 else None)
    if name not in names:
      raise ValueError(
        f"openenv: the field {self.field!r} of a record is {name!r:.40}; needs"
        f" one of {', '.join(map(repr, names))}."
      )
    return name

  @property
  def score_names(self) -> list[str]:
    """Names of scores from the states of all environments."""
    return [name for server in self.remotes.values() for name in server.scores]


def _clean(text: Any) -> str:
  """Returns a text, if it is one that can be written.

  Raises:
    ServerError: It is no text, or has halves of characters.
  """
  try:
    text.encode("utf-8")
  except (AttributeError, UnicodeError):
    raise ServerError(
      f"openenv: the policy would read {text!r:.60}, which is no text."
    ) from None
  return text


def _text(value: Any) -> str:
  if isinstance(value, str):
    return _clean(value)
  return _clean(json.dumps(value, ensure_ascii=False))


class Connection:
  """A session of a server.

  All its methods raise `TimeoutError` if they take longer than `timeout_s`.

  Attributes:
    name: Host and port.
  """

  def __init__(self, url: str, timeout_s: float, token: str = ""):
    """Connects.

    Args:
      timeout_s: Seconds for the connection, and for each answer.

    Raises:
      ServerError: The server cannot be reached, or is none of WebSockets.
    """
    from websockets.sync import client

    parts = urllib.parse.urlsplit(url)
    address = parts.hostname, parts.port or _SCHEMES[parts.scheme]
    self.name = f"{parts.hostname}:{address[1]}"
    self._timeout_s = timeout_s
    scheme = "wss" if parts.scheme in ("https", "wss") else "ws"
    bearer = {"Authorization": f"Bearer {token}"} if token else None
    self._handle: socket.socket | None = None
    with self._deadline("no connection to"):
      sock = socket.create_connection(address, timeout_s)
      sock.settimeout(None)  # A policy may take its time.
      self._handle = sock.dup()  # TLS takes the other one away.
      self._socket = client.connect(
        f"{scheme}://{parts.netloc}{parts.path.rstrip('/')}/ws",
        sock=sock,
        compression=None,
        open_timeout=timeout_s,
        close_timeout=_CLOSE_S,
        ping_interval=None,  # An environment may keep its server busy.
        max_size=MAX_BYTES,
        additional_headers=bearer,
      )

  @contextlib.contextmanager
  def _deadline(self, what: str) -> Iterator[None]:
    """Cuts the connection after `timeout_s`, whatever is waited for."""
    late = threading.Event()

    def cut() -> None:
      late.set()
      with contextlib.suppress(OSError, AttributeError):
        self._handle.shutdown(socket.SHUT_RDWR)  # type: ignore[union-attr]

    timer = threading.Timer(self._timeout_s, cut)
    timer.daemon = True
    timer.start()
    try:
      yield
    except ServerError:
      raise
    except Exception as error:
      if late.is_set() or isinstance(error, TimeoutError):
        raise TimeoutError(
          f"openenv: {what} {self.name} in {self._timeout_s:g} s"
        ) from None
      raise ServerError(
        f"openenv: {what} {self.name}: {type(error).__name__}: {error!s:.200}"
      ) from None
    finally:
      timer.cancel()

  def ask(self, kind: str, data: Mapping[str, Any] | None = None) -> Any:
    """Asks "reset", "step" or "state"; returns the data of the answer.

    Raises:
      ServerError: The answer is an error, or none of the protocol, or the
        connection has been closed.
    """
    message = {"type": kind} | ({} if data is None else {"data": data})
    raw = None
    with self._deadline(f"no answer to a {kind} by"):
      with contextlib.suppress(TimeoutError):
        raw = self._socket.recv(timeout=0)
      is_sent = raw is None  # Else it would be taken for the answer.
      if is_sent:
        # A server without a free place says so, and closes.
        with contextlib.suppress(exceptions().ConnectionClosed):
          self._socket.send(json.dumps(message))
        raw = self._socket.recv()
    try:
      reply = strict_json.loads(raw) if isinstance(raw, str) else None
    except (ValueError, RecursionError):
      reply = None
    match reply:
      case {"type": "error", "data": {"message": str(text), **rest}}:
        raise ServerError(
          f"openenv: {self.name} answers a {kind} with an error:"
          f" {text[:_MAX_SHOWN]!r}",
          str(rest.get("code", "")),
        )
      case {"type": "observation" | "state" as name, "data": dict(fields)} if (
        is_sent and (name == "state") == (kind == "state")
      ):
        return fields
    raise ServerError(
      f"openenv: {self.name} says {raw!r:.80}, which is no answer to a {kind}"
    )

  def close(self) -> None:
    """Ends the session on the server."""
    with contextlib.suppress(Exception), self._deadline("no end by"):
      self._socket.send('{"type": "close"}')
      self._socket.close()
    if self._handle is not None:
      self._handle.close()


class RemoteEpisode:
  """An episode of an environment, as `games.GameSession` plays it.

  Attributes:
    observation: The last observation, a dictionary.
    over: True if the environment has ended it.
  """

  def __init__(
    self,
    options: OpenEnvOptions,
    name: str,
    seed: int,
    reset: Mapping[str, Any],
    place: int,
  ):
    """Begins the episode.

    Args:
      reset: Arguments of `reset`, beside those of the server.
      place: Number, from 0 on, that chooses among several addresses.

    Raises:
      ServerError, TimeoutError: No server has begun it.
    """
    self._server, self._names = options.remotes[name], options.score_names
    self._reward, self._turns = 0.0, 0
    self.observation: dict[str, Any] = {}
    self.over = False
    arguments = {"seed": seed, **self._server.reset, **reset}
    end = time.monotonic() + options.timeout_s
    while True:
      self._connection = self._connected(options.timeout_s, place)
      try:
        self._ask("reset", arguments)
        return
      except (ServerError, TimeoutError) as error:
        self._connection.close()
        # Sessions that are over may still be closing.
        full = getattr(error, "code", "") == "CAPACITY_REACHED"
        if not full or time.monotonic() > end:
          raise
      time.sleep(_PAUSE_S)

  def _connected(self, timeout_s: float, place: int) -> Connection:
    urls, token = self._server.urls, os.environ.get(self._server.token, "")
    first = place % len(urls)
    for url in [*urls[first:], *urls[:first]]:
      try:
        return Connection(url, timeout_s, token)
      except (ServerError, TimeoutError) as error:
        failure = error
    raise failure

  def _ask(self, kind: str, data: Mapping[str, Any]) -> float:
    match self._connection.ask(kind, data):
      case {
        "observation": dict(observation),
        "reward": bool() | int() | float() | None as reward,
        "done": bool(done),
      } if abs(reward or 0) <= ranges.MAX_REWARD:
        self.observation, self.over = observation, done
        return float(reward or 0)
      case answer:
        raise ServerError(
          f"openenv: {self._connection.name} answers a {kind} with"
          f" {answer!r:.150}; needs an observation, a dictionary; a reward"
          " up to 1e15, or null; and done, true or false."
        )

  def act(self, action: Mapping[str, Any]) -> float:
    """Takes a step and returns its reward; 0 if it has none."""
    self._turns += 1
    self._reward = self._ask("step", action)
    return self._reward

  def scores(self) -> dict[str, float | None]:
    """Returns the scores so far.

    "accuracy": the environment has ended the episode with a positive reward;
    "turns"; and those of all environments' states, None for those of others.
    """
    scores: dict[str, float | None] = {
      "accuracy": float(self.over and self._reward > 0),
      "turns": float(self._turns),
      **dict.fromkeys(set(self._names) - {"accuracy"}),
    }
    # Messages have no number. If something was answered twice, all answers have
    # come one question late, and the last of them comes now.
    state = self._connection.ask("state")
    for score, field in self._server.scores.items():
      match state.get(field):
        case bool() | int() | float() as value if (
          abs(value) <= ranges.MAX_REWARD
        ):
          scores[score] = float(value)
        case value:
          raise ServerError(
            f"openenv: the field {field!r} of a state is {value!r:.60}; needs"
            f" a number, the score {score!r}."
          )
    return scores

  def close(self) -> None:
    """Ends the episode on the server."""
    self._connection.close()


class CallSession(games.GameSession):
  """The session of an environment whose tools the policy calls.

  An action without a call ends the episode, with the reward 0.
  """

  def __init__(
    self,
    game: RemoteEpisode,
    view: Callable[[Any], str],
    options: OpenEnvOptions,
  ):
    super().__init__(game, view, None, False, ("", ""), options.ends)
    self._format = options.chat_format()

  def step(self, action: str) -> tuple[Observation, float, bool]:
    """Makes the calls of an action, and returns what the policy reads."""
    parsed = self._format.parse(action)
    results, rewards = [], 0.0
    for call in parsed.calls[:_MAX_CALLS]:
      if call.error:
        results.append(call.error)
        continue
      rewards += self.game.act(
        {
          "type": "call_tool",
          "tool_name": call.name,
          "arguments": call.arguments,
        }
      )
      if self.game.over:
        return "", rewards, True
      results.append(_result(self.game.observation))
    if (more := len(parsed.calls) - _MAX_CALLS) > 0:
      results.append(f"Error: {more} more calls were not made.")
    if not results:
      return "", 0.0, True
    return self._format.render(results, parsed.ended), rewards, False


def _result(observation: Mapping[str, Any]) -> str:
  """Returns the text of a tool's result, or of its error."""
  match observation:
    case {"error": {"message": str(message)}}:
      return _clean(f"Error: {message}")
    case {"result": {"data": data}} if data is not None:
      return _text(data)
    case {"result": {"content": [*parts]}}:
      texts = [x["text"] for x in parts if isinstance(x, dict) and "text" in x]
      return _clean("\n".join(map(str, texts)))
    case {"result": result}:
      return _text(result)
  raise ServerError(
    f"openenv: {observation!r:.80} is no answer of a tool; needs a"
    " 'result', or an 'error' with a 'message'."
  )


def make(
  prompt: str, extras: Mapping[str, Any], seed: int, **options: Any
) -> games.GameSession:
  """The factory of sessions, with `OpenEnvOptions`.

  All rows of a prompt get the same seed for `reset`: the field "seed" of the
  record, or a checksum of the prompt. `seed` chooses among several addresses.

  Raises:
    ServerError: The environment did not begin when its prompt was made, or now
      shows something else, or is over before the first action.
    ValueError: The record names no environment.
  """
  config = OpenEnvOptions(**options)
  name = config.name_of(extras)
  if why := extras.get("failed"):
    raise ServerError(why)
  game = RemoteEpisode(
    config,
    name,
    int(extras.get("seed", zlib.crc32(prompt.encode()))),
    extras.get("reset") or {},
    seed,
  )
  if game.over:
    game.close()
    raise ServerError(f"openenv: an episode of {name!r} was over at once.")
  server = config.remotes[name]
  session = (
    games.GameSession(
      game, server.text, server.action_of, False, config.around, config.ends
    )
    if server.action
    else CallSession(game, server.text, config)
  )
  if "first" in extras and session.first() != extras["first"]:
    game.close()
    raise ServerError(
      f"openenv: {name!r} with the seed {extras['seed']} shows"
      f" {session.first()!r:.80} after a reset, and its prompt is"
      f" {extras['first']!r:.80}; needs an environment that shows the same"
      " after each reset with a seed; choose its view so that it does."
    )
  return session


def problem(seed: int, **options: Any) -> tuple[str, dict[str, Any]]:
  """Returns a prompt and its extras, for the source "environment".

  The seed also chooses the environment.
  """
  config = OpenEnvOptions(**options)
  exceptions()
  place, number = divmod(seed, len(config.servers))
  name = sorted(config.servers)[number]
  extras: dict[str, Any] = {"seed": seed, config.field: name}
  try:
    with contextlib.closing(make("", extras, place, **options)) as session:
      first = session.first()
  except Exception as error:  # Of any type: a view reads what a server says.
    return UNKNOWN, extras | {"failed": f"{type(error).__name__}: {error}"}
  return first, extras | {"first": first}


def exceptions() -> Any:
  """Returns the exceptions of the optional package, after its import.

  Raises:
    ImportError: It is missing.
  """
  package = optional.package("websockets", "openenv", __name__, "sync.client")
  return package.exceptions


def warm_up(**options: Any) -> None:
  """Checks the options, and imports what sessions need."""
  OpenEnvOptions(**options)
  exceptions()


def schemas(**options: Any) -> list[tools.Schema]:
  """Returns the schemas of all environments' tools, for the chat template.

  Raises:
    ServerError, TimeoutError: A server does not name its tools.
  """
  config = OpenEnvOptions(**options)
  exceptions()
  by_name: dict[str, tools.Schema] = {}
  for name, server in config.remotes.items():
    if server.action:
      continue
    episode = RemoteEpisode(config, name, 0, {}, 0)
    try:
      episode.act({"type": "list_tools"})
      for tool in episode.observation["tools"]:
        by_name[tool["name"]] = tools.of_parts(
          tool["name"], tool["description"], tool["input_schema"]
        )
    except (KeyError, TypeError) as error:
      raise ServerError(
        f"openenv: the server {name!r} does not name its tools: {error!r}"
      ) from None
    finally:
      episode.close()
  return list(by_name.values())


def in_chat(chat_text: Callable[..., str], **options: Any) -> Observation:
  """Checks that the format is the one of a chat template.

  Args:
    chat_text: (messages) -> text with a generation prompt.

  Returns:
    The chat template's text around results that are empty, for the largest
    number of calls in a turn; "" if `calls` is off.

  Raises:
    ValueError: The template writes calls or results in another way.
  """
  config = OpenEnvOptions(**options)
  if not config.calls:
    return ""
  format = config.chat_format()
  if why := call_formats.difference(format, chat_text):
    raise ValueError(
      f"config.environment.options: calls={config.calls!r} is not the format of"
      f" the chat template: {why}. Choose one of"
      f" {', '.join(map(repr, call_formats.FORMATS))}."
    )
  most = format.most_calls or _MAX_CALLS + 1
  return format.render([""] * most, ended=False)


tools.complete(make, warm_up, schemas, in_chat, OpenEnvOptions)
make.problem = problem  # type: ignore[attr-defined]
