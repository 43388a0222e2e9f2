"""The classical-control replication: losses, masks, environments, verdicts."""

import dataclasses
import functools
import itertools
import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.critics import (
  environments,
  figure,
  losses,
  page,
  policies,
  protocol,
  report,
  results,
  settings,
  training,
)
from experiments.sweeps import statistics
from tests.experiments import command

PPO = settings.Setting("CartPole-v1", "ppo")


def rollout_of(rewards, terminated=None, truncated=None, mask=None):
  """A rollout [E, T] of observations that differ from slot to slot."""
  rewards = np.asarray(rewards, np.float32)
  no = np.zeros(rewards.shape, bool)
  shape = (*rewards.shape, 4)
  observations = np.random.default_rng(0).normal(size=shape).astype(np.float32)
  return losses.Rollout(
    observations=observations,
    actions=np.zeros(rewards.shape, np.int32),
    final_observations=observations + 1,
    rewards=rewards,
    scores=rewards,
    terminated=no if terminated is None else np.asarray(terminated, bool),
    truncated=no if truncated is None else np.asarray(truncated, bool),
    mask=~no if mask is None else np.asarray(mask, bool),
  )


@functools.cache
def params_of():
  """Parameters of a policy and a critic of four numbers."""
  init = jax.jit(policies.init, static_argnums=(1, 2))
  return init(jax.random.key(0), environments.make("CartPole-v1"), True)


@functools.partial(jax.jit, static_argnums=0)
def _advantages(setting, params, rollout, gamma, ema, iteration):
  return losses.advantages(
    setting, rollout, gamma, params, ema, iteration, jax.random.key(1)
  )


def advantages_of(setting, rollout, gamma=0.99, ema=0.0, iteration=0):
  return _advantages(setting, params_of(), rollout, gamma, ema, iteration)


# Each operation outside a program would be a program of its own.
_value = jax.jit(policies.value)
_evaluate = jax.jit(policies.evaluate)
_mean_and_deviation = jax.jit(losses.mean_and_deviation, static_argnums=2)


def random_rollout(seed=0):
  """Four rows of six slots: episodes end inside rows, and some slots idle."""
  rng = np.random.default_rng(seed)
  mask = np.arange(6) < np.array([6, 4, 1, 5])[:, None]
  ends = rng.random((4, 6)) < 0.3
  return rollout_of(rng.normal(size=(4, 6)), ends, mask=mask)


def monte_carlo(rollout, gamma):
  """Returns to go by a loop over NumPy numbers."""
  found = np.zeros(rollout.rewards.shape)
  for i in range(found.shape[0]):
    after = 0.0
    for t in reversed(range(found.shape[1])):
      if rollout.mask[i, t]:
        after = rollout.rewards[i, t] + gamma * after * (not rollout.ends[i, t])
        found[i, t] = after
  return found


@pytest.mark.slow
def test_without_a_baseline_advantages_are_monte_carlo_returns():
  rollout = random_rollout()
  setting = dataclasses.replace(PPO, baseline="none")
  found = advantages_of(setting, rollout, gamma=0.9)[0]
  np.testing.assert_allclose(found, monte_carlo(rollout, 0.9), atol=1e-5)


@pytest.mark.slow
def test_baselines_over_live_steps():
  rollout = random_rollout(2)
  mask, to_go = rollout.mask, monte_carlo(rollout, 0.9)
  mean, deviation = to_go[mask].mean(), to_go[mask].std()
  found = {}
  for baseline in settings.BASELINES[1:]:
    setting = dataclasses.replace(PPO, baseline=baseline)
    found[baseline] = np.asarray(advantages_of(setting, rollout, 0.9)[0])
    assert (found[baseline][~mask] == 0).all()
  np.testing.assert_allclose(found["grpo"][mask].mean(), 0, atol=1e-6)
  np.testing.assert_allclose(found["grpo"][mask].std(), 1, rtol=1e-5)
  np.testing.assert_allclose(
    found["batch_mean"][mask], to_go[mask] - mean, atol=1e-5
  )
  noise = (found["none"] - found["rstats"])[mask]
  assert (np.abs(noise - mean) < 4 * deviation).all()
  assert len(np.unique(noise)) == mask.sum()


