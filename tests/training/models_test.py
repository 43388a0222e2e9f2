"""Several models in one run: a reward model, teachers, alternating stages.

Each is a config, and no code: what a run has beside its policy are members.
"""

import dataclasses
import json

import jax
import numpy as np
import pytest

from grpo_jax.models.policies import critic as critic_lib
from grpo_jax.settings import config as config_lib
from grpo_jax.step import models, reward_models
from grpo_jax.step import step as step_lib
from grpo_jax.training import loop
from grpo_jax.training.phases import build, checkpointed, outside
from grpo_jax.training.phases import policy as policy_lib
from grpo_jax.training.problem import problem
from grpo_jax.training.runtime import log, sharding
from grpo_jax.types import ModelState, Rollout, Sampler
from tests.experiments import tiny_config
from tests.models import drawn
from tests.training import tiny
from tests.training.phases import outside_test


def metrics(workdir, phase):
  lines = log.read_lines(workdir / log.METRICS)
  of_phase = [line for line in lines if line["phase"] == phase]
  return [line for line in of_phase if "tokens/trained" in line]


# --- a reward model beside a verifier ----------------------------------------


def judged_phases():
  run = tiny.assembled(tiny_config.get_config("judged"))
  return run.config, run.problem, run.policy, run.phases


@pytest.mark.slow
def test_a_verifier_and_a_reward_model_are_one_program():
  """No transfer to the host is in a step, and what it logs has both."""
  run, made, policy, (sft, rm, rl) = judged_phases()
  assert isinstance(rl.phase.sampler, Sampler)
  assert made.reward.on_host is None
  assert rl.phase.models["reward"].optimizer is None
  assert rm.phase.losses[0].trains == ("reward",)
  # Pairs are ranked by what is true, and not by the model that they train.
  assert not rm.phase.reward.by_models
  start = checkpointed.abstract_start(policy, run.seed)
  state = checkpointed.abstract_state([sft, rm, rl], start)
  batch = next(made.prompt_stream(0, 4, None)).prompts
  step = tiny.fused(rl.phase)
  _, logged, written = jax.eval_shape(step, state, batch)
  assert {"reward/f1", "reward/reward_model", "reward/mean"} <= logged.keys()
  assert written.components.keys() >= {"f1", "reward_model"}
  text = step.lower(state, batch).as_text()
  assert "callback" not in text
  assert "send" not in text


@pytest.mark.slow
@pytest.mark.parametrize(
  "rows", [slice(None), slice(2, None, 4), slice(2, 14, 4)]
)
def test_the_score_is_what_is_said_after_the_last_token(rows):
  """Tests groups, and one completion for a prompt, as greedy ones are.

  Micro-batches of two rows do not divide three of these.
  """
  policy = tiny.tiny_transformer()
  plan = tiny.make_phase(policy=policy, micro_batch_size=2).plan
  params = {"policy": drawn.params(policy)}
  model = critic_lib.make_reward_model(policy)
  reward = jax.jit(model.init)(params["policy"])
  head = reward["trained"]["value_head"]
  normal = np.random.default_rng(3).normal(size=head["kernel"].shape)
  head["kernel"] = normal.astype(np.float32)
  params = {**params, "reward": reward}
  rollout = jax.tree.map(lambda x: np.asarray(x)[rows], tiny_rollout())
  prompts = tiny.make_prompts()

  @jax.jit
  def scores_of(params, rollout):
    view = models.critic_view(model, "reward", params)
    said = reward_models.values(plan, view, prompts, rollout)
    return reward_models.at_last(said, rollout.written)

  @jax.jit
  def values_of(params, *rows):
    reward = params["reward"]
    trunk = model.trunk_params(reward, params["policy"])
    return model.head(reward, policy.hidden(trunk, *rows)[0])

  scores = np.asarray(scores_of(params, rollout))
  values = values_of(
    params,
    prompts.tokens,
    prompts.mask,
    # The state from which a further token would be predicted has read all.
    np.pad(rollout.tokens, ((0, 0), (0, 1))),
    np.pad(rollout.completion_mask, ((0, 0), (0, 1))),
    rollout.prompt_index,
  )
  values = np.asarray(values)
  for row, mask in enumerate(np.asarray(rollout.completion_mask)):
    expected = values[row, mask.sum()] if mask.any() else 0.0
    np.testing.assert_allclose(scores[row], expected, rtol=1e-5, atol=1e-6)


