"""Sparse attention: Eq. 1 and 4 in NumPy, the cache, prefixes, kept choices."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.models import architecture, indexer, transformer
from grpo_jax.models.policies import lora
from grpo_jax.rollout import sampling
from grpo_jax.types import Prompts
from tests.models import mixtures_test, transformer_test

pytestmark = pytest.mark.slow

# As DeepSeek-V3.2; fewer tokens than most queries could see.
SPARSE = dataclasses.replace(
  mixtures_test.LATENT,
  indexer=architecture.IndexerConfig(num_heads=4, head_dim=6, top_k=2),
)
DENSE = dataclasses.replace(SPARSE, indexer=None)


def _sized(config, **sizes):
  sizes = dataclasses.replace(config.indexer, **sizes)
  return dataclasses.replace(config, indexer=sizes)


def _index(rng, rows=2, length=5, heads=3, width=4):
  return indexer.IndexVectors(
    rng.normal(size=(rows, length, heads, width)),
    rng.normal(size=(rows, length, heads)),
    rng.normal(size=(rows, 1, length, width)),
  )


# --- Equations ---------------------------------------------------------------


def test_scores_are_those_of_equation_1():
  index = _index(np.random.default_rng(0))
  with jax.enable_x64(True):
    found = jax.jit(indexer.scores)(index, index.keys)
  for row, t, s in np.ndindex(2, 5, 5):
    want = sum(
      weight * max(query @ index.keys[row, 0, s], 0)
      for weight, query in zip(
        index.weights[row, t], index.queries[row, t], strict=True
      )
    )
    np.testing.assert_allclose(found[row, t, s], want, rtol=1e-12)


def test_the_best_visible_tokens_are_chosen_and_of_equal_ones_the_earliest():
  scores = np.array([[[3.0, 9, 5, 5, 5, 4]]])
  visible = np.array([[[True, False, True, True, True, True]]])
  for top_k, want in (
    (1, [2]),
    (2, [2, 3]),
    (4, [2, 3, 4, 5]),
    (5, [2, 3, 4, 5, 0]),
    (6, [0, -1, 2, 3, 4, 5]),
    (7, [0, -1, 2, 3, 4, 5, -1]),
  ):
    ids = indexer.choices(jnp.asarray(scores), visible, top_k)
    assert ids.tolist() == [[want]]
    seen = indexer.marked(ids, 6)
    assert seen[0, 0].tolist() == [i in want for i in range(6)]
  nothing = indexer.choices(jnp.asarray(scores), np.zeros_like(visible), 2)
  assert nothing.tolist() == [[[-1, -1]]]
  assert not indexer.marked(nothing, 6).any()


def test_the_loss_is_that_of_equation_4():
  rng = np.random.default_rng(1)
  scores, seen = rng.normal(size=(2, 3, 6)), rng.random((2, 3, 6)) < 0.6
  seen[0, 0] = False
  weights = np.where(seen, rng.random((2, 3, 6)), 0)
  weights /= np.maximum(weights.sum(-1, keepdims=True), 1e-9)
  with jax.enable_x64(True):
    loss = functools.partial(indexer.divergence, weights, is_seen=seen)
    found = loss(scores)
    gradient = jax.grad(lambda scores: loss(scores).sum())(jnp.asarray(scores))
  for row, t in np.ndindex(2, 3):
    p, chosen = weights[row, t], seen[row, t]
    q = np.where(chosen, np.exp(scores[row, t]), 0)
    q /= max(q.sum(), 1e-9)
    want = (p[chosen] * np.log(p[chosen] / q[chosen])).sum()
    np.testing.assert_allclose(found[row, t], want, atol=1e-12)
    np.testing.assert_allclose(gradient[row, t], q - p, atol=1e-12)


# --- Whole models ------------------------------------------------------------


def test_seeing_all_tokens_is_full_attention():
  params = transformer_test.make_params(SPARSE)
  batch, exists = (
    transformer_test.make_batch(),
    transformer_test.make_batch()[3],
  )
  found, some = (
    transformer_test.teacher_forced(config, params, batch)
    for config in (_sized(SPARSE, top_k=9), SPARSE)
  )
  layers = ("layers", "dense_layers")
  attention = {
    name: {k: v for k, v in params["trained"][name]["attention"].items()}
    for name in layers
  }
  for of_stack in attention.values():
    del of_stack["indexer"]
  plain = {
    **params["trained"],
    **{
      name: params["trained"][name] | {"attention": attention[name]}
      for name in layers
    },
  }
  want = transformer_test.teacher_forced(
    DENSE, {**params, "trained": plain}, batch
  )
  np.testing.assert_allclose(found[exists], want[exists], atol=1e-6)
  assert abs(some - want)[exists].max() > 0.05


@pytest.mark.parametrize("interleaved", [False, True])
def test_the_cache_gives_the_logits_of_whole_sequences(interleaved):
  config = _sized(SPARSE, interleaved=interleaved)
  transformer_test.assert_decoding_is_whole(config, atol=1e-5)


def test_padding_and_chunks_change_nothing():
  params = transformer_test.make_params(SPARSE)
  batch = transformer_test.make_batch()
  exists = np.asarray(batch[3])
  whole = np.asarray(transformer_test.teacher_forced(SPARSE, params, batch))
  wider = transformer_test.make_batch(num_prompt_slots=8, junk=6)
  found = transformer_test.teacher_forced(SPARSE, params, wider)
  np.testing.assert_allclose(found[exists], whole[exists], atol=1e-5)
  chunked = dataclasses.replace(SPARSE, prefill_chunk=2)
  found = transformer_test.step_by_step(chunked, params, wider)
  np.testing.assert_allclose(found[exists], whole[exists], atol=1e-5)
  policies = map(transformer.transformer_policy, (SPARSE, chunked))
  one, other = (jax.jit(p.prefill)(params, *wider[:2])[2] for p in policies)
  mask = np.asarray(wider[1])
  np.testing.assert_array_equal(
    np.sort(one, axis=-1)[mask], np.sort(other, axis=-1)[mask]
  )


def test_prompts_that_run_once_give_values_and_gradients_of_whole_rows():
  with jax.enable_x64(True):
    config = transformer_test.float64(SPARSE)
    params = transformer_test.make_params(config)
    policy = transformer.transformer_policy(config)
    prompts, mask, tokens, exists, index = transformer_test.make_batch()

    def loss(params, shared):
      prefix, rows = None, (prompts, mask)
      if shared:
        prefix = policy.prefix(params, prompts, mask)
        prefix = jax.tree.map(lambda x: x[:, index], prefix)
        rows = prompts[index], mask[index]
      own = jnp.arange(len(tokens)) if shared else index
      h, aux = policy.hidden(params, *rows, tokens, exists, own, None, prefix)
      drawn = jnp.where(exists[..., None], policy.head(params, h), 0)
      of_index = jnp.where(exists, aux.index_loss.mean(axis=-1), 0)
      return jnp.tanh(drawn).sum() + of_index.sum()

    values = jax.jit(jax.value_and_grad(loss), static_argnums=1)
    (one, first), (two, second) = values(params, True), values(params, False)
    np.testing.assert_allclose(one, two, rtol=1e-12)
    jax.tree.map(
      functools.partial(np.testing.assert_allclose, atol=1e-9), first, second
    )


@functools.cache
def _gradients():
  """Gradients of the logits and of the indexers' loss, by path."""
  params = transformer_test.make_params(SPARSE)
  policy = transformer.transformer_policy(SPARSE)
  batch = transformer_test.make_batch()

  def losses(trained):
    whole = {**params, "trained": trained}
    h, aux = policy.hidden(whole, *batch)
    drawn = jnp.where(batch[3][..., None], policy.head(whole, h), 0)
    of_index = jnp.where(batch[3], aux.index_loss.mean(axis=-1), 0)
    return jnp.tanh(drawn).sum(), of_index.sum()

  found = jax.jit(jax.jacrev(losses))(params["trained"])
  return [
    {
      jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(x)
      for path, x in jax.tree_util.tree_leaves_with_path(gradients)
    }
    for gradients in found
  ]


