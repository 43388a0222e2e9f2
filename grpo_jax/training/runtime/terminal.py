"""Output of a process for a person: to a terminal, a notebook, or a file.

    with terminal.waiting("rl: compiling"):  # rl: compiling 12 s
      program = compiled(...)

A terminal has a few lines at its end that are drawn again in place, and
everything else that is printed appears above them. A notebook has one output
that is replaced. A file, or the log of a batch job, gets plain lines of ASCII,
few enough to be read.

There is one `Screen` in a process, since there is one terminal. It holds the
last lines, and a thread that lets timers run while the main thread is busy.

`Progress` shows a running phase. On a terminal, and in a notebook, it has two
lines that are drawn again in place:

    rl  120/1000 ━━━━━─────────────────────────────────────  12 % ETA 1:02:33
      reward 0.512 ▁▂▃▅▆▇ ↑  accuracy 0.634 ▁▂▃▅▆▇ ↑  12.3k tok/s

In a file, or the log of a batch job, it has a plain line now and then:

    rl 120/1000 [###.......] reward 0.512 accuracy 0.634 12.3k tok/s ETA 1:02:33
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import html
import io
import logging
import math
import os
import statistics
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self, TextIO

import rich.console
import rich.live
from absl import logging as absl_logging
from rich.text import Text

COLUMNS = 80
_MIN_COLUMNS, _MAX_COLUMNS = 20, 120
_NOTEBOOK_COLUMNS = 100
# Seconds between two drawings while nothing but time changes.
_TICK_S = {"terminal": 0.5, "notebook": 1.0, "plain": 1.0}
_PATIENCE_S = 0.3  # An activity that is over sooner is not shown.
# A file gets a line about an activity after so long, and then once in so many
# seconds.
_PLAIN_FIRST_S, _PLAIN_EVERY_S = 10.0, 30.0
_ASCII = str.maketrans(
  {"–": "-", "…": "~", "≥": ">=", "≤": "<=", "→": "->", "×": "x", "·": "."}
)

Lines = Callable[[int], Sequence[Text]]  # (width in columns) -> lines.


def wrapped(text: str, width: int = COLUMNS) -> str:
  """The text in lines that fit a terminal; words, such as paths, stay whole."""
  return "\n".join(
    textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
    for line in text.splitlines()
  )


def is_ascii(stream: TextIO) -> bool:
  """Says if a stream should get ASCII only: it is a file, or not UTF-8."""
  encoding = (getattr(stream, "encoding", None) or "ascii").lower()
  return mode_of(stream) == "plain" or not encoding.startswith("utf")


def fitting(text: str, stream: TextIO) -> str:
  """The text with our own signs in ASCII, if the stream needs it."""
  return text.translate(_ASCII) if is_ascii(stream) else text


def mode_of(stream: TextIO) -> str:
  """The kind of a stream: "terminal", "notebook" or "plain"."""
  if rich.console.Console(file=stream).is_jupyter:
    return "notebook"
  is_dumb = os.environ.get("TERM", "").lower() in ("dumb", "unknown")
  return "terminal" if stream.isatty() and not is_dumb else "plain"


@dataclasses.dataclass
class _Activity:
  """An activity that takes time.

  Attributes:
    start: Time of its start, seconds.
    next_plain: Time of the next line about it in a file.
  """

  what: str
  start: float
  next_plain: float


class Screen:
  """The last lines of a stream, and the text that is printed above them.

  Args:
    clock: () -> time, seconds.
    ticks: True if a thread draws while time passes.
  """

  def __init__(
    self,
    stream: TextIO,
    clock: Callable[[], float] = time.monotonic,
    ticks: bool = True,
  ):
    self.stream = stream
    self.mode = mode_of(stream)
    self.ascii = is_ascii(stream)
    self._clock, self._ticks = clock, ticks
    self._lock = threading.RLock()
    self._bar: Lines | None = None
    self._activities: list[_Activity] = []
    self._stopped = threading.Event()
    self._thread: threading.Thread | None = None
    self._live: rich.live.Live | None = None
    self._console: rich.console.Console | None = None
    if self.mode == "terminal":
      self._console = rich.console.Console(
        file=stream, force_terminal=True, highlight=False, soft_wrap=False
      )
    self._cell = _Cell()

  @property
  def is_active(self) -> bool:
    """True if there is something in the last lines."""
    return self._bar is not None or bool(self._activities)

  def print(self, text: str) -> None:
    """Prints lines above the last ones."""
    with self._lock:
      if self._console is not None and self._live is not None:
        # The terminal breaks lines that are too long, not we.
        self._console.print(Text(text), soft_wrap=True)
      else:
        self.stream.write(fitting(text, self.stream) + "\n")
        self.stream.flush()

  def alarm(self, text: str, kind: str = "warning") -> None:
    """Prints a warning of at most 80 columns, above the last lines.

    Args:
      text: Text of any length; its lines stay lines.
      kind: Word before the text.
    """
    with self._lock:
      if self._console is None:
        self.print(wrapped(f"{kind}: {text}"))
        return
      width = min(self._console.width, COLUMNS)
      styled = Text(wrapped(f"{kind}: {text}", width))
      colour = "red" if kind == "error" else "yellow"
      styled.stylize(f"bold {colour}", 0, len(kind) + 1)
      self._console.print(styled, soft_wrap=True)

  def show(self, lines: Lines | None) -> None:
    """Puts a bar into the last lines; None removes it.

    A stream that is a file shows no bar: see `Screen.print`.
    """
    with self._lock:
      self._bar = lines
      self._changed()

  def finish(self) -> None:
    """Leaves the bar on the screen as it is; it is not drawn any more."""
    with self._lock:
      lines, self._bar = self._bar, None
      if lines is None:
        return
      self._changed(keep=lines)

  @contextlib.contextmanager
  def waiting(self, what: str) -> Iterator[None]:
    """Shows an activity with a timer until the context is left."""
    now = self._clock()
    activity = _Activity(what, now, now + _PLAIN_FIRST_S)
    with self._lock:
      self._activities.append(activity)
      self._changed()
    try:
      yield
    finally:
      with self._lock:
        self._activities = [x for x in self._activities if x is not activity]
        self._changed()

  def tick(self) -> None:
    """Draws changes that come from the passing of time."""
    with self._lock:
      if not self.is_active:
        return
      if self.mode != "plain":
        self._draw()
      elif self._activities:
        activity, now = self._activities[-1], self._clock()
        if now >= activity.next_plain:
          activity.next_plain += _PLAIN_EVERY_S
          self.print(f"{activity.what} {now - activity.start:.0f} s")

  def _changed(self, keep: Lines | None = None) -> None:
    """Draws, and runs the thread exactly while the last lines are not empty."""
    if self.mode != "plain":
      self._draw(keep)
    if self.is_active and self._thread is None and self._ticks:
      self._stopped = threading.Event()
      self._thread = threading.Thread(
        target=self._run, args=(self._stopped,), daemon=True, name="console"
      )
      self._thread.start()
    if not self.is_active and self._thread is not None:
      self._stopped.set()
      self._thread = None

  def _run(self, stop: threading.Event) -> None:
    while not stop.wait(_TICK_S[self.mode]):
      self.tick()

  def lines(self, width: int) -> list[Text]:
    """The last lines of a screen of `width` columns."""
    lines = list(self._bar(width)) if self._bar is not None else []
    if self._activities:
      activity = self._activities[-1]
      seconds = self._clock() - activity.start
      if seconds >= _PATIENCE_S:
        line = Text(f"{activity.what} {seconds:.0f} s", "cyan", no_wrap=True)
        line.truncate(width, overflow="crop" if self.ascii else "ellipsis")
        lines.append(line)
    return lines

  def _draw(self, keep: Lines | None = None) -> None:
    if self.mode == "notebook":
      fixed = list(keep(_NOTEBOOK_COLUMNS)) if keep else []
      self._cell.show(fixed, self.lines(_NOTEBOOK_COLUMNS))
      return
    assert self._console is not None
    width = min(max(self._console.width, _MIN_COLUMNS), _MAX_COLUMNS)
    lines = self.lines(width)
    if self._live is not None and (keep or not lines):
      self._live.update(Text(), refresh=True)
      self._live.stop()
      self._live = None
    if keep:
      self._console.print(Text("\n").join(keep(width)))
    if not lines:
      return
    if self._live is None:
      self._live = rich.live.Live(
        console=self._console,
        auto_refresh=False,
        transient=True,
        # Output that is redirected to a file stays there.
        redirect_stdout=sys.stdout.isatty(),
        redirect_stderr=sys.stderr.isatty(),
      )
      self._live.start()
      # Else a process that is killed would leave a terminal without a cursor.
      self._console.show_cursor(True)
    self._live.update(Text("\n").join(lines), refresh=True)


class _Cell:
  """The output of a notebook's cell that is drawn again in place."""

  def __init__(self):
    self._handle: Any = None
    self._of: int | None = None  # The number of the cell.
    self._fixed: list[Text] = []
    self._text = ""

  def show(self, fixed: Sequence[Text], lines: Sequence[Text]) -> None:
    """Draws the lines.

    Args:
      fixed: Lines that stay for good, above the others.
      lines: Lines that the next call replaces.
    """
    from IPython import display, get_ipython

    number = get_ipython().execution_count
    if number != self._of:
      if not (fixed or lines):
        return
      self._of, self._handle, self._fixed, self._text = number, None, [], ""
    self._fixed += fixed
    text = Text("\n").join([*self._fixed, *lines])
    if text.plain == self._text:
      return
    self._text = text.plain
    bundle = {"text/plain": text.plain, "text/html": _as_html(text)}
    if self._handle is None:
      self._handle = display.display(bundle, raw=True, display_id=True)
    else:
      self._handle.update(bundle, raw=True)


