"""A mixture of tasks is judged by the task that each problem is of."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

from grpo_jax.tasks import add, make_task, mixture, sort

PARTS = {
  "sums": add.make(level=1, scratchpad=True),
  "words": sort.make(max_len=3),
}
TASK = mixture.make(PARTS)


def _rows(num_rows=40):
  """Right completions, half of them of the other problem of the pair."""
  rng = np.random.default_rng(0)
  for _ in range(num_rows):
    own, other = TASK.example(rng, "train"), TASK.example(rng, "train")
    for answer in (own, other):
      tokens = np.zeros(TASK.max_completion_len, np.int32)
      tokens[: len(answer.completion)] = answer.completion
      mask = np.arange(len(tokens)) < len(answer.completion)
      yield own.extras, tokens, mask


@pytest.mark.slow
def test_each_problem_has_the_verifier_of_its_own_task():
  verify, steps = jax.jit(TASK.verify), jax.jit(TASK.step_scores)
  domains, right = [], []
  for extras, tokens, mask in _rows():
    number = int(extras["domain"])
    name = list(PARTS)[number]
    part = PARTS[name]
    own = {
      key.split("/")[1]: value
      for key, value in extras.items()
      if key.startswith(f"{name}/")
    }
    named = ("accuracy", "process", "consistency", "position", "ascending")
    wanted = dict.fromkeys((*named, "f1"), np.nan) | part.verify_numpy(
      tokens, mask, own
    )
    got = jax.device_get(verify(tokens, mask, extras))
    twin = TASK.verify_numpy(tokens, mask, extras)
    assert got == pytest.approx(wanted, nan_ok=True)
    assert twin == pytest.approx(wanted, nan_ok=True)
    scores, ends = steps(tokens, mask, extras)
    twins = TASK.step_scores_numpy(tokens, mask, extras)
    np.testing.assert_array_equal(scores, twins[0])
    np.testing.assert_array_equal(ends, twins[1])
    assert ends.any() == (number == 0 and "+" in TASK.decode(tokens))
    domains.append(number)
    right.append(got["accuracy"])
  assert {*domains} == {0, 1}
  assert 0.4 < np.mean(right) < 0.8


def test_sizes_are_those_of_the_largest_part():
  sizes = ("max_prompt_len", "max_completion_len")
  for field in sizes:
    assert getattr(TASK, field) == max(
      getattr(x, field) for x in PARTS.values()
    )
  names = {
    *mixture.problems(PARTS)["words"]
    .example(np.random.default_rng(0), "test")
    .extras
  }
  assert names == {"sums/operands", "words/answer", "domain"}


def test_parts_that_do_not_mix_are_named():
  with pytest.raises(ValueError, match="domain 'walk' has an environment"):
    mixture.make({"sums": PARTS["sums"], "walk": make_task("grid")})
  renamed = dataclasses.replace(
    add.make(), name="new", decode=lambda ids: str(list(ids))
  )
  with pytest.raises(
    ValueError, match="'add' and 'new' differ in their tokens"
  ):
    mixture.make({"a": add.make(), "b": renamed})
