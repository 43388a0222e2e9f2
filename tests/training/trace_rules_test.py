"""Rules choose the groups that a loop over them chooses."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from grpo_jax.training import tracing


def _numbers(rewards, scored=None, **more):
  reward = np.array(rewards, np.float32)
  scored = np.ones(len(reward), bool) if scored is None else np.array(scored)
  return tracing.Numbers(reward, scored, **more)


def test_each_rule_chooses_its_group():
  numbers = _numbers(
    [0.5, 0.5, 0.0, 0.2, 1.0, 0.9, 0.1, 0.9, 0.4, 0.4],
    clipped=np.array([0, 0, 0, 0, 0, 0, 0, 0, 3, 1]),
  )
  chosen = tracing.choose(numbers, 2, 4, [], (0, 1))
  assert chosen == {
    3: ("largest spread",),
    1: ("worst",),
    2: ("best",),
    4: ("most clipped",),
  }
  # What is left is random, and the order is that of the rules.
  more = tracing.choose(numbers, 2, 9, [], (0, 1))
  assert list(more) == [3, 1, 2, 4, 0]
  assert more[0] == ("random",)
  assert list(tracing.choose(numbers, 2, 2, [], (0, 1))) == [3, 1]


def test_named_groups_come_first_and_beside_the_others():
  numbers = _numbers([0, 0, 1, 1, 0, 1])
  chosen = tracing.choose(numbers, 2, 1, [1], (0, 1), is_alarm=True)
  assert list(chosen) == [1, 2]
  assert chosen[1][0] == "named"
  assert chosen[2][0] == "largest spread"
  assert all(rules[-1] == "alarm" for rules in chosen.values())


def test_rows_that_nobody_scored_are_neither_best_nor_worst():
  numbers = _numbers([9, 0.5, -9, 0.6], [False, True, False, True])
  chosen = tracing.choose(numbers, 2, 2, [], (0, 1))
  assert chosen == {0: ("worst",), 1: ("best",)}
  nobody = _numbers([9, 9], [False, False])
  assert tracing.choose(nobody, 1, 1, [], (0,)) in (
    {0: ("random",)},
    {1: ("random",)},
  )


def test_a_prompt_that_has_lost_most_has_regressed():
  lost = np.array([0.1, 0.7, -1.0, -np.inf], np.float32)
  numbers = _numbers([0.5] * 4, lost=lost)
  chosen = tracing.choose(numbers, 1, 2, [], (0,))
  assert chosen[1][0] == "regressed"
  none = _numbers([0.5] * 4, lost=np.minimum(lost, 0))
  rules = tracing.choose(none, 1, 4, [], (0,)).values()
  assert not any("regressed" in rule for rule in rules)


@hypothesis.given(
  st.integers(1, 3),
  st.integers(1, 4),
  st.integers(0, 6),
  st.integers(0, 5),
  st.data(),
)
@hypothesis.settings(max_examples=60, deadline=None)
def test_rules_agree_with_a_loop(size, count, step, num_groups, data):
  num_groups += 1
  rewards = data.draw(
    st.lists(
      st.sampled_from([0.0, 0.25, 1.0]),
      min_size=size * num_groups,
      max_size=size * num_groups,
    )
  )
  chosen = tracing.choose(_numbers(rewards), size, count, [], (7, step))
  assert chosen == tracing.choose(_numbers(rewards), size, count, [], (7, step))
  assert len(chosen) == min(count, num_groups)
  groups = [rewards[i * size : (i + 1) * size] for i in range(num_groups)]
  for group, rules in chosen.items():
    spread = max(groups[group]) - min(groups[group])
    if "largest spread" in rules:
      assert spread == max(max(g) - min(g) for g in groups) > 0
    if "best" in rules:
      assert max(groups[group]) == max(rewards)
    if "worst" in rules:
      assert min(groups[group]) == min(rewards)
    assert ("random" in rules) == (rules == ("random",))


@pytest.mark.parametrize(
  ("names", "number", "prompt", "expected"),
  [
    (("17",), 17, "x", True),
    (("17",), 1, "17", False),  # A number is that of a record.
    (("apples",), 3, "How many apples", True),
    (("pears", "5"), 3, "How many apples", False),
    ((), 3, "", False),
  ],
)
def test_prompts_are_named_by_number_or_text(names, number, prompt, expected):
  assert tracing.is_named(names, number, prompt) == expected
