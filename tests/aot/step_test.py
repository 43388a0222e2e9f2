"""The whole step, compiled for four TPUs that are not there.

Run by `make test-tpu-aot`. What is asserted here cannot be seen on a CPU, and
nothing else in the tests would notice if it were lost.
"""

import contextlib
import dataclasses
import functools
import json

import jax
import pytest

from experiments.pods import chips, costs, recorded, report, steps
from grpo_jax.models import transformer
from grpo_jax.rollout import sampling
from grpo_jax.step import models, step
from grpo_jax.training.phases import checkpointed
from grpo_jax.training.phases import policy as policy_lib
from grpo_jax.training.runtime import sharding
from grpo_jax.types import Sampler

WIDTH, LAYERS = recorded.WIDTH, recorded.LAYERS
MLP, PROMPT, NEW = recorded.MLP, recorded.PROMPT, recorded.NEW

# Of a device, for each step of the token loop: a few times the activations of
# its 16 rows in bfloat16.
TOKEN_BYTES = (4 * LAYERS + 2) * 16 * WIDTH * 2


def per_token(analysis: costs.Analysis) -> float:
  """Bytes that a device sends for each step of the token loop."""
  loop = [one for one in analysis.collectives if one.in_token_loop]
  return sum(one.sent for one in loop) / (NEW - 1)


@pytest.fixture(scope="module")
def target() -> steps.Target:
  of = chips.parse("v5e:2x2")
  return steps.Target(of, 1, chips.devices(of))


@pytest.fixture(scope="module")
def compiled(target) -> steps.Compiled:
  return steps.compile_step(recorded.pod_config(), target.devices)


@pytest.fixture(scope="module")
def analysis(compiled):
  return steps.analyze(compiled)


def test_the_state_is_donated_whole(compiled):
  """Each of its arrays lies where the old one did."""
  state = sum(
    steps.hbm(compiled)[kind]
    for kind in ("parameters", "optimizer", "reference")
  )
  # Layouts may pad, and counters and keys come on top.
  assert compiled.program.memory_analysis().alias_size_in_bytes >= state


def test_no_weight_is_gathered_for_a_token(analysis):
  assert analysis.weight_gathers == []


def sampled(target, change) -> costs.Analysis:
  """Costs of the rollout alone, of a policy that was changed."""
  config = recorded.pod_config()
  with contextlib.closing(steps.make_problem(config)) as problem:
    mesh = sharding.make_mesh(
      **dataclasses.asdict(config.mesh), devices=target.devices
    )
    with jax.set_mesh(mesh):
      policy = policy_lib.make_policy(config, problem, mesh)
      phases = checkpointed.make_phases(config, problem, policy, mesh)
      phase = phases[-1].phase
      changed = functools.partial(sampling.sample, change(phase.policy, mesh))
      play = models.by_policy(changed, **phase.sampler.sample.keywords)
      state = checkpointed.abstract_state(
        phases, checkpointed.abstract_start(policy, 0)
      )
      state = sharding.abstract(state, sharding.of_state(mesh, state))
      prompts = sharding.abstract(phases[-1].prompts, sharding.by_rows(mesh))
      function = functools.partial(
        step.sample_stage,
        phase=dataclasses.replace(phase, sampler=Sampler(play)),
      )
      text = jax.jit(function).lower(state, prompts).compile().as_text()
  return costs.analyze(text, steps.PHASES, most_tokens=NEW - 1)


def split_weights(params):
  """Without the reshard. The vocabulary is nothing to `weights`."""
  model = recorded.pod_config().model.transformer(64)
  return transformer.transformer_policy(model).weights(params)


def test_a_reshard_in_the_loop_instead_of_before_it_is_found(target):
  """The detector finds what the test above says is not there."""

  def change(policy, mesh):
    whole = sharding.replicated(mesh)

    def decode(weights, tokens, *inputs):
      split = sharding.of_params(mesh, weights)
      weights = jax.lax.with_sharding_constraint(weights, split)
      # Else the compiler takes the gathers out of the loop by itself.
      weights, tokens = jax.lax.optimization_barrier((weights, tokens))
      weights = jax.lax.with_sharding_constraint(weights, whole)
      return policy.decode(weights, tokens, *inputs)

    return dataclasses.replace(policy, weights=split_weights, decode=decode)

  found = sampled(target, change).weight_gathers
  # At least the MLPs of all layers, in each of the steps.
  assert sum(one.count * one.bytes for one in found) >= (
    (NEW - 1) * LAYERS * 3 * WIDTH * MLP * 2
  )


def test_no_reshard_at_all_breaks_the_budget_of_a_token(target):
  """With few rows the compiler then sums activations, and gathers nothing."""
  found = sampled(
    target, lambda policy, _: dataclasses.replace(policy, weights=split_weights)
  )
  assert per_token(found) > TOKEN_BYTES


def test_nothing_waits_for_the_host(analysis):
  assert analysis.transfers == []


