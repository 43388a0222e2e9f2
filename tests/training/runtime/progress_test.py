"""The live line of a phase."""

import io
import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from grpo_jax.training import run as run_lib
from grpo_jax.training.runtime import terminal
from tests.training.runtime.terminals import Clock, Terminal


def render(width, phase, step, total, fields, rate, eta):
  view = terminal.Status(phase, step, total, fields, {}, rate, eta)
  return terminal.render(width, view)


def test_known_line():
  line = render(
    80, "rl", 120, 1000, {"reward": 0.512, "accuracy": 0.634}, 12_345.6, 3753
  )
  assert line == (
    "rl  120/1000 [#............] reward 0.512 accuracy 0.634 12.3k tok/s"
    " ETA 1:02:33"
  )


@pytest.mark.slow
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
  line = render(width, phase, step, total, fields, rate, eta)
  assert len(line) <= width
  assert line.isascii()


@hypothesis.settings(deadline=None)
@hypothesis.given(step=st.integers(0, 1000))
def test_bar_is_full_only_at_the_end(step):
  line = render(80, "rl", step, 1000, {}, None, None)
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
  line = render(width, "rl", 5, 9, {"reward": 1.0, "accuracy": 0.5}, 50.0, 599)
  assert line == expected


@pytest.mark.parametrize(
  ("value", "text"),
  [
    (0.0, "x 0.000"),
    (-0.25, "x -0.250"),
    (1e-5, "x 1.0e-05"),
    (12.345, "x 12.3"),
    (123.4, "x 123"),
    (3e9, "x 3.0e+09"),
    (float("nan"), "x -"),
    (float("-inf"), "x -inf"),
  ],
)
def test_numbers(value, text):
  line = render(80, "rl", 1, 2, {"x": value}, None, None)
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
  line = render(80, "rl", 1, 2, {}, rate, eta)
  assert line.endswith(f"] {text}")


@pytest.fixture(autouse=True)
def _size_of_a_terminal(monkeypatch):
  monkeypatch.setenv("COLUMNS", "80")
  monkeypatch.setenv("TERM", "xterm")


def view(**changes):
  fields = {
    **{"reward": 0.5, "accuracy": math.nan, "unscored": 3.0},
    **{"held-out": 0.25, "length": 12.0, "entropy": 1.5},
  }
  recent = {
    "reward": tuple(np.linspace(0, 0.5, 40)),
    "accuracy": (math.nan,) * 40,
  }
  defaults = {
    **{"phase": "rl", "step": 120, "total_steps": 1000, "fields": fields},
    **{"recent": recent, "tokens_per_second": 12_345.6, "eta": 3753.0},
  }
  return terminal.Status(**defaults | changes)


@pytest.mark.parametrize(
  ("width", "expected"),
  [
    (
      60,
      [
        f"rl  120/1000 ━━━{'─' * 26}  12 % ETA 1:02:33",
        "  reward 0.500 ▁▂▃▄▅▆▇█ ↑  accuracy –  unscored 3",
      ],
    ),
    (
      80,
      [
        f"rl  120/1000 ━━━━━{'─' * 44}  12 % ETA 1:02:33",
        "  reward 0.500 ▁▂▃▄▅▆▇█ ↑  accuracy –  unscored 3  held-out 0.250"
        "  12.3k tok/s",
      ],
    ),
    (
      200,
      [
        f"rl  120/1000 {'━' * 7}{'─' * 53}  12 % ETA 1:02:33",
        "  reward 0.500 ▁▂▃▄▅▆▇█ ↑  accuracy –  unscored 3  held-out 0.250"
        "  length 12.0  entropy 1.500  12.3k tok/s",
      ],
    ),
  ],
)
def test_known_lines_of_a_terminal(width, expected):
  assert [line.plain for line in terminal.live(width, view())] == expected


def test_known_lines_in_ascii():
  assert [line.plain for line in terminal.live(60, view(), ascii=True)] == [
    f"rl  120/1000 ###{'.' * 26}  12 % ETA 1:02:33",
    "  reward 0.500 +  accuracy -  unscored 3  12.3k tok/s",
  ]


