"""A step with corrections: what is trained, what is said, and what goes on."""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.algorithms import objective
from grpo_jax.rollout import hints, sampling
from grpo_jax.step import dynamic_sampling, models
from grpo_jax.step import metrics as metrics_lib
from grpo_jax.step import prompts as prompts_lib
from grpo_jax.step import step as step_lib
from grpo_jax.types import Corrections, PolicyOutputs, Scored
from tests.training import tiny

T = 8
SETTINGS = hints.Correction(
  p_cue=0.5,
  p_answer=0.25,
  p_reference=0.25,
  cue=(5,),
  max_new_tokens=3,
  max_prompt_len=3,
)


# Each operation outside a program would be a program of its own.
_metrics = jax.jit(metrics_lib.hint_metrics)


def few_twos(prompts, rollout):
  """Right is a completion that ends, and holds a single token 2."""
  hits = ((rollout.tokens == 2) & rollout.completion_mask).sum(axis=1)
  share = ((hits == 1) & rollout.terminated).astype(jnp.float32)
  return dataclasses.replace(
    tiny.count_token(prompts, rollout), rewards=share, correct=share > 0
  )


def make_phase(settings=SETTINGS, **options):
  phase = tiny.make_phase(
    policy=tiny.tiny_transformer(), max_new_tokens=T, score=few_twos, **options
  )
  sampler = sampling.SamplerConfig(T, (tiny.END,), tiny.PAD)
  player = dataclasses.replace(
    phase.sampler,
    correct=models.by_policy(
      functools.partial(hints.correct, phase.policy),
      config=sampler,
      correction=settings,
    ),
  )
  return dataclasses.replace(phase, sampler=player)


def make_prompts(first=0, num_prompts=4):
  prompts = tiny.make_prompts(num_prompts, first=first)

  def hint(*ids):
    row = np.array([*ids, *[-1] * (T - len(ids))], np.int32)
    return jax.device_put(np.tile(row, (num_prompts, 1)))

  extras = {
    hints.ANSWER: hint(6, 2, tiny.END),
    hints.REFERENCE: hint(2, tiny.END),
  }
  return dataclasses.replace(prompts, extras=extras)


@pytest.fixture(scope="module")
def stepped():
  """Two steps on four groups of four completions."""
  phase = make_phase(micro_batch_size=8)
  step = tiny.fused(phase)
  state = tiny.make_state(phase)
  draw = jax.jit(functools.partial(step_lib.draw_stage, phase=phase))
  found = []
  for number in range(2):
    before, prompts = state, make_prompts(first=4 * number)
    groups = draw(before, prompts)
    state, metrics, rows = step(before, prompts)
    found.append(
      types.SimpleNamespace(
        phase=phase,
        before=before,
        prompts=prompts,
        groups=groups,
        metrics=metrics,
        rows=rows,
      )
    )
  assert step._cache_size() == 1
  return found


@pytest.mark.slow
def test_the_first_update_is_on_policy_in_every_bit(stepped):
  for one in stepped:
    made = one.groups.rollout.corrections
    assert {*np.asarray(made.kind).tolist()} >= {1, 2}
    assert one.metrics["ratio/max_deviation"] == 0
    assert one.metrics["sampler_gap/max"] < 1e-4
    assert one.metrics["gradient_norm"] > 0


@pytest.mark.slow
def test_injected_tokens_are_read_and_not_trained(stepped):
  for one in stepped:
    batch, rollout = one.rows.batch, one.groups.rollout
    injected = np.asarray(rollout.corrections.injected)
    np.testing.assert_array_equal(batch.tokens, rollout.tokens)
    assert np.asarray(batch.completion_mask)[injected].all()
    np.testing.assert_array_equal(
      batch.mask, np.asarray(rollout.completion_mask) & ~injected
    )
    kind = np.asarray(rollout.corrections.kind)
    assert not np.asarray(batch.mask)[kind == 3].any()
    # All that exists was there when the step began.
    version = np.asarray(rollout.version)
    step = int(one.before.step)
    mask = np.asarray(rollout.completion_mask)
    np.testing.assert_array_equal(version, np.where(mask, step, 0))


@pytest.mark.slow
@pytest.mark.parametrize("train_injected", [False, True])
def test_the_gradient_at_injected_tokens(stepped, train_injected):
  """None, unless they are trained; tokens of the policy have one always."""
  one = stepped[0]
  phase = one.phase
  rollout = one.groups.rollout
  if train_injected:
    rollout = dataclasses.replace(rollout, observed=None)
  state = objective.init(phase.algorithm, phase.config)[1]

  @jax.jit
  def slope_and_batch(rollout, scored):
    batch = objective.make_train_batch(
      *(phase.algorithm, phase.config, one.prompts, rollout, scored), state
    )
    batch = objective.prepare(phase.algorithm, phase.config, batch)

    def total(logp):
      policy = PolicyOutputs(logp=logp, trainable={})
      said = objective.loss(phase.algorithm, phase.config, policy, batch)
      return said.terms["policy"][1].total

    return jax.grad(total)(rollout.sampler_logp), batch

  slope, batch = jax.device_get(slope_and_batch(rollout, one.groups.scored))
  assert batch.old_logp is None  # The ratio is that of this pass, and 1.
  made = rollout.corrections
  injected = np.asarray(made.injected)
  moved = np.asarray(batch.advantages != 0)[:, None]
  own = np.asarray(rollout.completion_mask) & ~injected & moved
  assert (slope[own] != 0).all()
  with_hint = injected & moved
  assert with_hint.sum() > 5
  assert (slope[with_hint] != 0).all() == train_injected
  assert (slope[with_hint] != 0).any() == train_injected


