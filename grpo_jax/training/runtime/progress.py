"""What a person sees of a running phase.

On a terminal, and in a notebook, two lines that are drawn again in place:

    rl  120/1000 ━━━━╸────────────────────────────────────  12 % ETA 1:02:33
      reward 0.512 ▁▂▃▅▆▇ ↑  accuracy 0.634 ▁▂▃▅▆▇ ↑  12.3k tok/s

Elsewhere (a file, a batch job) a plain line now and then:

    rl 120/1000 [###.......] reward 0.512 accuracy 0.634 12.3k tok/s ETA 1:02:33
"""

from __future__ import annotations

import collections
import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Self

from rich.text import Text

from grpo_jax.training.runtime import console

UNSCORED = "unscored"  # The field that is shown where it is not 0.
_MIN_BAR, _MAX_BAR = 5, 24  # Characters between the brackets.
_MAX_LIVE_BAR = 60
_REDRAW_SECONDS = 0.1
_PLAIN_SECONDS = 30.0
_RECENT = 48  # Steps behind a trend.
_PACE = 20  # Steps behind an ETA.
_NUM_TRENDS = 2  # Sparklines that are worth more than a further field.
_SPARKS, _NUM_SPARKS = "▁▂▃▄▅▆▇█", 8


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
    f"{label} {_number(value, label)}".encode("ascii", "replace").decode()
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


def _number(value: float, name: str = "") -> str:
  if math.isnan(value):
    return "-"  # A mean over nothing.
  if not math.isfinite(value):
    return str(float(value))
  if name == UNSCORED:
    return f"{value:.0f}"  # It is a count.
  if value != 0 and not 1e-3 <= abs(value) < 1e5:
    return f"{value:.1e}"
  digits = 3 if abs(value) < 10 else 1 if abs(value) < 100 else 0
  return f"{value:.{digits}f}"


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


@dataclasses.dataclass(frozen=True)
class View:
  """What is known of a phase at a moment.

  Attributes:
    phase: Its name.
    step: Steps taken in it.
    total_steps: Its steps.
    fields: name -> value, the most important first; NaN is a mean over nothing.
    recent: name -> values of the last steps, the newest last.
    tokens_per_second: Completion tokens per second; None: not known.
    eta: Seconds until the phase ends; None: not known.
    seconds: That it has taken, once it is over.
  """

  phase: str
  step: int
  total_steps: int
  fields: Mapping[str, float]
  recent: Mapping[str, Sequence[float]]
  tokens_per_second: float | None = None
  eta: float | None = None
  seconds: float | None = None


def live(width: int, view: View, ascii: bool = False) -> list[Text]:
  """The two lines of a terminal; without numbers, the first alone.

  What does not fit is left out: fields from the last to the third, then
  sparklines, the rate, and the other fields.

  Args:
    width: Columns that a line may have.
    view: What is known.
    ascii: Whether there are no other characters.
  """
  lines = [_bar_line(width, view, ascii)]
  if view.fields:
    lines.append(_numbers_line(width, view, ascii))
  for line in lines:
    line.no_wrap = True
    line.truncate(width)
  return lines


def _bar_line(width: int, view: View, ascii: bool) -> Text:
  total = max(view.total_steps, 1)
  done = min(max(view.step, 0), total)
  phase = _printable(view.phase, ascii)
  head = f"{phase} {str(view.step).rjust(len(str(total)))}/{total}"
  time_left = f"ETA {_duration(view.eta)}"
  if view.seconds is not None:
    time_left = f"in {_duration(view.seconds)}"
  tail = f"{100 * done // total:3d} % {time_left}"
  line = Text(head, "bold")
  size = min(width - len(head) - len(tail) - 2, _MAX_LIVE_BAR)
  if size >= _MIN_BAR:
    full = size * done // total
    line.append(" ")
    line.append(("#" if ascii else "━") * full, "green")
    line.append(("." if ascii else "─") * (size - full), "dim")
  return line.append(f" {tail}", "none")