def test_mean_over_episodes_counts_their_parts():
  # Two rows: an episode and a part; a part alone. Sums 1 + 2, 4, 5.
  rollout = rollout_of(
    [[1, 2, 4], [2, 3, 9]],
    terminated=[[0, 1, 0], [0, 0, 0]],
    mask=[[1, 1, 1], [1, 1, 0]],
  )
  mean, _ = _mean_and_deviation(monte_carlo(rollout, 0.5), rollout, "episodes")
  assert float(mean) == pytest.approx((3 + 4 + 5) / 3)


@pytest.mark.slow
def test_the_first_moving_average_is_the_first_mean():
  rollout = random_rollout(3)
  by = {
    baseline: advantages_of(
      dataclasses.replace(PPO, baseline=baseline), rollout
    )
    for baseline in ("ema", "batch_mean")
  }
  np.testing.assert_allclose(by["ema"][0], by["batch_mean"][0], atol=1e-6)
  # The second: (0.9 · 0.1 m + 0.1 m) / (1 − 0.81) = m if nothing changes.
  ema = dataclasses.replace(PPO, baseline="ema")
  again = advantages_of(ema, rollout, ema=by["ema"][3], iteration=1)[0]
  np.testing.assert_allclose(again, by["ema"][0], atol=1e-5)


@pytest.mark.slow
def test_truncation_bootstraps_and_termination_does_not():
  value = functools.partial(_value, params_of())
  for horizon in (2, 0):
    setting = dataclasses.replace(PPO, horizon=horizon)
    for kind in ("terminated", "truncated", None):
      ends = {} if kind is None else {kind: [[False, True]]}
      rollout = rollout_of([[1.0, 1.0]], **ends)
      found, old, targets, _ = advantages_of(setting, rollout, gamma=0.5)
      v = np.asarray(value(rollout.observations))[0]
      beyond = np.asarray(value(rollout.final_observations))[0, 1]
      if kind == "terminated" or horizon == 0:
        beyond = 0.0
      last = 1 + 0.5 * beyond - v[1]
      first = 1 + 0.5 * v[1] - v[0] + 0.5 * 0.95 * last
      np.testing.assert_allclose(found, [[first, last]], rtol=1e-5)
      np.testing.assert_allclose(targets, np.asarray(found) + old, rtol=1e-5)


def batch_of(rollout):
  old_logp, _ = _evaluate(params_of(), rollout.observations, rollout.actions)
  found, old_values, targets, _ = advantages_of(PPO, rollout)
  return losses.Batch(
    observations=rollout.observations,
    actions=rollout.actions,
    old_logp=old_logp,
    advantages=found,
    old_values=old_values,
    returns=targets,
    mask=rollout.mask,
  )


@pytest.mark.slow
def test_the_gradient_is_that_of_all_live_steps(monkeypatch):
  batch = batch_of(random_rollout(5))
  whole = jax.jit(jax.grad(functools.partial(losses.loss, PPO)))
  monkeypatch.setattr(losses, "_CHUNK", 7)  # 16 live steps: three chunks.
  parts = jax.jit(
    lambda params, x: losses.gradient(PPO, params, losses.packed(x))
  )
  assert batch.mask.sum() == 16
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, np.asarray(y) / 16, atol=1e-6),
    parts(params_of(), batch),
    whole(params_of(), batch),
  )


@pytest.mark.slow
def test_idle_steps_change_neither_loss_nor_gradient():
  batch = batch_of(random_rollout(4))
  mask = batch.mask

  def spoil(x):
    idle = ~mask.reshape(mask.shape + (1,) * (x.ndim - 2))
    return x if x.dtype == bool else np.where(idle, np.nan, x)

  spoilt = jax.tree.map(spoil, batch)._replace(actions=batch.actions)
  outcome = jax.jit(jax.value_and_grad(functools.partial(losses.loss, PPO)))
  clean, dirty = outcome(params_of(), batch), outcome(params_of(), spoilt)
  idle = outcome(params_of(), batch._replace(mask=np.zeros_like(mask)))
  jax.tree.map(np.testing.assert_array_equal, clean, dirty)
  assert np.isfinite(clean[0])
  assert all((np.asarray(x) == 0).all() for x in jax.tree.leaves(idle))


