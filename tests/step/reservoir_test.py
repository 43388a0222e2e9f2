"""Old groups of a batch, and the reservoir that they come from."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.step import reservoir
from grpo_jax.types import PromptFields, SamplerFields, TrainBatch
from tests.training import tiny

P, G, S, T, K = 10, 2, 2, 3, 16
# Groups of 10 have round(0.1 · 10) = 1; here are 3, so that there are several.
OLD = 3
KEYS = 2000
RESERVOIR = reservoir.Reservoir(
  size=K, num_groups=P, num_old=OLD, group_size=G, prompt_slots=S, token_slots=T
)


def make_batch(first, order, unscored):
  """P groups whose tokens are their numbers, from `first` on.

  Args:
    first: The number of the first group.
    order: [P · G] places of the rows; rows of a group need not be neighbours.
    unscored: The place of a group that nobody could score; P for none.
  """
  group = (jnp.arange(P * G) // G)[order]
  number = first + group
  rows = jnp.broadcast_to(number[:, None], (P * G, T))
  prompts = jnp.broadcast_to(first + jnp.arange(P)[::-1, None], (P, S))
  scored = group != unscored
  there = jnp.ones((P * G, T), bool)
  return TrainBatch(
    prompts=PromptFields(tokens=prompts, mask=prompts >= 0),
    prompt_index=P - 1 - group,  # The last prompt is of the first group.
    group_id=group,
    tokens=rows,
    completion_mask=there,
    mask=there & scored[:, None],
    rewards=number + 0.5 * (jnp.arange(P * G)[order] % G),
    valid=scored,
    terminated=scored,
    correct=scored,
    sampler=SamplerFields(behavior_logp=rows * 1.0),
    num_groups=P,
  )


# Of each step, the first one of its phase: two of two steps, and one of one.
FIRST = (0, 0, 2, 2, 4)


@jax.jit
def run(order, unscored):
  """(What each step says, what is shown of it), the reservoir; for each key."""

  def step(carry, inputs):
    state, key = carry
    number, first = inputs
    key, own = jax.random.split(key)
    batch = make_batch(number * P, order, unscored)
    before = tiny.state_at(number, number - first, key, reservoir=state)
    mixed = RESERVOIR.mix(before, batch, own)
    shown = RESERVOIR.shown(batch, mixed.batch, mixed.is_old)
    return (mixed.state.reservoir, key), (mixed._replace(state=None), shown)

  def one(key):
    steps = jnp.arange(len(FIRST)), jnp.asarray(FIRST)
    (state, _), found = jax.lax.scan(step, (RESERVOIR.enter(None), key), steps)
    return found, state

  return jax.vmap(one)(jax.random.split(jax.random.key(0), KEYS))


@pytest.fixture(scope="module")
def drawn():
  """Rows that many runs of three phases have drawn."""
  order = jnp.asarray(np.random.default_rng(0).permutation(P * G))
  found, state = jax.device_get(run(order, P))
  of_steps = [
    jax.tree.map(lambda x, n=n: x[:, n], found) for n in range(len(FIRST))
  ]
  return types.SimpleNamespace(found=of_steps, state=state)


def groups_of(batch, at):
  """The number of each group of the batch of one key, from all its fields."""
  numbers = []
  for group in range(P):
    rows = np.flatnonzero(batch.group_id[at] == group)
    own = {int(x) for x in batch.tokens[at][rows].ravel()}
    prompts = {int(x) for x in batch.prompt_index[at][rows]}
    assert len(prompts) == 1
    own |= {int(x) for x in batch.prompts.tokens[at][prompts.pop()]}
    (number,) = own
    assert sorted(batch.rewards[at][rows]) == [number, number + 0.5]
    numbers.append(number)
  return np.array(numbers)


@pytest.mark.slow
def test_a_batch_has_so_many_old_groups_and_the_others_are_its_own(drawn):
  for step, (mixed, _) in enumerate(drawn.found):
    count = OLD if step >= 2 else 0  # The first phase has none.
    np.testing.assert_array_equal(mixed.metrics["history/groups"], count)
    for at in range(20):
      groups = groups_of(mixed.batch, at)
      own = step * P + np.arange(P)
      np.testing.assert_array_equal(groups[: P - count], own[: P - count])
      old = groups[P - count :]
      assert len(set(old)) == count  # None comes twice.
      assert (old < FIRST[step] * P).all()  # None is of this phase.
      is_old = mixed.is_old[at]
      assert set(mixed.batch.group_id[at][is_old]) == set(range(P)[P - count :])
      if count:
        age = np.mean(step - old // P)
        np.testing.assert_allclose(mixed.metrics["history/age"][at], age)
  assert (
    mixed.batch.sampler.behavior_logp is None
  )  # It would be of other tokens.


@pytest.mark.slow
def test_each_group_is_kept_as_often_and_chosen_as_often(drawn):
  """Binomial counts, five standard deviations wide."""

  def assert_even(counts, share):
    width = 5 * np.sqrt(KEYS * share * (1 - share))
    np.testing.assert_allclose(counts, KEYS * share, atol=width)

  total = 5 * P
  kept = drawn.state["groups"]["tokens"][:, :, 0, 0]
  assert all(len(set(row)) == K for row in kept)
  assert_even(np.bincount(kept.ravel(), minlength=total), K / total)
  np.testing.assert_array_equal(kept // P, drawn.state["step"])
  np.testing.assert_array_equal(drawn.state["seen"], total)
  # Of the first step of the second phase all that is old is of 2 P groups.
  mixed, _ = drawn.found[2]
  rows = mixed.is_old
  chosen = mixed.batch.tokens[..., 0][rows]
  assert_even(np.bincount(chosen, minlength=2 * P) / G, OLD / (2 * P))


@pytest.mark.slow
def test_who_looks_sees_the_rows_of_the_step(drawn):
  """Rows that old rows have replaced are shown as not trained."""
  for step, (mixed, shown) in enumerate(drawn.found):
    np.testing.assert_array_equal(
      shown.tokens[..., 0], step * P + shown.group_id
    )
    prompts = step * P + np.arange(P)[::-1]
    assert (shown.prompts.tokens[..., 0] == prompts).all()
    assert (shown.mask.any(axis=-1) == ~mixed.is_old).all()
    assert shown.completion_mask.all()


@pytest.mark.slow
def test_what_nobody_could_score_is_not_kept():
  _, state = run(jnp.arange(P * G), 4)
  np.testing.assert_array_equal(state["seen"], len(FIRST) * (P - 1))
  tokens = np.asarray(state["groups"]["tokens"])[..., 0, 0]
  assert set((tokens % P).ravel()) == set(range(P)) - {4}


def test_phases_that_draw_groups_of_other_sizes_are_refused():
  past = RESERVOIR.enter(None)
  other = reservoir.Reservoir(K, P, OLD, G + 1, S, T)
  with pytest.raises(ValueError, match="give phases of the kind 'preference'"):
    other.enter(past)
  assert RESERVOIR.enter(past) is past


@pytest.mark.slow
def test_the_second_of_two_groups_takes_the_only_place_half_the_time():
  """The n-th group draws one of n places, its own among them."""
  own = reservoir.Reservoir(1, 1, 1, 1, 1, 1)
  state = own.enter(None) | {"step": jnp.int32([0]), "seen": jnp.int32(1)}
  fresh = {
    name: jnp.ones((1, *shape), kind)
    for name, (shape, kind) in own._fields.items()
  }
  keys = jax.random.split(jax.random.key(0), 2000)
  steps = jax.vmap(lambda key: own._keep(state, fresh, key, 7)["step"])(keys)
  assert abs((steps == 7).mean() - 0.5) < 0.05
