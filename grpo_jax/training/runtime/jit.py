"""Programs whose numbers are inputs, so that one program serves all numbers.

Runs that differ only in such settings compile once: the second run finds the
program in the cache of compiled programs, also within a process.

    sft.optimizer.learning_rate   1e-3 → 2e-3    the same program
    algorithm.kl_coef             0.1 → 0.2      the same program
    algorithm.kl_coef             0.1 → 0        another: no reference is run

See `hyperparameters.py` for how a number becomes an input.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax import export
from jax.sharding import Sharding

from grpo_jax.settings import config as config_lib
from grpo_jax.training.runtime import hyperparameters

# Groups of settings, beside phases, whose numbers are inputs.
GROUPS = ("algorithm", "critic", "reward_model", "sampling")
# Whole numbers that are not sizes.
_WHOLE = frozenset({"steps", "warmup_steps"})
# Values that change nothing: no logit has to be divided, which saves time.
_NO_CHANGE = {"sampling.temperature": 1.0, "eval.temperature": 1.0}


def number(name: str, value: Any) -> Any:
  """Makes a setting an input of the programs that read it.

  Args:
    name: Name of the setting, such as "algorithm.clip_low".
    value: Its value. A value that is not a number stays as it is, and so does
      one that differs between the runs of one program.
  """
  last = name.rpartition(".")[2]
  if isinstance(value, hyperparameters.TracedNumber):
    return value
  if name in hyperparameters.CONSTANT or (
    name in _NO_CHANGE and _NO_CHANGE[name] == value
  ):
    return value
  if type(value) is float or (type(value) is int and last in _WHOLE):
    return hyperparameters.TracedNumber(f"config.{name}", (value,))
  return value


def numbers(name: str, settings: Any) -> Any:
  """Makes the numbers of a group of settings inputs."""
  if isinstance(settings, hyperparameters.TracedNumber):
    return settings
  if dataclasses.is_dataclass(settings):
    changed = {
      field.name: numbers(f"{name}.{field.name}", getattr(settings, field.name))
      for field in dataclasses.fields(settings)
    }
    return dataclasses.replace(settings, **changed)  # type: ignore[type-var]
  if isinstance(settings, Mapping):
    return {
      key: numbers(f"{name}.{key}", value) for key, value in settings.items()
    }
  if isinstance(settings, tuple):
    return tuple(
      numbers(f"{name}.{index}", value) for index, value in enumerate(settings)
    )
  return number(name, settings)


def schedule(name: str, points: Any) -> list[tuple[Any, Any]]:
  """Makes the steps and weights of a schedule of `rewards.schedules` inputs."""
  where = f"config.rewards.schedules.{name}"
  return [
    (
      hyperparameters.TracedNumber(f"{where}.{index}.step", (int(step),)),
      hyperparameters.TracedNumber(f"{where}.{index}.weight", (float(weight),)),
    )
    for index, (step, weight) in enumerate(points)
  ]


def with_inputs(
  config: config_lib.RunConfig, phase: str
) -> config_lib.RunConfig:
  """The config whose numbers are inputs of the programs of a phase."""
  name, objective = config.algorithm
  changed = {
    group: numbers(group, getattr(config, group)) for group in GROUPS[1:]
  }
  seed: Any = config.seed
  if type(seed) is int:
    seed = hyperparameters.TracedNumber("config.seed", (seed,))
  return dataclasses.replace(
    config,
    seed=seed,
    algorithm=(name, numbers("algorithm", objective)),
    sections={**config.sections, phase: numbers(phase, config.sections[phase])},
    **changed,
  )


def _place(numbers: Any, sharding: Sharding | None) -> Any:
  """Places numbers on devices, as arrays of a weak type."""
  if jax.process_count() == 1:
    return jax.device_put(numbers, sharding)
  # `device_put` would have each process compare them, one by one, with those of
  # the first process, and would make float32 of these.
  with jax.transfer_guard("allow"):
    return jax.jit(lambda x: x, out_shardings=sharding)(numbers)


class Program:
  """A compiled function of arrays, and of numbers that it closes over."""

  def __init__(
    self,
    function: Callable,
    sharding: Sharding | None = None,
    donate: int | None = None,
    **options: Any,
  ):
    """Compiles nothing yet.

    Args:
      function: Function; numbers that it closes over may be
        `hyperparameters.TracedNumber`.
      sharding: Sharding of the numbers; None: the default device of JAX.
      donate: Number of the argument whose arrays may be overwritten.
    """
    self._sharding = sharding
    self._slots = hyperparameters.Inputs()
    self._inputs: Any = None

    def with_numbers(inputs, *arguments):
      with self._slots.reading(inputs):
        return function(*arguments)

    target = getattr(function, "func", function)  # A partial function has it.
    with_numbers.__name__ = getattr(target, "__name__", "program")
    if donate is not None:
      options["donate_argnums"] = donate + 1
    self._jitted = jax.jit(with_numbers, **options)

  def __call__(self, *arguments: Any) -> Any:
    if self._inputs is None:
      # JAX keeps this trace, which finds the numbers, for the compilation.
      empty = _place(self._slots.empty(), self._sharding)
      self._jitted.eval_shape(empty, *arguments)
      self._inputs = self.inputs
    return self._jitted(self._inputs, *arguments)

  def eval_shape(self, *arguments: Any) -> Any:
    """Shapes of the results, for arguments or their shapes."""
    return self._jitted.eval_shape(self._slots.empty(), *arguments)

  def lower(self, *arguments: Any) -> jax.stages.Lowered:
    """Lowers the program for arguments, or their shapes; numbers come first."""
    return self._jitted.lower(self._slots.empty(), *arguments)

  def exported(self, *arguments: Any) -> export.Exported:
    """The lowered program in the portable form of `jax.export`."""
    return export.export(self._jitted)(self._slots.empty(), *arguments)

  @property
  def inputs(self) -> Any:
    """The numbers, as inputs of the program that `lower` returns."""
    return _place(self._slots.filled(), self._sharding)

  @property
  def names(self) -> tuple[str, ...]:
    """The formulas of the program's numbers, in the order of its inputs."""
    return self._slots.names