@pytest.mark.slow
@hypothesis.settings(deadline=None, max_examples=100)
@hypothesis.given(
  width=st.integers(1, 200),
  phase=st.text(st.characters(codec="ascii"), max_size=30),
  step=st.integers(0, 10**9),
  total=st.integers(0, 10**9),
  fields=st.dictionaries(
    st.text(st.characters(codec="ascii"), max_size=12), st.floats(), max_size=6
  ),
  values=st.lists(st.floats(), max_size=60),
  rate=st.none() | st.floats(),
  eta=st.none() | st.floats(),
  ascii=st.booleans(),
)
def test_any_lines_of_a_terminal_fit(
  width, phase, step, total, fields, values, rate, eta, ascii
):
  recent = dict.fromkeys(fields, tuple(values))
  shown = terminal.Status(phase, step, total, fields, recent, rate, eta)
  lines = terminal.live(width, shown, ascii)
  assert len(lines) == 1 + bool(fields)
  for line in lines:
    assert len(line.plain) <= width
    assert line.plain.isprintable()
    assert line.plain.isascii() or not ascii


def test_unscored_rows_are_kept_where_further_numbers_are_not():
  """They stand before the numbers that a narrow terminal leaves out."""
  for width in (50, 60, 80, 200):
    assert "unscored 3" in terminal.live(width, view())[1].plain


def test_a_sum_that_overflows_has_a_mean():
  values = [0.0, 1.5e299, 1.7976931333622667e308, *[0.0] * 9]
  assert terminal.sparkline(values) == "▁█▁▁▁▁▁▁"
  assert len(terminal.sparkline([1.7976931348623157e308] * 20)) == 8


@hypothesis.settings(deadline=None)
@hypothesis.given(st.lists(st.floats(-1e300, 1e300), min_size=2, max_size=100))
def test_a_sparkline_is_highest_and_lowest_where_the_means_are(values):
  spark = terminal.sparkline(values)
  chunks = np.array_split(values, min(len(values), 8))
  assert len(spark) == len(chunks)
  if len(values) <= 8:
    ranks = ["▁▂▃▄▅▆▇█".index(c) for c in spark]
    for i in range(len(values)):
      for j in range(len(values)):
        assert values[i] > values[j] or ranks[i] <= ranks[j]


@pytest.mark.parametrize(
  ("values", "text"),
  [
    ([], ""),
    ([1.0], ""),
    ([math.nan, math.nan], ""),
    ([2.0, 2.0, 2.0], "▄▄▄"),
    ([0.0, math.nan, 1.0], "▁ █"),
    ([*range(16)], "▁▂▃▄▅▆▇█"),
    ([-1e308, 1e308], "▄▄"),  # Their distance is infinite.
  ],
)
def test_sparklines(values, text):
  assert terminal.sparkline(values) == text


def test_arrows_are_rare_where_there_is_no_trend():
  draw = np.random.default_rng(0)
  noise = [terminal.arrow(draw.normal(size=48)) for _ in range(400)]
  assert sum(map(bool, noise)) / 400 < 0.1
  rising = [
    terminal.arrow(draw.normal(size=48) + np.linspace(0, 3, 48))
    for _ in range(100)
  ]
  assert rising.count("↑") > 95
  assert terminal.arrow([5.0] * 20) == ""
  assert terminal.arrow([3.0, 2.9, 2.8, 1.1, 1.0, math.nan, 0.9]) == "↓"
  assert terminal.arrow([1.0, 2.0, 3.0]) == ""  # Too few.
  assert terminal.arrow([1e308, -1e308] * 5) == ""


def test_runs_together_are_means_of_what_there_is():
  nan = math.nan
  assert terminal.together(
    [
      {"reward": 0.5, "accuracy": nan, "unscored": 2.0},
      {"reward": nan, "accuracy": nan},
      {"reward": 1.0, "accuracy": nan, "unscored": 3.0},
    ]
  ) == pytest.approx(
    {"reward": 0.75, "accuracy": nan, "unscored": 5.0}, nan_ok=True
  )


