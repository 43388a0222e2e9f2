"""The experiment on objectives: its bandit, its rules and its page."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.objectives import arms, bandit, claims, page, results
from experiments.sweeps import arms as sweeps_lib
from experiments.sweeps import cells as cells_lib
from grpo_jax.settings import config as config_lib
from grpo_jax.training import many
from grpo_jax.training.runtime import hyperparameters

SEEDS = np.arange(5) / 1000


# --- the bandit --------------------------------------------------------------


def test_what_one_reward_gains_the_other_loses():
  quiet, loud = bandit.probabilities().T
  assert (np.diff(quiet) > 0).all()
  assert (np.diff(loud) < 0).all()
  np.testing.assert_allclose(quiet, loud[::-1])
  # Both alike: the middle. The sum of the rewards: arm 2.
  assert set(np.argsort(quiet + loud)[-2:]) == {4, 5}
  assert np.argmax(quiet + 10 * loud) == 2


def test_regrets_by_hand():
  first, last = np.eye(10)[[0, 9]]
  np.testing.assert_allclose(bandit.regrets(first), [0.8, 0], atol=1e-6)
  np.testing.assert_allclose(bandit.regrets(last), [0, 8], atol=1e-6)
  # Mean of x³ over k/9 is 2025 / 7290; 0.8 times it is lost.
  uniform = bandit.regrets(jnp.full(10, 0.1))
  np.testing.assert_allclose(uniform, [2 / 9, 20 / 9], rtol=1e-5)


def test_advantages_are_those_of_the_loud_reward_or_of_both():
  logits, key = jnp.zeros(10), jax.random.key(0)
  make_batch = jax.jit(bandit.make_batch, static_argnums=0)
  components = make_batch("mo_grpo", logits, key).components
  correlations = {}
  for name in results.BANDITS:
    batch = make_batch(name, logits, key)
    # The names of components are sorted: loud, quiet.
    assert set(np.unique(components[:, 0])) == {0, 10}
    assert set(np.unique(components[:, 1])) == {0, 1}
    correlations[name] = [
      np.corrcoef(batch.advantages, components[:, k])[0, 1] for k in range(2)
    ]
  loud, quiet = correlations["grpo"]
  assert loud > 0.9 > 0.5 > quiet
  for name in ("mo_grpo", "gdpo"):
    loud, quiet = correlations[name]
    assert min(loud, quiet) > 0.5


def test_a_step_follows_the_policy_gradient():
  logits = jnp.linspace(-1, 1, 10)
  make_batch = jax.jit(bandit.make_batch, static_argnums=0)
  batch = make_batch("grpo", logits, jax.random.key(1))
  gradient = jax.jit(jax.grad(bandit.loss, argnums=1), static_argnums=0)
  slope = gradient("grpo", logits, batch)
  arms_drawn = np.asarray(batch.tokens[:, 0])
  score = np.eye(10)[arms_drawn] - np.asarray(jax.nn.softmax(logits))
  expected = -(np.asarray(batch.advantages)[:, None] * score).mean(axis=0)
  np.testing.assert_allclose(slope, expected, atol=1e-5)


def test_both_regrets_fall_where_rewards_have_the_same_say():
  found = np.asarray(bandit.train("mo_grpo", jnp.int32(0), num_steps=40))
  assert found.shape == (41, 2)
  np.testing.assert_allclose(found[0], [2 / 9, 20 / 9], rtol=1e-5)
  assert (found[-1] < 0.75 * found[0]).all()


# --- arms --------------------------------------------------------------------


def test_arms_of_a_task_draw_as_many_completions():
  sizes = {}
  for name, arm in arms.ARMS.items():
    config = config_lib.resolve(arms.get_config(name))
    rl, sft = config.section("rl"), config.section("sft")
    assert config.algorithm[0] == arm.algorithm
    assert config.algorithm[1].kl_coef == 0
    sizes.setdefault(arm.base, []).append((rl, sft, config.model, config.eval))
  for found in sizes.values():
    assert all(one == found[0] for one in found)


def test_seeds_of_an_arm_are_one_program(tmp_path):
  source = cells_lib.Source(
    "experiments/objectives/config.py:language-buggy", {}
  )
  cells = source.cells(tmp_path)
  assert [cell.overrides["seed"] for cell in cells] == [*range(5)]
  programs = {
    cells_lib.program(
      cell.config, many.may_differ(cell.config), hyperparameters.CONSTANT
    )
    for cell in cells
  }
  assert len(programs) == 1
  assert cells[0].config.rewards.correct == "accuracy_buggy"
  with pytest.raises(ValueError, match="no arm 'gdpo'; choose one of multi-gr"):
    arms.get_config("gdpo")


# --- rules -------------------------------------------------------------------


def conclude(**ends):
  """Verdicts, if seeds start at 0.5 and end at about these numbers."""

  def of(arm, metric, when):
    key = f"{arm}_{metric}".replace("-", "_").replace(" ", "_")
    if key not in ends:
      return None
    return SEEDS + (0.5 if when == "before" else ends[key])

  return {one.name: one.verdict for one in claims.conclude(of)}


LOUD_ALONE = {
  "multi_grpo_accuracy": 0.5,
  "multi_grpo_brevity": 0.4,
  "multi_grpo_politeness": 0.9,
}
ALL = {
  f"multi_{name}_{objective}": 0.9
  for name in ("mo_grpo", "gdpo")
  for objective in claims.OF_TEXTS
}
EXPLOIT = {
  "language_buggy_exploited": 0.9,
  "language_buggy_warned": 1.0,
  "language_buggy_accuracy": 0.0,
  "language_honest_accuracy": 0.9,
}
BANDITS = {
  f"bandit_{name}_{kind}_regret": 0.3
  for name in ("mo_grpo", "gdpo")
  for kind in ("quiet", "loud")
} | {"bandit_grpo_quiet_regret": 0.6, "bandit_grpo_loud_regret": 0.1}


@pytest.mark.parametrize(
  ("name", "ends", "verdict"),
  [
    ("B1", BANDITS, "confirmed"),
    ("B1", {**BANDITS, "bandit_gdpo_loud_regret": 0.7}, "not confirmed"),
    ("B2", BANDITS, "confirmed"),
    ("B2", {**BANDITS, "bandit_grpo_quiet_regret": 0.4}, "not confirmed"),
    ("B2", {**BANDITS, "bandit_grpo_loud_regret": 0.6}, "not confirmed"),
    ("M1", ALL, "confirmed"),
    ("M1", {**ALL, "multi_gdpo_politeness": 0.1}, "not confirmed"),
    ("M2", LOUD_ALONE, "confirmed"),
    ("M2", {**LOUD_ALONE, "multi_grpo_accuracy": 0.6}, "not confirmed"),
    ("M2", {**LOUD_ALONE, "multi_grpo_politeness": 0.4}, "not confirmed"),
    ("M3", {**ALL, **LOUD_ALONE}, "confirmed"),
    ("M3", ALL, "undecided"),
    (
      "L1",
      {"language_with_language": 0.9, "language_without_language": 0.5},
      "confirmed",
    ),
    (
      "L1",
      {"language_with_language": 0.9, "language_without_language": 0.95},
      "not confirmed",
    ),
    ("L2", EXPLOIT, "confirmed"),
    ("L2", {**EXPLOIT, "language_buggy_warned": 0.8}, "not confirmed"),
    ("L2", {**EXPLOIT, "language_honest_accuracy": 0.0}, "not confirmed"),
    ("L2", {}, "undecided"),
  ],
)
def test_verdicts_of_known_numbers(name, ends, verdict):
  assert conclude(**ends)[name] == verdict


# --- results and the page ----------------------------------------------------


def _plant(root: pathlib.Path, arm: str, accuracy: float) -> None:
  """Five runs that have ended, of which two have been doubted."""
  cells_lib.write_manifest(
    root / arm,
    [
      cells_lib.Cell({"seed": seed}, (), None, root / arm / f"seed={seed}")
      for seed in range(5)
    ],
  )
  for seed in range(5):
    workdir = root / arm / f"seed={seed}"
    workdir.mkdir()
    before, after = (
      {f"eval/reward/{x}": value for x in page.OF_LANGUAGE}
      for value in (0.25, accuracy)
    )
    after["eval/reward/accuracy_buggy"] = 1.0
    result = {"before": before, "after": after, "seconds": 1.0}
    (workdir / "result.json").write_text(json.dumps(result))
  text = (
    "warning: rl, step 323: H12 perfect_score. Suspicious by default: look in"
  )
  lines = [f"{text} {root / arm}/seed={s}/samples.jsonl (log)" for s in (1, 3)]
  (root / arm / sweeps_lib.OUTPUT).write_text(
    "\n".join([*lines, *lines, "end"])
  )
  (root / arm / sweeps_lib.SECONDS).write_text("[30, 60]")


def test_numbers_are_those_of_the_runs(tmp_path):
  _plant(tmp_path, "language-buggy", 0.125)
  regrets = np.arange(2 * 11 * 2).reshape(2, 11, 2) / 8
  results.write_bandit(tmp_path, "grpo", regrets, 3.21)
  found = results.Results(tmp_path)
  assert (found.arms, found.bandits) == (["language-buggy"], ["grpo"])
  steps, kept = found.regrets("grpo")
  assert steps.tolist() == [0, 5, 10]
  np.testing.assert_array_equal(kept, regrets[:, ::5])
  np.testing.assert_array_equal(
    found.scores("bandit-grpo", "loud regret", "after"), regrets[:, -1, 1]
  )
  assert found.scores("bandit-gdpo", "loud regret", "after") is None
  assert found.scores("multi-grpo", "accuracy", "after") is None

  def of(metric, when="after"):
    return found.scores("language-buggy", metric, when).tolist()

  assert of("accuracy", "before") == [0.25] * 5
  assert of("accuracy") == [0.125] * 5
  assert of(results.EXPLOITED) == [0.875] * 5
  assert of(results.WARNED) == [0, 1, 0, 1, 0]
  assert found.all_seconds() == pytest.approx(93.2)


def test_the_page_has_rules_verdicts_and_numbers(tmp_path):
  _plant(tmp_path, "language-buggy", 0.125)
  regrets = np.linspace(0.3, 0.2, 12).reshape(2, 3, 2).repeat(5, axis=1)
  results.write_bandit(tmp_path, "grpo", regrets, 3)
  text = page.markdown(results.Results(tmp_path))
  assert "| `language-buggy` | 2 of 5 |" in text
  assert "| `language-buggy` | end | 0.125 | 1.000 |" in text
  assert (
    "| L1 | A reward for one language ends the mixing. | **undecided**"
    in (text)
  )
  for name, (claim, _) in claims.CLAIMS.items():
    assert f"| {name} | {claim} |" in text
    assert f"\n    {name}  " in text  # The rule.


def test_an_arm_that_has_not_ended_is_not_there(tmp_path):
  _plant(tmp_path, "multi-grpo", 0.5)
  (tmp_path / "multi-grpo/seed=3/result.json").unlink()
  assert results.Results(tmp_path).arms == []
