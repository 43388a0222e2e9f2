r"""A Python interpreter for a policy's code: it keeps names between calls.

```
python = interpreter.Interpreter()
python.call("x = 27 + 45")  # ""
python.call("x - 8")  # "64"
python.call("1 / 0")  # "line 1: 1 / 0\nZeroDivisionError: division by zero"
python.call("while True: pass")  # "[killed: no answer in 5 s]"
python.call("x")  # "[a new interpreter: all names are lost]\nline 1: x\n…"
python.close()
```

It runs in the box of the reward `code` (`box.py`, docs/sandbox.md), with the
standard library and nothing else. A box is made at the first call, and after a
call in which the interpreter hung, ended or wrote without end.

No program fails an episode: the policy reads the result, even of a crash, and
the episode goes on. Only a box that cannot be made raises. A program cannot
hold the host up, because each call has a deadline. Its output is only text: a
call ends with a number that nobody can guess. A program can take over the
interpreter in its box, and then answer later calls as it likes. That deceives
only the policy that wrote it. So a tool's output must never be a verdict, and
here it is not one.

The same calls have the same answers if they ask neither for the time nor for
random numbers, and are quick enough: the order of sets is fixed, and addresses
of objects are left out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import pathlib
import re
import secrets
import select
import subprocess
import time
from typing import NamedTuple

from grpo_jax.rewards.sandbox import box as box_lib
from grpo_jax.rewards.sandbox import console

STATUSES = ("done", "raised", "late", "flood", "ended", "refused")

_PROGRAM = pathlib.Path(console.__file__).read_text(encoding="utf-8")
# To make a box, which takes 20 ms if the machine is not busy.
_START_S = 60.0
_MOST_S = 1e6
_LEAST_MEMORY = 64 << 20  # Python itself takes some 30 MB of addresses.
_FLOOD = 1 << 20  # Bytes; a block that writes more is killed.
_NEW = "[a new interpreter: all names are lost]\n"
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class ExpressionAnswer(NamedTuple):
  """The result of a block of Python.

  Attributes:
    status: "done"; "raised": it ended with an error; "late": beyond its time;
      "flood": it wrote without end; "ended": the interpreter is gone, as after
      `os._exit`, or too much memory or CPU time; "refused": it was not run,
      since calls or time are used up. After "late", "flood" and "ended" all
      names are lost.
    text: The text that the policy reads.
  """

  status: str
  text: str


class Interpreter:
  """Runs blocks of Python one after another; see the module.

  An interpreter is not for several threads.
  """

  def __init__(
    self,
    sandbox: str = "bwrap",
    call_s: float = 5.0,
    total_s: float = 60.0,
    max_calls: int = 32,
    max_bytes: int = 4096,
    memory: int = 512 << 20,
    cpu_s: int = 30,
  ):
    """Starts nothing.

    Args:
      sandbox: "bwrap", or "process", which does not isolate.
      call_s: Seconds for a call.
      total_s: Seconds for all calls together.
      max_calls: Most calls, whatever their results.
      max_bytes: Most bytes of a block's output; more is left out of its middle.
      memory: Bytes of address space.
      cpu_s: Whole seconds of a core that an interpreter has for all its calls.

    Raises:
      ValueError: The kind of sandbox is unknown, or a limit is out of range.
    """
    if sandbox not in box_lib.KINDS:
      raise ValueError(
        f"Interpreter: sandbox={sandbox!r}; choose one of {box_lib.KINDS}."
      )
    for name, value, kind, least, most in (
      ("call_s", call_s, "", 1e-3, _MOST_S),
      ("total_s", total_s, "", 1e-3, _MOST_S),
      ("max_calls", max_calls, "whole ", 1, math.inf),
      ("max_bytes", max_bytes, "whole ", 1, _FLOOD),
      ("memory", memory, "whole ", _LEAST_MEMORY, math.inf),
      ("cpu_s", cpu_s, "whole ", 1, _MOST_S),
    ):
      is_number = type(value) is int or (type(value) is float and not kind)
      if not is_number or not least <= value <= most:
        raise ValueError(
          f"Interpreter: {name}={value!r}; needs a {kind}number from"
          f" {least:g}{f' to {most:g}' if most < math.inf else ' on'}."
        )
    self._sandbox = sandbox
    self._call_s, self._total_s = call_s, total_s
    self._max_calls, self._max_bytes = max_calls, max_bytes
    self._limits = dataclasses.replace(
      box_lib.LIMITS, cpu_s=cpu_s, memory=memory, wall_s=_START_S
    )
    self._num_calls = 0
    self._used_s = 0.0
    self._is_new = False  # True after a restart that was not reported yet.
    self._process: subprocess.Popen | None = None
    self._end = contextlib.ExitStack()

  def call(self, code: str) -> str:
    """Returns the text that a block of Python gives; see `run`."""
    return self.run(code).text

  def run(self, code: str) -> ExpressionAnswer:
    """Runs a block of Python with the names of earlier blocks.

    The text of the result is the block's output, and then the `repr` of an
    expression at its end, as in a notebook, or the error and its lines.

    Raises:
      RuntimeError: A box cannot be made here, or does not isolate.
      TimeoutError: The box took too long to start.
    """
    if self._num_calls >= self._max_calls:
      return ExpressionAnswer(
        "refused", f"[refused: {self._max_calls} calls were made]"
      )
    if self._used_s >= self._total_s:
      return ExpressionAnswer(
        "refused", f"[refused: {self._total_s:g} s are used up]"
      )
    self._num_calls += 1
    if self._process is not None and self._has_ended(self._process):
      self._stop()
    process = self._process or self._start()
    seconds = min(self._call_s, self._total_s - self._used_s)
    output = _Output(self._max_bytes)
    start = time.monotonic()
    status = _talk(process, code, start + seconds, output)
    self._used_s += time.monotonic() - start
    text = _NEW if self._is_new else ""
    self._is_new = False
    text += output.text()
    if status not in ("done", "raised"):
      self._stop()
      # Not the time that was left, which differs from run to run.
      what = {
        "late": f"killed: no answer in {self._call_s:g} s"
        if seconds == self._call_s
        else f"killed: {self._total_s:g} s are used up",
        "flood": f"killed: it wrote more than {_FLOOD} bytes",
        "ended": "the interpreter has ended",
      }[status]
      text += f"\n[{what}]" if text and text[-1] != "\n" else f"[{what}]"
    return ExpressionAnswer(status, text.removesuffix("\n"))

  def close(self) -> None:
    """Ends the interpreter. May be called again."""
    self._process = None
    self._end.close()

  def _start(self) -> subprocess.Popen:
    box = box_lib.require(self._sandbox)
    with contextlib.ExitStack() as stack:
      process = box.start(_PROGRAM, stack, self._limits)
      for pipe in (process.stdin, process.stdout, process.stderr):
        os.set_blocking(_fileno(pipe), False)
      _drop(_fileno(process.stderr))  # Warnings of bwrap.
      self._end = stack.pop_all()
    self._process = process
    return process

  def _stop(self) -> None:
    self.close()
    self._is_new = True

  def _has_ended(self, process: subprocess.Popen) -> bool:
    """Returns True if the interpreter has ended, or has spoken unasked.

    Output since the last call is dropped: an undisturbed program would have
    been waiting.
    """
    _drop(_fileno(process.stdout))
    return _drop(_fileno(process.stderr)) or process.poll() is not None


class _Output:
  """The first and the last bytes of a block's output."""

  def __init__(self, most: int):
    """Keeps `most` bytes, a quarter of them from the end."""
    self.size = 0
    self._num_first, self._num_last = most - most // 4, most // 4
    self._first, self._last = bytearray(), bytearray()

  def add(self, data: bytes) -> None:
    self.size += len(data)
    room = self._num_first - len(self._first)
    self._first += data[:room]
    self._last += data[room:]
    del self._last[: max(len(self._last) - self._num_last, 0)]

  def text(self) -> str:
    """Returns both parts, and between them the number of bytes left out."""
    num_dropped = self.size - len(self._first) - len(self._last)
    parts = (
      [self._first, self._last] if num_dropped else [self._first + self._last]
    )
    texts = [part.decode("utf-8", "replace") for part in parts]
    text = f"\n[{num_dropped} bytes left out]\n".join(texts)
    return _ADDRESS.sub(" at 0x…", text)