def test_the_token_loop_has_its_bound_and_may_end_early(analysis):
  (loop,) = (
    loop for loop in analysis.loops if loop.op_name.endswith("decode/while")
  )
  assert (loop.trips, loop.is_bound) == (NEW - 1, True)
  assert analysis.unresolved == []


def test_a_token_sends_no_more_than_its_activations(analysis):
  """The budget is what was found: 12 of a layer, and 5 to embed and to draw."""
  loop = [one for one in analysis.collectives if one.in_token_loop]
  assert sum(one.count for one in loop) <= (NEW - 1) * (12 * LAYERS + 6)
  assert per_token(analysis) <= TOKEN_BYTES


def test_no_device_receives_the_prompts_of_another(target):
  """A lookup of prompts by rows would send all of them to each device.

  What the pod has of them grows with the pod: at 8 192 chips these were 33 MB
  of tokens, which the compiler sent beside the token loop.
  """
  num_prompts = 32
  config = recorded.pod_config(num_prompts=num_prompts, micro_batch_size=64)
  config = dataclasses.replace(
    config,
    mesh=type(config.mesh)(data=4),  # Weights are on all, and never sent.
    model=dataclasses.replace(config.model, num_layers=1),
  )
  found = steps.analyze(steps.compile_step(config, target.devices))
  # A sum over groups is no copy; a few numbers of each prompt are gathered.
  sent = {
    (one.kind, one.op_name): one.bytes
    for one in found.collectives
    if one.kind != "all-reduce"
  }
  assert max(sent.values(), default=0) < num_prompts * PROMPT, sent
  loop = [one for one in found.collectives if one.in_token_loop]
  assert {one.kind for one in loop} == {"all-reduce"}
  assert max(one.bytes for one in loop) <= 512


def test_operations_are_those_of_the_model(analysis):
  """Against the formula: 2 for each weight and token, 3 times as many to learn.

  Within a quarter: attention, the vocabulary and what remat saves of the last
  layer are left out of it.
  """
  heads = 2 * WIDTH * WIDTH + 2 * WIDTH * (WIDTH // 2)
  weights = LAYERS * (heads + 3 * WIDTH * MLP)
  tokens = 8 * 4 * NEW
  each = 2 * weights / 4  # Of one of four devices.
  flops = {name: costs.flops for name, costs in analysis.phases.items()}
  assert flops["decode"] == pytest.approx(each * tokens, rel=0.25)
  assert flops["reference"] == pytest.approx(each * tokens, rel=0.4)
  # Forward, again (remat), and backward twice.
  assert flops["update"] == pytest.approx(4 * each * tokens, rel=0.4)


def test_the_report_fits_a_terminal_and_a_file(compiled, target):
  config = recorded.pod_config()
  results = {
    "date": "2026-01-01T00:00+00:00",
    "jax": jax.__version__,
    "libtpu": "0",
    "config": "tests",
    "model": "",
    "topology": target.slice.topology,
    "product": target.slice.product,
    "slices": 1,
    "chips": 4,
    "devices": 4,
    "mesh": {"data": 1, "fsdp": 2, "expert": 1, "tensor": 2},
    "num_prompts": config.section("rl").num_prompts,
    "group_size": config.section("rl").group_size,
    "micro_batch_size": config.section("rl").micro_batch_size,
    "micro_batches": 2,
    "update": "update of rl: in words.",
    "hbm_of_chip": target.slice.chip.hbm,
    "fits": True,
    **steps.of_program(compiled, target),
  }
  text = report.table(json.loads(json.dumps(results)))
  assert [line for line in text.splitlines() if len(line) > 80] == []
  assert "fits: yes" in text
  assert "weights gathered for each token: 0" in text


def test_what_does_not_fit_is_refused_with_what_the_compiler_says(target):
  config = recorded.pod_config(num_prompts=2**18)
  with pytest.raises(steps.TooLargeError, match=r"15\.75G"):
    steps.compile_step(config, target.devices)


@pytest.mark.parametrize("product", ["v5litepod-64", "v6e-64", "v5p-128"])
def test_an_axis_may_be_a_part_of_one_of_the_torus(product):
  devices = chips.devices(chips.parse(product))
  mesh = sharding.make_mesh(fsdp=16, tensor=4, devices=devices)
  assert mesh.shape == {"data": 1, "fsdp": 16, "expert": 1, "tensor": 4}
  # Devices that share the heads are neighbours.
  for group in mesh.devices.reshape(16, 4):
    spread = [
      max(axis) - min(axis)
      for axis in zip(*(d.coords for d in group), strict=True)
    ]
    assert max(spread) <= 3, spread


def test_a_small_step_costs_what_is_recorded(compiled):
  found = {"pod": recorded.of_compiled("pod", compiled)}
  text, agree = recorded.compare(recorded.read(), found)
  assert agree, text


def test_a_step_on_two_slices_costs_what_is_recorded():
  text, agree = recorded.compare(
    recorded.read(), {"slices": recorded.measure("slices")}
  )
  assert agree, text
