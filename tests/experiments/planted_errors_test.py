"""The experiment on planted errors: workings, values, rules and page."""

from __future__ import annotations

import json

import numpy as np
import pytest

from experiments.planted_errors import (
  arms,
  claims,
  errors,
  figure,
  page,
  results,
  task,
  values,
)
from grpo_jax.settings import config as config_lib
from grpo_jax.tasks import add
from grpo_jax.tasks import vocabulary as vocab

LEVEL = 2


@pytest.mark.parametrize(
  ("wrong", "text"),
  [
    # 7 + 5 + 1 = 13 and 4 + 4 + 1 = 9; or 7 + 5 = 12 and 4 + 4 + 0 = 8.
    (0, "<think>7+5+1=13;4+4+1=09;</think><answer>93</answer><eos>"),
    (1, "<think>7+5+0=12;4+4+0=08;</think><answer>82</answer><eos>"),
    (-1, "<think>7+5+0=12;4+4+1=09;</think><answer>92</answer><eos>"),
  ],
)
def test_an_error_is_one_carry_and_what_follows_from_it(wrong, text):
  assert vocab.decode(errors.working(np.array([47, 45]), LEVEL, wrong)) == text


def test_the_first_wrong_step_is_that_of_the_error():
  rng = np.random.default_rng(1)
  verifier = add.make(level=LEVEL, scratchpad=True)
  operands = values.held_out(rng, LEVEL, 200)
  given = errors.workings(operands, rng.integers(-1, LEVEL, 200), LEVEL)
  assert set(given.rewards) == {0.0, 1.0}
  for tokens, mask, pair, wrong, reward in zip(
    given.tokens,
    given.mask,
    operands,
    given.wrong,
    given.rewards,
    strict=True,
  ):
    extras = {"operands": pair}
    assert verifier.verify_numpy(tokens, mask, extras)["accuracy"] == reward
    scores, ends = verifier.step_scores_numpy(tokens, mask, extras)
    found = scores[ends]
    assert wrong == (-1 if found.all() else found.argmin())


def test_the_teacher_leaves_out_the_last_steps_and_is_right():
  rng = np.random.default_rng(2)
  made = task.make(level=LEVEL, skip=0.5)
  counts = np.zeros(LEVEL + 1)
  for _ in range(400):
    example = made.example(rng, "train")
    size = made.max_completion_len
    tokens = vocab.padded(example.completion.tolist(), size)
    mask = np.arange(size) < len(example.completion)
    assert made.verify_numpy(tokens, mask, example.extras)["accuracy"] == 1
    scores, ends = made.step_scores_numpy(tokens, mask, example.extras)
    assert scores[ends].all()
    counts[ends.sum()] += 1
  np.testing.assert_allclose(counts / 400, [0.25, 0.25, 0.5], atol=0.08)


def test_differences_of_values_add_up_to_the_reward():
  # V = .3, .6, .2 and a reward of 1: .3, −.4, .8.
  found = values.differences(np.array([[0.3, 0.6, 0.2]]), np.ones(1))
  np.testing.assert_allclose(found, [[0.3, -0.4, 0.8]])


def test_an_outcome_is_shared_out_by_weights():
  found = values.shared_by(np.array([[1.0, 3.0], [2.0, 2.0]]), np.array([0, 1]))
  np.testing.assert_allclose(found, [[-0.25, -0.75], [0.5, 0.5]])
  assert np.isnan(values.correlation(np.ones((2, 2)), found))
  assert values.correlation(2 * found + 1, found) == pytest.approx(1)


def test_located_is_the_most_negative_credit():
  credits = np.array([[-0.5, 0.1, 0.0], [0.2, -0.1, -0.3], [0.0, -0.9, 0.1]])
  found = errors.located(credits, np.array([0, 0, 1]), LEVEL)
  assert found == {
    "located": pytest.approx(2 / 3),
    "located_by_step": [0.5, 1.0],
    "chance": pytest.approx(1 / 3),
    "credit_of_the_error": pytest.approx(-0.4),
    "problems": 3,
  }


