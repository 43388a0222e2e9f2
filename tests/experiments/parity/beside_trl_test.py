"""The comparison with TRL: its table, and the rule of its reward."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.parity import beside_trl, trl_run
from grpo_jax.rewards import math_accuracy
from grpo_jax.training.runtime import traces
from tests.experiments.traces import examples


def _cell(after, seconds=(9.0, 9.0, 1.0, 2.0, 3.0)):
  return {
    "before": 0.25,
    "after": after,
    "rewards": [0.0, 0.0, after, after],
    "seconds": seconds,
    "bytes": 2**31,
  }


def test_the_table_has_means_differences_and_ratios():
  found = {
    ("grpo", seed, program): _cell(0.5 + 0.1 * seed, (9.0, 9.0, seconds))
    for seed in range(3)
    for program, seconds in (("here", 2.0), ("TRL", 4.0))
  }
  lines, agree = beside_trl.table(found | {("grpo", 3, "here"): _cell(0.0)})
  assert agree
  assert lines[2:] == [
    "| grpo (3) | accuracy before | 0.250 | 0.250 | 0.000 [0.000, 0.000]"
    " | 1.00 |",
    "| grpo (3) | accuracy after | 0.600 | 0.600 | 0.000 [-0.227, 0.227]"
    " | 1.00 |",
    "| grpo (3) | reward, later half | 0.600 | 0.600 | 0.000 [-0.227, 0.227]"
    " | 1.00 |",
    "| grpo (3) | seconds a step | 2.000 | 4.000 | -2.000 [-2.000, -2.000]"
    " | 0.50 |",
    "| grpo (3) | memory, GiB | 2.000 | 2.000 | 0.000 [0.000, 0.000] | 1.00 |",
  ]


def test_programs_that_differ_beyond_chance_do_not_agree():
  found = {
    ("grpo", seed, program): _cell(after + 0.01 * seed)
    for seed in range(3)
    for program, after in (("here", 0.5), ("TRL", 0.6))
  }
  assert not beside_trl.table(found)[1]


def test_completions_have_the_order_of_the_rows_of_their_step(tmp_path):
  """A trace begins with the groups that say most."""

  def group(step, split, *rows):
    made = [
      examples.row(tokens=("", ""), row=n, ids=np.array([step, n], np.int32))
      for n in rows
    ]
    return examples.group(*made, step=step, split=split)

  found = [
    group(1, "train", 2, 3),
    group(1, "train", 0, 1),
    group(1, "eval", 0),
    group(2, "train", 0, 1),
  ]
  lines = [traces.line(x) for x in found]
  (tmp_path / traces.FILE).write_bytes(traces.member(lines))
  assert beside_trl.completions(tmp_path) == [
    [[1, 0], [1, 1], [1, 2], [1, 3]],
    [[2, 0], [2, 1]],
  ]


@pytest.mark.slow
@settings(deadline=None)  # The first call imports math-verify.
@given(
  st.integers(0, 40),
  st.sampled_from(["", "=", "= ", "7 + 9 = ", "= 1 = ", "=\n", "= +", "= x"]),
  st.sampled_from(["", " ", ".", ".0", " apples", "\nSo", "0", " =", " = 7"]),
)
def test_the_rule_of_the_reward_is_that_of_the_config(answer, before, after):
  text = f"{before}{answer}{after}"
  extras = [{"answer": str(answer)}]
  (score,) = math_accuracy.math_accuracy(
    [""], [text], [0], extras, answer_after="="
  )
  assert trl_run.reward(text, str(answer)) == score
