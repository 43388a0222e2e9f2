"""Every pass speaks of the distribution that the tokens were drawn from."""

import jax
import numpy as np
import pytest

from grpo_jax.algorithms import objective
from grpo_jax.ops import logprobs
from grpo_jax.step import after, dynamic_sampling, step
from tests.training import tiny

TEMPERATURE = 0.6


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("name", tiny.each(("otb", "opd_topk", "opd_full"), ()))
def test_models_that_are_equal_say_what_the_sampler_has_said(name, keeps):
  """Policy, anchor, reference and teacher: one temperature, one set of ids."""
  fields = {"kl_coef": 0.1, "entropy_coef": 0.1, "importance_mode": "truncate"}
  if name == "opd_topk":
    fields["topk"] = 2
  phase = tiny.make_phase(
    name,
    fields=fields | {"keep_sampling_mask": keeps},
    top_k=3,
    temperature=TEMPERATURE,
    learning_rate=0.0,
  )
  state, prompts = tiny.make_state(phase), tiny.make_prompts()

  @jax.jit
  def said(state, prompts):
    rollout = step.sample_stage(state, prompts, phase=phase)
    scored = phase.reward.score(None, prompts, rollout)
    batch = objective.make_train_batch(
      *(phase.algorithm, phase.config, prompts, rollout, scored),
      state.algorithm_state,
    )
    key = jax.random.key(0)
    batch = step.prepare(state, batch, key, phase=phase)
    groups = dynamic_sampling.Groups(prompts, rollout, scored)
    learnt = step.learn_stage(state, groups, phase=phase)
    moved = after.after_update(learnt[0], learnt[2], phase=phase)
    outputs = phase.losses[0].outputs(state.params, batch)
    # By the definition, over all ids and those that were kept.
    h, _ = phase.policy.hidden(
      state.params["policy"],
      *(prompts.tokens, prompts.mask, rollout.tokens, rollout.completion_mask),
      rollout.prompt_index,
    )
    logits = phase.policy.head(state.params["policy"], h) / TEMPERATURE
    if keeps:
      logits = logprobs._keep(logits, batch.sampler.kept_ids)
    return rollout, batch, outputs, moved, jax.nn.log_softmax(logits)

  rollout, batch, outputs, moved, logp = jax.device_get(said(state, prompts))
  drawn = rollout.behavior_logp if keeps else rollout.sampler_logp
  mask = batch.mask
  for found in (batch.old_logp, batch.reference.logp, outputs.logp):
    np.testing.assert_allclose(found[mask], drawn[mask], atol=1e-5)
  probs = np.exp(logp)
  entropy = -(probs * np.where(probs > 0, logp, 0)).sum(axis=-1)
  np.testing.assert_allclose(outputs.entropy[mask], entropy[mask], atol=1e-5)
  if keeps:
    np.testing.assert_allclose(rollout.entropy[mask], entropy[mask], atol=1e-5)
    assert moved is None
  else:
    np.testing.assert_allclose(moved.logp[mask], drawn[mask], atol=1e-5)
    assert (rollout.behavior_logp > drawn + 1e-3)[mask].any()
  if name == "opd_full":
    np.testing.assert_allclose(outputs.ref_kl[mask], 0, atol=1e-5)
  elif name == "otb":
    squares = np.square(probs).sum(axis=-1)
    found = batch.anchor.sum_pi_squared
    np.testing.assert_allclose(found[mask], squares[mask], atol=1e-5)
  else:
    likeliest = -np.sort(-logp, axis=-1)[..., :2]
    for found in (batch.reference.topk_logp, outputs.topk_logp):
      np.testing.assert_allclose(found[mask], likeliest[mask], atol=1e-5)