@pytest.fixture(scope="module")
def random_cartpole():
  """Whole episodes of an untrained policy, whose logits are all but 0."""
  setting = settings.Setting("CartPole-v1", "none", horizon=0, num_envs=64)
  environment = environments.make("CartPole-v1")
  params = {x: y for x, y in params_of().items() if x == "policy"}

  @jax.jit
  def collected(params, key):
    state = training.init(setting, environment, params, key)
    state = jax.tree.map(lambda x: x[None], state)
    return training.collect(
      setting,
      environment,
      state.params,
      state.environments,
      state.key,
      jnp.ones(1, bool),
      0.99,
    )[1]

  return jax.device_get(collected(params, jax.random.key(0)))


@pytest.mark.slow
def test_a_random_policy_balances_for_22_steps(random_cartpole):
  rollout = random_cartpole
  lengths = rollout.mask.sum(axis=-1)[0]
  np.testing.assert_array_equal(
    (rollout.scores * rollout.mask).max(axis=-1)[0], lengths
  )
  assert 15 < lengths.mean() < 30
  assert not rollout.rewards[0, :, lengths.max() :].any()  # Nobody played on.
  assert rollout.terminated[0, np.arange(64), lengths - 1].all()


def test_normalisation_of_continuous_actions():
  environment = environments.make("Pendulum-v1")

  def step(state, key):
    state, found = environment.step(key, state, jnp.full(1, 9.0), 0.9)
    return state, (found, state.inner.last_u)

  @jax.jit
  def played(start, key):
    keys = jax.random.split(key, 400)
    return jax.lax.scan(step, environment.reset(start), keys)[1]

  found, torque = jax.device_get(played(jax.random.key(0), jax.random.key(1)))
  assert float(np.abs(torque).max()) <= 2.0  # Clipped; 0 after a reset.
  np.testing.assert_array_equal(
    np.flatnonzero(found.truncated), np.array([199, 399])
  )
  assert not found.terminated.any()
  assert np.abs(found.final_observation).max() <= 10
  # Statistics of the second episode are those of many steps.
  assert found.final_observation[200:].std(axis=0) == pytest.approx(1, abs=0.6)
  raw = np.diff(found.score[200:])
  scaled = found.reward[201:]
  assert (np.abs(scaled) < np.abs(raw)).all()


def test_another_gymnax_is_refused():
  environment = environments.make("CartPole-v1")

  class Old:
    name = "Old-v0"
    step = staticmethod(lambda *arguments: (0, 0, 0, False, {}))

  old = dataclasses.replace(environment, inner=Old())
  state = jax.jit(environment.reset)(jax.random.key(0))
  with pytest.raises(TypeError, match=r"Old-v0 returned 5 values.*gymnax>=1"):
    old.step(jax.random.key(0), state, jnp.int32(0), 0.99)


def test_unknown_names_are_refused():
  with pytest.raises(
    ValueError, match=r"'HalfCheetah-v4' is unknown.*Pendulum"
  ):
    environments.make("HalfCheetah-v4")
  with pytest.raises(ValueError, match=r"baseline='critic'.*'ppo'"):
    settings.Setting("CartPole-v1", "critic")


def test_the_grid_is_that_of_the_protocol():
  full = protocol.cells(protocol.PROFILES["full"], 5)
  count = {p: sum(p in x.parts for x in full) for p in ("D1", "D2", "D3")}
  assert count == {"D1": 96, "D2": 112, "D3": 80}
  keys = [x.key for name in protocol.PROFILES for x in cells_of(name)]
  assert len(set(keys)) == len(keys)
  assert cells_of("smoke", seeds=6)[0].key not in keys


def cells_of(name, seeds=5):
  return protocol.cells(protocol.PROFILES[name], seeds)


