"""Completions as lines of text."""

from experiments.traces import attacks, source, terminal
from tests.experiments.traces import examples


def test_a_completion_in_words():
  rows = [
    examples.row(
      "think\n42",
      components={"sum": 1.0, "form": None},
      calls=({"turn": 0, "in": "6*7", "blocked": True, "out": None},),
      opening="summary",
    ),
    examples.row(
      "43", sample=1, context=2, reward=None, correct=None, error="Oh"
    ),
  ]
  group = examples.group(*rows, step=7, record=3)
  alarms = (source.Alarm(5, "cut_off", "Most have no end."),)
  run = source.Run("mine", "grpo", (), alarms, (), (group, group))
  lines = list(terminal.lines(run, terminal.Question(), 1))
  assert lines == [
    "mine (grpo)",
    "2 groups, 4 completions",
    "alarm at step 5: cut_off",
    "  Most have no end.",
    "",
    "── step 7 · rl · train · record 3 · prompt 0 · random",
    "  6 * 7 =",
    "  #0  1.000  right  intercepted",
    "    sum 1.000, form –",
    "    begins with: summary",
    "    think",
    "    42",
    "      turn: 0",
    "      in: 6*7",
    "      blocked: true",
    "  #1.2  unscored  error",
    "    43",
    "    error: Oh",
    "",
    "1 more groups; --limit prints more.",
  ]


def test_nothing_is_wider_than_a_terminal_or_acts_upon_it():
  lines = list(terminal.lines(attacks.run(), terminal.Question(), 99))
  assert max(map(len, lines)) <= terminal.COLUMNS
  assert all(line.isprintable() for line in lines)
  assert any("more characters)" in line for line in lines)


def test_all_parts_of_a_question_must_hold():
  def at(step, record, split, *rows):
    return examples.group(
      *rows, step=step, record=record, split=split, chosen=(split,)
    )

  good = examples.row("good")
  bad = examples.row("bad", reward=0.0, correct=False, terminated=False)
  first, second, held_out = groups = (
    at(1, 0, "train", good, good),
    at(2, 0, "train", good, bad),
    at(2, 0, "eval", bad),
  )
  run = source.Run("mine", "grpo", (), (), (), groups)

  def found(**parts):
    return terminal.matches(run, terminal.Question(**parts))

  assert found(step=2) == [(second, [good, bad]), (held_out, [bad])]
  assert found(filters=("cut-off",), split="train") == [(second, [bad])]
  assert found(search="GOOD", step=2) == [(second, [good])]
  assert found(since=1) == [(second, [good, bad])]
  assert found(record=1) == []
  assert found(rule="eval") == [(held_out, [bad])]
  assert [group for group, _ in found()] == [first, second, held_out]
