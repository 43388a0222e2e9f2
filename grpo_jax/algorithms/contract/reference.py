"""Comparison of a loss with a reference of the same paper, in NumPy.

The parameters of a reference name its inputs: each parameter is filled with the
array of the case, or the field of the config, of the same name.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from grpo_jax.algorithms.contract import cases, checks
from grpo_jax.types import Algorithm

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def filled(
  function: Callable[..., Any],
  arrays: Mapping[str, Any],
  config: Any,
  **more: Any,
) -> Any:
  """Calls a reference with the inputs that its parameters name."""
  settings = {
    f.name: getattr(config, f.name) for f in dataclasses.fields(config)
  }
  inputs = {**settings, **arrays, **more}
  parameters = inspect.signature(function).parameters.values()
  unknown = [
    p.name
    for p in parameters
    if p.name not in inputs and p.default is p.empty and p.kind not in _VARIADIC
  ]
  if unknown:
    near = difflib.get_close_matches(unknown[0], inputs, n=1)
    raise TypeError(
      f"{function.__name__} ({checks.place_of(function)}) has the parameter"
      f" {unknown[0]!r}, which is neither an array nor a setting."
      + (f" Did you mean {near[0]!r}?" if near else "")
      + f" Arrays are {', '.join(sorted(inputs.keys() - settings.keys()))};"
      f" settings are {', '.join(sorted(settings))}."
    )
  names = (p.name for p in parameters)
  return function(**{name: inputs[name] for name in names if name in inputs})


def compare(
  algorithm: Algorithm,
  config: Any,
  loss: Callable[..., float],
  advantages: Callable[..., Any] | None = None,
  seed: int = 0,
) -> None:
  """Compares value and gradient of a loss with its reference in float64.

  Args:
    algorithm: The algorithm to check.
    config: Config of the algorithm.
    loss: Reference of the whole loss, with KL and entropy terms if the config
      has them, of float64 arrays; `cases.Case` has their names, and
      `advantages` are those of the next argument. `mask` has the trained
      tokens.
    advantages: Reference of the advantages; None: the algorithm's advantages.
    seed: Seed of the batch.

  Raises:
    AssertionError: Values or gradients differ; the message says by how much.
  """
  case = cases.make_case(seed, spread=0.3, dtype=np.float64)
  with jax.enable_x64(True):
    outcome = cases.evaluate(algorithm, config, case)
  arrays: dict[str, Any] = {
    field.name: getattr(case, field.name) for field in dataclasses.fields(case)
  }
  arrays["component_weights"] = np.array(cases.WEIGHTS)
  arrays["mask"] = mask = np.asarray(outcome.mask)
  expected = outcome.advantages
  if advantages is not None:
    expected = np.asarray(filled(advantages, arrays, config), np.float64)
    trained = mask if expected.ndim == 2 else mask.any(axis=1)
    _assert_close(
      "advantages",
      np.where(trained, outcome.advantages, 0.0),
      np.where(trained, expected, 0.0),
      1e-9,
      1e-8,
    )
  arrays["advantages"] = expected

  def of(logp: np.ndarray) -> float:
    value = filled(loss, arrays, config, logp=logp)
    if np.shape(value) != () or value is None:
      raise TypeError(
        f"{loss.__name__} ({checks.place_of(loss)}) returned"
        f" {type(value).__name__} of shape {np.shape(value)}; needs the"
        " loss of the batch, one number."
      )
    return float(value)

  _assert_close(
    f"loss{_unread(config, loss)}",
    *(outcome.loss, of(case.logp), 1e-9, 1e-12),
  )
  slope = _slope(of, case.logp)
  _assert_close("gradient", outcome.gradient, slope, 1e-5, 1e-8)


def _unread(config: Any, loss: Callable[..., float]) -> str:
  """Names the terms of the config that a reference does not read."""
  names = inspect.signature(loss).parameters
  unread = [
    f"{name}={getattr(config, name)}"
    for name in ("kl_coef", "entropy_coef", "positive_nll_coef")
    if getattr(config, name, 0.0) and name not in names
  ]
  if not unread:
    return ""
  terms = ", ".join(unread)
  return f" (the config has {terms}, which the reference leaves out)"


def _assert_close(
  what: str, value: np.ndarray, target: Any, rtol: float, atol: float
) -> None:
  """Raises AssertionError with the largest difference."""
  value, target = np.asarray(value), np.asarray(target)
  if value.shape != target.shape:
    raise AssertionError(
      f"{what}: the algorithm has the shape {value.shape}, the reference"
      f" {target.shape}"
    )
  good = np.isclose(value, target, rtol, atol, equal_nan=True)
  if good.all():
    return
  gap = np.where(good, -1.0, np.nan_to_num(np.abs(value - target), nan=np.inf))
  worst = np.unravel_index(gap.argmax(), gap.shape)
  place = f" at {[int(i) for i in worst]}" if worst else ""
  raise AssertionError(
    f"{what}: the algorithm has {value[worst]:.10g}, the reference"
    f" {target[worst]:.10g}{place}; {(~good).sum()} of {good.size} differ by"
    f" more than {rtol:g} of the value + {atol:g}"
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
