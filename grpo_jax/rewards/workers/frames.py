"""Messages between a pool and its workers, and between a worker and sessions.

A message is a frame: the length of its body in four bytes, big-endian, then the
body, JSON in ASCII. These are the messages:

    to a worker          [number, question]
    first, by a worker   [status, message]    "ready" or "failed"
    later, by a worker   [number, content, failure]

`number` is the number of the question that is answered; no other question of
the pool has it. `failure` is null, or [kind, message] with one of
`FAILURE_KINDS`. `host.py` and `sessions.py` define questions and contents.

The code behind a worker or a session is not trusted with the process that reads
its answers. So nothing is unpickled, a frame has at most `MAX_BYTES`, every
wait for the rest of a frame has a deadline, and any other message raises
ValueError. Floats keep their value to the last bit. As in Python's own JSON
there are NaN and Infinity; the reader of a number decides if they are allowed.
"""

from __future__ import annotations

import json
import math
import numbers
import os
import select
import struct
import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from grpo_jax import ranges

FAILURE_KINDS = ("raised", "timeout", "nan", "worker_died", "step_timeout")
# (one of FAILURE_KINDS, message)
Failure = tuple[str, str]

MAX_BYTES = 16 * 2**20
_LENGTH = struct.Struct(">I")
_READ_BYTES = 1 << 16  # At a time; a talkative peer has to wait for its turn.
_MAX_MESSAGE_LEN = 1000  # Characters of a message about a failure.


class Answer(NamedTuple):
  """A worker's answer to a question."""

  number: int
  content: Any
  failure: Failure | None


def encode(message: Any) -> bytes:
  """Returns a message as a frame.

  Args:
    message: None, booleans, numbers, text, lists and dictionaries with text for
      keys. Values with `tolist`, such as NumPy's, are converted by it.

  Raises:
    ValueError: The message has something else, or is too long.
  """
  try:
    body = _JSON.encode(message)
  except (TypeError, RecursionError) as error:
    raise ValueError(
      f"frames.encode: {error}; needs None, booleans, numbers, text, lists"
      " and dictionaries with text for keys."
    ) from error
  if len(body) > MAX_BYTES:
    raise ValueError(
      f"frames.encode: a message of {len(body)} bytes; needs at most"
      f" {MAX_BYTES}."
    )
  return _LENGTH.pack(len(body)) + body.encode("ascii")


def _plain(value: Any) -> Any:
  if hasattr(value, "tolist"):
    return value.tolist()
  raise TypeError(f"a message holds a {type(value).__name__}")


# Made once: `json.dumps` would make an encoder for each message.
_JSON = json.JSONEncoder(default=_plain, separators=(",", ":"))


def answer(message: Any) -> Answer:
  """Returns a worker's answer, if the message has the form of an answer.

  Raises:
    ValueError: The message has another form.
  """
  match message:
    case [int(number), content, None] if number is not True:
      return Answer(number, content, None)
    case [int(number), content, [str(kind), str(text)]] if (
      kind in FAILURE_KINDS and number is not True
    ):
      return Answer(number, content, (kind, text[:_MAX_MESSAGE_LEN]))
  raise ValueError(f"no answer: {message!r:.80}")


def greeting(message: Any) -> tuple[str, str]:
  """Returns the first message of a worker: (status, message).

  Raises:
    ValueError: The message has another form.
  """
  match message:
    case ["ready" | "failed" as status, str(text)]:
      return status, text[:_MAX_MESSAGE_LEN]
  raise ValueError(f"no greeting: {message!r:.80}")


def number(value: Any) -> float:
  """Returns a number of a message, which may be infinite.

  Raises:
    ValueError: The value is not a number, or is NaN.
  """
  try:
    result = float(value) if type(value) in (int, float) else math.nan
  except OverflowError:
    result = math.nan
  if math.isnan(result):
    raise ValueError(f"no number: {value!r:.80}")
  return result


def reward(value: Any) -> float:
  """Returns a number of a message that can be a reward.

  Raises:
    ValueError: The value is not a number, or is beyond `ranges.MAX_REWARD`.
  """
  result = number(value)
  if abs(result) > ranges.MAX_REWARD:
    raise ValueError(f"no reward: {result:g}; needs numbers up to 1e15")
  return result


