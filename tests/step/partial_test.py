"""Partial rollouts: what is cut goes on, and groups are trained when whole."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from grpo_jax.rollout import resumed, sampling
from grpo_jax.step import models, partial
from grpo_jax.step import step as step_lib
from grpo_jax.types import Prompts
from tests.training import tiny

pytestmark = pytest.mark.slow

P, G, T, S = 4, 2, 8, 3
STILL = 1e-30  # A learning rate that moves no parameter.


@functools.cache
def prompt(number):
  """A prompt of the stream: tokens and mask."""
  rng = np.random.default_rng(number)
  mask = np.arange(S) >= S - 1 - number % S
  return rng.integers(2, tiny.VOCAB, S).astype(np.int32), mask


def prompts_at(places):
  tokens, mask = zip(*(prompt(int(n)) for n in places), strict=True)
  arrays = np.stack(tokens), np.stack(mask), np.array(places, np.int32)
  return Prompts(*jax.device_put(arrays), {})


@functools.cache
def make_phase(length, staleness, learning_rate=0.1, algorithm="grpo"):
  policy = tiny.tiny_transformer()
  phase = tiny.make_phase(
    algorithm,
    policy=policy,
    fields={"importance_mode": "truncate"},
    max_new_tokens=T,
    group_size=G,
    learning_rate=learning_rate,
  )
  made = partial.Partial(
    go_on=models.by_policy(
      functools.partial(resumed.continue_rows, policy),
      config=sampling.SamplerConfig(T, (tiny.END,), tiny.PAD),
      most=T,
    ),
    prompts=jax.eval_shape(lambda: prompts_at(range(P))),
    group_size=G,
    pad_id=tiny.PAD,
    length=length,
    staleness=staleness,
  )
  return dataclasses.replace(phase, staleness=staleness, partial=made)


def _start(phase):
  """A state whose completions get rewards that differ."""
  return tiny.drawn_state(phase, seed=1, spread=0.2)


@functools.cache
def make_step(length, staleness, learning_rate):
  """The step of these parts, compiled once."""
  phase = make_phase(length, staleness, learning_rate)
  return tiny.fused(phase)


@functools.cache
def train(length, staleness, learning_rate=0.1, steps=8):
  """The states before and after each step, and what each step says."""
  phase = make_phase(length, staleness, learning_rate)
  step = make_step(length, staleness, learning_rate)
  state, found = _start(phase), []
  for _ in range(steps):
    places = jax.device_get(state.schedule["places"])
    after, metrics, rows = step(state, prompts_at(places))
    found.append((places, state, after, jax.device_get(metrics), rows))
    state = after
  return found


@functools.cache
def _sampler():
  """A function of a step and prompts that draws by the state of the start."""
  phase = dataclasses.replace(make_phase(2, 3, STILL), partial=None)
  start = _start(phase)

  @jax.jit
  def sample(start, began, prompts):
    state = dataclasses.replace(start, step=began)
    return step_lib.sample_stage(state, prompts, phase=phase)

  return functools.partial(sample, start)


@functools.cache
def _whole(began, number):
  """A group that is drawn at once in a step, by the parameters of the start."""
  drawn = _sampler()(np.int32(began), prompts_at([number]))
  return jax.device_get(drawn)


@pytest.mark.parametrize(("length", "staleness"), [(3, 1), (2, 3)])
def test_without_learning_groups_are_those_that_are_drawn_whole(
  length, staleness
):
  """And they come and go as in plain Python."""
  waiting = {place: (place, 0) for place in range(P)}  # Prompt, and its step.
  following, at_once = P, 0
  for step, (places, _, _, metrics, rows) in enumerate(
    train(length, staleness, STILL)
  ):
    trained = carried = drawn = 0
    assert places.tolist() == [waiting[place][0] for place in range(P)]
    for place in range(P):
      number, began = waiting[place]
      whole, age = _whole(began, number), step - began
      sizes = whole.completion_mask.sum(axis=1)
      before = np.minimum(sizes, age * length)
      if age == staleness:
        after = sizes
        at_once += (sizes > before + length).sum()
      else:
        after = np.minimum(sizes, before + length)
      drawn += (after - before).sum()
      mine = slice(G * place, G * (place + 1))
      mask = np.asarray(rows.batch.completion_mask[mine])
      if (after == sizes).all():
        np.testing.assert_array_equal(rows.batch.tokens[mine], whole.tokens)
        np.testing.assert_array_equal(mask, whole.completion_mask)
        np.testing.assert_array_equal(
          rows.batch.terminated[mine], whole.terminated
        )
        np.testing.assert_allclose(
          rows.batch.sampler.behavior_logp[mine], whole.behavior_logp, atol=1e-5
        )
        version = began + np.minimum(np.arange(T) // length, staleness)
        np.testing.assert_array_equal(
          rows.version[mine], np.where(mask, version, 0)
        )
        assert rows.batch.valid[mine].all()
        waiting[place] = following, step + 1
        following += 1
        trained += 1
      else:
        assert not mask.any()
        assert not rows.batch.valid[mine].any()
        carried += after.sum()
    assert metrics["partial/trained_groups"] == trained
    assert metrics["partial/waiting_tokens"] == carried
    assert metrics["tokens/generated"] == drawn
    assert metrics["completions/generated"] == trained * G
    assert metrics["unscored"] == 0
  assert following > 2 * P
  # Only where the bound is close does it do anything.
  assert (at_once > 0) == (length * (staleness + 1) < T)
  said = [
    metrics["partial/finished_at_once"]
    for *_, metrics, _ in train(length, staleness, STILL)
  ]
  assert sum(said) == at_once


def test_tokens_have_the_version_that_drew_them():
  ages = []
  for step, (*_, metrics, rows) in enumerate(train(2, 3)):
    exists = np.asarray(rows.batch.completion_mask)
    age = step - np.asarray(rows.version)[exists]
    if not exists.any():
      assert np.isnan(metrics["staleness/max"])
      continue
    assert metrics["staleness/max"] == age.max()
    assert metrics["staleness/mean"] == pytest.approx(age.mean())
    assert (age >= 0).all()
    ages.append(age.max())
  assert max(ages) > 1
  *_, metrics, rows = train(2, 3)[-1]
  assert metrics["sampler_gap/max"] > 0.1  # Old tokens, and new weights.


def test_a_step_without_a_whole_group_moves_nothing():
  found = train(1, 7, steps=14)
  norms = [metrics["gradient_norm"] for *_, metrics, _ in found]
  # After a step that has learnt: with such moments an update would move it.
  _, before, after, metrics, _ = next(
    one
    for number, one in enumerate(found)
    if one[3]["partial/trained_groups"] == 0 and max(norms[: number + 1]) > 0
  )
  assert metrics["gradient_norm"] == metrics["loss"] == 0
  assert np.isnan(metrics["length/mean"])
  jax.tree.map(np.testing.assert_array_equal, before.params, after.params)
  assert after.step == before.step + 1


def test_what_waits_takes_no_part():
  places, before, after, metrics, _ = next(
    one
    for one in train(2, 3)
    if 0 < one[3]["partial/trained_groups"] < P and one[3]["gradient_norm"] > 0
  )
  trained = np.asarray(after.schedule["places"]) != places
  rows = np.repeat(~trained, G)
  kept = before.waiting["partial"]
  poisoned = {
    name: np.where(
      rows[:, None], np.float32(np.nan), getattr(kept["rollout"], name)
    )
    for name in ("behavior_logp", "sampler_logp", "entropy")
  }
  poisoned = jax.device_put(poisoned)
  rollout = dataclasses.replace(kept["rollout"], **poisoned)
  state = dataclasses.replace(
    before, waiting={"partial": {**kept, "rollout": rollout}}
  )
  again, said, _ = make_step(2, 3, 0.1)(state, prompts_at(places))
  jax.tree.map(np.testing.assert_array_equal, again.params, after.params)
  for name, value in metrics.items():
    np.testing.assert_array_equal(said[name], value, err_msg=name)


@pytest.mark.parametrize(
  "name", ["ppo", "remax", "dapo", "two_grpo_dpo", "reinforce"]
)
def test_algorithms_of_every_kind_train_what_has_ended(name):
  """With a critic, greedy baselines, rows that are coupled, a running state."""
  phase = make_phase(2, 3, algorithm=name)
  step = tiny.fused(phase)
  state, norms = _start(phase), []
  for _ in range(8):
    before = state
    prompts = prompts_at(jax.device_get(state.schedule["places"]))
    state, metrics, _ = step(state, prompts)
    assert np.isfinite(metrics["loss"])
    norms.append(float(metrics["gradient_norm"]))
    if metrics["partial/trained_groups"] == 0:
      jax.tree.map(np.testing.assert_array_equal, before.params, state.params)
  assert norms[0] == 0
  assert max(norms) > 0
  assert np.isfinite(norms).all()
