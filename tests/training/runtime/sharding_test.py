"""The mesh, and where its rules put parameters; no device computes here."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

from grpo_jax.configs.recipes import models as known_models
from grpo_jax.models import architecture, transformer
from grpo_jax.models.policies import lora
from grpo_jax.settings import phase
from grpo_jax.training.phases import policy as policy_lib
from grpo_jax.training.runtime import sharding
from tests.training import tiny

FSDP = ("fsdp", "expert")


def abstract_mesh(data=1, fsdp=1, expert=1, tensor=1):
  return AbstractMesh((data, fsdp, expert, tensor), sharding.AXES)


def test_mesh_of_one_device():
  mesh = sharding.make_mesh(1)
  assert mesh.shape == dict.fromkeys(sharding.AXES, 1)
  assert sharding.make_mesh(None).size == jax.device_count()
  assert sharding.replicated(mesh).spec == P()
  assert sharding.by_rows(mesh).spec == P()
  whole = abstract_mesh(2, 2, 2, 2)
  assert sharding.by_rows(whole).spec == P(("data", "fsdp", "expert"))
  assert sharding.by_rows(abstract_mesh(8)).spec == P("data")
  rows = {"x": jnp.ones(3)}  # Not even: nothing is to be split.
  assert sharding.row_constraint(mesh)(rows) is rows
  assert sharding.trained_constraint(mesh)(rows) is rows
  policy = tiny.tiny_policy()
  assert sharding.on_mesh(policy, mesh) is policy


class _Device:
  """Enough of a device for a mesh to be refused or arranged."""

  platform, device_kind, process_index = "cpu", "cpu", 0

  def __init__(self, number, slices=1):
    self.id, self.slice_index = number, number % slices


@pytest.mark.parametrize(
  ("sizes", "message"),
  [
    ({"data": 0}, r"data 0 × .* asks for 0 devices and there are 8 cpu"),
    ({"data": -1}, r"asks for -1 devices"),
    ({"data": 4096}, r"asks for 4096 devices and there are 8.*from 1 to 8"),
    ({"fsdp": 0}, r"fsdp 0 × .* each at least 1"),
    ({"fsdp": 3}, r"data \? × fsdp 3 .*: 8 / 3 is not a whole number; needed:"),
    ({"fsdp": 4, "tensor": 4}, r"asks for 16 devices and there are 8"),
  ],
)
def test_impossible_meshes_are_explained(sizes, message):
  devices = [_Device(i) for i in range(8)]
  with pytest.raises(ValueError, match=f"(?s)config.mesh: .*{message}"):
    sharding.make_mesh(**sizes, devices=devices)


def test_only_data_leads_from_slice_to_slice():
  devices = [_Device(i, slices=2) for i in range(8)]
  mesh = sharding.make_mesh(fsdp=4, devices=devices)
  assert mesh.shape["data"] == 2
  for data in range(2):
    slices = {device.slice_index for device in mesh.devices[data].flat}
    assert len(slices) == 1
  with pytest.raises(ValueError, match="data 1 does not split over 2 slices"):
    sharding.make_mesh(fsdp=8, devices=devices)


def test_on_gpus_every_axis_may_lead_from_host_to_host(monkeypatch):
  monkeypatch.setattr(_Device, "platform", "gpu")
  devices = [_Device(i, slices=2) for i in range(8)]
  assert sharding.make_mesh(fsdp=8, devices=devices).shape["fsdp"] == 8


def _model(**fields):
  sizes = {
    "vocab_size": 32,
    "width": 16,
    "num_layers": 2,
    "num_heads": 4,
    "num_kv_heads": 2,
    "mlp_width": 24,
  }
  return architecture.TransformerConfig(**sizes | fields)


def _by_path(places):
  return {
    jax.tree_util.keystr(path, simple=True, separator="/"): place.spec
    for path, place in jax.tree_util.tree_leaves_with_path(places)
  }


def _specs(policy):
  """Path -> partition of every parameter."""
  params = jax.eval_shape(policy.init, jax.random.key(0))
  return _by_path(sharding.of_params(abstract_mesh(2, 2, 2, 2), params))


def test_parameters_are_split_as_the_table_says():
  policy = transformer.transformer_policy(
    _model(qkv_bias=True, tied_embeddings=False)
  )
  layers = "trained/layers"
  assert _specs(policy) == {
    "trained/embed/embedding": P("tensor", FSDP),
    "trained/head/kernel": P(FSDP, "tensor"),
    "trained/final_norm/scale": P(),
    f"{layers}/attention/qkv/kernel": P(None, FSDP, "tensor"),
    f"{layers}/attention/qkv/bias": P(None, "tensor"),
    f"{layers}/attention/out/kernel": P(None, "tensor", None, None, FSDP),
    f"{layers}/mlp/gate/kernel": P(None, FSDP, "tensor"),
    f"{layers}/mlp/up/kernel": P(None, FSDP, "tensor"),
    f"{layers}/mlp/down/kernel": P(None, "tensor", FSDP),
    f"{layers}/attention_norm/scale": P(),
    f"{layers}/mlp_norm/scale": P(),
  }


def test_experts_have_an_axis_of_their_own():
  model = _model(num_experts=4, expert_width=8, router_bias=True)
  specs = _specs(transformer.transformer_policy(model))
  experts = {
    name.rpartition("/")[2]: spec
    for name, spec in specs.items()
    if "experts" in name
  }
  assert experts == {
    "gate": P(None, "expert", "fsdp", "tensor"),
    "up": P(None, "expert", "fsdp", "tensor"),
    "down": P(None, "expert", "tensor", "fsdp"),
  }
  assert specs["frozen/router_bias"] == P()


@pytest.mark.parametrize("quantization", ["none", "int8", "nf4"])
def test_adapters_and_quantized_kernels_are_split_like_kernels(quantization):
  policy = lora.lora_policy(
    transformer.transformer_policy(_model(width=256, mlp_width=256)),
    lora.LoRAConfig(rank=2, quantization=quantization),
  )
  specs = _specs(policy)
  assert specs["trained/query/a"] == P(None, FSDP)
  assert specs["trained/query/b"] == P(None, None, "tensor")
  assert specs["trained/out/a"] == P(None, "tensor")
  assert specs["trained/down/b"] == P(None, None, FSDP)
  kernel = "frozen/base/layers/mlp/gate/kernel"
  if quantization == "none":
    assert specs[kernel] == P(None, FSDP, "tensor")
    return
  assert specs[f"{kernel}/{quantization}"] == P(None, FSDP, "tensor")
  # The scales of int8 have no axis of inputs.
  inputs = None if quantization == "int8" else FSDP
  assert specs[f"{kernel}/scale"] == P(None, inputs, "tensor")


def test_a_parameter_without_a_rule_is_refused():
  params = {"trained": {"layers": {"gadget": {"weight": jnp.ones((2, 2))}}}}
  with pytest.raises(
    KeyError, match=r"no rule says how to split .*gadget/weight \[2, 2\]"
  ):
    sharding.of_params(abstract_mesh(2), params)
  # One device splits nothing.
  sharding.of_params(abstract_mesh(), params)


def test_an_axis_that_does_not_split_is_named():
  params = {"embed": {"embedding": jnp.ones((6, 4))}}
  with pytest.raises(
    ValueError, match=r"axis 0 of embed/embedding \[6, 4\].*tensor 4: 6 / 4 is"
  ):
    sharding.of_params(abstract_mesh(tensor=4), params)


@pytest.mark.parametrize(
  ("model", "mesh", "message"),
  [
    ({}, {"tensor": 4}, r"num_kv_heads 2 does not split over tensor 4: 2 / 4"),
    ({"vocab_size": 31}, {"tensor": 2}, r"vocab_size 31 .* 31 / 2 is not"),
    ({"mlp_width": 23}, {"tensor": 2}, r"mlp_width 23 .* config\.mesh\.tensor"),
    ({"width": 24}, {"fsdp": 16}, r"width 24 .* fsdp 16 × expert 1"),
    ({}, {"expert": 2}, r"num_experts 0 .* of at least 1"),
    (
      {"num_experts": 3, "expert_width": 8},
      {"expert": 2},
      r"num_experts 3 does not split over expert 2",
    ),
  ],
)
def test_models_that_do_not_split_are_explained(model, mesh, message):
  with pytest.raises(ValueError, match=f"config.mesh: the model's {message}"):
    policy_lib.check_model(_model(**model), abstract_mesh(**mesh))


@pytest.mark.parametrize("name", list(known_models.MODELS))
def test_known_models_split_over_a_pod(name):
  """fsdp 16 and tensor by the key/value heads; experts over 8."""
  known = known_models.MODELS[name].config_json
  heads = known["num_key_value_heads"]
  experts = known.get("num_experts", 0)
  model = _model(
    vocab_size=known["vocab_size"],
    width=known["hidden_size"],
    num_heads=known["num_attention_heads"],
    num_kv_heads=heads,
    mlp_width=known["intermediate_size"],
    num_experts=experts,
    expert_width=known.get("moe_intermediate_size", 1),
  )
  mesh = abstract_mesh(2, 16, 8 if experts else 1, heads)
  policy_lib.check_model(model, mesh)
  params = jax.eval_shape(
    transformer.transformer_policy(model).init, jax.random.key(0)
  )
  whole = sum(x.size for x in jax.tree.leaves(params))
  places = sharding.of_params(mesh, params)
  part = sum(
    np.prod(place.shard_shape(x.shape))
    for x, place in zip(
      jax.tree.leaves(params), jax.tree.leaves(places), strict=True
    )
  )
  # All but norms is split over all axes but `data`.
  assert part < 1.01 * whole / (mesh.size / 2)


@pytest.mark.parametrize(
  ("name", "num_moments"), [("adamw", 2), ("muon", 1), ("adafactor", 0)]
)
def test_moments_lie_where_their_parameters_do(name, num_moments):
  """Adafactor's are of rows and columns: no rule is about them."""
  parts = tiny.make_phase(
    policy=transformer.transformer_policy(_model(width=32)),
    phase={"optimizer": phase.OptimizerConfig(name=name)},
  )
  state = jax.eval_shape(lambda: tiny.make_state(parts))
  places = sharding.of_state(abstract_mesh(2, 2, 2, 2), state)
  assert jax.tree.structure(places) == jax.tree.structure(state)
  found = _by_path(places.models["policy"].opt_state)
  moments = [
    spec
    for path, spec in found.items()
    if re.search(r"(mu|nu)/layers/mlp/gate/kernel$", path)
  ]
  assert moments == [P(None, FSDP, "tensor")] * num_moments
  counts = {spec for path, spec in found.items() if path.endswith("count")}
  assert counts == {P()}


