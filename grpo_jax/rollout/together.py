"""One program for several policies that share their frozen parameters.

    program = jax.jit(together.program(function))
    (result,) = program(frozen, first)  # function(frozen, first)
    results = program(frozen, first, second)  # Of both, at once.

What is a policy's own (adapters, rows) gets an axis of policies, over which
the function is mapped. Frozen parameters have no such axis. So a product with
them is one product for the rows of all policies, and they are read once.

A result is that of the function to the round-off of its products: how the
compiler orders their sums may depend on the number of rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from grpo_jax.types import PyTree


def program(function: Callable[[PyTree, PyTree], Any]) -> Callable[..., Any]:
  """Makes a function of several policies from that of one.

  Args:
    function: Function of what they share, and of what is a policy's own. If it
      has a loop or a branch, the condition is made with `resumed.any_of_all`;
      else each turn copies the state of the loop.

  Returns:
    A function of what they share, and of what is each policy's own, all of
    equal shapes. It returns a list with the result of each.
  """

  def together(shared: PyTree, *own: PyTree) -> list[Any]:
    if len(own) == 1:
      return [function(shared, *own)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *own)
    results = jax.vmap(functools.partial(function, shared))(stacked)
    return [jax.tree.map(lambda x, i=i: x[i], results) for i in range(len(own))]

  return together