def _as_html(text: Text) -> str:
  """The text in colour, as HTML; all of it is escaped."""
  console = rich.console.Console(
    file=io.StringIO(),
    record=True,
    width=_NOTEBOOK_COLUMNS,
    force_jupyter=False,
  )
  console.print(text, soft_wrap=True)
  style = "white-space:pre;overflow-x:auto;line-height:normal;margin:0"
  code = console.export_html(inline_styles=True, code_format="{code}")
  return f'<pre style="{html.escape(style)}">{code.rstrip()}</pre>'


_screen: Screen | None = None


def shared_screen() -> Screen:
  """The screen of this process, on standard error."""
  global _screen
  if _screen is None or (
    not _screen.is_active and _screen.stream is not sys.stderr
  ):
    _screen = Screen(sys.stderr)
    if _screen.mode == "notebook" and not logging.getLogger().handlers:
      take_over_logging()
  return _screen


@contextlib.contextmanager
def waiting(what: str) -> Iterator[None]:
  """Shows an activity with a timer, in process 0."""
  from grpo_jax.training.runtime import hosts  # It imports JAX.

  if not hosts.is_main():
    yield
    return
  with shared_screen().waiting(what):
    yield


def columns() -> int:
  """Width of the terminal in characters; 80 if the output is a file."""
  if mode_of(sys.stdout) != "terminal":
    return COLUMNS
  width = rich.console.Console(file=sys.stdout, force_terminal=True).width
  return min(max(width, _MIN_COLUMNS), _MAX_COLUMNS)


