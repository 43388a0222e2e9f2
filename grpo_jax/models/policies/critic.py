"""Critics made from a policy: its trunk, or a copy of it, with a value head.

The value of a state is a linear function of the hidden state from which the
policy would predict the next token. The head starts at 0, so that the first
advantages are returns without a baseline.

A reward model is a critic whose values come after each token instead of before:
its value at a completion's end token is a score of the whole completion.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from grpo_jax.models import architecture
from grpo_jax.ops import masked
from grpo_jax.types import Critic, Policy, PyTree


def make_critic(
  policy: Policy, trunk: str = "own", freeze: Sequence[str] = ()
) -> Critic:
  """A critic for the states of a policy.

  Args:
    policy: The policy whose states are valued.
    trunk: "own": a copy of the policy, which is trained apart from it. The base
      of adapters is not copied; policy and critic have adapters of their own.
      The load of experts is balanced in the policy only; `freeze` may keep the
      "router" as it was.
      "shared": the policy's hidden states, as constants; the critic is a head.
    freeze: Names in the paths of parameters of an own trunk, such as
      "attention" or "embed", that keep the policy's values.

  Raises:
    ValueError: The trunk is unknown, or `freeze` is set with a shared trunk;
      or, from `init`, no parameter has such a name.
  """
  if trunk not in architecture.CRITIC_TRUNKS:
    raise ValueError(
      f"make_critic: trunk is {trunk!r}; choose one of"
      f" {', '.join(architecture.CRITIC_TRUNKS)}."
    )
  is_shared = trunk == "shared"
  if is_shared and freeze:
    raise ValueError(
      f"make_critic: freeze={tuple(freeze)} is about a trunk that is trained,"
      " and a shared one is the policy's; leave it empty, or use trunk='own'."
    )
  if is_shared:
    init, trunk_params = _init_shared, _shared_trunk
  else:
    init = functools.partial(
      _init_own, freeze=tuple(freeze), unread=policy.only_head
    )
    trunk_params = _own_trunk
  return Critic(
    trunk=policy,
    is_shared=is_shared,
    init=functools.partial(_with_head, policy, init),
    trunk_params=trunk_params,
    head=_head,
  )


def make_reward_model(
  policy: Policy, freeze: Sequence[str] = (), is_alone: bool = False
) -> Critic:
  """A critic with a trunk of its own, whose values are those after each token.

  Args:
    policy: The trunk.
    freeze: As in `make_critic`.
    is_alone: Whether the reward model comes from outside of the run, and shares
      no parameter with the run's policy.
  """
  base = make_critic(after_tokens(policy), "own", freeze)
  return dataclasses.replace(base, trunk_params=_alone) if is_alone else base


def reward_params(
  trunk: PyTree,
  frozen: PyTree,
  head: PyTree,
  freeze: Sequence[str] = (),
) -> PyTree:
  """Parameters of a reward model that was not made from the run's policy.

  Args:
    trunk: Parameters of its trunk, which no other model shares.
    frozen: The group "frozen" of the trunk's policy.
    head: Kernel [D] and bias [].
    freeze: As in `make_critic`.

  Raises:
    ValueError: No parameter of the trunk has such a name.
  """
  params = _split(trunk, tuple(freeze))
  return {
    "trained": {**params["trained"], "value_head": head},
    "frozen": {**params["frozen"], "inherited": frozen},
  }


def parted_anew(params: PyTree, freeze: Sequence[str]) -> PyTree:
  """Parameters of a reward model, with a new choice of frozen parts."""
  trained, frozen = params["trained"], params["frozen"]
  trunk = _merge(trained["trunk"], frozen.get("trunk", {}))
  inherited = frozen.get("inherited", {})
  return reward_params(trunk, inherited, trained["value_head"], freeze)


def after_tokens(policy: Policy) -> Policy:
  """The policy with a `hidden` that returns states after completion tokens.

  The trunk is run over one more slot, and the first state, which has read no
  completion token, is dropped. Recorded choices of experts are not used.
  """

  def hidden(
    params,
    prompt_tokens,  # [P, S]
    prompt_mask,  # [P, S]
    tokens,  # [B, T]
    completion_mask,  # [B, T]
    prompt_index,  # [B]
    extras=None,
    prefix=None,
  ):
    images = {k: v for k, v in (extras or {}).items() if k == "images"}
    h, _ = policy.hidden(
      params,
      prompt_tokens,
      prompt_mask,
      jnp.pad(tokens, ((0, 0), (0, 1))),
      jnp.pad(completion_mask, ((0, 0), (0, 1))),
      prompt_index,
      images or None,
      prefix,
    )
    return h[:, 1:], None

  return dataclasses.replace(policy, hidden=hidden)


def _with_head(policy: Policy, init, policy_params: PyTree) -> PyTree:
  params = init(policy_params)
  width = _width(policy, policy_params)
  head = {"kernel": jnp.zeros(width), "bias": jnp.zeros(())}
  return {**params, "trained": {**params["trained"], "value_head": head}}


def _width(policy: Policy, policy_params: PyTree) -> int:
  """Width D of the hidden states."""
  token = jax.ShapeDtypeStruct((1, 1), jnp.int32)
  exists = jax.ShapeDtypeStruct((1, 1), bool)
  row = jax.ShapeDtypeStruct((1,), jnp.int32)
  h, _ = jax.eval_shape(
    policy.hidden, policy_params, token, exists, token, exists, row
  )
  return h.shape[-1]


def _head(params: PyTree, h: jax.Array) -> jax.Array:  # [..., D] -> [...]
  head = params["trained"]["value_head"]
  h = masked.wide(h)
  product = jnp.matmul(h, head["kernel"], precision=lax.Precision.HIGHEST)
  return product + head["bias"]


def _init_shared(policy_params: PyTree) -> PyTree:
  del policy_params
  return {"trained": {}, "frozen": {}}


def _shared_trunk(params: PyTree, policy_params: PyTree) -> PyTree:
  del params
  return lax.stop_gradient(policy_params)


def _init_own(
  policy_params: PyTree, freeze: tuple[str, ...], unread: tuple[str, ...]
) -> PyTree:
  """A copy of the policy's parameters, because a step donates the originals."""
  trunk = {
    name: value
    for name, value in policy_params["trained"].items()
    if name not in unread
  }
  # Frozen base and tower are not copied: they are read from the policy.
  own = {
    k: v
    for k, v in policy_params["frozen"].items()
    if k not in ("base", "tower")
  }
  params = jax.tree.map(jnp.copy, _split(trunk, freeze))
  inherited = jax.tree.map(jnp.copy, own)
  return {**params, "frozen": {**params["frozen"], "inherited": inherited}}