def tiny_rollout():
  """Four completions of each of four prompts, of 0 to 4 tokens."""
  phase = tiny.make_phase()
  batch = tiny.ragged_batch(phase)
  return Rollout(
    tokens=batch.tokens,
    completion_mask=batch.completion_mask,
    behavior_logp=batch.sampler.behavior_logp,
    sampler_logp=batch.sampler.logp,
    entropy=batch.sampler.entropy,
    terminated=batch.terminated,
    prompt_index=batch.prompt_index,
    group_id=batch.group_id,
    num_groups=batch.num_groups,
  )


def test_a_reward_model_that_nothing_has_trained_is_refused():
  run, made, policy, _ = judged_phases()
  run = dataclasses.replace(run, phases=("sft", "rl"))
  found = checkpointed.make_phases(run, made, policy, sharding.make_mesh(1))
  with pytest.raises(ValueError, match=r"no reward model yet; set config\.rew"):
    checkpointed.abstract_state(
      found, checkpointed.abstract_start(policy, run.seed)
    )


def test_a_reward_model_decides_no_accuracy():
  config = tiny_config.get_config("judged")
  config.rewards.functions = ("reward_model", "f1")
  with pytest.raises(ValueError, match="what is right is not for a reward"):
    config_lib.resolve(config)


@pytest.mark.slow
def test_a_run_with_a_reward_model_adds_up_and_lends_it(tmp_path):
  """Its total is that of verifier and model, which another run takes over."""
  whole = tmp_path / "whole"
  loop.train(tiny_config.get_config("judged"), whole)
  for line in metrics(whole, "rl"):
    total = line["reward/f1"] + 0.5 * line["reward/reward_model"]
    np.testing.assert_allclose(line["reward/mean"], total, atol=1e-5)
  scored = [line["reward/reward_model"] for line in metrics(whole, "rl")]
  assert len(set(scored)) > 5
  losses = [line["reward_model/loss"] for line in metrics(whole, "rm")]
  assert losses[-1] < losses[0]
  # Another run takes it over, from the first step on.
  config = tiny_config.get_config("judged")
  config.phases = ("sft", "rl")
  config.reward_model.source = str(whole)
  other = tmp_path / "other"
  loop.train(config, other)
  run, made, _, _ = judged_phases()
  first, second = (
    outside.find_outside(
      str(folder),
      setting="config.reward_model.source",
      config=run,
      problem=made,
      mesh=sharding.make_mesh(1),
      model_name="reward",
    ).read()
    for folder in (whole, other)
  )
  jax.tree.map(np.testing.assert_array_equal, first, second)


# --- two teachers for two domains --------------------------------------------


def two_teachers(tmp_path, algorithm="opd_token", num_domains=2):
  """A student of text whose prompts have a domain, and its phase."""
  path = tmp_path / "prompts.jsonl"
  rows = [
    {
      "prompt": f"{n} + 1 =",
      "answer": str(n + 1),
      "extras": {"domain": n % num_domains},
    }
    for n in range(8)
  ]
  path.write_text("\n".join(map(json.dumps, rows)))
  config = tiny_config.get_config("on_host")
  config.algorithm = config_lib.algorithm_config(algorithm)
  config.data.train_path = str(path)
  config.data.format = ""
  config.data.max_prompt_len = 16
  config.phases = ("rl",)
  config.rl.staleness = 0
  workdirs = [tmp_path / "first", tmp_path / "second"]
  for workdir in workdirs:
    outside_test.save(workdir, config)
  config.rl.reference_workdirs = tuple(map(str, workdirs))
  run = config_lib.resolve(config)
  made = problem.make_problem(run)
  mesh = sharding.make_mesh(1)
  policy = policy_lib.make_policy(run, made, mesh)
  try:
    return policy, build.make_phase(run, made, policy, "rl", mesh)
  finally:
    made.close()


