"""Steps of reasoning that are sums."""

import pytest

from grpo_jax.rewards import form


def _scores(text):
  (found,) = form.arithmetic_steps([""], [text], [0], [{}])
  return found


def test_lines_with_equations_are_steps():
  lines = ["48/2 = 24 clips.\n", "So 48+24=73 in all.\n", "no sum\n", "1+1=2"]
  ends = [len("".join(lines[: i + 1])) for i in range(4)]
  assert _scores("".join(lines)) == [
    (ends[0], 1.0),
    (ends[1], 0.0),
    (ends[3], 1.0),
  ]


@pytest.mark.parametrize(
  ("line", "score"),
  [
    ("2 * 3 + 4 = 10", 1.0),
    ("2 + 3 * 4 = 20", 0.0),
    ("2 + 3 x 4 = 14", 1.0),
    ("20% * 50 = 10", 1.0),
    ("10 / 3 = 3.33", 1.0),
    ("10 / 3 = 3.34", 0.0),
    ("10 * 3 = 30.001", 0.0),
    ("$1,200 - 200 = $1,000", 1.0),
    ("5 - -3 = 8", 1.0),
    ("5/0 = 5", 0.0),
    ("1+1=2 and 1+1=3", 0.0),
    (".5 + .5 = 1", 1.0),
  ],
)
def test_sums(line, score):
  assert _scores(line) == [(len(line), score)]


def test_a_line_without_end_is_read_in_no_time():
  assert _scores("1 + " * 200_000) == []