def record_of(cell, scores):
  """A cell whose curve rises to these final scores, one per seed."""
  shape = (len(scores), training.NUM_BINS)
  rise = np.linspace(0.0, 1.0, training.NUM_BINS)
  rise[-5:] = 1.0
  return results.Record(
    key=cell.key,
    name=cell.name,
    means=(np.array(scores)[:, None] * rise).tolist(),
    counts=np.ones(shape, int).tolist(),
    steps=[cell.setting.total_steps] * len(scores),
    seconds=1.0,
    compile_seconds=0.0,
    date="2026-11-22",
    cores=2,
  )


def test_scores_of_a_record():
  record = record_of(cells_of("smoke")[0], [10.0, 20.0])
  np.testing.assert_allclose(record.final_scores(), [10, 20])
  # No episode ends in the last tenth: what the last one before it returned.
  counts = np.ones((2, training.NUM_BINS), int)
  counts[:, -6:] = 0
  gaps = dataclasses.replace(record, counts=counts.tolist())
  np.testing.assert_allclose(gaps.final_scores(), np.array(record.means)[:, -7])
  np.testing.assert_allclose(gaps.curves()[:, -6:].std(axis=1), 0, atol=1e-12)


def test_contrast_is_welchs_test():
  from scipy import stats

  rng = np.random.default_rng(0)
  a, b = rng.normal(size=5), rng.normal(1, 3, size=7)
  found = statistics.contrast([(1, a), (-1, b)])
  expected = stats.ttest_ind(a, b, equal_var=False)
  ends = expected.confidence_interval()
  np.testing.assert_allclose(
    [found.p, found.low, found.high], [expected.pvalue, ends.low, ends.high]
  )
  same = statistics.contrast([(1, np.full(5, 2.0)), (-1, np.full(5, 3.0))])
  assert (same.low, same.high, same.is_below) == (-1, -1, True)


def test_bootstrap_of_a_check_is_that_of_all_resamples():
  a, b = np.array([0.0, 1.0, 5.0]), np.array([0.0, 10.0])
  found = statistics.check("", "below", (2, a), (-1, b))
  means = [
    2 * np.mean(x) - np.mean(y)
    for x in itertools.product(a, repeat=3)
    for y in itertools.product(b, repeat=2)
  ]
  expected = np.quantile(means, [0.025, 0.975], method="inverted_cdf")
  np.testing.assert_allclose(found.bootstrap, expected)
  assert not found.holds


SPREAD = np.array([-1.0, -0.5, 0.0, 0.5, 1.0])


def as_published(setting):
  """Scores of which every published conclusion is true."""
  score = 100.0
  if setting.gamma == 1.0:
    score -= 50
  if setting.baseline != "ppo" and setting.environment != "CartPole-v1":
    score -= 20
  if setting.baseline != "ppo" and setting.environment == "Pendulum-v1":
    score -= 1000
  return score - setting.num_envs + SPREAD


@pytest.mark.slow
@pytest.mark.parametrize("name", protocol.PROFILES)
def test_verdicts(name):
  profile = protocol.PROFILES[name]
  scores = {x.setting: as_published(x.setting) for x in cells_of(name)}
  found = {x.name: x for x in protocol.conclusions(profile, scores)}
  assert {x: found[x].verdict for x in found} == dict.fromkeys(
    ("C1", "C2", "C3", "C4"), "confirmed"
  )
  # One number decides: GRPO as good as PPO on Acrobot, at one horizon.
  acrobot = next(
    x
    for x in scores
    if (x.environment, x.baseline, x.gamma) == ("Acrobot-v1", "grpo", 0.99)
  )
  for better, is_open in ((20, True), (40, False)):
    changed = {**scores, acrobot: scores[acrobot] + better}
    first = protocol.conclusions(profile, changed)[0]
    assert first.verdict == "not confirmed"
    (failed,) = (x for x in first.checks if not x.holds)
    assert failed.is_open == is_open
  del scores[acrobot]
  first = protocol.conclusions(profile, scores)[0]
  assert first.verdict == "undecided"
  assert [x.holds for x in first.checks].count(None) == 1


@pytest.mark.slow
def test_the_page_says_what_is_missing():
  cells = cells_of("smoke")
  records = {
    x.setting: record_of(x, as_published(x.setting)) for x in cells[:-1]
  }
  text = page.markdown("smoke", "command", cells, records, [], 3.0)
  assert f"{len(cells) - 1} of {len(cells)} cells" in text
  assert "; 1 not trained yet" in text
  assert "| C1 |" in text
  assert "**confirmed**" in text
  assert "nan" not in text