def test_arms_draw_as_many_completions():
  for name, arm in arms.LEARNERS.items():
    run = config_lib.resolve(arms.get_config(name))
    assert run.algorithm[0] == arm.algorithm
    assert run.algorithm[1].kl_coef == 0
    drawn = [run.section(phase) for phase in run.phases]
    assert sum(x.steps * x.num_prompts * x.group_size for x in drawn) == 10_240
  for name in (arms.MEASURED, arms.BASE):
    assert arms.get_config(name).phases == ("sft",)
  with pytest.raises(ValueError, match="no arm 'gspo'; choose one of taught"):
    arms.get_config("gspo")


TAUGHT = {
  "located": 0.9,
  "located/0": 0.8,
  "located/1": 1.0,
  "r/credits": 0.8,
  "r/entropy": 0.4,
  "r/outcome": 0.3,
}
AREAS = {
  "grpo": 0.5,
  "mix": 0.6,
  "rudder": 0.6,
  "return": 0.6,
  "ppo": 0.5,
  "grpo_ps": 0.7,
}


def verdicts(taught, areas):
  spread = np.linspace(-0.01, 0.01, arms.NUM_SEEDS)

  def of(name, what):
    found = taught if name == arms.MEASURED else {"area": areas.get(name)}
    value = found.get(what)
    return None if value is None else value + spread

  return {one.name: one.verdict for one in claims.conclude(of)}


@pytest.mark.parametrize(
  ("taught", "areas", "lost"),
  [
    ({"located": 0.8}, {}, {"L1"}),
    ({"located/1": 0.7}, {}, {"L2"}),
    ({"located/0": 0.3}, {}, {"L3"}),
    ({"r/credits": 0.45}, {}, {"M1"}),
    ({"r/entropy": 0.9}, {}, {"M2"}),
    ({"r/outcome": 0.9}, {}, {"M3"}),
    ({}, {"mix": 0.4}, {"E1", "E4"}),
    ({}, {"rudder": 0.4}, {"E2"}),
    ({}, {"return": 0.4}, {"E3"}),
    ({}, {"ppo": 0.65}, {"E4"}),
    ({}, {"grpo_ps": 0.5}, {"E5"}),
  ],
)
def test_rules_decide(taught, areas, lost):
  # Each seed moves alike in all arms, so that differences do not vary.
  assert set(verdicts(TAUGHT, AREAS).values()) == {"confirmed"}
  found = verdicts(TAUGHT | taught, AREAS | areas)
  assert {name for name in found if found[name] != "confirmed"} == lost
  assert set(verdicts({}, {}).values()) == {"undecided"}


def test_page_says_what_has_ended_and_what_has_not(tmp_path):
  seeds = [
    {
      "located": 0.9,
      "located_by_step": [0.8, 1.0],
      "correlation": {"credits": 0.8, "entropy": 0.4, "outcome": 0.3},
    }
  ] * arms.NUM_SEEDS
  learns = [[0.25, 0.5, 0.75, 0.75, 0.75]] * arms.NUM_SEEDS
  late = [row[1:] for row in learns]  # PPO's policy moves after 20 steps.
  for name, found in (("taught", seeds), ("grpo", learns), ("ppo", late)):
    content = json.dumps({"seeds": found, "seconds": 60})
    (tmp_path / f"{name}.json").write_text(content)
  found = results.Results(tmp_path)
  # Trapezoids over quarters of the completions.
  assert found.scores("grpo", "area")[0] == pytest.approx(0.625)
  # It stands at 0.5 for the first quarter.
  assert found.scores("ppo", "area")[0] == pytest.approx(0.65625)
  text = page.markdown(found)
  assert (
    "3 of 7 arms have been run, with 5 seeds for each arm, in 3 minutes"
    in " ".join(text.split())
  )
  assert (
    "4 arms have not been run: `mix`, `rudder`, `return`, `grpo_ps`" in text
  )
  assert (
    "| `grpo` | GRPO: one advantage for the whole completion | 0.625" in text
  )
  assert "L1  Credits locate" in text
  figure.plot(tmp_path / "figure.png", found)
  assert (tmp_path / "figure.png").stat().st_size > 10_000