def test_a_critic_lies_where_the_policy_does():
  policy = transformer.transformer_policy(_model(width=32))
  phase = tiny.make_phase("ppo", policy=policy)
  state = jax.eval_shape(lambda: tiny.make_state(phase))
  mesh = abstract_mesh(2, 2, 2, 2)
  places = sharding.of_state(mesh, state)
  assert jax.tree.structure(places) == jax.tree.structure(state)
  critic = dict(places.params["critic"]["trained"])
  assert {place.spec for place in critic.pop("value_head").values()} == {P()}
  theirs = places.params["policy"]["trained"]
  for name, mine in critic["trunk"].items():
    assert mine == theirs[name]
  found = _by_path(places.models["critic"].opt_state)
  moments = [
    spec
    for path, spec in found.items()
    if path.endswith("trunk/layers/mlp/gate/kernel")
  ]
  assert moments == [P(None, FSDP, "tensor")] * 2


def test_what_belongs_to_no_parameter_is_everywhere():
  phase = tiny.make_phase("lambda_grpo", policy=tiny.tiny_transformer())
  state = jax.eval_shape(lambda: tiny.make_state(phase))
  places = sharding.of_state(abstract_mesh(2), state)
  trees = places.params["algorithm"], places.algorithm_state, places.key
  leaves = jax.tree.leaves(trees)
  assert len(leaves) > 1
  assert all(place.spec == P() for place in leaves)