def _fileno(pipe) -> int:
  assert pipe is not None
  return pipe.fileno()


def _part(fd: int, most: int = 1 << 16) -> bytes | None:
  """Reads what is there; None if nothing is there yet, b"" at the end."""
  try:
    return os.read(fd, most)
  except BlockingIOError:
    return None


def _drop(fd: int) -> bool:
  """Drops earlier output; True if there was some, or if the pipe has ended."""
  dropped = False
  for _ in range(_FLOOD >> 12):  # A pipe may be given a page at a time.
    part = _part(fd)
    if part is None:
      break
    dropped = True
    if not part:
      break
  return dropped


def _talk(
  process: subprocess.Popen, code: str, end: float, output: _Output
) -> str:
  """Sends a block, and collects its output until its end; returns a status.

  The pipes do not block; the deadline `end` is in time.monotonic().
  """
  asks, says, tells = map(
    _fileno, (process.stdin, process.stdout, process.stderr)
  )
  nonce = secrets.token_bytes(console.NONCE)
  block = code.encode("utf-8", "replace")
  unsent = b"%b%010d%b" % (nonce, len(block), block)
  reply = b""
  poll = select.poll()
  poll.register(asks, select.POLLOUT)
  poll.register(says, select.POLLIN)
  poll.register(tells, select.POLLIN)
  while (seconds := end - time.monotonic()) > 0:
    ready = dict(poll.poll(seconds * 1000))
    if asks in ready:
      try:
        unsent = unsent[os.write(asks, unsent) :]
      except OSError:  # The other end is closed.
        unsent = b""
      if not unsent:
        poll.unregister(asks)
    if says in ready:
      part = _part(says)
      if part == b"":
        poll.unregister(says)
      output.add(part or b"")
      if output.size > _FLOOD:
        return "flood"
    if tells in ready:
      # Not more: bytes after the end are for the next call to find.
      part = _part(tells, console.NONCE + 1 - len(reply)) or b""
      reply += part
      how = reply.removeprefix(nonce)
      if how in (b".", b"!") and reply != how:
        return _rest(says, output, "done" if how == b"." else "raised")
      if not part or not (nonce + b".").startswith(reply):
        return _rest(says, output, "ended")
  return "late"


def _rest(fd: int, output: _Output, status: str) -> str:
  """Reads the output before the end; then the status is final."""
  while part := _part(fd):
    output.add(part)
    if output.size > _FLOOD:
      return "flood"
  return status