def say(text: str, style: str = "") -> None:
  """Prints lines to the output, in colour if it is a terminal.

  Args:
    style: Style of `rich`, for a terminal.
  """
  text = fitting(text, sys.stdout)
  if mode_of(sys.stdout) != "terminal":
    print(text, flush=True)
    return
  terminal = rich.console.Console(
    file=sys.stdout, force_terminal=True, highlight=False
  )
  terminal.print(Text(text, style), soft_wrap=True)


class _Handler(logging.Handler):
  """Log records as lines for a person, above the last ones."""

  def emit(self, record: logging.LogRecord) -> None:
    """Shows a record."""
    try:
      kind = "note"
      if record.levelno >= logging.WARNING:
        kind = "warning"
      if record.levelno >= logging.ERROR:
        kind = "error"
      shared_screen().alarm(self.format(record), kind)
    except Exception:  # As logging's own handlers: a log stops no program.
      self.handleError(record)


def take_over_logging() -> None:
  """Shows the warnings of all libraries as plain lines, "warning: …"."""
  root = logging.getLogger()
  root.removeHandler(absl_logging.get_absl_handler())
  if not any(isinstance(handler, _Handler) for handler in root.handlers):
    root.addHandler(_Handler())


UNSCORED = "unscored"  # A field that is shown only if it is not 0.
_MIN_BAR, _MAX_BAR = 5, 24  # Characters between the brackets.
_MAX_LIVE_BAR = 60
_REDRAW_SECONDS = 0.1
_PLAIN_SECONDS = 30.0
_RECENT = 48  # Steps behind a trend.
_PACE = 20  # Steps behind an ETA.
_NUM_TRENDS = 2  # Sparklines that come before a further field.
_SPARKS, _NUM_SPARKS = "▁▂▃▄▅▆▇█", 8