def test_abstract_has_shapes_and_places():
  mesh = sharding.make_mesh(1)
  tree = {"key": jax.random.key(0), "x": np.ones((2, 3), np.float16)}
  rows, whole = sharding.by_rows(mesh), sharding.replicated(mesh)
  abstract = sharding.abstract(tree, {"key": whole, "x": rows})
  assert abstract["x"].shape == (2, 3)
  assert abstract["x"].dtype == np.float16
  assert abstract["x"].sharding == rows
  assert abstract["key"].dtype == tree["key"].dtype
  again = sharding.abstract(tree, whole)
  assert all(leaf.sharding == whole for leaf in jax.tree.leaves(again))


def test_rows_of_a_process_come_back_as_they_were_fed():
  mesh = sharding.make_mesh(1)
  rows = sharding.by_rows(mesh)
  tree = {"a": np.arange(6).reshape(3, 2), "b": np.array([True, False, True])}
  placed = sharding.from_local(tree | {"scale": np.float32(2.0)}, rows)
  assert float(placed.pop("scale")) == 2.0
  jax.tree.map(np.testing.assert_array_equal, sharding.to_local(placed), tree)
  np.testing.assert_array_equal(sharding.local_rows(rows, 3), np.arange(3))
  assert sharding.num_rows(rows, 3) == 3
