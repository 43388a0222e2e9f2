"""Properties of every algorithm; each function raises AssertionError.

Each takes an algorithm and its config, and checks the loss of a batch and its
gradient with respect to the log-probs.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Collection
from typing import Any

import jax
import numpy as np

from grpo_jax.algorithms import options
from grpo_jax.algorithms.contract import cases
from grpo_jax.ops import aggregation
from grpo_jax.types import Algorithm, Weighted

GARBAGE = (np.nan, np.inf, -np.inf, -1e9, 1e9)
SHIFTS = (30.0, -30.0, 100.0, -100.0)  # Nats.


def assert_same(
  actual: cases.LossResult, expected: cases.LossResult, rtol: float = 1e-5
) -> None:
  """Asserts that loss and gradient agree up to round-off."""
  np.testing.assert_allclose(actual.loss, expected.loss, rtol, 1e-7)
  np.testing.assert_allclose(actual.gradient, expected.gradient, rtol, 1e-7)


def assert_finite(outcome: cases.LossResult) -> None:
  """Asserts that loss and gradient are finite."""
  assert np.isfinite(outcome.loss), f"the loss is {outcome.loss}"
  assert np.isfinite(outcome.gradient).all(), "the gradient is not finite"


def functions_return_what_is_needed(algorithm: Algorithm, config: Any) -> None:
  """Functions return a number per row or token; `aggregate`, total and weight.

  Nothing is computed: a wrong shape would be an error elsewhere.
  """
  case = cases.make_case()
  per_row = [(len(case.mask),), case.mask.shape]

  def checked(name: str, form: str, fits: Callable[[Any], bool]) -> Any:
    function = getattr(algorithm, name)
    if function is None:
      return None

    def call(*arguments):
      try:
        inspect.signature(function).bind(*arguments)
      except TypeError as error:
        raise AssertionError(
          f"{name} ({place_of(function)}) has the arguments"
          f" {inspect.signature(function)}: {error}"
        ) from error
      output = function(*arguments)
      shape = getattr(output, "shape", None)
      assert fits(output), (
        f"{name} ({place_of(function)}) returned"
        f" {type(output).__name__ if shape is None else f'the shape {shape}'};"
        f" needs {form}"
      )
      return output

    return call

  def has_rows(output: Any) -> bool:
    return getattr(output, "shape", None) in per_row

  array = "an array [B] or [B, T], here {} or {}".format(*per_row)
  guarded = dataclasses.replace(
    algorithm,
    advantages=checked("advantages", array, has_rows),
    policy_loss=checked("policy_loss", array, has_rows),
    critic_loss=checked("critic_loss", array, has_rows),
    aggregate=checked(
      "aggregate",
      "Weighted(total, weight), two scalars that are not divided yet",
      lambda value: isinstance(value, Weighted) and np.shape(value.total) == (),
    ),
  )
  terms = functools.partial(cases.terms_of, guarded, config)
  jax.eval_shape(terms, cases.arrays_of(case))


def place_of(function: Any) -> str:
  """File and line of a function, or its name if they are not known."""
  while isinstance(function, functools.partial):
    function = function.func
  code = getattr(inspect.unwrap(function), "__code__", None)
  return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(function)


def has_a_gradient(algorithm: Algorithm, config: Any) -> None:
  """The loss is finite and moves with the log-probs."""
  outcome = cases.evaluate(algorithm, config, cases.make_case())
  assert_finite(outcome)
  assert outcome.gradient.any(), "the gradient is 0 everywhere"


def masked_garbage_reaches_neither_loss_nor_gradient(
  algorithm: Algorithm, config: Any
) -> None:
  """Numbers behind the mask, also NaN, do not change a bit."""
  case = cases.make_case()
  clean = cases.evaluate(algorithm, config, case)
  assert np.any(clean.gradient != 0)
  for value in GARBAGE:
    everywhere: dict[str, Any] = {
      field: np.where(case.mask, getattr(case, field), value)
      for field in cases.TOKEN_FIELDS
    }
    dirty = dataclasses.replace(case, **everywhere)
    outcome = cases.evaluate(algorithm, config, dirty)
    np.testing.assert_array_equal(outcome.loss, clean.loss)
    np.testing.assert_array_equal(outcome.gradient, clean.gradient)


def unscored_rows_are_out(algorithm: Algorithm, config: Any) -> None:
  """An unscored row has no gradient, and does not change other gradients."""
  case = cases.make_case()
  clean = cases.evaluate(algorithm, config, case)
  for value in (1e9, np.nan):
    dirty = dataclasses.replace(
      case,
      rewards=np.where(case.valid, case.rewards, value),
      components=np.where(case.valid[:, None], case.components, value),
    )
    outcome = cases.evaluate(algorithm, config, dirty)
    assert not outcome.gradient[~case.valid].any()
    assert_same(outcome, clean)


def order_of_rows_and_names_of_groups_are_irrelevant(
  algorithm: Algorithm, config: Any
) -> None:
  """Shuffled rows have the same loss, and gradients in the same order.

  Rewards are numbers that all differ, and then 0 or 1, so that some are equal.
  """
  case = cases.make_case()
  equal = dataclasses.replace(
    case,
    rewards=(case.rewards > 0).astype(np.float32),
    components=(case.components > 0).astype(np.float32),
  )
  order = np.random.default_rng(1).permutation(len(case.mask))
  for batch in (case, equal):
    shuffled = batch.take(order)
    shuffled.group_id = np.array([2, 3, 0, 1])[shuffled.group_id]
    outcome = cases.evaluate(algorithm, config, shuffled)
    expected = cases.evaluate(algorithm, config, batch)
    np.testing.assert_allclose(outcome.loss, expected.loss, 1e-5, 1e-7)
    np.testing.assert_allclose(
      outcome.gradient, expected.gradient[order], 1e-5, 1e-6
    )


def degenerate_batches_give_zero_not_nan(
  algorithm: Algorithm, config: Any
) -> None:
  """Without tokens, and without rewards, loss and gradient are 0."""
  case = cases.make_case()
  empty = dataclasses.replace(case, mask=np.zeros_like(case.mask))
  unscored = dataclasses.replace(case, valid=np.zeros_like(case.valid))
  for batch in (empty, unscored):
    outcome = cases.evaluate(algorithm, config, batch)
    assert outcome.loss == 0, f"the loss is {outcome.loss}"
    assert not outcome.gradient.any()


def constants_get_no_gradient(
  algorithm: Algorithm, config: Any, but: Collection[str] = ()
) -> None:
  """Rewards, advantages and records are constants of the loss."""
  case = cases.make_case()
  case.rewards[:4] = 0.5  # A group whose deviation is 0, too.
  outcome = cases.evaluate(algorithm, config, case)
  for field, gradient in outcome.constants.items():
    assert field in but or not np.nan_to_num(gradient).any(), (
      f"{field} has a gradient; put jax.lax.stop_gradient around it"
    )


def better_rewards_make_completions_likelier(
  algorithm: Algorithm, config: Any
) -> None:
  """The slope of a row's loss at ratio 1 falls as its reward rises.

  A wrong sign passes all other checks. The check does not apply to a loss that
  does not read rewards.
  """
  case = cases.make_case()
  case.old_logp = case.behavior_logp = case.logp
  for row in (0, 3, 4, 7):

    def slope(reward: float, row: int = row) -> float:
      changed = dataclasses.replace(
        case, rewards=case.rewards.copy(), components=case.components.copy()
      )
      changed.rewards[row] = changed.components[row] = reward
      return cases.evaluate(algorithm, config, changed).gradient[row].sum()

    low, high = slope(-3.0), slope(3.0)
    assert high <= low, (
      f"with a reward of 3 in the place of −3 row {row} becomes less likely:"
      f" its Σ dL/dlogp is {high:.3g} in the place of {low:.3g}; is a sign"
      " wrong?"
    )


def completions_of_one_token_are_finite(
  algorithm: Algorithm, config: Any
) -> None:
  """The only token has a gradient, and slots behind it have none."""
  case = cases.make_case()
  short = dataclasses.replace(case, mask=np.arange(cases.BUDGET) < 1)
  short.mask = np.tile(short.mask, (len(case.rewards), 1))
  outcome = cases.evaluate(algorithm, config, short)
  assert_finite(outcome)
  assert outcome.gradient[:, 0].any()
  assert not outcome.gradient[:, 1:].any()


def extreme_ratios_stay_finite(
  algorithm: Algorithm, config: Any, shifts: Collection[float] = SHIFTS
) -> None:
  """Loss and gradient are finite at ratios of e^±30 and e^±100."""
  case = cases.make_case()
  for shift in shifts:
    far = dataclasses.replace(
      case,
      old_logp=case.old_logp + np.float32(shift),
      ref_logp=case.ref_logp - np.float32(shift),
    )
    assert_finite(cases.evaluate(algorithm, config, far))


def impossible_tokens_are_left_out(algorithm: Algorithm, config: Any) -> None:
  """A token to which a model gives probability 0 has no gradient.

  This holds for models whose log-probs the loss reads; a teacher's are clamped.
  """
  case = cases.make_case()
  read = {"logp", *options.needs(algorithm, config)}
  for name in ("logp", "old_logp", "behavior_logp", "ref_logp"):
    impossible = getattr(case, name).copy()
    impossible[0, 2] = -np.inf
    changed: dict[str, Any] = {name: impossible}
    outcome = cases.evaluate(
      algorithm, config, dataclasses.replace(case, **changed)
    )
    assert_finite(outcome)
    is_teacher = name == "ref_logp" and (
      not config.kl_coef and "ref_logp" not in algorithm.needs
    )
    assert name not in read or is_teacher or outcome.gradient[0, 2] == 0, name


def padding_columns_change_nothing(
  algorithm: Algorithm,
  config: Any,
) -> None:
  """Three more slots, which no completion uses, change nothing.

  Losses that divide by the budget are compared without that factor, and without
  other terms.
  """
  case = cases.make_case()
  wider: dict[str, Any] = {
    field: np.pad(getattr(case, field), ((0, 0), (0, 3)))
    for field in cases.SLOT_FIELDS
  }
  scale = 1.0
  if algorithm.aggregate is aggregation.over_budget:
    scale = (cases.BUDGET + 3) / cases.BUDGET
  narrow = cases.evaluate(algorithm, config, case)
  wide = cases.evaluate(algorithm, config, dataclasses.replace(case, **wider))
  assert not wide.gradient[:, -3:].any()
  np.testing.assert_allclose(scale * wide.loss, narrow.loss, 1e-5, 1e-7)
  np.testing.assert_allclose(
    scale * wide.gradient[:, :-3], narrow.gradient, 1e-5, 1e-7
  )


def micro_batches_add_up(algorithm: Algorithm, config: Any) -> None:
  """Two micro-batches have the loss and the gradient of one batch."""
  case = cases.make_case()
  splits = ((0, 1, 2, 9), (3, 4, 5, 6, 7, 8))
  if algorithm.couples_group:
    splits = ((0, 1, 2, 3), (4, 5, 6, 7, 8, 9))
  full = cases.evaluate(algorithm, config, case, trainable=0.3)
  parts = cases.evaluate(algorithm, config, case, True, splits, 0.3)
  assert_same(parts, full)
  np.testing.assert_allclose(parts.trainable, full.trainable, 1e-4, 1e-7)
  # This gradient exists if the algorithm has parameters of its own.
  assert (full.trainable != 0) == bool(algorithm.init(config)[0])


# Checks for any algorithm, in the order in which a mistake is best understood.
ALL: tuple[Callable[[Algorithm, Any], None], ...] = (
  functions_return_what_is_needed,
  has_a_gradient,
  better_rewards_make_completions_likelier,
  completions_of_one_token_are_finite,
  degenerate_batches_give_zero_not_nan,
  masked_garbage_reaches_neither_loss_nor_gradient,
  unscored_rows_are_out,
  impossible_tokens_are_left_out,
  extreme_ratios_stay_finite,
  constants_get_no_gradient,
  order_of_rows_and_names_of_groups_are_irrelevant,
  padding_columns_change_nothing,
  micro_batches_add_up,
)


def plain(algorithm: Algorithm, config: Any) -> tuple[Algorithm, Any]:
  """Returns the algorithm with the policy term alone."""
  config = dataclasses.replace(config, kl_coef=0.0, entropy_coef=0.0)
  if algorithm.policy_loss is not None:
    algorithm = dataclasses.replace(algorithm, critic_loss=None)
  return algorithm, config
