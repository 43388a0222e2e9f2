"""A critic is a trunk and a number at its end."""

import functools

import jax
import numpy as np
import pytest

from grpo_jax.models import architecture
from grpo_jax.models.policies import critic as critic_lib
from grpo_jax.models.policies import lora
from tests.models import drawn
from tests.training import tiny

PROMPTS = tiny.make_prompts()
ROWS = (
  PROMPTS.tokens,
  PROMPTS.mask,
  np.array([[2, 3, 4], [5, 6, 1], [2, 2, 2], [3, 1, 0]]),
  np.array([[1, 1, 1], [1, 1, 1], [1, 1, 1], [1, 1, 0]], bool),
  np.arange(4),
)


@functools.partial(jax.jit, static_argnums=0)
def _values(critic, params, policy_params):
  trunk = critic.trunk_params(params, policy_params)
  return critic.head(params, critic.trunk.hidden(trunk, *ROWS)[0])


def _with_kernel(params):
  """Parameters with a kernel of the value head that is not 0."""
  head = params["trained"]["value_head"]
  kernel = np.arange(1, 1 + head["kernel"].size, dtype=np.float32)
  return {
    **params,
    "trained": {
      **params["trained"],
      "value_head": {"kernel": kernel, "bias": np.float32(0.5)},
    },
  }


@pytest.mark.slow
@pytest.mark.parametrize("trunk", architecture.CRITIC_TRUNKS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_values_are_linear_in_the_policys_states(trunk, dtype):
  policy = tiny.tiny_transformer(dtype=dtype)
  policy_params = drawn.params(policy)
  critic = critic_lib.make_critic(policy, trunk)
  params = critic.init(policy_params)
  first = np.asarray(_values(critic, params, policy_params))
  assert first.shape == (4, 3)
  assert first.dtype == np.float32
  assert not first.any()

  params = _with_kernel(params)
  h, _ = jax.jit(policy.hidden)(policy_params, *ROWS)
  np.testing.assert_allclose(
    _values(critic, params, policy_params),
    np.asarray(h, np.float32) @ np.arange(1.0, 9.0) + 0.5,
    rtol=1e-5,
  )


@pytest.mark.slow
def test_a_shared_trunk_gets_no_gradient_and_an_own_one_does():
  policy = tiny.tiny_transformer()
  policy_params = drawn.params(policy)
  for trunk, moves in (("shared", False), ("own", True)):
    critic = critic_lib.make_critic(policy, trunk)
    params = _with_kernel(critic.init(policy_params))
    of_params, of_policy = jax.grad(
      lambda x, y, critic=critic: _values(critic, x, y).sum(),
      (0, 1),
      allow_int=True,
    )(params, policy_params)
    assert not any(x.any() for x in jax.tree.leaves(of_policy))
    assert ("trunk" in of_params["trained"]) == moves
    slopes = jax.tree.leaves(of_params["trained"].get("trunk", {}))
    assert any(x.any() for x in slopes) == moves
    assert of_params["trained"]["value_head"]["kernel"].any()


@pytest.mark.slow
def test_an_own_trunk_is_a_copy_without_what_only_the_head_reads():
  policy = tiny.tiny_transformer(tied_embeddings=False)
  policy_params = drawn.params(policy)
  params = critic_lib.make_critic(policy).init(policy_params)
  trunk, theirs = params["trained"]["trunk"], dict(policy_params["trained"])
  del theirs["head"]
  assert jax.tree.structure(trunk) == jax.tree.structure(theirs)
  for mine, other in zip(*map(jax.tree.leaves, (trunk, theirs)), strict=True):
    assert mine is not other
    np.testing.assert_array_equal(mine, other)
  # The head of the policy may be given away.
  critic = critic_lib.make_critic(policy)
  values = _values(critic, params, {"trained": {}, "frozen": {}})
  assert not np.asarray(values).any()


def test_what_was_inherited_stays_as_it_was():
  """The policy's own goes on: the load of its experts is balanced."""
  policy = tiny.tiny_transformer()
  policy_params = drawn.params(policy)
  policy_params["frozen"] = {
    "router_bias": np.zeros((1, 3), np.float32),
    "base": np.zeros(2, np.float32),
  }
  critic = critic_lib.make_critic(policy)
  params = critic.init(policy_params)
  moved = jax.tree.map(lambda x: np.asarray(x) + 1, policy_params)
  trunk = critic.trunk_params(params, moved)["frozen"]
  np.testing.assert_array_equal(trunk["router_bias"], np.zeros((1, 3)))
  np.testing.assert_array_equal(trunk["base"], np.ones(2))


def test_frozen_parts_are_kept_apart():
  policy = tiny.tiny_transformer()
  policy_params = drawn.params(policy)
  critic = critic_lib.make_critic(policy, freeze=("attention", "embed"))
  params = critic.init(policy_params)
  trained, frozen = params["trained"]["trunk"], params["frozen"]["trunk"]
  assert frozen.keys() == {"layers", "embed"}
  assert frozen["layers"].keys() == {"attention"}
  assert "attention" not in trained["layers"]
  assert "embed" not in trained
  merged = critic.trunk_params(params, policy_params)["trained"]
  jax.tree.map(np.testing.assert_array_equal, merged, policy_params["trained"])


@pytest.mark.slow
def test_the_base_of_adapters_is_shared():
  config = lora.LoRAConfig(rank=2, alpha=4.0)
  policy = lora.lora_policy(tiny.tiny_transformer(), config)
  policy_params = drawn.params(policy)
  critic = critic_lib.make_critic(policy)
  params = critic.init(policy_params)
  assert "base" not in params["frozen"]["inherited"]
  assert params["trained"]["trunk"].keys() == policy_params["trained"].keys()
  trunk = critic.trunk_params(params, policy_params)
  base = policy_params["frozen"]["base"]
  assert trunk["frozen"]["base"] is base
  assert _values(critic, params, policy_params).shape == (4, 3)


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"trunk": "twin"}, "trunk is 'twin'; choose one of own, shared"),
    ({"trunk": "shared", "freeze": ("embed",)}, "a shared one is the policy's"),
    ({"freeze": ("attn",)}, "freeze has attn, and no .* known are .*attention"),
  ],
)
def test_errors_say_what_there_is(options, message):
  policy = tiny.tiny_transformer()

  def make():
    critic = critic_lib.make_critic(policy, **options)
    critic.init(drawn.params(policy))

  with pytest.raises(ValueError, match=message):
    make()
