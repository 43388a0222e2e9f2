"""Options of the loss in the one program that samples, scores and updates."""

import dataclasses
import functools
import json
import types

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax import api, tasks
from grpo_jax.algorithms import objective, options
from grpo_jax.ops import aggregation
from grpo_jax.rollout import sampling
from grpo_jax.settings import config as config_lib
from grpo_jax.step import step
from grpo_jax.training import loop
from grpo_jax.training.phases import executors
from grpo_jax.training.problem import problem
from grpo_jax.training.problem import rewards as rewards_lib
from grpo_jax.training.runtime import checkpoints, sharding
from grpo_jax.types import Algorithm, Sampler, set_fields
from tests.experiments import tiny_config
from tests.training import tiny

# DAPO without what it adds to the rewards: plain means over tokens.
PLAIN = {"dynamic_sampling": False, "overlong_cache": 0.0}


# All rows at once: micro-batches are tested elsewhere, and take time.
_make_phase = functools.partial(tiny.make_phase, micro_batch_size=16)


def _opened(phase):
  """The stages of a step as one program that shows what is between them.

  Returns:
    (state, prompts) -> (rollout, prepared batch, next state, metrics).
  """

  @jax.jit
  def opened(state, prompts):
    rollout = step.sample_stage(state, prompts, phase=phase)
    greedy = step.greedy_stage(state, prompts, phase=phase)
    batch = objective.make_train_batch(
      phase.algorithm,
      phase.config,
      prompts,
      rollout,
      phase.reward.score(state.params, prompts, rollout),
      state.algorithm_state,
      None
      if greedy is None
      else phase.reward.score(state.params, prompts, greedy),
    )
    key = jax.random.key(0)
    batch = step.prepare(state, batch, key, phase=phase)
    state, metrics = step.update(state, batch, key, phase=phase)
    return rollout, batch, state, metrics

  return opened


def _state(phase):
  """A state whose reference, if there is one, is another policy."""
  state = tiny.make_state(phase)
  if "reference" not in state.models:
    return state
  return state.with_params(reference=phase.policy.init(jax.random.key(1)))


def _prompts(**extras):
  return dataclasses.replace(
    tiny.make_prompts(), extras=jax.tree.map(jnp.asarray, extras)
  )


# --- KL and entropy ----------------------------------------------------------


KL_IN_REWARD = {"kl_coef": 0.3, "kl_kind": "k1", "kl_in_reward": True}


def _penalty(batch):
  """−β (ℓ_old − ℓ_ref) of each token."""
  gap = np.where(batch.mask, batch.old_logp - batch.reference.logp, 0.0)
  assert np.abs(gap).max() > 0.3
  return -0.3 * gap


@pytest.mark.slow
def test_kl_in_the_reward_is_no_term_of_the_loss():
  fields = {"baseline_decay": 0.0, **KL_IN_REWARD}
  phase = _make_phase("reinforce", fields=fields)
  prompts = tiny.make_prompts()
  rollout, batch, _, metrics = _opened(phase)(_state(phase), prompts)
  share = tiny.count_token(prompts, rollout).rewards
  np.testing.assert_allclose(
    batch.advantages, share + _penalty(batch).sum(axis=-1), 1e-5, 1e-6
  )
  assert {key for key in metrics if key.startswith("loss")} == {
    "loss",
    "loss/policy",
  }
  assert metrics["kl/reference"] != 0


@pytest.mark.slow
def test_the_running_baseline_is_of_the_rewards_that_advantages_have():
  """Those with a KL and a length punishment, and not those of the judge."""
  fields = {"baseline_decay": 0.75, "overlong_cache": 0.9, **KL_IN_REWARD}
  phase = _make_phase("reinforce", fields=fields)
  state, metrics, rows = tiny.fused(phase)(_state(phase), tiny.make_prompts())
  rewards = np.asarray(rows.batch.advantages)  # There was no baseline yet.
  assert abs(rewards.mean() - metrics["reward/mean"]) > 0.1
  after = state.algorithm_state["algorithm"]
  assert after["weight"] == 0.25
  np.testing.assert_allclose(after["reward_sum"], 0.25 * rewards.mean(), 1e-5)


@pytest.mark.slow
def test_kl_in_the_reward_stays_with_its_token_where_rewards_are_dense():
  phase = _make_phase("reinforce_pp", fields=KL_IN_REWARD)
  raw = tiny.ragged_batch(phase)
  batch = tiny.prepared(phase, _state(phase), raw, 0)
  np.testing.assert_allclose(
    batch.scores.token_rewards, _penalty(batch), 1e-5, 1e-6
  )
  np.testing.assert_allclose(
    batch.rewards, np.where(raw.valid, raw.rewards, 0.0), 1e-6
  )