def _numbers_line(width: int, view: View, ascii: bool) -> Text:
  rate = []
  if view.tokens_per_second is not None:
    rate = [Text(f"{_quantity(view.tokens_per_second)} tok/s", "dim")]
  names = list(view.fields)
  line = Text()
  for size, num_sparks, tail in _layouts(names, rate):
    parts = [
      _field(view, name, ascii, i < num_sparks)
      for i, name in enumerate(names[:size])
    ]
    line = Text("  ").append_text(Text("  ").join(parts + tail))
    if len(line.plain) <= width:
      break
  return line


def _layouts(
  names: list[str], rate: list[Text]
) -> Iterator[tuple[int, int, list[Text]]]:
  """(fields, how many of them with sparklines, rate), the widest first."""
  few = min(len(names), _NUM_TRENDS)
  if UNSCORED in names:
    few = max(few, names.index(UNSCORED) + 1)
  for number in range(len(names), few, -1):
    yield number, number, rate
    yield number, _NUM_TRENDS, rate
  yield few, few, rate
  for number in range(few, 0, -1):
    yield number, number, []
    yield number, 0, rate
    yield number, 0, []


def _field(view: View, name: str, ascii: bool, sparks: bool) -> Text:
  value, recent = view.fields[name], view.recent.get(name, ())
  style = "yellow" if name == UNSCORED else ""
  text = Text(f"{_printable(name, ascii)} ", style or "dim")
  shown = _number(value, name)
  text.append("–" if shown == "-" and not ascii else shown, style or "bold")
  if name == UNSCORED:
    return text
  if sparks and not ascii and (spark := sparkline(recent)):
    text.append(f" {spark}", "cyan")
  if sign := arrow(recent, ascii):
    text.append(f" {sign}", "cyan")
  return text


def _printable(text: str, ascii: bool) -> str:
  if ascii:
    text = text.encode("ascii", "replace").decode()
  return "".join(c if c.isprintable() else "?" for c in text)


