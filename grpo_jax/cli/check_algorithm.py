"""Checks an algorithm of your own against the contract of all algorithms.

    grpo-check-algorithm my_pkg.foo:FOO \
        --reference=my_pkg.foo_reference:loss

By the contract, masked tokens and unscored rows reach neither loss nor
gradient, micro-batches add up, nothing is NaN, and so on. The tests check the
algorithms of the table by the same contract. The second line of the output has
the common options that are in force, such as a deviation that divides
advantages. With --reference, value and gradient are compared with a loss in
NumPy, and advantages with the function `advantages` beside it, if there is one.
The command works from an installed package.

Exit status: 0 if all checks hold, 1 if not, 2 if the algorithm does not exist.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from absl import flags

from grpo_jax import algorithms, imports
from grpo_jax.algorithms import options
from grpo_jax.algorithms.contract import checks, reference
from grpo_jax.cli import flags as flags_lib
from grpo_jax.ops import aggregation
from grpo_jax.types import Algorithm

_REFERENCE = flags.DEFINE_string(
  "reference",
  None,
  "Import path of a loss in NumPy, my_pkg.foo_reference:loss, whose parameters"
  " have the names of arrays (logp, mask, advantages, …) and of settings.",
)
_MAX_CHARS = 600  # Of a failure message.

_FIRST = checks.ALL[0].__name__.replace("_", " ")
# A failure message is about the checked algorithm, not about these lines.
_OURS = f"{pathlib.Path(__file__).parents[1]}{os.sep}"

Check = Callable[[], None]


def main(argv: Sequence[str]) -> int:
  if len(argv) != 2:
    raise ValueError(
      f"received the arguments {list(argv[1:])}; needs one algorithm:"
      " grpo-check-algorithm my_pkg.foo:FOO"
      " [--reference=my_pkg.foo_reference:loss]."
    )
  return 0 if report(argv[1], _REFERENCE.value) else 1


def report(path: str, expected: str | None) -> bool:
  """Prints the checks that hold, and returns whether all of them do.

  Args:
    expected: Import path of a reference, or None.

  Raises:
    ValueError: The algorithm or the reference does not exist.
  """
  algorithm = algorithms.get_algorithm(path)
  config = algorithm.config_class()
  rows = [*_contract(algorithm, config)]
  if expected is not None:
    rows += _comparisons(algorithm, config, expected)
  print(f"{path}: {type(config).__name__}", flush=True)
  print(flags_lib.wrapped(f"  {options.in_force(config)}"), flush=True)
  names: dict[str, str] = {}  # Problem -> the check that had it first.
  num_failed = num_checks = 0
  for name, check in rows:
    problem = _problem(check)
    num_checks += 1
    num_failed += problem is not None
    print(f"  {'FAILS' if problem else 'holds'}  {name}", flush=True)
    if not problem:
      continue
    again = names.setdefault(problem, name)
    reference = f"    as above: {again}"
    print(flags_lib.wrapped(problem) if again == name else reference)
    if name == _FIRST:
      print("  the others need that first")
      break
  if expected is None:
    print("  not compared with a reference: pass --reference=my_pkg.foo:loss")
  summary = f"{num_failed} of {num_checks} checks fail"
  print(summary if num_failed else "all of it holds")
  return not num_failed


def _contract(algorithm: Algorithm, config: Any) -> Iterator[tuple[str, Check]]:
  """The contract, by name, with KL and entropy terms.

  These terms need more inputs, so the inputs are determined without them.
  """
  common = dataclasses.replace(config, kl_coef=0.1, entropy_coef=0.01)
  for check in checks.ALL:
    arguments = algorithm, config if check is checks.ALL[0] else common
    if (
      check is checks.padding_columns_change_nothing
      and algorithm.aggregate is aggregation.over_budget
    ):
      arguments = checks.plain(algorithm, config)
    yield check.__name__.replace("_", " "), functools.partial(check, *arguments)


def _comparisons(
  algorithm: Algorithm, config: Any, path: str
) -> Iterator[tuple[str, Check]]:
  """Comparisons with a reference, by name, on two batches."""
  loss = imports.load(path, "--reference", "function")
  # Of the module that was named: the loss may come from another one.
  module = sys.modules[path.partition(":")[0]]
  advantages = getattr(module, "advantages", None)
  for seed in (0, 1):
    yield (
      f"loss, gradient{' and advantages' if advantages else ''} equal the"
      f" reference (batch {seed})",
      functools.partial(
        reference.compare, algorithm, config, loss, advantages, seed
      ),
    )


def _problem(check: Check) -> str | None:
  """Reason why a check fails, or None."""
  try:
    check()
  except Exception as error:  # Of any kind: it runs the user's program.
    if flags.FLAGS.is_parsed() and flags.FLAGS.debug:
      traceback.print_exc()
    kind = type(error).__name__
    notes = [
      note
      for note in getattr(error, "__notes__", [])
      if not note.startswith("-----")  # JAX, of its tracebacks.
    ]
    text = " ".join(" ".join([str(error)[:_MAX_CHARS], *notes]).split())
    frames = traceback.extract_tb(error.__traceback__)
    user_frames = [
      frame
      for frame in frames
      if not frame.filename.startswith(_OURS)
      and "site-packages" not in frame.filename
    ][-1:]
    where = "".join(f" ({x.filename}:{x.lineno})" for x in user_frames)
    if isinstance(error, AssertionError) and not user_frames:
      return f"    {text or frames[-1].line}"
    return f"    {kind}: {text or frames[-1].line}{where}"
  return None


run = functools.partial(flags_lib.run, main, takes_arguments=True)