@pytest.mark.slow
def test_adaptive_kl_coefficient_steers_and_is_part_of_the_state(tmp_path):
  fields = {"kl_coef": 0.1, "kl_target": 1e-3, "kl_horizon": 16.0, **PLAIN}
  phase = _make_phase("dapo", fields=fields)
  advance, state = tiny.fused(phase), _state(phase)
  for number in range(3):  # 16 rows a step, and a KL far above the target.
    coefficient = state.algorithm_state["coefficients"]["kl"]
    np.testing.assert_allclose(coefficient, 0.1 * 1.2**number, 1e-5)
    state, metrics, _ = advance(state, tiny.make_prompts(first=4 * number))
    np.testing.assert_allclose(
      metrics["loss/kl"], coefficient * metrics["kl/reference"], 1e-5
    )
  assert advance._cache_size() == 1
  saved = checkpoints.Checkpoints(tmp_path / "saved", keep=1)
  saved.save(3, state, {"phase": 0})
  restored, _, _ = saved.restore(jax.eval_shape(lambda: _state(phase)))
  saved.close()
  assert (
    restored.algorithm_state["coefficients"]["kl"]
    == state.algorithm_state["coefficients"]["kl"]
  )
  low = objective.update_state(
    phase.algorithm,
    phase.config,
    state.algorithm_state,
    {"kl/reference": jnp.float32(1e-4)},
    None,
    16,
  )
  np.testing.assert_allclose(
    low["coefficients"]["kl"], 0.1 * 1.2**3 * 0.8, 1e-5
  )


@pytest.mark.slow
def test_adaptive_entropy_bonus_applies_below_its_target():
  fields = {"entropy_coef": 0.02, "entropy_target": 1.0}
  phase = _make_phase("dr_grpo", fields=fields)
  advance, prompts = tiny.fused(phase), tiny.make_prompts()
  for sharpness, weight, after in ((1, 0.0, 0.015), (10, 0.02, 0.025)):
    state = _sharpened(tiny.make_state(phase), sharpness)
    state, metrics, _ = advance(state, prompts)
    entropy = metrics["entropy/policy"]
    assert (entropy < 1.0) == (sharpness > 1)
    np.testing.assert_allclose(metrics["loss/entropy"], -weight * entropy, 1e-5)
    coefficient = state.algorithm_state["coefficients"]["entropy"]
    np.testing.assert_allclose(coefficient, after, 1e-5)


def _sharpened(state, factor):
  """The state with the logits multiplied."""
  policy = state.params["policy"]
  trained = {**policy["trained"], "head": factor * policy["trained"]["head"]}
  return state.with_params(policy={**policy, "trained": trained})


def _no_reward(prompts, rollout):
  scored = tiny.count_token(prompts, rollout)
  return dataclasses.replace(scored, rewards=jnp.zeros_like(scored.rewards))


@pytest.mark.slow
def test_kl_of_a_domain_has_its_own_weight():
  fields = {"kl_coef": 0.1, "kl_domain_weights": (1.0, 0.0, 2.0)}
  phase = _make_phase(fields=fields, score=_no_reward)
  advance, state = tiny.fused(phase), _state(phase)

  def metrics_of(*domains):
    return advance(state, _prompts(domain=np.array(domains, np.int32)))[1]

  plain, doubled = metrics_of(0, 0, 0, 0), metrics_of(2, 2, 2, 2)
  assert plain["gradient_norm"] > 1e-3
  for key in ("loss/kl", "gradient_norm"):
    np.testing.assert_allclose(doubled[key], 2 * plain[key], 1e-5)
  # Rows without a weight leave no gradient, whatever their KL is.
  free = metrics_of(1, 1, 1, 1)
  assert free["kl/reference"] > 1e-3
  assert free["gradient_norm"] == free["loss/kl"] == 0
  assert 0 < metrics_of(0, 1, 1, 0)["loss/kl"] < plain["loss/kl"]


# --- The gap between sampler and trainer -------------------------------------


