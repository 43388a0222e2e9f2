"""A loss beside another one of the same paper, written in NumPy.

A reference names what it reads: each parameter is filled with the array of the
case, or with the field of the config, that has its name.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from grpo_jax.contract import cases
from grpo_jax.types import Algorithm


def filled(
  function: Callable[..., Any],
  arrays: Mapping[str, Any],
  config: Any,
  **given: Any,
) -> Any:
  """Calls a reference with whatever its parameters name."""
  known = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
  known = {**known, **arrays, **given}
  names = inspect.signature(function).parameters
  return function(**{name: known[name] for name in names if name in known})


def compare(
  algorithm: Algorithm,
  config: Any,
  loss: Callable[..., float],
  advantages: Callable[..., Any] | None = None,
  seed: int = 0,
) -> None:
  """Compares value and gradient in float64.

  Args:
    algorithm: What is checked.
    config: Its config.
    loss: The whole loss, with KL and entropy terms where the config has them,
      of float64 arrays; `cases.Case` has their names, and `advantages` are
      those of the next argument. `mask` has the trained tokens.
    advantages: The same of the advantages; None: those of the algorithm.
    seed: Of the batch.

  Raises:
    AssertionError: They differ; says which, and by how much.
  """
  case = cases.make_case(seed, spread=0.3, dtype=np.float64)
  with jax.enable_x64(True):
    outcome = cases.evaluate(algorithm, config, case)
  arrays: dict[str, Any] = {
    field.name: getattr(case, field.name) for field in dataclasses.fields(case)
  }
  arrays["component_weights"] = np.array(cases.WEIGHTS)
  arrays["mask"] = mask = np.asarray(outcome.mask)
  found = outcome.advantages
  if advantages is not None:
    found = np.asarray(filled(advantages, arrays, config), np.float64)
    trained = mask if found.ndim == 2 else mask.any(axis=1)
    np.testing.assert_allclose(
      np.where(trained, outcome.advantages, 0.0),
      np.where(trained, found, 0.0),
      1e-9,
      1e-8,
      err_msg="advantages",
    )
  arrays["advantages"] = found

  def of(logp: np.ndarray) -> float:
    return float(filled(loss, arrays, config, logp=logp))

  np.testing.assert_allclose(
    outcome.loss, of(case.logp), 1e-9, 1e-12, err_msg="loss"
  )
  np.testing.assert_allclose(
    outcome.gradient, _slope(of, case.logp), 1e-5, 1e-8, err_msg="gradient"
  )


def _slope(
  function: Callable[[np.ndarray], float], x: np.ndarray, eps: float = 1e-6
) -> np.ndarray:  # the shape of x
  """Central differences, one entry of x at a time."""
  x = x.copy()
  slope = np.zeros_like(x)
  for index in itertools.product(*(range(size) for size in x.shape)):
    centre = x[index]
    x[index] = centre + eps
    above = function(x)
    x[index] = centre - eps
    slope[index] = (above - function(x)) / (2 * eps)
    x[index] = centre
  return slope
