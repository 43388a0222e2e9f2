"""Where a process shows what it does: a terminal, a notebook, or a file.

    with console.waiting("rl: compiling"):  # rl: compiling 12 s
      program = compiled(...)

A terminal has a few lines at its end that are drawn again in place, and
everything else that is printed appears above them. A notebook has one output
that is replaced. A file, or the log of a batch job, gets plain lines of ASCII,
few enough to be read.

There is one `Screen` in a process, since there is one terminal: what stands
in the last lines, and a thread that lets timers run while the main one is busy.
"""

from __future__ import annotations

import contextlib
import dataclasses
import html
import io
import logging
import os
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TextIO

import rich.console
import rich.live
from absl import logging as absl_logging
from rich.text import Text

from grpo_jax.training.runtime import hosts

COLUMNS = 80
_MIN_COLUMNS, _MAX_COLUMNS = 20, 120
_NOTEBOOK_COLUMNS = 100
# Seconds between two drawings, where nothing but time has changed.
_TICK_S = {"terminal": 0.5, "notebook": 1.0, "plain": 1.0}
_PATIENCE_S = 0.3  # What is over sooner is not shown.
# A file hears of what takes so long, and then once in so many seconds.
_PLAIN_FIRST_S, _PLAIN_EVERY_S = 10.0, 30.0
_ASCII = str.maketrans(
  {"–": "-", "…": "~", "≥": ">=", "≤": "<=", "→": "->", "×": "x", "·": "."}
)

Lines = Callable[[int], Sequence[Text]]  # Of a width, in columns.


def wrapped(text: str, width: int = COLUMNS) -> str:
  """The text in lines that fit a terminal; words, as paths, stay whole."""
  return "\n".join(
    textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
    for line in text.splitlines()
  )


def is_ascii(stream: TextIO) -> bool:
  """Whether a stream should have no more than ASCII of us: it is a file."""
  encoding = (getattr(stream, "encoding", None) or "ascii").lower()
  return mode_of(stream) == "plain" or not encoding.startswith("utf")


def fitting(text: str, stream: TextIO) -> str:
  """The text with our own signs in ASCII, where the stream wants that."""
  return text.translate(_ASCII) if is_ascii(stream) else text


def mode_of(stream: TextIO) -> str:
  """ "terminal", "notebook" or "plain"."""
  if rich.console.Console(file=stream).is_jupyter:
    return "notebook"
  is_dumb = os.environ.get("TERM", "").lower() in ("dumb", "unknown")
  return "terminal" if stream.isatty() and not is_dumb else "plain"


@dataclasses.dataclass
class _Activity:
  """Something that takes time.

  Attributes:
    what: It is.
    start: When it began, seconds.
    next_plain: When a file hears of it again.
  """

  what: str
  start: float
  next_plain: float


