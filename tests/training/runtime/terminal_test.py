"""Tests of the line at the end of a terminal, and of the text above it."""

import io
import logging
import os
import pty
import subprocess
import sys
import textwrap
import threading

import hypothesis
import pytest
from hypothesis import strategies as st
from rich.text import Text

from grpo_jax.training.runtime import terminal as terminal_lib
from tests.training.runtime.terminals import Clock, Terminal


@pytest.fixture(autouse=True)
def _eighty_columns(monkeypatch):
  monkeypatch.setenv("COLUMNS", "80")
  monkeypatch.setenv("TERM", "xterm")
  monkeypatch.delenv("NO_COLOR", raising=False)


def make(stream):
  clock = Clock()
  return terminal_lib.Screen(stream, clock, ticks=False), clock


def bar(*lines):
  return lambda width: [Text(line[:width]) for line in lines]


def test_a_timer_is_drawn_in_place_and_leaves_nothing():
  stream = Terminal()
  screen, clock = make(stream)
  with screen.waiting("rl: compiling"):
    for clock.seconds in (1.0, 7.0, 12.3):
      screen.tick()
    assert stream.lines() == ["rl: compiling 12 s"]
  assert stream.lines() == [""]


def test_what_is_over_at_once_is_not_shown():
  stream = Terminal()
  screen, clock = make(stream)
  with screen.waiting("rl: evaluating"):
    clock.seconds = 0.2
    screen.tick()
  assert stream.getvalue() == ""


def test_a_file_hears_of_it_after_ten_seconds_and_then_rarely():
  stream = io.StringIO()
  screen, clock = make(stream)
  with screen.waiting("rl: compiling"):
    for second in range(90):
      clock.seconds = float(second)
      screen.tick()
  assert stream.getvalue() == (
    "rl: compiling 10 s\nrl: compiling 40 s\nrl: compiling 70 s\n"
  )


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()])
def test_the_timer_stops_when_an_error_or_ctrl_c_leaves_it(error, stream):
  screen = terminal_lib.Screen(stream)
  before = sys.stdout, sys.stderr
  threads = []

  def fail():
    with screen.waiting("rl: compiling"):
      threads.extend(x for x in threading.enumerate() if x.name == "console")
      raise error

  with pytest.raises(error):
    fail()
  (thread,) = threads
  thread.join(60)
  assert not thread.is_alive()
  assert not screen.is_active
  assert (sys.stdout, sys.stderr) == before


def test_the_innermost_of_two_waits_is_shown():
  stream = Terminal()
  screen, clock = make(stream)
  with screen.waiting("outer"):
    with screen.waiting("inner"):
      clock.seconds = 2.0
      screen.tick()
      assert stream.lines() == ["inner 2 s"]
    assert stream.lines() == ["outer 2 s"]


def test_alarms_stand_above_the_bar_and_do_not_break_it():
  stream = Terminal()
  screen, clock = make(stream)
  screen.show(bar("rl 1/9 ---", "  reward 0.1"))
  screen.alarm("entropy is 0. " * 9)
  with screen.waiting("evaluating"):
    clock.seconds = 3.0
    screen.tick()
    screen.print("a line")
    lines = stream.lines()
  assert lines[0].startswith("warning: entropy is 0. entropy is 0.")
  assert lines[2:] == ["a line", "rl 1/9 ---", "  reward 0.1", "evaluating 3 s"]
  screen.show(bar("rl 2/9 ---", "  reward 0.2"))
  assert stream.lines() == [*lines[:3], "rl 2/9 ---", "  reward 0.2"]
  screen.finish()
  screen.print("the end")
  assert stream.lines() == [*lines[:3], "rl 2/9 ---", "  reward 0.2", "the end"]


@hypothesis.settings(deadline=None, max_examples=30)
@hypothesis.given(text=st.text(st.characters(codec="ascii"), max_size=300))
def test_any_text_is_printed_as_it_is_even_markup(text):
  text = "".join(c if c.isprintable() else " " for c in text).strip()
  stream = Terminal()
  screen, _ = make(stream)
  screen.show(bar("the bar"))
  screen.alarm(f"{text} [bold]x[/bold]")
  *shown, last = stream.lines()
  assert last == "the bar"
  words = f"warning: {text} [bold]x[/bold]".split()
  assert "".join("".join(shown).split()) == "".join(words)


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_warnings_are_wrapped_at_eighty_columns_or_less(monkeypatch, columns):
  monkeypatch.setenv("COLUMNS", str(columns))
  stream = Terminal(columns)
  screen, _ = make(stream)
  screen.alarm("a word " * 40)
  lines = stream.lines()
  assert max(map(len, lines)) <= min(columns, 80)
  assert max(map(len, lines)) > min(columns, 80) - 8