def _split(trunk: PyTree, freeze: tuple[str, ...]) -> PyTree:
  """Splits a trunk into trees of trained and of frozen parameters."""
  names = {
    _key(entry)
    for path, _ in jax.tree_util.tree_leaves_with_path(trunk)
    for entry in path
  }
  if unknown := set(freeze) - names:
    raise ValueError(
      f"make_critic: freeze has {', '.join(sorted(unknown))}, and no parameter"
      f" of the trunk is called so; known are {', '.join(sorted(names))}."
    )

  def part(is_frozen):
    def keep(path, leaf):
      frozen = any(_key(entry) in freeze for entry in path)
      return leaf if frozen == is_frozen else None

    return _without_none(jax.tree_util.tree_map_with_path(keep, trunk))

  return {"trained": {"trunk": part(False)}, "frozen": {"trunk": part(True)}}


def _own_trunk(params: PyTree, policy_params: PyTree) -> PyTree:
  return {
    "trained": _merge(params["trained"]["trunk"], params["frozen"]["trunk"]),
    "frozen": {**policy_params["frozen"], **params["frozen"]["inherited"]},
  }


def _alone(params: PyTree, policy_params: PyTree) -> PyTree:
  del policy_params
  return _own_trunk(params, {"frozen": {}})


def _key(entry) -> str:
  return str(getattr(entry, "key", entry))


def _without_none(tree):
  """A tree of dictionaries without its empty branches."""
  if not isinstance(tree, dict):
    return tree
  children = {name: _without_none(value) for name, value in tree.items()}
  return {
    name: value
    for name, value in children.items()
    if value is not None and not (isinstance(value, dict) and not value)
  }


def _merge(x: PyTree, y: PyTree) -> PyTree:
  """Merges two trees of dictionaries that have no leaf in common."""
  both = x.keys() & y.keys()
  return {**x, **y, **{name: _merge(x[name], y[name]) for name in both}}