def plain_number(value: Any) -> float:
  """Returns the number that a function has returned, of NumPy's types too.

  Raises:
    TypeError, ValueError: The value is not a number, such as text or a complex
      number, or is several numbers.
  """
  plain = value.item() if hasattr(value, "item") else value
  is_complex = isinstance(plain, numbers.Complex) and not isinstance(
    plain, numbers.Real
  )
  if is_complex or isinstance(plain, str) or not hasattr(plain, "__float__"):
    raise TypeError(f"{value!r:.60} ({type(value).__name__}) is not a number")
  try:
    return float(plain)
  except OverflowError:
    raise ValueError(f"{value!r:.60} is beyond the numbers") from None


class Channel:
  """One end of a pair of sockets. Several processes may hold an end."""

  def __init__(self, fd: int):
    """Takes over a file descriptor."""
    os.set_blocking(fd, False)
    self._fd = fd
    self._received = bytearray()
    self._unsent = bytearray()

  def fileno(self) -> int:
    return self._fd

  def close(self) -> None:
    """Closes this end. May be called again."""
    fd, self._fd = self._fd, -1
    if fd >= 0:
      os.close(fd)

  def close_in_forks(self) -> None:
    """Closes this end in the processes that this one forks from now on."""
    os.set_inheritable(self._fd, False)  # Nor can programs that it starts.
    os.register_at_fork(after_in_child=self.close)

  # Without waiting.

  @property
  def has_unsent(self) -> bool:
    return bool(self._unsent)

  def write(self, *messages: bytes) -> None:
    """Sends frames, or keeps what the peer has no room for until `flush`."""
    self._unsent += b"".join(messages)
    self.flush()

  def flush(self) -> None:
    """Sends bytes as far as there is room; none to a peer that is gone."""
    try:
      while self._unsent:
        del self._unsent[: os.write(self._fd, self._unsent)]
    except BlockingIOError:
      pass
    except OSError:  # The peer's earlier messages can still be read.
      self._unsent.clear()

  def read(self) -> None:
    """Reads some of the bytes that have arrived.

    Raises:
      EOFError: The peer is gone, and everything has been read.
    """
    try:
      data = os.read(self._fd, _READ_BYTES)
    except BlockingIOError:
      return
    except OSError:
      data = b""
    if not data:
      raise EOFError
    self._received += data

  def messages(self) -> Iterator[Any]:
    """Yields the messages that have arrived completely.

    Raises:
      ValueError: A message is too long, or not JSON.
    """
    while len(self._received) >= _LENGTH.size:
      (length,) = _LENGTH.unpack_from(self._received)
      if length > MAX_BYTES:
        raise ValueError(f"a message of {length} bytes")
      end = _LENGTH.size + length
      if len(self._received) < end:
        return
      body = bytes(self._received[_LENGTH.size : end])
      del self._received[:end]
      try:
        message = json.loads(body)
      except (ValueError, RecursionError) as error:
        raise ValueError(f"a message that is not JSON: {error}") from error
      yield message

  # Waiting.

  def send(self, message: bytes, end: float = math.inf) -> None:
    """Sends a frame.

    Args:
      message: From `encode`.
      end: Deadline; time.monotonic().

    Raises:
      TimeoutError: The deadline has passed.
    """
    self.write(message)
    while self._unsent:
      self._check(end)
      wait([self], end - time.monotonic(), reading=False)
      self.flush()

  def receive(self, end: float = math.inf) -> Any:
    """Returns the next message.

    Raises:
      EOFError: The peer is gone, or this end is closed.
      TimeoutError: The deadline has passed.
      ValueError: The bytes are not a message.
    """
    while True:
      for message in self.messages():
        return message
      self._check(end)
      if wait([self], end - time.monotonic()):
        self.read()

  def _check(self, end: float) -> None:
    if self._fd < 0:
      raise EOFError
    if time.monotonic() >= end:
      raise TimeoutError


def wait(
  channels: Iterable[Channel], timeout_s: float, reading: bool = True
) -> set[Channel]:
  """Waits until a channel can be read, or can send its unsent bytes.

  Returns:
    The channels that are ready; none if the time is over before.
  """
  poll = select.poll()  # Unlike select, for file descriptors of any size.
  by_fd = {channel.fileno(): channel for channel in channels}
  for fd, channel in by_fd.items():
    poll.register(
      fd,
      (select.POLLIN if reading else 0)
      | (select.POLLOUT if channel.has_unsent else 0),
    )
  milliseconds = min(max(timeout_s, 0.0), 3600.0) * 1000
  return {by_fd[fd] for fd, _ in poll.poll(math.ceil(milliseconds))}