class Screen:
  """The last lines of a stream, and what is printed above them.

  Args:
    stream: A terminal, or a file.
    clock: Seconds that pass.
    ticks: Whether a thread draws while time passes.
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
    """Whether there is something in the last lines."""
    return self._bar is not None or bool(self._activities)

  def print(self, text: str) -> None:
    """Prints lines above the last ones."""
    with self._lock:
      if self._console is not None and self._live is not None:
        # As they are: the terminal breaks what is too long, and not we.
        self._console.print(Text(text), soft_wrap=True)
      else:
        self.stream.write(fitting(text, self.stream) + "\n")
        self.stream.flush()

  def alarm(self, text: str, kind: str = "warning") -> None:
    """Prints a warning of at most 80 columns, above the last lines.

    Args:
      text: Of any length; lines stay lines.
      kind: What stands before it.
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
    """Puts a bar into the last lines; None takes it away.

    A stream that is a file shows no bar: see `Screen.print`.
    """
    with self._lock:
      self._bar = lines
      self._changed()

  def finish(self) -> None:
    """The bar stays on the screen as it is, and is not drawn any more."""
    with self._lock:
      lines, self._bar = self._bar, None
      if lines is None:
        return
      self._changed(keep=lines)

  @contextlib.contextmanager
  def waiting(self, what: str) -> Iterator[None]:
    """Says what takes so long, with a timer, until the context is left."""
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
    """Draws what has changed because time has passed."""
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
    """Draws, and lets the thread run exactly while there is something."""
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

  def _run(self, stopped: threading.Event) -> None:
    while not stopped.wait(_TICK_S[self.mode]):
      self.tick()

  def lines(self, width: int) -> list[Text]:
    """What stands in the last lines of a screen of so many columns."""
    shown = list(self._bar(width)) if self._bar is not None else []
    if self._activities:
      activity = self._activities[-1]
      seconds = self._clock() - activity.start
      if seconds >= _PATIENCE_S:
        line = Text(f"{activity.what} {seconds:.0f} s", "cyan", no_wrap=True)
        line.truncate(width, overflow="crop" if self.ascii else "ellipsis")
        shown.append(line)
    return shown

  def _draw(self, keep: Lines | None = None) -> None:
    if self.mode == "notebook":
      kept = list(keep(_NOTEBOOK_COLUMNS)) if keep else []
      self._cell.show(kept, self.lines(_NOTEBOOK_COLUMNS))
      return
    assert self._console is not None
    width = min(max(self._console.width, _MIN_COLUMNS), _MAX_COLUMNS)
    shown = self.lines(width)
    if self._live is not None and (keep or not shown):
      self._live.update(Text(), refresh=True)
      self._live.stop()
      self._live = None
    if keep:
      self._console.print(Text("\n").join(keep(width)))
    if not shown:
      return
    if self._live is None:
      self._live = rich.live.Live(
        console=self._console,
        auto_refresh=False,
        transient=True,
        # What goes elsewhere stays there.
        redirect_stdout=sys.stdout.isatty(),
        redirect_stderr=sys.stderr.isatty(),
      )
      self._live.start()
      # A process that is killed would leave a terminal without one.
      self._console.show_cursor(True)
    self._live.update(Text("\n").join(shown), refresh=True)


class _Cell:
  """The output of a notebook's cell that is drawn again in place."""

  def __init__(self):
    self._handle: Any = None
    self._of: int | None = None  # The number of the cell.
    self._kept: list[Text] = []
    self._shown = ""

  def show(self, kept: Sequence[Text], lines: Sequence[Text]) -> None:
    """Draws the lines.

    Args:
      kept: Those that stay for good, above the others.
      lines: Those that the next call replaces.
    """
    from IPython import display, get_ipython

    number = get_ipython().execution_count
    if number != self._of:
      if not (kept or lines):
        return
      self._of, self._handle, self._kept, self._shown = number, None, [], ""
    self._kept += kept
    text = Text("\n").join([*self._kept, *lines])
    if text.plain == self._shown:
      return
    self._shown = text.plain
    bundle = {"text/plain": text.plain, "text/html": _as_html(text)}
    if self._handle is None:
      self._handle = display.display(bundle, raw=True, display_id=True)
    else:
      self._handle.update(bundle, raw=True)


def _as_html(text: Text) -> str:
  """The text in colour; all of it is escaped."""
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


def screen() -> Screen:
  """The screen of this process, which is where standard error goes."""
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
  """Shows what takes so long, with a timer; in process 0."""
  if not hosts.is_main():
    yield
    return
  with screen().waiting(what):
    yield


def columns() -> int:
  """Width of the terminal in characters; 80 if the output is a file."""
  if mode_of(sys.stdout) != "terminal":
    return COLUMNS
  width = rich.console.Console(file=sys.stdout, force_terminal=True).width
  return min(max(width, _MIN_COLUMNS), _MAX_COLUMNS)


def say(text: str, style: str = "") -> None:
  """Prints lines to the output, with colours where it is a terminal.

  Args:
    text: The lines.
    style: As `rich` has it, for a terminal.
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
      screen().alarm(self.format(record), kind)
    except Exception:  # As logging's own handlers: a log stops no program.
      self.handleError(record)


def take_over_logging() -> None:
  """Shows the warnings of all libraries as plain lines: "warning: ..." """
  root = logging.getLogger()
  root.removeHandler(absl_logging.get_absl_handler())
  if not any(isinstance(handler, _Handler) for handler in root.handlers):
    root.addHandler(_Handler())