def test_neither_loss_reaches_the_parameters_of_the_other():
  of_logits, of_index = _gradients()
  for path in of_logits:
    of_indexer = "/indexer/" in path
    assert np.any(of_logits[path]) != of_indexer, path
    assert np.any(of_index[path]) == of_indexer, path


# --- Sampling ----------------------------------------------------------------


def _sample(config, group_size=2, **settings):
  params = transformer_test.make_params(config)
  policy = transformer.transformer_policy(config)
  tokens, mask, *_ = transformer_test.make_batch()
  prompts = Prompts(tokens, mask, np.arange(len(tokens), dtype=np.int32), {})
  settings = {"max_new_tokens": 6, "end_ids": (0, 1, 2), **settings}
  sampled = sampling.SamplerConfig(pad_id=0, record_routing=True, **settings)
  sample = functools.partial(
    sampling.sample, policy, config=sampled, group_size=group_size
  )
  return prompts, jax.jit(sample)(params, prompts, jax.random.key(0))


@functools.cache
def _sampled():
  return _sample(SPARSE)


@pytest.mark.parametrize("settings", [{"lanes": 2}, {"lanes": 5}])
def test_lanes_change_neither_tokens_nor_choices(settings):
  _, rollout = _sampled()
  _, other = _sample(SPARSE, **settings)
  mask = np.asarray(rollout.completion_mask)
  np.testing.assert_array_equal(other.tokens, rollout.tokens)
  assert len({*mask.sum(axis=1)}) > 1  # Rows wrap around the ring.
  read = np.roll(mask, -1, axis=1)
  read[:, -1] = False  # All but the last token of a row.
  np.testing.assert_array_equal(
    np.sort(other.routing, axis=-1)[read],
    np.sort(rollout.routing, axis=-1)[read],
  )