def test_a_file_gets_ascii_signs_and_no_colour():
  stream = io.StringIO()
  screen, _ = make(stream)
  screen.show(bar("the bar"))
  screen.alarm("accuracy – ≥ 0.5 …")
  screen.finish()
  assert stream.getvalue() == "warning: accuracy - >= 0.5 ~\n"


@pytest.mark.parametrize(
  ("variable", "value", "colours"),
  [("NO_COLOR", "1", False), ("TERM", "dumb", False), ("TERM", "xterm", True)],
)
def test_colours_can_be_switched_off(monkeypatch, variable, value, colours):
  monkeypatch.setenv(variable, value)
  stream = Terminal()
  screen, clock = make(stream)
  screen.alarm("text")
  with screen.waiting("compiling"):
    clock.seconds = 20.0
    screen.tick()
  # 33 is yellow, 36 is cyan.
  assert any(code in stream.getvalue() for code in (";33m", "[36m")) == colours
  if value == "dumb":
    assert "\x1b" not in stream.getvalue()


def test_a_forced_colour_makes_no_terminal_of_a_file(monkeypatch):
  monkeypatch.setenv("FORCE_COLOR", "1")
  stream = io.StringIO()
  screen, _ = make(stream)
  screen.alarm("text")
  assert stream.getvalue() == "warning: text\n"


def test_log_records_are_plain_lines(monkeypatch):
  stream = io.StringIO()
  monkeypatch.setattr(sys, "stderr", stream)
  root = logging.getLogger()
  handlers = root.handlers[:]
  try:
    terminal_lib.take_over_logging()
    terminal_lib.take_over_logging()  # Twice is once.
    logging.getLogger("a.library").warning("%d rows: %s", 3, "no reward")
    logging.getLogger("a.library").error("broken")
  finally:
    root.handlers[:] = handlers
  assert stream.getvalue() == "warning: 3 rows: no reward\nerror: broken\n"


@pytest.mark.parametrize(
  ("stream", "text"),
  [
    (io.StringIO(), "accuracy - -> 0.5\n"),
    (Terminal(), "\x1b[1maccuracy – -> 0.5\x1b[0m\n"),
  ],
)
def test_the_output_has_ascii_signs_in_a_file(monkeypatch, stream, text):
  monkeypatch.setattr(sys, "stdout", stream)
  terminal_lib.say("accuracy – -> 0.5", "bold")
  assert stream.getvalue() == text


_PROGRAM = """
import sys
from grpo_jax.training.runtime import terminal
screen = terminal.Screen(sys.stderr)
try:
  with screen.waiting("compiling"):
    screen.show(lambda width: [__import__("rich.text").text.Text("bar")])
    print("to the output")
    print("to the errors", file=sys.stderr)
    raise KeyboardInterrupt
except KeyboardInterrupt:
  screen.finish()
  print(screen.mode)
"""


def run_program(**streams):
  return subprocess.run(
    [sys.executable, "-c", textwrap.dedent(_PROGRAM)],
    check=True,
    env={**os.environ, "JAX_PLATFORMS": "cpu", "TERM": "xterm"},
    **streams,
  )


def test_in_a_real_terminal_prints_stand_above_the_bar():
  ours, theirs = pty.openpty()
  run_program(stdout=theirs, stderr=theirs)
  os.close(theirs)
  terminal = Terminal()
  with open(ours, "rb", buffering=0) as stream:
    try:
      while chunk := stream.read(4096):
        terminal.write(chunk.decode())
    except OSError:  # Linux: the other side is closed.
      pass
  assert terminal.lines() == [
    "to the output",
    "to the errors",
    "bar",
    "terminal",
  ]
  assert terminal.getvalue().rfind("\x1b[?25h") > terminal.getvalue().rfind(
    "\x1b[?25l"
  )  # There is a cursor again.


def test_output_that_goes_to_a_file_stays_there_beside_a_terminal():
  ours, theirs = pty.openpty()
  found = run_program(stdout=subprocess.PIPE, stderr=theirs)
  os.close(theirs)
  os.close(ours)
  assert found.stdout == b"to the output\nterminal\n"