def sparkline(values: Sequence[float]) -> str:
  """The course of the last values in a few characters; "" of fewer than two.

  Each character is the mean of neighbours, between the lowest and the highest
  of these means; a blank stands where nothing is finite.
  """
  size = min(len(values), _NUM_SPARKS)
  if size < 2:
    return ""
  means = []
  for i in range(size):
    chunk = values[i * len(values) // size : (i + 1) * len(values) // size]
    finite = [x for x in chunk if math.isfinite(x)]
    means.append(_mean(finite) if finite else math.nan)
  known = [x for x in means if math.isfinite(x)]
  if not known:
    return ""
  low, high = min(known), max(known)
  # A span that overflows, or is none, is drawn as a level.
  span = high - low
  level = (len(_SPARKS) - 1) // 2

  def spark(value: float) -> str:
    if not math.isfinite(value):
      return " "
    if not 0 < span < math.inf:
      return _SPARKS[level]
    return _SPARKS[round((value - low) / span * (len(_SPARKS) - 1))]

  return "".join(map(spark, means))


def _mean(values: Sequence[float]) -> float:
  try:
    return statistics.fmean(values)
  except OverflowError:  # Of the sum.
    return sum(x / len(values) for x in values)


def arrow(values: Sequence[float], ascii: bool = False) -> str:
  """Where values go: "↑", "↓", or "" if that could be noise.

  The mean of the newer half is compared with that of the older one: a
  difference counts from two standard errors on.
  """
  finite = [x for x in values if math.isfinite(x)]
  half = len(finite) // 2
  if half < 3:
    return ""
  old, new = finite[:half], finite[-half:]
  try:
    error = math.sqrt(
      (statistics.variance(old) + statistics.variance(new)) / half
    )
    change = statistics.fmean(new) - statistics.fmean(old)
  except OverflowError:
    return ""
  if abs(change) <= 2 * error:
    return ""
  up, down = "+-" if ascii else "↑↓"
  return up if change > 0 else down


def together(shown: Sequence[Mapping[str, float]]) -> dict[str, float]:
  """The fields of several runs as those of one.

  Means over the runs that have a value, so that NaN is shown only where none
  has one; of unscored rows, the sum.
  """
  names = dict.fromkeys(name for fields in shown for name in fields)
  merged = {}
  for name in names:
    values = [fields[name] for fields in shown if name in fields]
    known = [x for x in values if not math.isnan(x)]
    if name == UNSCORED:
      merged[name] = sum(known)
    else:
      merged[name] = sum(known) / len(known) if known else math.nan
  return merged


class Pace:
  """How long steps and evaluations take, and what is left of both."""

  def __init__(self):
    self._steps: collections.deque[float] = collections.deque(maxlen=_PACE)
    self._num_steps = 0
    self._evaluation_s = 0.0

  def step(self, seconds: float) -> None:
    """Notes a step: seconds without compilation and evaluation."""
    if self._num_steps == 1:
      self._steps.clear()  # The first does more than those that follow.
    self._num_steps += 1
    self._steps.append(max(seconds, 0.0))

  def evaluation(self, seconds: float) -> None:
    """Notes an evaluation: seconds without compilation."""
    self._evaluation_s = max(seconds, 0.0)

  def left(self, steps: int, evaluations: int) -> float | None:
    """Seconds for so many of both; None while no step is known."""
    if not self._steps:
      return None
    step_s = sum(self._steps) / len(self._steps)
    return steps * step_s + evaluations * self._evaluation_s


def num_due(every: int, done: int, steps: int) -> int:
  """How often something is still due after `done` steps: see `run.due`."""
  if done >= steps:
    return 0
  if every <= 0:
    return 1
  return steps // every - done // every + (steps % every > 0)


class Progress:
  """Shows the progress of one phase; a context manager that ends with it.

  Args:
    phase: Name of the phase.
    total_steps: Steps of the phase.
    screen: Where; None: that of the process.
    clock: Seconds that pass.
  """

  def __init__(
    self,
    phase: str,
    total_steps: int,
    screen: console.Screen | None = None,
    clock: Callable[[], float] = time.monotonic,
  ):
    self._phase = phase
    self._total_steps = total_steps
    self._screen = console.screen() if screen is None else screen
    self._clock = clock
    self._recent: dict[str, collections.deque[float]] = {}
    self._view: View | None = None
    self._start = clock()
    self._time = self._start  # Of the view.
    self._next_time = -math.inf
    self._is_shown = True

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *_: object) -> None:
    self.done()

  def update(
    self,
    step: int,
    fields: Mapping[str, float],
    tokens_per_second: float | None = None,
    eta: float | None = None,
  ) -> None:
    """Says that `step` steps of the phase are done.

    Redraws at most ten times a second, so it may be called at every step.

    Args:
      step: Steps done.
      fields: name -> value of this step, the most important first.
      tokens_per_second: See `View`.
      eta: See `View`.
    """
    for name, value in fields.items():
      self._recent.setdefault(name, collections.deque(maxlen=_RECENT)).append(
        value
      )
    recent = {name: tuple(self._recent[name]) for name in fields}
    self._view = View(
      self._phase,
      step,
      self._total_steps,
      dict(fields),
      recent,
      tokens_per_second,
      eta,
    )
    self._time = self._clock()
    self._is_shown = False
    if self._time >= self._next_time:
      self._show()

  def alarm(self, text: str) -> None:
    """Shows a warning above the bar, or as lines of its own."""
    self._screen.alarm(text)

  def done(self) -> None:
    """Shows the last update, which stays."""
    if self._view is None:
      return
    if not self._is_shown:
      self._show()
    seconds = self._clock() - self._start
    self._view = dataclasses.replace(self._view, seconds=seconds)
    self._screen.finish()

  def _show(self) -> None:
    view = self._view
    assert view is not None
    self._is_shown = True
    if self._screen.mode != "plain":
      self._next_time = self._time + _REDRAW_SECONDS
      self._screen.show(self._lines)
      return
    self._next_time = self._time + _PLAIN_SECONDS
    self._screen.print(
      render(
        console.COLUMNS,
        view.phase,
        view.step,
        view.total_steps,
        view.fields,
        view.tokens_per_second,
        view.eta,
      )
    )

  def _lines(self, width: int) -> list[Text]:
    view = self._view
    assert view is not None
    if view.eta is not None:  # It goes on while a step takes its time.
      left = max(view.eta - (self._clock() - self._time), 0.0)
      view = dataclasses.replace(view, eta=left)
    return live(width, view, self._screen.ascii)
