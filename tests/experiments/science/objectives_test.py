"""The experiment on objectives: its bandit, its numbers and its page."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.science import arms, experiments, objectives
from experiments.science import objectives_bandit as bandit
from experiments.sweeps import cells as cells_lib

BANDITS = [x.removeprefix("bandit-") for x in objectives.BANDITS]


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


@pytest.mark.slow
def test_advantages_are_those_of_the_loud_reward_or_of_both():
  logits, key = jnp.zeros(10), jax.random.key(0)
  make_batch = jax.jit(bandit.make_batch, static_argnums=0)
  components = make_batch("mo_grpo", logits, key).scores.components
  correlations = {}
  for name in BANDITS:
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_both_regrets_fall_where_rewards_have_the_same_say():
  found = np.asarray(bandit.train("mo_grpo", jnp.int32(0), num_steps=40))
  assert found.shape == (41, 2)
  np.testing.assert_allclose(found[0], [2 / 9, 20 / 9], rtol=1e-5)
  assert (found[-1] < 0.75 * found[0]).all()


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
      {f"eval/reward/{x}": value for x in objectives.OF_LANGUAGE}
      for value in (0.25, accuracy)
    )
    after["eval/reward/accuracy_buggy"] = 1.0
    result = {"before": before, "after": after, "seconds": 1.0}
    (workdir / "result.json").write_text(json.dumps(result))
  text = (
    "warning: rl, step 323: H12 perfect_score. Suspicious by default: look in"
  )
  lines = [f"{text} {root / arm}/seed={s}/samples.jsonl (log)" for s in (1, 3)]
  (root / arm / arms.OUTPUT).write_text("\n".join([*lines, *lines, "end"]))
  (root / arm / arms.SECONDS).write_text("[30, 60]")


def test_numbers_and_page_are_those_of_the_runs(tmp_path):
  _plant(tmp_path, "language-buggy", 0.125)
  regrets = np.arange(2 * 3 * 2).reshape(2, 3, 2) / 8
  record = {"seconds": 3.2, "regrets": regrets.tolist()}
  (tmp_path / "bandit-grpo.json").write_text(json.dumps(record))
  found = objectives.Results(tmp_path)
  assert found.arms == ["bandit-grpo", "language-buggy"]
  steps, kept = found.regrets("bandit-grpo")
  assert steps.tolist() == [0, 5, 10]
  np.testing.assert_array_equal(kept, regrets)
  loud = found.scores("bandit-grpo", "loud regret", "after")
  np.testing.assert_array_equal(loud, regrets[:, -1, 1])
  assert found.scores("bandit-gdpo", "loud regret", "after") is None
  assert found.scores("multi-grpo", "accuracy", "after") is None

  def of(metric, when="after"):
    return found.scores("language-buggy", metric, when).tolist()

  assert of("accuracy", "before") == [0.25] * 5
  assert of("accuracy") == [0.125] * 5
  assert of(objectives.EXPLOITED) == [0.875] * 5
  assert of(objectives.WARNED) == [0, 1, 0, 1, 0]
  assert sum(map(found.seconds, found.arms)) == pytest.approx(93.2)
  text = experiments.markdown(objectives, found)
  assert "| `language-buggy` | 2 of 5 |" in text
  assert "| `language-buggy` | end | 0.125 | 1.000 |" in text
  assert (
    "| L1 | A reward for one language ends the mixing. | **undecided**"
    in (text)
  )
  (tmp_path / "language-buggy/seed=3/result.json").unlink()
  assert objectives.Results(tmp_path).arms == ["bandit-grpo"]
