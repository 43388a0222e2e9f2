"""A step with long completions, compiled for four TPUs that are not there.

Run by `make test-tpu-aot`. A CPU does not show what grows with the square of
the length, nor what is whole on each device where devices could share it.
"""

import dataclasses
import math

import pytest

from experiments.pods import chips, held, hlo, recorded, steps
from grpo_jax.settings import config as config_lib

# More than any other size of the model.
TOKENS = 2048
WIDTH, LAYERS = recorded.WIDTH, recorded.LAYERS


@pytest.fixture(scope="module")
def config() -> config_lib.RunConfig:
  """fsdp 2 x tensor 2, and one row of a device at a time."""
  config = recorded.pod_config(num_prompts=2, group_size=2, micro_batch_size=2)
  return dataclasses.replace(
    config,
    sampling=dataclasses.replace(config.sampling, max_new_tokens=TOKENS),
    model=dataclasses.replace(config.model, split_positions=True),
  )


@pytest.fixture(scope="module")
def compiled(config) -> steps.Compiled:
  """Its step."""
  of = chips.parse("v5e:2x2")
  return steps.compile_step(config, chips.devices(of))


@pytest.fixture(scope="module")
def shapes(compiled) -> set[tuple[int, ...]]:
  """Shapes of all arrays of the program."""
  module = hlo.parse(compiled.text)
  return {
    array.dims
    for computation in module.computations.values()
    for one in computation.instructions.values()
    for array in one.arrays
  }


def test_no_array_has_a_number_for_each_pair_of_tokens(shapes):
  """Not for all heads at once, and not for one of them."""
  assert any(TOKENS in dims for dims in shapes)
  assert [dims for dims in shapes if math.prod(dims) >= TOKENS**2] == []


def test_devices_share_what_layers_hand_on(shapes):
  """Each device keeps half of a row's positions for the backward pass."""
  assert (LAYERS, 1, TOKENS // 2, WIDTH) in shapes
  assert (LAYERS, 1, TOKENS, WIDTH) not in shapes


def test_the_estimate_of_memory_knows_what_devices_share(config, shapes):
  """It counts less for a device, by at least an array that the program has."""

  def kept(config: config_lib.RunConfig) -> int:
    table = held.table(config, held.mesh_of(config, num_devices=4))
    return table["kept for the backward pass"][1]

  of_device = LAYERS, 1, TOKENS // 2, WIDTH
  assert of_device in shapes
  model = dataclasses.replace(config.model, split_positions=False)
  whole = kept(dataclasses.replace(config, model=model))
  # Of two devices each has this, in two bytes a number, and not twice as much.
  assert whole - kept(config) >= 2 * math.prod(of_device)
  assert 2 * kept(config) >= whole


def test_products_of_the_kernel_are_counted(compiled):
  """Those of half of the pairs of tokens, which the causal mask shows."""
  analysis = steps.analyze(compiled)
  assert analysis.kernels == {}
  # A device has 2 rows and 2 heads, which are 64 wide. Forward and again there
  # are 2 products of all pairs; for the gradients of queries 3, of keys 4.
  pairs = 2 * 2 * TOKENS**2 / 2
  least = 2 * (2 + 2 + 3 + 4) * pairs * 64 * LAYERS
  assert analysis.phases["update"].flops > least