def test_figures_of_what_is_there(tmp_path):
  cells = cells_of("smoke")
  records = {
    x.setting: record_of(x, as_published(x.setting))
    for x in cells
    if x.setting.environment == "Acrobot-v1" and "D2" not in x.parts
  }
  profile = protocol.PROFILES["smoke"]
  assert figure.plot(profile, cells, {}, tmp_path / "none") == []
  (drawn,) = figure.plot(profile, cells, records, tmp_path / "some")
  assert drawn.name == "some_groups.png"
  assert drawn.read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def tiny(monkeypatch):
  """A profile of a few hundred steps, two seeds and one environment."""
  profile = dataclasses.replace(
    protocol.PROFILES["smoke"],
    total_steps=300,
    baselines=("ppo", "grpo"),
    sweep_gammas=(0.99, 1.0),
    groups=(8,),
  )
  monkeypatch.setitem(protocol.PROFILES, "tiny", profile)
  return profile


@pytest.mark.slow
def test_finished_cells_are_not_trained_again(
  tiny, tmp_path, monkeypatch, capsys
):
  trained = []

  def train(cell):
    trained.append(cell.key)
    return record_of(cell, as_published(cell.setting)[:2])

  monkeypatch.setattr(report, "train", train)
  monkeypatch.setattr(figure, "plot", lambda *arguments: [])
  cells = protocol.cells(tiny, 2)
  report.make("tiny", tmp_path, "CartPole-v1 ppo", 2)
  few = len(trained)
  assert 0 < few < len(cells)
  report.make("tiny", tmp_path, "", 2)
  assert sorted(trained) == sorted(x.key for x in cells)  # Each of them once.
  report.make("tiny", tmp_path, "", 2)
  assert len(trained) == len(cells)
  assert f"tiny: {few} of {few} cells to be trained" in capsys.readouterr().out
  assert (tmp_path / "tiny.md").exists()
  with pytest.raises(ValueError, match="--cells=Atari is found in no name"):
    report.make("tiny", tmp_path, "Atari", 2)


@pytest.mark.slow
def test_a_cell_is_trained(tiny):
  cell = next(
    x
    for x in protocol.cells(tiny, 2)
    if x.setting.baseline == "ppo" and x.setting.gamma == 1.0
  )
  record = report.train(cell)
  assert json.loads(json.dumps(dataclasses.asdict(record)))["key"] == cell.key
  assert record.steps == [1024, 1024]  # One iteration goes past 300.
  assert 15 < record.final_scores().mean() < 35


def test_networks_are_initialised_one_after_another():
  # Two QR factorisations of batches may wait for each other forever.
  keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 3))
  made = training._make("Acrobot-v1"), True, keys
  text = training._initial_params.lower(*made).as_text()
  calls = [line for line in text.splitlines() if "@lapack_" in line]
  assert any("geqrf" in line for line in calls)
  assert all('num_batch_dims = "0"' in line for line in calls)


def _final_scores(setting: settings.Setting, num_seeds: int) -> list[float]:
  """Trains in a process that compiles as users do: these runs are long."""
  code = (
    "import json\n"
    "from experiments.critics import protocol, report, settings\n"
    f"cell = protocol.Cell(settings.{setting!r}, {num_seeds}, ())\n"
    "print(json.dumps(report.train(cell).final_scores().tolist()))"
  )
  environment = {
    name: value
    for name, value in command.ENVIRONMENT.items()
    if name != "XLA_FLAGS"
  }
  arguments = [sys.executable, "-c", code]
  result = subprocess.run(
    arguments, env=environment, capture_output=True, text=True, check=False
  )
  assert result.returncode == 0, result.stderr
  return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.slow
def test_ppo_learns_cartpole():
  # From 22. At 1.1 million steps seeds differ by 100, with a clip or without.
  setting = settings.Setting(
    "CartPole-v1", "ppo", value_clip=None, total_steps=200_000
  )
  scores = _final_scores(setting, 5)
  assert len(scores) == 5
  assert np.mean(scores) > 100