def rollout_of(kind, injected, mask):
  """Two groups of three rows, of which numbers of corrections are made."""
  kind = np.array(kind)
  mask = np.array(mask, bool)
  return tiny.rollout_of(
    np.zeros(mask.shape, np.int32),
    mask,
    [0, 0, 0, 1, 1, 1],
    observed=np.array(injected, bool),
    corrections=Corrections(
      kind=kind,
      unfit=np.array([0, 0, 0, 1, 0, 0], bool),
      injected=np.array(injected, bool),
      removed=np.array([0, 1, 0, 0, 1, 3]),
      rewards=np.array([0, 0, 0, 0, 0, 1], np.float32),
      valid=np.array([1, 1, 1, 1, 1, 0], bool),
      correct=np.array([0, 0, 0, 0, 0, 1], bool),
    ),
  )


def scored_of(right):
  right = np.array(right, bool)
  return Scored(
    rewards=right.astype(np.float32),
    valid=np.ones(6, bool),
    correct=right,
    components={},
    weights={},
  )


ROLLOUT = rollout_of(
  [0, 1, 0, 0, 1, 2],
  [[0] * 4, [0, 1, 0, 0], [0] * 4, [0] * 4, [1, 1, 0, 0], [0, 0, 1, 1]],
  [
    [1, 1, 0, 0],
    [1, 1, 1, 1],
    [1, 0, 0, 0],
    [1, 1, 1, 1],
    [1, 1, 1, 0],
    [1, 1, 1, 1],
  ],
)


def test_metrics_by_hand():
  found = _metrics(ROLLOUT, scored_of([0, 1, 0, 0, 0, 1]))
  assert {name: float(value) for name, value in found.items()} == {
    "correction/share": 0.5,
    "correction/unfit": 1,
    "correction/right": pytest.approx(2 / 3),
    "correction/right_after_cue": 0.5,
    "correction/draft_accuracy": 0,  # The one that was right is not scored.
    "correction/draft_dead_groups": 1,
    "correction/made_live": 1,
    "correction/injected": 5,
    "correction/generated": 3,
  }
  # A group all of whose rows are right now is as dead as before.
  found = _metrics(ROLLOUT, scored_of([1, 1, 1, 0, 0, 1]))
  assert found["correction/made_live"] == 0.5
  nothing = dataclasses.replace(
    ROLLOUT,
    corrections=dataclasses.replace(
      ROLLOUT.corrections, kind=np.zeros(6, np.int32)
    ),
  )
  found = _metrics(nothing, scored_of([0] * 6))
  assert np.isnan(found["correction/right"])
  assert np.isnan(found["correction/right_after_cue"])
  # 2, 3, 1, 4, 1 and 2 tokens that are there, and 5 that are not.
  assert ROLLOUT.num_drawn.tolist() == [2, 4, 1, 4, 2, 5]


def test_schedules_learn_what_the_policy_can_do_by_itself():
  feedback = jax.jit(prompts_lib.Curriculum("uniform", 2, 2).feedback)
  groups = dynamic_sampling.Groups(
    tiny.make_prompts(2), ROLLOUT, scored_of([1] * 6)
  )
  said = feedback(groups)
  np.testing.assert_array_equal(said.right, [0, 0])
  np.testing.assert_array_equal(said.scored, [3, 2])
  without = dataclasses.replace(ROLLOUT, corrections=None)
  said = feedback(dataclasses.replace(groups, rollout=without))
  np.testing.assert_array_equal(said.right, [3, 3])


@pytest.mark.slow
def test_rounds_draw_until_groups_live_by_corrections():
  phase = dataclasses.replace(
    make_phase(fields={"dynamic_sampling": True}), max_rounds=3
  )
  state = tiny.make_state(phase)
  prompts = make_prompts(num_prompts=12)
  _, metrics, rows = tiny.fused(phase)(state, prompts)
  draw = jax.jit(functools.partial(step_lib.draw_stage, phase=phase))
  tokens, live, drafts_live = 0, 0, 0
  for number in range(int(metrics["drawn/rounds"])):
    part = jax.tree.map(
      lambda x, n=number: x[4 * n : 4 * n + 4], jax.device_get(prompts)
    )
    groups = draw(state, part)
    tokens += int(groups.rollout.num_drawn.sum())
    live += int(dynamic_sampling.live_groups(groups).sum())
    made = groups.rollout.corrections
    of_drafts = dataclasses.replace(
      groups.scored, rewards=made.rewards, valid=made.valid
    )
    drafts_live += int(
      dynamic_sampling.live_groups(
        dataclasses.replace(groups, scored=of_drafts)
      ).sum()
    )
  assert metrics["tokens/generated"] == tokens
  assert live >= 4 > drafts_live
  assert metrics["drawn/missing"] == 0
  assert np.asarray(rows.batch.mask).any(axis=1).reshape(4, 4).any(axis=1).all()
