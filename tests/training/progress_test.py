"""The live line of a phase."""

import io
import os

import hypothesis
import pytest
from hypothesis import strategies as st

from grpo_jax.training import progress


class Terminal(io.StringIO):
  def isatty(self) -> bool:
    return True


class Clock:
  seconds = 0.0

  def __call__(self) -> float:
    return self.seconds


def test_known_line():
  line = progress.render(
    80, "rl", 120, 1000, {"reward": 0.512, "accuracy": 0.634}, 12_345.6, 3753
  )
  assert line == (
    "rl  120/1000 [#............] reward 0.512 accuracy 0.634 12.3k tok/s"
    " ETA 1:02:33"
  )


@hypothesis.settings(deadline=None, max_examples=100)
@hypothesis.given(
  width=st.integers(1, 200),
  phase=st.text(max_size=30),
  step=st.integers(0, 10**9),
  total=st.integers(0, 10**9),
  fields=st.dictionaries(st.text(max_size=12), st.floats(), max_size=6),
  rate=st.none() | st.floats(),
  eta=st.none() | st.floats(),
)
def test_any_line_fits_and_is_ascii(
  width, phase, step, total, fields, rate, eta
):
  line = progress.render(width, phase, step, total, fields, rate, eta)
  assert len(line) <= width
  assert line.isascii()


@hypothesis.settings(deadline=None)
@hypothesis.given(step=st.integers(0, 1000))
def test_bar_is_full_only_at_the_end(step):
  line = progress.render(80, "rl", step, 1000, {}, None, None)
  bar = line[line.index("[") + 1 : line.index("]")]
  assert len(bar) == 24
  assert bar == "#" * (24 * step // 1000) + "." * (24 - 24 * step // 1000)


@pytest.mark.parametrize(
  ("width", "expected"),
  [
    (60, "rl 5/9 [##...] reward 1.000 accuracy 0.500 50 tok/s ETA 9:59"),
    (52, "rl 5/9 reward 1.000 accuracy 0.500 50 tok/s ETA 9:59"),
    (48, "rl 5/9 [####....] reward 1.000 50 tok/s ETA 9:59"),
    (38, "rl 5/9 reward 1.000 50 tok/s ETA 9:59"),
    (25, "rl 5/9 50 tok/s ETA 9:59"),
    (20, "rl 5/9 ETA 9:59"),
    (10, "rl 5/9"),
    (4, "rl 5"),
  ],
)
def test_least_important_parts_go_first(width, expected):
  line = progress.render(
    width, "rl", 5, 9, {"reward": 1.0, "accuracy": 0.5}, 50.0, 599
  )
  assert line == expected


@pytest.mark.parametrize(
  ("value", "text"),
  [
    (0.0, "x 0.000"),
    (-0.25, "x -0.250"),
    (1e-5, "x 1.0e-05"),
    (123.4, "x 123"),
    (3e9, "x 3.0e+09"),
    (float("nan"), "x -"),
    (float("-inf"), "x -inf"),
  ],
)
def test_numbers(value, text):
  line = progress.render(80, "rl", 1, 2, {"x": value}, None, None)
  assert f"] {text} ETA" in line


@pytest.mark.parametrize(
  ("rate", "eta", "text"),
  [
    (999.4, 59.4, "999 tok/s ETA 0:59"),
    (999.99, 59.6, "1.0k tok/s ETA 1:00"),
    (999_960, 3599.9, "1.0M tok/s ETA 1:00:00"),
    (2.5e6, 86_399, "2.5M tok/s ETA 23:59:59"),
    (float("nan"), 90_000, "nan tok/s ETA 1d01h"),
    (12.0, None, "12 tok/s ETA -:--"),
    (12.0, -1.0, "12 tok/s ETA 0:00"),
  ],
)
def test_rates_and_durations(rate, eta, text):
  line = progress.render(80, "rl", 1, 2, {}, rate, eta)
  assert line.endswith(f"] {text}")


def screen(output: str) -> list[str]:
  """What a terminal shows: carriage returns overwrite from the left."""
  lines = []
  for text in output.split("\n"):
    shown = ""
    for part in text.split("\r"):
      shown = part + shown[len(part) :]
    lines.append(shown.rstrip())
  return lines


@pytest.fixture(autouse=True)
def _size_of_a_terminal(monkeypatch):
  size = os.terminal_size((100, 24))
  monkeypatch.setattr(progress.shutil, "get_terminal_size", lambda: size)


def test_terminal_shows_one_line_with_the_last_update():
  stream, clock = Terminal(), Clock()
  bar = progress.Progress("rl", 10, stream, clock)
  for step in range(1, 11):
    bar.update(step, {"reward": 1.0 if step == 5 else 1000 / step}, 10.0**step)
    clock.seconds += 1
    for part in stream.getvalue().split("\r"):
      assert len(part) <= 80
  bar.done()
  shown = screen(stream.getvalue())
  assert shown[1:] == [""]
  assert shown[0].startswith("rl 10/10 [########################] reward 100")
  assert shown[0].endswith("10000.0M tok/s ETA 0:00")


def test_eta_counts_from_the_first_update():
  stream, clock = Terminal(), Clock()
  bar = progress.Progress("rl", 100, stream, clock)
  clock.seconds = 500  # Compilation.
  bar.update(41, {})  # A resumed run.
  assert stream.getvalue().endswith("ETA -:--")
  clock.seconds += 20
  bar.update(51, {})  # 2 seconds a step; 49 steps remain.
  assert stream.getvalue().rstrip().endswith("ETA 1:38")


def test_terminal_is_redrawn_ten_times_a_second_at_most():
  stream, clock = Terminal(), Clock()
  bar = progress.Progress("rl", 10_000, stream, clock)
  for step in range(1, 1001):  # Two seconds.
    bar.update(step, {})
    clock.seconds += 0.002
  assert 15 <= stream.getvalue().count("\r") <= 21
  bar.done()
  assert screen(stream.getvalue())[0].startswith("rl  1000/10000")


def test_plain_lines_now_and_then_where_there_is_no_terminal():
  stream, clock = io.StringIO(), Clock()
  bar = progress.Progress("sft", 100, stream, clock)
  for step in range(1, 101):
    bar.update(step, {"loss": 0.5})
    clock.seconds += 1
  bar.done()
  lines = stream.getvalue().splitlines()
  assert [line.split()[1] for line in lines] == [
    "1/100",
    "31/100",
    "61/100",
    "91/100",
    "100/100",
  ]
  assert "\r" not in stream.getvalue()


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()])
def test_phase_without_updates_prints_nothing(stream):
  progress.Progress("rl", 10, stream).done()
  assert stream.getvalue() == ""
