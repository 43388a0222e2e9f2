"""Models with layers of several kinds, in every way that they are run."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.models import architecture, quantization, stacks, transformer
from grpo_jax.models.policies import lora
from grpo_jax.training.phases import optimizers
from tests.models import prefix_test, transformer_test
from tests.models.policies import lora_test

pytestmark = pytest.mark.slow

# As Llama 4: of six layers every second has experts, and every third sees all.
LLAMA4 = dataclasses.replace(
  transformer_test.PLAIN,
  num_layers=6,
  head_dim=6,
  rotary_interleaved=True,
  rotary_layers=(True, True, False) * 2,
  sliding_window=3,
  sliding_layers=(True, True, False) * 2,
  num_experts=4,
  num_dense_layers=3,
  experts_per_token=2,
  expert_width=6,
  shared_width=6,
  norm_topk=False,
  router_scores="sigmoid",
  llama4=architecture.Llama4Config(
    temperature=0.5, temperature_len=2, dense_layers=(0, 2, 4)
  ),
)
# As Gemma 4: kinds of layers, of which the last ones read others' keys, inputs
# of layers, and experts beside the MLP.
GEMMA4 = dataclasses.replace(
  transformer_test.PLAIN,
  num_layers=5,
  head_dim=6,
  activation="gelu",
  attention_scale=1.0,
  post_norm=True,
  qk_norm="head",
  embedding_scale=8**0.5,
  final_softcap=5.0,
  rope_theta=1000.0,
  local_rope_theta=10.0,
  sliding_window=3,
  sliding_layers=(True, True, False, True, False),
  num_experts=4,
  experts_per_token=2,
  expert_width=6,
  gemma4=architecture.Gemma4Config(
    full_head_dim=8,
    full_kv_heads=1,
    full_turned=4,
    values_are_keys=True,
    num_shared_layers=2,
    shared_mlp_width=10,
    input_width=4,
    input_vocab=13,
  ),
)
# As DeepSeek-V4: all kinds of attention, tables of experts in two layers.
DEEPSEEK4 = dataclasses.replace(
  transformer_test.PLAIN,
  num_layers=4,
  num_heads=4,
  num_kv_heads=1,
  head_dim=6,
  activation="bounded",
  attention_sinks=True,
  rope_theta=1000.0,
  local_rope_theta=10.0,
  rotary_width=2,
  sliding_window=2,
  sliding_layers=(True, False, False, False),
  num_experts=4,
  experts_per_token=2,
  expert_width=6,
  shared_width=6,
  router_bias=True,
  router_scores="sqrtsoftplus",
  swiglu_limit=1.0,
  deepseek4=architecture.Deepseek4Config(
    kinds=("sliding", "sparse", "heavy", "sparse"),
    query_width=6,
    heavy_window=3,
    sparse_window=2,
    indexer=architecture.IndexerConfig(num_heads=4, head_dim=6, top_k=1),
    num_groups=2,
    group_width=4,
    num_hash_layers=2,
    num_streams=3,
    sinkhorn_steps=3,
  ),
)
CONFIGS = {"llama4": LLAMA4, "gemma4": GEMMA4, "deepseek4": DEEPSEEK4}
ADAPTERS = {
  "deepseek4": lora.LoRAConfig(
    rank=2,
    alpha=3.0,
    modules=(
      *("query_down", "query_up", "kv_down", "out"),
      *("shared_down", "expert_up"),
    ),
  ),
  "gemma4": lora.LoRAConfig(
    rank=2,
    alpha=3.0,
    modules=(
      *("query", "query_heads", "key_heads", "down", "expert_up"),
      *("input_gate", "input_down"),
    ),
  ),
  "llama4": lora.LoRAConfig(
    rank=2,
    alpha=3.0,
    modules=("query", "out", "up", "shared_down", "expert_gate"),
  ),
}
EACH = pytest.mark.parametrize("name", CONFIGS)


def test_patterns_of_layers_are_cut_into_the_shortest_runs():
  a, b, c = "abc"
  Run = stacks.LayerRun
  assert stacks.runs((a,) * 5) == (Run(0, (a,), 5),)
  assert stacks.runs((a, a, b, b, b)) == (Run(0, (a,), 2), Run(2, (b,), 3))
  assert stacks.runs((a, b) * 4) == (Run(0, (a, b), 4),)
  assert stacks.runs((a, a, b) * 3 + (a, c) * 2) == (
    Run(0, (a, a, b), 3),
    Run(9, (a, c), 2),
  )
  assert stacks.runs((a, b, c)) == tuple(
    Run(i, (x,), 1) for i, x in enumerate((a, b, c))
  )


@EACH
def test_a_scan_runs_the_layers_in_their_order(name):
  names = CONFIGS[name].stacks
  members = {x: tuple(y == x for y in names) for x in {*names}}
  inputs = {
    x: stacks.Stacked(jnp.flatnonzero(jnp.array(has)), has)
    for x, has in members.items()
  }

  def layer(name, carry, entries):
    assert [x for x in entries if entries[x] is not None] == [name]
    return carry * 2 + entries[name], (entries[name] * 10,)

  carry, collected = stacks.scan(names, layer, jnp.float32(0), inputs)
  expected = 0
  for number in range(len(names)):
    expected = 2 * expected + number
  assert carry == expected
  for has in members.values():
    np.testing.assert_array_equal(collected(0, has), 10 * np.flatnonzero(has))
  assert collected(0, (False,) * len(names)) is None


@EACH
def test_decoding_and_reading_in_pieces_equal_teacher_forcing(name):
  with jax.enable_x64(True):
    config = transformer_test.float64(CONFIGS[name])
    transformer_test.assert_decoding_is_whole(config)


@EACH
def test_rows_that_share_prompts_have_the_same_values_and_gradients(name):
  with jax.enable_x64(True):
    config = transformer_test.float64(CONFIGS[name])
    policy = transformer.transformer_policy(config)
    params = transformer_test.make_params(config)
    prefix_test.assert_shared_is_whole(policy, params, prefix_test.make_rows())


@EACH
def test_prompts_may_be_read_in_chunks(name):
  with jax.enable_x64(True):
    config = transformer_test.float64(CONFIGS[name])
    params = transformer_test.make_params(config)
    batch = transformer_test.make_batch()
    chunked = dataclasses.replace(config, prefill_chunk=2)
    transformer_test.assert_same_logits(
      transformer_test.step_by_step(chunked, params, batch),
      transformer_test.step_by_step(config, params, batch),
    )


@EACH
@pytest.mark.parametrize("kind", ["none", "int8"])
def test_adapters_equal_the_merged_model(name, kind):
  config = CONFIGS[name]
  adapters = dataclasses.replace(ADAPTERS[name], quantization=kind)
  lora_test.assert_merged_is_the_same(config, adapters, atol=2e-4)
  params = lora_test.make_params(config, adapters)
  assert jax.tree.structure(
    lora_test.merge(params, adapters)
  ) == jax.tree.structure(transformer_test.make_params(config))


@EACH
def test_a_sampler_may_round_its_kernels(name):
  config = CONFIGS[name]
  params = transformer_test.make_params(config)
  rounded = quantization.rounding(
    transformer.transformer_policy(config), "int8"
  )
  batch = transformer_test.make_batch()
  codes = quantization.quantize(params["trained"], "int8")
  assert len(jax.tree.leaves(codes)) > len(jax.tree.leaves(params["trained"]))
  by_hand = {**params, "trained": quantization.dequantize(codes)}
  transformer_test.assert_same_logits(
    transformer_test.teacher_forced(rounded, params, batch),
    transformer_test.teacher_forced(config, by_hand, batch),
    atol=1e-4,
  )


@EACH
def test_muon_sums_over_the_inputs_of_each_matrix(name):
  """And not over heads, which the table of quantized kernels knows too."""
  policy = transformer.transformer_policy(CONFIGS[name])
  params = jax.eval_shape(policy.init, jax.random.key(0))["trained"]
  axes = jax.tree.leaves(
    optimizers.muon_axes(params), is_leaf=optimizers._is_axes
  )
  found, wanted = {}, {}
  for (path, leaf), of_leaf in zip(
    jax.tree_util.tree_leaves_with_path(params), axes, strict=True
  ):
    module = quantization._module(path)
    if module is not None and of_leaf is not None:
      where = jax.tree_util.keystr(path, simple=True, separator="/")
      inputs = np.atleast_1d(of_leaf.reduction_axis)
      found[where] = tuple(int(x) % leaf.ndim - leaf.ndim for x in inputs)
      wanted[where] = quantization.INPUT_AXES[module]
  assert found == wanted
