"""A tracker that forgets by how far the policy has moved."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.step import prompts as prompts_lib
from tests.training import tiny

pytestmark = pytest.mark.slow

SIZE, DRAWN, SLOTS = 6, 3, 2
TEMPERATURE = 0.7
OWN = prompts_lib.SingleStream(SIZE, DRAWN, SLOTS)


def test_weights_peak_where_half_is_right():
  rates = jnp.linspace(0, 1, 11)
  found = np.asarray(prompts_lib.weight(rates))
  expected = np.sqrt(rates * (1 - rates)) + 0.05
  np.testing.assert_allclose(found, expected, rtol=1e-6)
  assert found.argmax() == 5
  assert found[0] == found[-1] == pytest.approx(0.05)


def test_what_is_remembered_by_hand():
  # 2^−1 at half a life, and the two bounds.
  drift = jnp.float32([0.0, 0.003, 0.0075, 0.06, 1.0])
  found = prompts_lib.memory(drift, 0.4)
  expected = [0.96, 0.96, 2 ** (-1 / 8), 0.5, 0.4]
  np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_counts_begin_with_what_was_drawn_before():
  found = prompts_lib.start_counts(
    np.array([0, 3, 4]), np.array([0, 4, 4]), 0.875
  )
  # n₀ = 8: 8 · 3.5 / 5 and 8 · 1.5 / 5; 8 · 4.5 / 5 and 8 · 0.5 / 5.
  np.testing.assert_allclose(found, [[0.5, 0.5], [5.6, 2.4], [7.2, 0.8]])
  own = dataclasses.replace(OWN, size=3, counts=found)
  np.testing.assert_allclose(own.init()["b"], found[:, 1])


def samples(count, mask=True):
  shape = count, SLOTS
  exists = jnp.full(shape, mask)
  return prompts_lib.Samples(
    jnp.ones(shape, jnp.int32), exists, exists, -jnp.ones(shape)
  )


def test_counts_forget_and_are_bounded():
  state = OWN.init() | {"places": jnp.int32([4, 0, 2])}
  drift = jnp.float32([0.0, 1.0, 0.0])
  seen = prompts_lib.Feedback(
    jnp.float32([1, 0, 1]), jnp.float32([1, 1, 0]), samples(3), drift
  )
  state, said = OWN.update(state, seen, 0)
  # 0.96 · 0.5 + 1 and 0.875 · 0.5; the third was not scored.
  np.testing.assert_allclose(
    state["a"][jnp.int32([4, 0, 2])], [1.48, 0.4375, 0.5]
  )
  np.testing.assert_allclose(
    state["b"][jnp.int32([4, 0, 2])], [0.48, 1.4375, 0.5]
  )
  assert state["mask"].any(1).tolist() == [
    True,
    False,
    False,
    False,
    True,
    False,
  ]
  assert said["schedule/drift"] == 0  # None of these was drawn before.
  assert said["schedule/memory"] == pytest.approx((0.96 + 0.875 + 0.96) / 3)
  update = jax.jit(lambda state, seen: OWN.update(state, seen, 0)[0])
  rng = np.random.default_rng(0)
  means = []
  for _ in range(600):
    right = jnp.asarray(rng.random(3) < 0.7, jnp.float32)
    seen = prompts_lib.Feedback(right, jnp.ones(3), samples(3), jnp.zeros(3))
    state = update(state, seen)
    count = state["a"] + state["b"]
    assert count.max() < 25 + 1e-3  # 1 / (1 − 0.96).
    means.append(prompts_lib.success(state)[jnp.int32([4, 0, 2])])
  assert count.max() > 24.9
  assert np.mean(means[100:]) == pytest.approx(0.7, abs=0.03)


def even(prompts, rollout):
  """An even first token is right, and has the reward 1."""
  scored = tiny.count_token(prompts, rollout)
  right = rollout.tokens[:, 0] % 2 == 0
  return dataclasses.replace(
    scored, correct=right, rewards=right.astype(jnp.float32)
  )


@pytest.fixture(scope="module", params=[1, 2])
def stepped(request):
  """States and rows of three steps that draw all prompts of a pool."""
  phase = tiny.make_phase(
    "spo" if request.param == 1 else "grpo",
    max_new_tokens=SLOTS,
    group_size=request.param,
    learning_rate=0.05,
    score=even,
    temperature=TEMPERATURE,
    top_k=3,
  )
  own = dataclasses.replace(OWN, size=4, num_prompts=4)
  phase = dataclasses.replace(phase, schedule=own)
  state = tiny.make_state(phase)
  step = tiny.fused(phase)
  pool = tiny.make_prompts(4)
  found = []
  for _ in range(3):
    places = state.schedule["places"]
    prompts = dataclasses.replace(
      pool, tokens=pool.tokens[places], mask=pool.mask[places]
    )
    after, metrics, written = step(state, prompts)
    found.append((state, after, metrics, written))
    state = after
  return phase, pool, found


def own_logp(phase, params, pool, place, tokens, mask):  # [T]
  """Log-probs of a completion of one prompt, by itself."""
  one = slice(place, place + 1)
  h, _ = phase.policy.hidden(
    params["policy"],
    pool.tokens[one],
    pool.mask[one],
    tokens[None],
    mask[None],
    jnp.zeros(1, jnp.int32),
  )
  logits = phase.policy.head(params["policy"], h)[0]
  logp = jax.nn.log_softmax(logits / TEMPERATURE)
  return jnp.take_along_axis(logp, tokens[:, None], axis=1)[:, 0]


def test_drift_is_that_of_the_completion_that_was_kept(stepped):
  phase, pool, found = stepped
  (_, _, first, _), (before, _, second, _), (later, after, third, _) = found
  assert first["schedule/drift"] == 0
  drifts = []
  for place in range(4):
    kept = {name: before.schedule[name][place] for name in ("tokens", "mask")}
    then = before.schedule["logp"][place]
    now = own_logp(phase, before.params, pool, place, *kept.values())
    count = kept["mask"].sum()
    drifts.append(
      (jnp.where(kept["mask"], jnp.abs(then - now), 0).sum() / count).item()
    )
    # What was kept is how likely the policy was that wrote it.
    was = own_logp(phase, found[0][0].params, pool, place, *kept.values())
    np.testing.assert_allclose(jnp.where(kept["mask"], was, 0), then, atol=1e-5)
  assert min(drifts) > 1e-3
  assert second["schedule/drift"] == pytest.approx(np.mean(drifts), rel=1e-4)
  rho = np.clip(2 ** (-np.array(drifts) / 0.06), 0.875, 0.96)
  assert second["schedule/memory"] == pytest.approx(rho.mean(), rel=1e-4)
  changed = later.schedule["a"] + later.schedule["b"]
  size = phase.plan.group_size
  expected = rho * (before.schedule["a"] + before.schedule["b"]) + size
  np.testing.assert_allclose(changed, expected, rtol=1e-4)
  assert third["schedule/drift"] > 0
  assert after.schedule["visits"].tolist() == [3] * 4


def test_the_first_completion_of_a_prompt_is_kept(stepped):
  phase, _, found = stepped
  for before, after, _, written in found:
    places = before.schedule["places"]
    rows = slice(None, None, phase.plan.group_size)
    for name, kept in (
      ("tokens", written.batch.tokens),
      ("completion_mask", written.batch.completion_mask),
    ):
      np.testing.assert_array_equal(after.schedule[name][places], kept[rows])


def test_advantages_are_against_what_is_known_of_each_prompt(stepped):
  phase, _, found = stepped
  if phase.algorithm.name != "spo":
    return
  before, _, _, written = found[2]
  rate = prompts_lib.success(before.schedule)[before.schedule["places"]]
  assert len({*rate.tolist()}) > 1
  gap = np.asarray(written.batch.rewards - rate)
  expected = (gap - gap.mean()) / (gap.std(ddof=1) + 1e-8)
  np.testing.assert_allclose(written.batch.advantages, expected, rtol=1e-4)
