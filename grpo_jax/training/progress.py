"""One live line about a running phase.

    rl 120/1000 [###.......] reward 0.512 accuracy 0.634 12.3k tok/s ETA 1:02:33

On a terminal the line is redrawn in place; elsewhere (a file, a batch job) a
plain line is printed now and then.
"""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from typing import TextIO

_MIN_BAR, _MAX_BAR = 5, 24  # Characters between the brackets.
_REDRAW_SECONDS = 0.1
_PLAIN_SECONDS = 30.0


def render(
  width: int,
  phase: str,
  step: int,
  total_steps: int,
  fields: Mapping[str, float],
  tokens_per_second: float | None,
  eta: float | None,
) -> str:
  """The line, in at most `width` characters, all of them ASCII.

  What does not fit is left out: the fields from the last to the first, then
  the tokens per second, then the ETA. The bar takes the room that remains.

  Args:
    width: Columns of the terminal.
    phase: Name of the phase.
    step: Steps taken in the phase.
    total_steps: Steps of the phase.
    fields: name -> value, the most important first; NaN, a mean over nothing,
      is shown as "-".
    tokens_per_second: Completion tokens per second; None leaves it out.
    eta: Seconds until the phase ends; None if not known yet.
  """
  total = max(total_steps, 1)
  name = phase.encode("ascii", "replace").decode()
  head = f"{name} {str(step).rjust(len(str(total)))}/{total}"
  shown = [
    f"{label} {_number(value)}".encode("ascii", "replace").decode()
    for label, value in fields.items()
  ]
  tail = [f"ETA {_duration(eta)}"]
  if tokens_per_second is not None:
    tail.insert(0, f"{_quantity(tokens_per_second)} tok/s")
  while shown and len(" ".join([head, *shown, *tail])) > width:
    shown.pop()
  while tail and len(" ".join([head, *tail])) > width:
    tail.pop(0)
  room = width - len(" ".join([head, *shown, *tail])) - len(" []")
  if room >= _MIN_BAR:
    size = min(room, _MAX_BAR)
    done = min(max(step, 0), total) * size // total
    head += f" [{'#' * done}{'.' * (size - done)}]"
  return " ".join([head, *shown, *tail])[:width]


def _number(value: float) -> str:
  if math.isnan(value):
    return "-"  # A mean over nothing.
  if not math.isfinite(value):
    return str(float(value))
  if value != 0 and not 1e-3 <= abs(value) < 1e5:
    return f"{value:.1e}"
  return f"{value:.3f}" if abs(value) < 100 else f"{value:.0f}"


def _quantity(value: float) -> str:
  if not math.isfinite(value):
    return str(float(value))
  for limit, divisor, unit in ((1e3, 1, ""), (1e6, 1e3, "k")):
    # 999.96 would otherwise be printed as 1000.0 of the smaller unit.
    if abs(value) < limit - divisor * 0.05:
      return f"{value / divisor:.{1 if unit else 0}f}{unit}"
  return f"{value / 1e6:.1f}M"


def _duration(seconds: float | None) -> str:
  if seconds is None or not math.isfinite(seconds):
    return "-:--"
  minutes, seconds = divmod(round(max(seconds, 0)), 60)
  hours, minutes = divmod(minutes, 60)
  days, hours = divmod(hours, 24)
  if days:
    return f"{days}d{hours:02}h"
  return (
    f"{hours}:{minutes:02}:{seconds:02}"
    if hours
    else (f"{minutes}:{seconds:02}")
  )


class Progress:
  """Shows the progress of one phase.

  Args:
    phase: Name of the phase.
    total_steps: Steps of the phase.
    stream: Where to write; None: standard error.
    clock: Seconds that pass.
  """

  def __init__(
    self,
    phase: str,
    total_steps: int,
    stream: TextIO | None = None,
    clock: Callable[[], float] = time.monotonic,
  ):
    self._phase = phase
    self._total_steps = total_steps
    self._stream = sys.stderr if stream is None else stream
    self._clock = clock
    self._live = self._stream.isatty()
    self._first: tuple[int, float] | None = None  # Step and time.
    self._next_time = -math.inf
    self._latest: tuple | None = None  # Arguments of the update not shown yet.
    self._columns = 0  # Of the line on the terminal.

  def update(
    self,
    step: int,
    fields: Mapping[str, float],
    tokens_per_second: float | None = None,
  ) -> None:
    """Says that `step` steps of the phase are done.

    Redraws at most ten times a second, so it may be called at every step.
    """
    now = self._clock()
    if self._first is None:
      # The first step also compiled, and a resumed run starts late: the rate
      # is counted from here.
      self._first = (step, now)
    self._latest = (step, fields, tokens_per_second)
    if now >= self._next_time:
      self._show(now)

  def done(self) -> None:
    """Shows the last update and ends the line."""
    if self._latest is not None:
      self._show(self._clock())
    if self._columns:
      self._stream.write("\n")
      self._stream.flush()
      self._columns = 0

  def _show(self, now: float) -> None:
    assert self._latest is not None
    assert self._first is not None
    step, fields, tokens_per_second = self._latest
    self._latest = None
    steps, seconds = step - self._first[0], now - self._first[1]
    eta = None
    if steps > 0:
      eta = seconds / steps * (self._total_steps - step)
    width = min(shutil.get_terminal_size().columns, 80) if self._live else 80
    line = render(
      width,
      self._phase,
      step,
      self._total_steps,
      fields,
      tokens_per_second,
      eta,
    )
    if self._live:
      # Blanks cover what a longer line left behind.
      blanks = " " * min(self._columns - len(line), width - len(line))
      self._stream.write(f"\r{line}{blanks}")
      self._columns = len(line)
      self._next_time = now + _REDRAW_SECONDS
    else:
      self._stream.write(f"{line}\n")
      self._next_time = now + _PLAIN_SECONDS
    self._stream.flush()
