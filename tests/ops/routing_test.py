"""Loads of experts and the balance loss, against loops and by hand."""

import jax
import numpy as np

from grpo_jax.ops import aggregation, routing

B, T, LAYERS, E, K = 2, 3, 2, 4, 2

_load = jax.jit(routing.load, static_argnums=2)
balance_of = jax.jit(routing.balance)
entropy_of = jax.jit(routing.entropy)


def load_of(ids, mask):
  """Load of E experts, as NumPy arrays."""
  return jax.device_get(_load(ids, mask, E))


def _case():
  rng = np.random.default_rng(0)
  logits = rng.normal(size=(B, T, LAYERS, E))
  probs = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
  ids = np.argsort(-probs, axis=-1)[..., :K].astype(np.int32)
  mask = np.array([[True, True, False], [True, False, False]])
  return probs, ids, mask


def test_load_counts_the_choices_of_the_tokens_that_count():
  _, ids, mask = _case()
  want = np.zeros((LAYERS, E))
  for b, t in zip(*np.nonzero(mask), strict=True):
    for layer in range(LAYERS):
      for e in ids[b, t, layer]:
        want[layer, e] += 1 / K
  total, weight = load_of(ids, mask)
  np.testing.assert_allclose(total, want, rtol=1e-6)
  assert weight == 3
  np.testing.assert_allclose((total / weight).sum(axis=-1), 1, rtol=1e-6)
  # What a token that does not count chose is irrelevant.
  other = np.where(mask[..., None, None], ids, 0)
  np.testing.assert_array_equal(load_of(other, mask).total, total)


def test_load_of_no_tokens_is_zero():
  _, ids, mask = _case()
  total, weight = load_of(ids, mask & False)
  assert not total.any()
  assert weight == 0


def test_balance_is_the_papers_sum():
  probs, ids, mask = _case()
  total, weight = load_of(ids, mask)
  shares = total / weight
  with jax.enable_x64(True):
    values = np.asarray(balance_of(probs, shares))  # [B, T]
  want = 0.0
  for layer in range(LAYERS):
    mean_probs = probs[:, :, layer][mask].mean(axis=0)  # [E], P_e
    want += E * (shares[layer] * mean_probs).sum() / LAYERS
  np.testing.assert_allclose(values[mask].mean(), want, rtol=1e-6)


def test_routers_of_other_tokens_reach_nothing():
  probs, ids, mask = _case()
  total, weight = load_of(ids, mask)

  def loss(probs):
    values = routing.balance(probs, total / weight)
    return aggregation.over_tokens(values, mask).total

  clean = probs.astype(np.float32)
  dirty = np.where(mask[..., None, None], clean, np.float32(np.nan))
  both = jax.jit(jax.value_and_grad(loss))
  value, slope = jax.device_get(both(dirty))
  clean_value, clean_slope = jax.device_get(both(clean))
  assert value == clean_value
  np.testing.assert_array_equal(slope, clean_slope)
  assert not slope[~mask].any()


def test_entropy_of_certain_and_of_even_routers():
  certain = np.zeros((B, T, LAYERS, E))
  certain[..., 0] = 1.0
  even = np.full((B, T, LAYERS, E), 1 / E)
  np.testing.assert_array_equal(entropy_of(certain), np.zeros((B, T)))
  np.testing.assert_allclose(entropy_of(even), np.log(E), rtol=1e-6)