@dataclasses.dataclass(frozen=True)
class Status:
  """The progress of a phase at a moment.

  Attributes:
    fields: name -> value, the most important first; NaN is a mean over nothing.
    recent: name -> values of the last steps, the newest last.
    tokens_per_second: Completion tokens per second; None: not known.
    eta: Seconds until the phase ends; None: not known.
    seconds: Seconds that it took; None until it is over.
  """

  phase: str
  step: int
  total_steps: int
  fields: Mapping[str, float]
  recent: Mapping[str, Sequence[float]]
  tokens_per_second: float | None = None
  eta: float | None = None
  seconds: float | None = None


def render(width: int, view: Status) -> str:
  """The line for a file, in at most `width` characters of ASCII.

  If it is too long, parts are left out: the fields from the last to the first,
  then the tokens per second, then the ETA. The bar takes the room that remains.
  A field that is NaN, a mean over nothing, is shown as "-".
  """
  total = max(view.total_steps, 1)
  name = view.phase.encode("ascii", "replace").decode()
  head = f"{name} {str(view.step).rjust(len(str(total)))}/{total}"
  parts = [
    f"{label} {_number(value, label)}".encode("ascii", "replace").decode()
    for label, value in view.fields.items()
  ]
  tail = [f"ETA {_duration(view.eta)}"]
  if view.tokens_per_second is not None:
    tail.insert(0, f"{_quantity(view.tokens_per_second)} tok/s")
  while parts and len(" ".join([head, *parts, *tail])) > width:
    parts.pop()
  while tail and len(" ".join([head, *tail])) > width:
    tail.pop(0)
  room = width - len(" ".join([head, *parts, *tail])) - len(" []")
  if room >= _MIN_BAR:
    size = min(room, _MAX_BAR)
    done = min(max(view.step, 0), total) * size // total
    head += f" [{'#' * done}{'.' * (size - done)}]"
  return " ".join([head, *parts, *tail])[:width]


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


def live(width: int, view: Status, ascii: bool = False) -> list[Text]:
  """The two lines of a terminal; without numbers, the first alone.

  If a line is too long, parts are left out: fields from the last to the third,
  then sparklines, the rate, and the other fields.

  Args:
    width: Columns that a line may have.
    ascii: True if the terminal has ASCII only.
  """
  lines = [_bar_line(width, view, ascii)]
  if view.fields:
    lines.append(_numbers_line(width, view, ascii))
  for line in lines:
    line.no_wrap = True
    line.truncate(width)
  return lines


def _bar_line(width: int, view: Status, ascii: bool) -> Text:
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


def _numbers_line(width: int, view: Status, ascii: bool) -> Text:
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
  """Yields (fields, how many with sparklines, rate), the widest first."""
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