@hypothesis.settings(deadline=None)
@hypothesis.given(
  every=st.integers(-1, 50), done=st.integers(0, 99), steps=st.integers(0, 99)
)
def test_what_is_still_due_is_counted(every, done, steps):
  expected = sum(
    run_lib.due(every, n, steps) for n in range(done + 1, steps + 1)
  )
  assert terminal.num_due(every, done, steps) == expected


def test_the_time_that_is_left_counts_steps_and_evaluations():
  pace = terminal.Pace()
  assert pace.left(100, 5) is None
  pace.step(9.0)  # The first is slow, and all that is known.
  assert pace.left(10, 0) == 90
  pace.step(2.0)
  pace.step(4.0)
  pace.evaluation(10.0)
  assert pace.left(100, 5) == 100 * 3 + 5 * 10
  for _ in range(50):
    pace.step(1.0)  # Steps of long ago count no more.
  assert pace.left(100, 5) == 100 + 5 * 10
  assert pace.left(0, 0) == 0


def test_terminal_shows_the_last_update_which_stays():
  stream, clock = Terminal(), Clock()
  screen = terminal.Screen(stream, clock, ticks=False)
  with terminal.Progress("rl", 10, screen, clock) as bar:
    for step in range(1, 11):
      bar.update(step, {"reward": step / 10}, 1e6, 10.0 - step)
      clock.seconds += 1
      if step == 4:
        bar.alarm("half")
  screen.print("after")
  warning, first, second, after = stream.lines()
  assert warning == "warning: half"
  assert first.startswith("rl 10/10 ━━━━━━━━━")
  assert first.endswith("━ 100 % in 0:10")
  assert second.startswith("  reward 1.000 ▁▂▃▄▅▆▇█ ↑  1.0M tok/s")
  assert after == "after"


def test_the_time_that_is_left_passes_while_a_step_lasts():
  stream, clock = Terminal(), Clock()
  screen = terminal.Screen(stream, clock, ticks=False)
  bar = terminal.Progress("rl", 10, screen, clock)
  bar.update(1, {}, None, 90.0)
  assert stream.lines()[0].endswith("ETA 1:30")
  clock.seconds += 30
  screen.tick()
  assert stream.lines()[0].endswith("ETA 1:00")


def test_terminal_is_redrawn_ten_times_a_second_at_most():
  stream, clock = Terminal(), Clock()
  screen = terminal.Screen(stream, clock, ticks=False)
  bar = terminal.Progress("rl", 10_000, screen, clock)
  for step in range(1, 1001):  # Two seconds.
    bar.update(step, {})
    clock.seconds += 0.002
  assert 15 <= stream.getvalue().count(" % ETA") <= 21
  bar.done()
  assert stream.lines()[0].startswith("rl  1000/10000")


def test_plain_lines_now_and_then_where_there_is_no_terminal():
  stream, clock = io.StringIO(), Clock()
  screen = terminal.Screen(stream, clock, ticks=False)
  bar = terminal.Progress("sft", 100, screen, clock)
  for step in range(1, 101):
    bar.update(step, {"loss": 0.5, "unscored": 2.0}, None, 100.0 - step)
    clock.seconds += 1
  bar.done()
  lines = stream.getvalue().splitlines()
  steps = [line.split()[1] for line in lines]
  assert steps == ["1/100", "31/100", "61/100", "91/100", "100/100"]
  assert lines[1] == (
    "sft  31/100 [#######.................] loss 0.500 unscored 2 ETA 1:09"
  )
  assert stream.getvalue().isascii()
  assert "\r" not in stream.getvalue()


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()])
def test_phase_without_updates_prints_nothing(stream):
  with terminal.Progress("rl", 10, terminal.Screen(stream)):
    pass
  assert stream.getvalue() == ""
