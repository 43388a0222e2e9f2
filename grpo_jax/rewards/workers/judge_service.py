"""A judge that answers over HTTP, as a chat model with OpenAI's API.

    service = JudgeService("https://host/v1", "model", rubric, {"yes": 1.0, …})
    scores = service.score("judge", prompts, completions, extras, 60.0)

Many rows wait at the same time, in one thread of this process. Each has a
deadline, over all its tries. A try that fails for the moment is repeated after
a pause that doubles, or as long as the service asks for. Equal questions of a
call are asked once. There is a cap on all calls of a run.

The key is read from an environment variable when the first question is asked.
It is in no setting, in no message and in no process but this one: verifiers,
which may run a policy's code, never get it. It is sent to this address alone,
redirects are not followed, and without encryption it is sent to this machine
only.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import email.utils
import functools
import json
import os
import random
import threading
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from grpo_jax import optional
from grpo_jax.rewards import rubrics
from grpo_jax.rewards.workers import host

_aiohttp = functools.partial(optional.package, "aiohttp", "judge", __name__)
# Kinds of rows without a verdict: no answer in time; a refusal or an unreadable
# answer; an answer without a verdict; no calls left.
KINDS = ("judge_timeout", "judge_failed", "judge_unread", "judge_cap")

_MAX_BYTES = 2**20  # For an answer.
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_PASSING = (408, 409, 425, 429)  # Passing errors, and so are all from 500 on.
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_GRACE_S = 5.0  # For the thread's answer after all deadlines.


class _Failed(Exception):
  """The error of a row without a verdict: kind, and message without the key."""

  def __init__(self, kind: str, message: str):
    super().__init__(message)
    self.kind = kind


class _Again(Exception):
  """The error of a try that may succeed next time, after `pause_s` at least."""

  def __init__(self, message: str, pause_s: float = 0.0):
    super().__init__(message)
    self.pause_s = pause_s


@dataclasses.dataclass(frozen=True)
class JudgeLimits:
  """Limits of the cost of a service.

  Attributes:
    timeout_s: Seconds for a row, over all its tries.
    max_tries: Most calls for a row.
    max_calls: Most calls of a run, for each of its processes.
    max_in_flight: Most calls at the same time.
  """

  timeout_s: float = 60.0
  max_tries: int = 5
  max_calls: int = 100_000
  max_in_flight: int = 16


class JudgeService:
  """Asks a chat model for its verdict on completions. Not reentrant.

  Attributes:
    calls: Number of calls so far; a continued run restores it.
  """

  def __init__(
    self,
    url: str,
    model: str,
    rubric: str,
    words: Mapping[str, float],
    marker: str = "",
    max_tokens: int = 256,
    key_variable: str = "",
    options: Mapping[str, Any] | None = None,
    limits: JudgeLimits | None = None,
    domains: Sequence[int] | None = None,
  ):
    """Connects to nothing yet.

    Args:
      url: Address of the API, such as "https://host/v1".
      rubric: See `rubrics.py`.
      words, marker: See `rubrics.read`.
      max_tokens: Most tokens of an answer.
      key_variable: Environment variable with the key; empty: no key is sent.
      options: Further fields of a question; None removes a field.
      domains: Domains that it judges, by `extras["domain"]`; None: all rows.

    Raises:
      ValueError: The address is malformed, or a key would be sent in the clear.
    """
    check_url(url, bool(key_variable))
    self.calls = 0
    self._url = url.rstrip("/") + "/chat/completions"
    self._rubric = rubric
    self._words, self._marker = dict(words), marker
    self._key_variable = key_variable
    self._limits = limits or JudgeLimits()
    self._domains = domains
    self._body = {
      "model": model,
      "temperature": 0,
      "max_tokens": max_tokens,
      **(options or {}),
    }
    self._body = {k: x for k, x in self._body.items() if x is not None}
    self._loop: asyncio.AbstractEventLoop | None = None
    self._session: Any = None

  def check(
    self, prompt: str, completion: str, fields: Mapping[str, Any]
  ) -> None:
    """Asks once, with one try, about the values of a row.

    Raises:
      ImportError: The `aiohttp` package is missing.
      ValueError: There is no key, no answer, or no verdict in it.
    """
    self._key()
    once = dataclasses.replace(self._limits, max_tries=1)
    question = rubrics.filled(self._rubric, prompt, completion, fields)
    (reply,) = self._ask([question], once, self._limits.timeout_s)
    if isinstance(reply, _Failed):
      raise ValueError(
        f"config.judge.service.url: the judge was asked once before the run,"
        f" and gave no verdict: {reply}. See that the address, the name of the"
        " model and the key are right, and that the rubric asks for one of"
        f" {list(self._words)}."
      )

  def score(
    self,
    name: str,
    prompts: Sequence[str],
    completions: Sequence[str],
    extras: Sequence[Mapping[str, Any]],
    step_timeout_s: float,
  ) -> host.WorkerScores:
    """Judges B rows, in order; after `step_timeout_s` the others fail.

    Returns:
      The scores; NaN for rows of other domains, and for rows that failed.
    """
    rows = [
      i
      for i, fields in enumerate(extras)
      if self._domains is None or fields.get("domain") in self._domains
    ]
    questions = {
      i: self._question(prompts[i], completions[i], extras[i]) for i in rows
    }
    texts = (x for x in questions.values() if isinstance(x, str))
    different = list(dict.fromkeys(texts))
    answers = self._ask(different, self._limits, step_timeout_s)
    verdicts = dict(zip(different, answers, strict=True))
    values = np.full(len(prompts), np.nan, np.float32)
    failed = np.zeros(len(prompts), bool)
    counts = collections.Counter(dict.fromkeys(KINDS, 0))
    messages = {}
    for i, question in questions.items():
      answer = verdicts[question] if isinstance(question, str) else question
      if isinstance(answer, _Failed):
        failed[i] = True
        counts[answer.kind] += 1
        messages[i] = f"{answer.kind}: {name}: {answer}"
      else:
        values[i] = answer
    return host.WorkerScores(
      {name: values},
      failed,
      dict(counts),
      list(messages.values())[:3],
      messages,
    )

  def _question(
    self, prompt: str, completion: str, fields: Mapping[str, Any]
  ) -> str | _Failed:
    """Returns what the judge reads; a failure if the record lacks a field."""
    try:
      return rubrics.filled(self._rubric, prompt, completion, fields)
    except ValueError as error:
      return _Failed("judge_failed", str(error))

  def close(self) -> None:
    """Ends the connections. May be called again."""
    loop, self._loop = self._loop, None
    if loop is None:
      return
    if self._session is not None:
      closing = asyncio.run_coroutine_threadsafe(self._session.close(), loop)
      self._session = None
      with contextlib.suppress(TimeoutError):
        closing.result(_GRACE_S)
    loop.call_soon_threadsafe(loop.stop)

  def _key(self) -> str:
    """Returns the key; "" if none is needed.

    Raises:
      ValueError: The key is missing or malformed; the message does not show it.
    """
    if not self._key_variable:
      return ""
    key = os.environ.get(self._key_variable, "").strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
      raise ValueError(
        f"config.judge.service.key_variable={self._key_variable!r}: this"
        " environment variable is"
        f" {'no key: it has spaces or no ASCII' if key else 'not set'}. Set it"
        " to the key of the service, or the setting to '' for a service"
        " without keys."
      )
    return key

  def _ask(
    self, questions: Sequence[str], limits: JudgeLimits, seconds: float
  ) -> list[float | _Failed]:
    """Returns the verdict on each question, or its failure."""
    if not questions:
      return []
    if self._loop is None:
      self._loop = asyncio.new_event_loop()
      threading.Thread(
        target=self._loop.run_forever, name="judge", daemon=True
      ).start()
    future = asyncio.run_coroutine_threadsafe(
      self._ask_all(questions, limits, time.monotonic() + seconds), self._loop
    )
    try:
      return future.result(seconds + _GRACE_S)
    except TimeoutError:  # The machine is too busy for the thread.
      future.cancel()
      late = _Failed("judge_timeout", "its thread had no time to end the calls")
      return [late] * len(questions)

  async def _ask_all(
    self, questions: Sequence[str], limits: JudgeLimits, end: float
  ) -> list[float | _Failed]:
    if self._session is None:
      aiohttp = _aiohttp()
      self._session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),  # The limit: `max_in_flight`.
        # An answer in a few bytes may be large.
        headers={"Accept-Encoding": "identity"},
        auto_decompress=False,
      )
    free = asyncio.Semaphore(limits.max_in_flight)
    tasks = [self._row(question, limits, end, free) for question in questions]
    # One row's error must not fail all rows.
    verdicts = await asyncio.gather(*tasks, return_exceptions=True)
    return [
      x
      if isinstance(x, _Failed) or not isinstance(x, BaseException)
      else _Failed("judge_failed", self._safe(x))
      for x in verdicts
    ]

  async def _row(
    self,
    question: str,
    limits: JudgeLimits,
    end: float,
    free: asyncio.Semaphore,
  ) -> float:
    started, last = False, "its turn never came"
    for number in range(limits.max_tries):
      try:
        async with asyncio.timeout(end - time.monotonic()):
          await free.acquire()
      except TimeoutError:
        raise _Failed("judge_timeout", f"no time was left; {last}") from None
      try:
        if not started:  # The wait for others does not count as its time.
          started, end = True, min(end, time.monotonic() + limits.timeout_s)
        if self.calls >= limits.max_calls:
          raise _Failed(
            "judge_cap",
            f"all {limits.max_calls} calls of the run are made; raise"
            " config.judge.service.max_calls",
          )
        self.calls += 1
        async with asyncio.timeout(end - time.monotonic()):
          return self._reward(await self._call(question))
      except TimeoutError:
        raise _Failed(
          "judge_timeout",
          "no answer in time" + (f"; before that: {last}" if number else ""),
        ) from None
      except _Again as again:
        last = str(again)
        pause_s = min(_FIRST_PAUSE_S * 2**number, _LONGEST_PAUSE_S)
        # At different times: rows that failed together would do so again.
        pause_s = max(pause_s * random.uniform(0.5, 1.0), again.pause_s)
      finally:
        free.release()
      if number + 1 == limits.max_tries:
        break
      if time.monotonic() + pause_s >= end:
        raise _Failed("judge_timeout", f"no time for another try; {last}")
      await asyncio.sleep(pause_s)
    raise _Failed("judge_failed", f"{limits.max_tries} tries; {last}")

  async def _call(self, question: str) -> str:
    """Returns the model's reply.

    Raises:
      _Again, _Failed: There is no reply.
    """
    aiohttp = _aiohttp()
    key = self._key()
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    body = {**self._body, "messages": [{"role": "user", "content": question}]}
    try:
      async with self._session.post(
        self._url,
        json=body,
        headers=headers,
        allow_redirects=False,
        timeout=aiohttp.ClientTimeout(total=None),  # `asyncio.timeout` limits.
      ) as answer:
        content = bytearray()
        async for chunk in answer.content.iter_chunked(2**14):
          content += chunk
          if len(content) > _MAX_BYTES:
            raise _Again(f"its answer has more than {_MAX_BYTES} bytes")
        status, reply = answer.status, content.decode("utf-8", "replace")
        retry_after = answer.headers.get("Retry-After", "")
    except (aiohttp.ClientError, OSError) as error:
      raise _Again(self._safe(error)) from None
    if status in _PASSING or status >= 500:
      raise _Again(self._safe(f"{status} {reply}"), _seconds(retry_after))
    if status != 200:
      raise _Failed("judge_failed", self._safe(f"{status} {reply}"))
    try:
      text = json.loads(reply)["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError, RecursionError):
      raise _Again(self._safe(f"no chat completion: {reply}")) from None
    if not isinstance(text, str):
      raise _Failed("judge_unread", self._safe(f"no text: {reply}"))
    return text

  def _reward(self, text: str) -> float:
    reward = rubrics.read(text, self._words, self._marker)
    if reward is None:
      raise _Failed(
        "judge_unread",
        f"none of {list(self._words)} in {self._safe(text[-200:])!r}",
      )
    return reward

  def _safe(self, message: object) -> str:
    """Returns a message of others, short and without the key."""
    text = str(message)
    if isinstance(message, BaseException):
      text = f"{type(message).__name__}: {text}"
    if key := os.environ.get(self._key_variable, "").strip():
      text = text.replace(key, "***")
    return text[:300]


def check_url(url: str, has_key: bool) -> None:
  """Raises ValueError unless a key may be sent to this address."""
  parsed = urllib.parse.urlsplit(url)
  if parsed.scheme not in ("http", "https") or not parsed.hostname:
    raise ValueError(
      "config.judge.service.url must be an address such as"
      f" 'https://host/v1'; it is {_address(parsed)!r}."
    )
  if parsed.username is not None or parsed.query or parsed.fragment:
    raise ValueError(
      f"config.judge.service.url={_address(parsed)!r} has a user, a password or"
      " arguments (left out here), which would stand in the config of the run;"
      " set config.judge.service.key_variable to the name of an environment"
      " variable with the key."
    )
  if has_key and parsed.scheme == "http" and parsed.hostname not in _LOOPBACK:
    raise ValueError(
      f"config.judge.service.url={_address(parsed)!r} is not encrypted, and"
      " everyone on the way could read the key; use https, or set"
      " config.judge.service.key_variable to '' for a service without keys."
    )


def _address(url: urllib.parse.SplitResult) -> str:
  host_and_port = url.netloc.rpartition("@")[2]
  return urllib.parse.urlunsplit((url.scheme, host_and_port, url.path, "", ""))


def _seconds(retry_after: str) -> float:
  """Returns the wait that a service asks for, in seconds; 0 by default."""
  try:
    return max(float(retry_after), 0.0)
  except ValueError:
    pass
  try:
    until = email.utils.parsedate_to_datetime(retry_after)
    return max(until.timestamp() - time.time(), 0.0)
  except (ValueError, TypeError):
    return 0.0