def _with_gap(phase):
  """Parts whose sampler reports log-probs `extras["gap"]` too low."""

  def play(params, prompts, key):
    rollout = phase.sampler.sample(params, prompts, key)
    gap = prompts.extras["gap"][rollout.prompt_index][:, None]  # [B, 1]
    behavior_logp = rollout.behavior_logp - gap * rollout.completion_mask
    return dataclasses.replace(rollout, behavior_logp=behavior_logp)

  player = dataclasses.replace(phase.sampler, sample=play)
  return dataclasses.replace(phase, sampler=player)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("level", "mode", "weight"),
  [
    ("token", "truncate", 1.5),
    pytest.param("sequence", "mask", 0.0, marks=pytest.mark.slow),
  ],
)
def test_importance_weights_correct_a_gap_and_nothing_else(level, mode, weight):
  fields = {
    "importance_level": level,
    "importance_mode": mode,
    "importance_max": 1.5,
  }
  phase = _with_gap(_make_phase("dapo", fields={**fields, **PLAIN}))
  advance, state = tiny.fused(phase), tiny.make_state(phase)
  _, metrics, _ = advance(state, _prompts(gap=np.zeros(4, np.float32)))
  np.testing.assert_allclose(metrics["policy_weight/mean"], 1.0, atol=1e-4)
  gradient = metrics["gradient_norm"]
  assert gradient > 1e-3
  # Half a nat per token: a ratio of at least e^0.5 = 1.65.
  _, metrics, _ = advance(state, _prompts(gap=np.full(4, 0.5, np.float32)))
  np.testing.assert_allclose(metrics["policy_weight/mean"], weight, 1e-5)
  np.testing.assert_allclose(metrics["gradient_norm"], weight * gradient, 1e-3)


@pytest.mark.slow
def test_rejected_tokens_leave_the_denominators():
  """They change the gradient as if nobody had scored their rows."""

  def score(prompts, rollout):
    scored = tiny.count_token(prompts, rollout)
    seen = prompts.extras["seen"][rollout.prompt_index]
    return dataclasses.replace(scored, valid=scored.valid & seen)

  fields = {"rejection": "seq_mean_k1", **PLAIN}
  phase = _with_gap(_make_phase("dapo", fields=fields, score=score))
  advance, state = tiny.fused(phase), tiny.make_state(phase)

  def metrics_of(gap, seen):
    prompts = _prompts(gap=np.float32(gap), seen=np.array(seen, bool))
    return advance(state, prompts)[1]

  everyone = metrics_of([0, 0, 0, 0], [1, 1, 1, 1])
  rejected = metrics_of([0, 0, 3, 3], [1, 1, 1, 1])
  unscored = metrics_of([0, 0, 0, 0], [1, 1, 0, 0])
  assert everyone["tokens/trained"] == everyone["tokens/generated"]
  assert 0 < rejected["tokens/trained"] < everyone["tokens/trained"]
  for key in ("tokens/trained", "loss", "gradient_norm"):
    np.testing.assert_allclose(rejected[key], unscored[key], 1e-5, 1e-7)
  assert abs(rejected["gradient_norm"] - everyone["gradient_norm"]) > 1e-3


@pytest.mark.slow
def test_only_the_tokens_of_highest_entropy_are_trained():
  phase = _make_phase("dapo", fields={"top_entropy_fraction": 0.25, **PLAIN})
  rollout, batch, _, metrics = _opened(phase)(
    tiny.make_state(phase), tiny.make_prompts()
  )
  mask, entropy = np.asarray(batch.mask), np.asarray(rollout.entropy)
  chosen = np.asarray(batch.policy_weight == 1)
  np.testing.assert_allclose(
    metrics["policy_weight/mean"], chosen.sum() / mask.sum(), 1e-5
  )
  # Tokens with the same prefix have the same entropy: both or none.
  least = entropy[chosen].min()
  assert (entropy[mask] > least).sum() < mask.sum() / 4 <= chosen.sum()
  assert (entropy[mask & ~chosen] < least).all()


@pytest.mark.slow
def test_kept_tokens_are_the_support_of_training():
  phase = _make_phase(fields={"keep_sampling_mask": True}, top_k=3)
  state, prompts = tiny.make_state(phase), tiny.make_prompts()
  rollout, batch, _, metrics = _opened(phase)(state, prompts)
  assert metrics["sampler_gap/max"] < 1e-4
  assert metrics["ratio/max_deviation"] == 0
  assert metrics["gradient_norm"] > 0
  assert batch.sampler.kept_ids.shape == (*batch.mask.shape, 3)
  outputs = jax.jit(phase.losses[0].outputs)
  kept = outputs(state.params, batch).logp
  everything = set_fields(batch, {"sampler.kept_ids": None})
  plain = outputs(state.params, everything).logp
  mask = np.asarray(rollout.completion_mask)
  behavior = np.asarray(rollout.behavior_logp)[mask]
  np.testing.assert_allclose(np.asarray(kept)[mask], behavior, atol=1e-4)
  # Without it the four tokens that were not drawn from take some of the mass.
  assert (np.asarray(plain)[mask] < behavior - 1e-2).all()