def _field(view: Status, name: str, ascii: bool, sparks: bool) -> Text:
  value, recent = view.fields[name], view.recent.get(name, ())
  style = "yellow" if name == UNSCORED else ""
  text = Text(f"{_printable(name, ascii)} ", style or "dim")
  number = _number(value, name)
  text.append("–" if number == "-" and not ascii else number, style or "bold")
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
  """The course of the last values in a few characters; "" for fewer than two.

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
  levels = [x for x in means if math.isfinite(x)]
  if not levels:
    return ""
  low, high = min(levels), max(levels)
  # A span that overflows or is 0 is drawn as a level.
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
  except OverflowError:  # The sum overflows.
    return sum(x / len(values) for x in values)


def arrow(values: Sequence[float], ascii: bool = False) -> str:
  """The direction of values: "↑", "↓", or "" if it could be noise.

  The mean of the newer half is compared with that of the older half; a
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


def together(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
  """The fields of several runs, merged into those of one.

  A field is the mean over the runs that have a value, so NaN is shown only if
  no run has one; unscored rows are summed.
  """
  names = dict.fromkeys(name for fields in runs for name in fields)
  merged = {}
  for name in names:
    values = [fields[name] for fields in runs if name in fields]
    finite = [x for x in values if not math.isnan(x)]
    if name == UNSCORED:
      merged[name] = sum(finite)
    else:
      merged[name] = sum(finite) / len(finite) if finite else math.nan
  return merged


class Pace:
  """The time of steps and of evaluations, and the time that is left."""

  def __init__(self):
    self._steps: collections.deque[float] = collections.deque(maxlen=_PACE)
    self._num_steps = 0
    self._evaluation_s = 0.0

  def step(self, seconds: float) -> None:
    """Notes a step: seconds without compilation and evaluation."""
    if self._num_steps == 1:
      self._steps.clear()  # The first step takes longer than later ones.
    self._num_steps += 1
    self._steps.append(max(seconds, 0.0))

  def evaluation(self, seconds: float) -> None:
    """Notes an evaluation: seconds without compilation."""
    self._evaluation_s = max(seconds, 0.0)

  def left(self, steps: int, evaluations: int) -> float | None:
    """Seconds for so many steps and evaluations; None before the first step."""
    if not self._steps:
      return None
    step_s = sum(self._steps) / len(self._steps)
    return steps * step_s + evaluations * self._evaluation_s


def num_due(every: int, done: int, steps: int) -> int:
  """The number of times that something is still due after `done` steps.

  See `run.due`.
  """
  if done >= steps:
    return 0
  if every <= 0:
    return 1
  return steps // every - done // every + (steps % every > 0)


class Progress:
  """Shows the progress of one phase; a context manager that ends with it.

  Args:
    screen: Screen; None: that of the process.
    clock: () -> time, seconds.
  """

  def __init__(
    self,
    phase: str,
    total_steps: int,
    screen: Screen | None = None,
    clock: Callable[[], float] = time.monotonic,
  ):
    self._phase = phase
    self._total_steps = total_steps
    self._screen = shared_screen() if screen is None else screen
    self._clock = clock
    self._recent: dict[str, collections.deque[float]] = {}
    self._view: Status | None = None
    self._start = clock()
    self._time = self._start  # Time of the view.
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
    """Shows that `step` steps of the phase are done.

    Redraws at most ten times a second, so it may be called at every step.

    Args:
      fields: name -> value of this step, the most important first.
    """
    for name, value in fields.items():
      self._recent.setdefault(name, collections.deque(maxlen=_RECENT)).append(
        value
      )
    recent = {name: tuple(self._recent[name]) for name in fields}
    self._view = Status(
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
    self._screen.print(render(COLUMNS, view))

  def _lines(self, width: int) -> list[Text]:
    view = self._view
    assert view is not None
    if view.eta is not None:  # It counts down during a step.
      eta = max(view.eta - (self._clock() - self._time), 0.0)
      view = dataclasses.replace(view, eta=eta)
    return live(width, view, self._screen.ascii)