@pytest.mark.slow
def test_each_prompt_has_the_teacher_of_its_domain(tmp_path):
  policy, phase = two_teachers(tmp_path, "opd_topk")
  student = policy_lib.initial_state(policy, 0)
  state = step_lib.enter_phase(student, phase, 0)
  teachers = [
    policy_lib.initial_state(policy, n).params["policy"] for n in (1, 2)
  ]
  state = state.with_params(reference0=teachers[0], reference1=teachers[1])
  batch = tiny.ragged_batch(tiny.make_phase())
  domain = np.array([0, 1, 1, 0])[np.asarray(batch.group_id)]
  batch = dataclasses.replace(batch, domain=domain)

  @jax.jit
  def said(params):
    found = batch
    for name in ("reference0", "reference1"):
      found = models.with_fields(phase.plan, phase.models[name], params, found)
    teacher = found.reference
    return teacher.logp, teacher.topk_ids, teacher.topk_logp

  both = said(state.params)
  for number, teacher in enumerate(teachers):
    alone = said({**state.params, "reference0": teacher, "reference1": teacher})
    own = np.asarray(domain) == number
    for x, y in zip(both, alone, strict=True):
      np.testing.assert_array_equal(x[own], y[own])
      assert (x[~own] != y[~own]).any()


@pytest.mark.slow
def test_teachers_that_cannot_be_chosen_are_refused(tmp_path):
  with pytest.raises(ValueError, match=r"about 2 domains, and the data have 3"):
    two_teachers(tmp_path, num_domains=3)


# --- stages that alternate ----------------------------------------------------


def test_stages_have_settings_of_their_own():
  made = tiny.assembled(tiny_config.get_config("stages"))
  run, policy = made.config, made.policy
  assert [stage.kind for stage in run.stages] == [
    *("supervised", "rl"),
    *("supervised", "rl"),
  ]
  assert [stage.steps for stage in run.stages] == [4, 4, 5, 7]
  first, rl, second, rl2 = made.phases
  # The reference of "rl" is that of "rl2" too, so "sft2" keeps it.
  assert "reference" in second.phase.keeps
  assert "reference" not in first.phase.models
  assert rl2.phase.models["reference"].continues
  assert not rl.phase.models["reference"].continues
  state = checkpointed.abstract_state(
    [first, rl, second], checkpointed.abstract_start(policy, run.seed)
  )
  assert isinstance(state.models["reference"], ModelState)
  # It is kept over two phases, too.
  run = dataclasses.replace(run, phases=("rl", "sft", "sft2", "rl2"))
  _, *between, _ = checkpointed.make_phases(
    run, made.problem, policy, made.mesh
  )
  assert all("reference" in phase.phase.keeps for phase in between)


def test_a_phase_without_a_section_is_refused():
  config = tiny_config.get_config("stages")
  config.phases = ("sft", "rl3")
  with pytest.raises(ValueError, match=r"phases got 'rl3' .did you mean 'rl"):
    config_lib.resolve(config)
  config.phases = ("sft", "rl2")
  config.rl2.kind = "reinforcement"
  with pytest.raises(ValueError, match="choose one of supervised, rl, value"):
    config_lib.resolve(config)


@pytest.mark.slow
def test_stages_learn_at_rates_of_their_own(tmp_path):
  loop.train(tiny_config.get_config("stages"), tmp_path)
  rates = [
    metrics(tmp_path, name)[-1]["learning_rate"]
    for name in ("sft", "rl", "sft2", "rl2")
  ]
  np.testing.assert_allclose(rates, [5e-2, 2e-3, 1e-3, 1e-3], rtol=1e-6)