# --- Other terms and inputs --------------------------------------------------


@pytest.mark.slow
def test_right_answers_are_imitated():
  def score(prompts, rollout):
    scored = tiny.count_token(prompts, rollout)
    return dataclasses.replace(scored, correct=scored.rewards > 0)

  fields = {"positive_nll_coef": 0.5, **PLAIN}
  phase = _make_phase("dapo", fields=fields, score=score)
  rollout, batch, _, metrics = _opened(phase)(
    tiny.make_state(phase), tiny.make_prompts()
  )
  assert 0 < batch.correct.sum() < 16
  right = np.asarray(rollout.completion_mask & batch.correct[:, None])
  np.testing.assert_allclose(
    metrics["loss/positive_nll"],
    -0.5 * np.asarray(rollout.sampler_logp)[right].mean(),
    1e-4,
  )


def _even_tokens(prompts, rollout):
  """Reward: the share of slots that hold an even token."""
  rollout = dataclasses.replace(rollout, tokens=2 + rollout.tokens % 2)
  return tiny.count_token(prompts, rollout)


@pytest.mark.slow
def test_remax_compares_with_the_greedy_completion_of_the_prompt():
  phase = _make_phase("remax", score=_even_tokens)
  state, prompts = tiny.make_state(phase), tiny.make_prompts()
  opened = _opened(phase)
  rollout, batch, _, metrics = opened(state, prompts)
  greedy = sampling.sample(
    phase.policy,
    state.params["policy"],
    prompts,
    jax.random.key(9),  # Which does not matter.
    sampling.SamplerConfig(4, (tiny.END,), tiny.PAD, temperature=0.0),
    1,
  )
  baseline = np.asarray(_even_tokens(prompts, greedy).rewards)  # [P]
  assert len(set(baseline)) > 1
  share = np.asarray(_even_tokens(prompts, rollout).rewards)
  np.testing.assert_allclose(
    batch.advantages, share - baseline[rollout.prompt_index], 1e-6
  )
  assert metrics["gradient_norm"] > 0
  # A policy that is sure of its answer is its own baseline.
  *_, metrics = opened(_sharpened(state, 1e3), prompts)
  assert metrics["gradient_norm"] == metrics["loss"] == 0


def _rl_setting(name, task="copy", task_options=None, **fields):
  """Config of a run on a task: 4 prompts with 4 completions each."""
  config = config_lib.default_config(name)
  config.phases = ("rl",)
  config.data.name = task
  config.data.task_options = task_options or {}
  config.rl.num_prompts = config.rl.group_size = 4
  for key, value in fields.items():
    config.algorithm[key] = value
  return config


@pytest.mark.slow
def test_remax_on_the_host_is_remax_in_the_program():
  def even_tokens(prompts, rollout):
    return _even_tokens(prompts, rollout).components

  class OnHost(problem.Problem):
    def host_scores(self, batch, rollout, reward=None):
      components = jax.device_get(jax.jit(even_tokens)(batch.prompts, rollout))
      nothing = np.zeros(len(rollout.tokens), bool)
      return rewards_lib.HostScores(components, failed=nothing), {}, {}

  config = _rl_setting("remax", task_options={"length": 2})
  made = problem.make_problem(config_lib.resolve(config))
  phase = tiny.phase_of(config, made)
  in_graph, on_host = (
    rewards_lib.RewardSum((judge,), {"share": 1.0}, "share")
    for judge in (
      rewards_lib.InGraph(even_tokens),
      rewards_lib.OnHost(types.SimpleNamespace(close=lambda: None)),
    )
  )
  made = dataclasses.replace(made, reward=in_graph)
  split = OnHost(**vars(made) | {"reward": on_host})
  batch = next(made.prompt_stream(0, 4, None))
  results = []
  for one in (made, split):
    phase = dataclasses.replace(phase, reward=one.reward)
    advance = executors.make_driver(one, sharding.make_mesh(1), phase)
    state, outcome = advance(tiny.make_state(phase), batch)
    numbers = outcome.metrics()
    numbers.pop("time/verifier_s", None)
    results.append((numbers, jax.device_get(state.params)))
  (fused, params), (by_host, others) = results
  assert fused["gradient_norm"] > 0
  assert fused.keys() == by_host.keys()
  np.testing.assert_allclose(
    [by_host[key] for key in fused], list(fused.values()), 1e-4, 1e-5
  )
  chex.assert_trees_all_close(others, params, rtol=1e-4, atol=1e-5)