def test_choices_of_the_sampler_are_kept():
  prompts, rollout = _sampled()
  num_layers, top_k = SPARSE.num_layers, SPARSE.indexer.top_k
  assert rollout.routing.shape[2:] == (num_layers, 2 + top_k)
  params = transformer_test.make_params(SPARSE)
  policy = transformer.transformer_policy(SPARSE)
  extras = {
    "prompt_routing": rollout.prompt_routing,
    "routing": rollout.routing,
  }
  arguments = (
    *(prompts.tokens, prompts.mask, rollout.tokens, rollout.completion_mask),
    rollout.prompt_index,
  )
  hidden = jax.jit(policy.hidden)
  exists = np.asarray(rollout.completion_mask)

  def changed(aux):
    return np.asarray(aux.index_changed)[exists]

  h, free = hidden(params, *arguments)
  same, kept = hidden(params, *arguments, extras)
  np.testing.assert_allclose(same[exists], h[exists], atol=1e-5)
  assert (changed(free) == 0).all()
  assert (changed(kept) == 0).all()
  # Other indexers choose others, and the model still sees the recorded ones.
  other = jax.tree_util.tree_map_with_path(
    lambda path, x: (
      jax.device_put(-np.asarray(x))
      if "head_weights" in jax.tree_util.keystr(path)
      else x
    ),
    params,
  )
  h, _ = hidden(other, *arguments)
  still, kept = hidden(other, *arguments, extras)
  np.testing.assert_allclose(still[exists], same[exists], atol=1e-5)
  assert abs(h - same)[exists].max() > 0.01
  assert 0.1 < changed(kept).mean() <= 1


# --- Limits ------------------------------------------------------------------


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"query_latent_width": 0}, "needs latent_width and query_latent_width"),
    ({"sliding_window": 4}, "needs no sliding_window"),
    ({"cache_dtype": "int8"}, "needs cache_dtype 'model' or 'bfloat16'"),
    ({"decode_attention": "paged"}, "decode_attention 'plain'"),
    ({"attention": "splash"}, "needs attention 'auto' or 'plain'"),
    ({"rotary_width": 4, "head_dim": 6}, None),
  ],
)
def test_what_does_not_go_with_an_indexer_is_refused(change, message):
  if message is None:
    dataclasses.replace(SPARSE, **change)
    with pytest.raises(ValueError, match="a rotary_width of at most 3"):
      _sized(dataclasses.replace(SPARSE, **change), head_dim=3)
    return
  with pytest.raises(ValueError, match=message):
    dataclasses.replace(SPARSE, **change)


def test_indexers_beneath_adapters_are_frozen():
  policy = transformer.transformer_policy(SPARSE)
  assert policy.has_indexers
  adapted = lora.lora_policy(policy, lora.LoRAConfig(rank=2))
  assert not adapted.has_indexers
  params = jax.eval_shape(adapted.init, jax.random.key(0))
  assert "indexer" not in str(params["trained"])
  assert "indexer" in str(params["frozen"])