def _writes(made, texts):
  """Stands for a policy that answers every prompt with these completions."""
  tokens = np.full((len(texts), made.max_new_tokens), tiny.PAD, np.int32)
  for row, ids in zip(tokens, texts, strict=True):
    row[: len(ids)] = ids
  lengths = np.array([len(ids) for ids in texts])
  mask = np.arange(tokens.shape[1]) < lengths[:, None]
  rollout = tiny.rollout_of(tokens, mask, np.arange(len(texts)) // 4)

  def play(params, prompts, key):
    del params, prompts, key
    return jax.tree.map(jnp.asarray, rollout)

  return Sampler(play)


@pytest.mark.slow
def test_steps_of_an_addition_are_rewarded_one_by_one():
  task_options = {"level": 2, "scratchpad": True}
  config = _rl_setting("grpo_ps", "add", task_options, kl_coef=0.0)
  config.rl.optimizer.learning_rate = 0.1
  made = problem.make_problem(config_lib.resolve(config))
  phase = tiny.phase_of(config, made)
  task = tasks.make_task("add", **task_options)
  batch = next(made.prompt_stream(0, 4, None))
  (semicolon,), (zero, one) = task.encode(";"), task.encode("01")
  texts = []
  for record in batch.records:
    right = record["completion"].tolist()
    last_digit = right.index(semicolon) + 8  # Of the second step.
    wrong = right.copy()
    wrong[last_digit] = one if right[last_digit] == zero else zero
    texts += [right, wrong, right, wrong]
  phase = dataclasses.replace(phase, sampler=_writes(made, texts))
  state = tiny.make_state(phase)
  advance = _opened(phase)
  rollout, prepared, after, _ = advance(state, batch.prompts)
  advantages = np.asarray(prepared.advantages)
  ends = np.asarray(prepared.scores.step_mask)
  np.testing.assert_array_equal(ends.sum(axis=1), 2)
  np.testing.assert_array_equal(
    np.asarray(prepared.scores.step_rewards).sum(axis=1), [2, 1] * 8
  )
  last = ends.shape[1] - 1 - ends[:, ::-1].argmax(axis=1)
  rows = np.arange(16)
  # Only the second step of a wrong row is worse than its group.
  assert (advantages[rows, last] * np.array([1, -1] * 8) > 0.5).all()

  outputs = jax.jit(phase.losses[0].outputs)

  def gap(state):
    logp = outputs(state.params, prepared).logp
    total = np.where(rollout.completion_mask, logp, 0).sum(axis=1)
    return (total[::2] - total[1::2]).mean()

  for _ in range(4):
    *_, after, metrics = advance(after, batch.prompts)
    assert metrics["gradient_norm"] > 0
  assert gap(after) > gap(state) + 1


def _group_sizes(config, policy, batch):
  """For each row, how many of its group are here."""
  del config
  here = jax.ops.segment_sum(
    jnp.ones(len(batch.group_id)), batch.group_id, batch.num_groups
  )
  return here[batch.group_id] + 0 * policy.logp.sum()


@pytest.mark.slow
@pytest.mark.parametrize(("group_size", "whole"), [(4, True), (1, False)])
def test_minibatches_keep_groups_whole_where_they_are_told(group_size, whole):
  algorithm = Algorithm(
    name="group_sizes",
    config_class=options.CommonConfig,
    advantages=lambda config, batch: batch.rewards,
    policy_loss=_group_sizes,
    aggregate=aggregation.over_sequences,
    couples_group=whole,
  )
  phase = tiny.make_phase(
    algorithm, group_size=group_size, num_minibatches=2, micro_batch_size=8
  )
  batch = dataclasses.replace(
    (ragged := tiny.ragged_batch(phase)),
    mask=jnp.ones_like(ragged.mask),
    advantages=ragged.rewards,
  )
  _, metrics = tiny.updated(phase, tiny.make_state(phase), batch, 0)
  assert (metrics["loss"] == 4) == whole


# --- What cannot be made is said before anything is traced -------------------


@pytest.mark.parametrize(
  ("name", "fields", "message"),
  [
    ("bradley_terry", {}, r"'bradley_terry' trains no policy; .*'preference'"),
    ("grpo_ps", {}, r"'grpo_ps' needs 'step_rewards'.*judges steps"),
    (
      "rredcot",
      {},
      r"'rredcot' needs 'prefix_utility': a task that knows a right answer",
    ),
    ("two_grpo", {}, r"at most 2 comp.*set config\.rl\.group_size=2"),
    ("sao", {}, r"one completion per prompt; set config\.rl\.group_size=1"),
    ("compaction_rl", {}, r"=4: .*'compaction_rl' is .* one completion per"),
    (
      "grpo",
      {"kl_coef": 0.1, "kl_domain_weights": (1.0, 0.0)},
      r"needs 'domain'.*integer 'domain'",
    ),
  ],
)
def test_missing_inputs_are_named(name, fields, message):
  with pytest.raises(ValueError, match=message):
    tiny.phase_of(_rl_setting(name, **fields))


def test_filters_and_corrections_go_together_with_the_kept_tokens():
  config = _rl_setting(
    "grpo", importance_mode="mask", keep_sampling_mask=True, kl_coef=0.0
  )
  config.sampling.top_k = 3
  phase = tiny.phase_of(config)
  assert phase.sampler.sample.keywords["config"].record_kept


def test_every_domain_needs_a_weight():
  config = _rl_setting("grpo", kl_coef=0.1, kl_domain_weights=(1.0, 0.5))
  made = problem.make_problem(config_lib.resolve(config))
  made = dataclasses.replace(
    made, domains=("a", "b", "c"), provides=frozenset({"domain"})
  )
  with pytest.raises(
    ValueError,
    match=r"kl_domain_weights=\(1\.0, 0\.5\) is about 2 domains, and the data"
    " have 3: a, b, c",
  ):
    tiny.phase_of(config, made)
  config.algorithm.kl_domain_weights = (1.0, 0.5, 0.0)
  tiny.phase_of(config, made)


# --- A teacher from another run ----------------------------------------------


def _distillation(name):
  config = tiny_config.get_config(name)
  config.phases = ("rl",)
  config.rl.steps = 1
  config.rl.num_minibatches = 1
  config.rl.ema_decay = None
  config.rl.optimizer.learning_rate = 0.02
  config.eval.every = config.checkpoint.every = 0
  config.log.samples_every = 0
  config.log.trackers = ()
  # Measures the KL; too small to move anything.
  config.algorithm.kl_coef = 1e-9
  return config


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
  """A run of ten supervised steps."""
  config = _distillation("reinforce")
  config.phases = ("sft",)
  workdir = tmp_path_factory.mktemp("teacher")
  loop.train(config, workdir)
  return workdir


@pytest.mark.slow
@pytest.mark.parametrize(
  ("name", "steps"),
  # The second is noisier: it learns from the tokens that were drawn.
  [("opd_topk", 20), ("opd_token", 80)],
)
def test_student_comes_closer_to_the_teacher(name, steps, teacher, tmp_path):
  config = _distillation(name)
  config.rl.reference_workdirs = (str(teacher),)
  config.rl.steps = steps
  loop.train(config, tmp_path)
  lines = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
  rows = [row for row in map(json.loads, lines) if "loss" in row]
  distances = [row["kl/reference"] for row in rows]
  assert distances[0] > 1
  assert np.mean(distances[-3:]) < 0.6 * distances[0]


@pytest.mark.slow
def test_run_starts_with_the_policy_of_another(teacher, tmp_path):
  config = _distillation("opd_full")
  config.start_workdir = str(teacher)
  config.phases = ("rl",)
  config.rl.steps = 1
  config.rl.optimizer.learning_rate = 1e-30
  config.seed = 5  # Not the teacher's.
  loop.train(config, tmp_path)
  with api.load(teacher) as before, api.load(tmp_path) as after:
    chex.assert_trees_all_equal(before.params, after.params)
  config.model.width = 8
  with pytest.raises(ValueError, match=r"start_workdir=.*its policy differ"):
    loop.train(config, tmp_path / "narrow")
  config = _distillation("opd_full")
  config.start_workdir = str(teacher)
  config.model.param_dtype = "bfloat16"
  with pytest.raises(ValueError, match=r"is float32\[.*needs bfloat16\["):
    loop.train(config, tmp_path / "other_dtype")
