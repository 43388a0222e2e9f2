"""Guards of a run: verdicts on its steps, the audit log, and when it halts.

What bounds prompts inside a step is `step/guards.py`; here is what is made
of it. `audit.jsonl` has a line for each step:

    {"step": 12, "phase": "rl", "verdict": "drop_rows", "why": ["2 of 16 …"],
     "prompts": [176, …], "records": ["9c04d1aa", …],
     "influence": [3.2, …], "scale": [1.0, …], "kept": [true, …]}

`prompts` are occurrences in the stream, as in samples.jsonl, and `records` say
which prompts are the same. The verdict is the worst of: ok; warn, a prompt was
scaled down; drop_rows, prompts were left out; halt.

A run that halts is not saved: its last checkpoint, which has passed all
canaries, is what remains.
"""

from __future__ import annotations

import collections
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jax.sharding import Mesh

from grpo_jax.settings import config as config_lib
from grpo_jax.step import guards as guards_lib
from grpo_jax.training.evaluation import evaluation
from grpo_jax.training.monitor import canaries
from grpo_jax.training.phases import runs
from grpo_jax.training.problem import problem as problem_lib
from grpo_jax.training.runtime import hosts, metrics_log, paths

AUDIT = "audit.jsonl"
VERDICTS = ("ok", "warn", "drop_rows", "halt")


class Halted(ValueError):
  """A guard has ended a run."""


class Ledger:
  """What the prompts of a run have had of its updates, since it began."""

  def __init__(self, lines: Sequence[Mapping[str, Any]] = ()):
    """Reads the audit log of a run that continues."""
    self._influence: dict[str, float] = collections.defaultdict(float)
    self._total = 0.0
    for line in lines:
      self._add(line.get("records", ()), line.get("influence", ()))

  def _add(self, records: Sequence[str], influence: Sequence[float]) -> None:
    for record, x in zip(records, influence, strict=True):
      self._influence[record] += x
      self._total += x

  def entry(self, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The fields of a step's line that are about its prompts; counts them."""
    records = [f"{int(key):08x}" for key in arrays[guards_lib.PROMPTS]]
    influence = [float(x) for x in arrays[guards_lib.INFLUENCE]]
    self._add(records, influence)
    return {
      "records": records,
      "influence": influence,
      "scale": [float(x) for x in arrays[guards_lib.SCALE]],
      "kept": [bool(x) for x in arrays[guards_lib.KEPT]],
    }

  @property
  def largest_share(self) -> float:
    """Largest share that one prompt has in the influence of all steps; or 0."""
    if not self._total:
      return 0.0
    return max(self._influence.values()) / self._total


class Guards:
  """The guards of a run.

  Attributes:
    halted: Why the run ends; empty while it does not.
    canaries: What must not fall; None if there are none.
  """

  def __init__(
    self,
    of_phases: Mapping[str, guards_lib.Guards | None],
    canaries: canaries.Canaries | None,
    every: int,
    lines: Sequence[Mapping[str, Any]] = (),
  ):
    """Begins, or goes on.

    Args:
      of_phases: Guards inside the steps of each phase, by its name.
      canaries: What must not fall.
      every: Steps between looks at them.
      lines: The lines of the audit log of a run that continues.
    """
    self._of_phases = of_phases
    self._every = every
    self._ledger = Ledger(lines)
    self.canaries = canaries
    self.halted = ""

  def watches(self, phase: str) -> bool:
    """Whether canaries are looked at in a phase."""
    return self.canaries is not None and bool(self._of_phases.get(phase))

  def probes(self, phase: str, done: int, steps: int, is_saved: bool) -> bool:
    """Whether canaries are looked at after so many steps of a phase."""
    if not self.watches(phase):
      return False
    return is_saved or done == steps or done % self._every == 0

  def look(self, state: Any) -> tuple[dict[str, float], tuple[str, ...]]:
    """Looks at the canaries; their metrics, and what has fallen."""
    assert self.canaries is not None
    found = self.canaries.look(state)
    return found.metrics, found.fallen

  def judge(
    self,
    step: int,
    phase: str,
    metrics: dict[str, Any],
    fallen: Sequence[str] = (),
  ) -> dict[str, Any] | None:
    """The line of the audit log for a step; None in phases without guards.

    Args:
      step: Over all phases.
      phase: Its name.
      metrics: Of the step; arrays of guards are taken out, and the largest
        share of all time is added.
      fallen: Canaries that have fallen after it.
    """
    inside = self._of_phases.get(phase)
    if inside is None:
      return None
    arrays = {name: metrics.pop(name) for name in guards_lib.ARRAYS}
    prompts = [int(x) for x in arrays[guards_lib.IDS]]
    entry = self._ledger.entry(arrays)
    metrics["guards/all_time_share"] = self._ledger.largest_share
    why, verdict = [], "ok"
    if num := int(metrics.get("guards/scaled", 0)):
      verdict = "warn"
      why.append(
        f"{num} of {len(prompts)} prompts were scaled to a share of"
        f" {metrics['guards/cap']:.3g}; the largest had"
        f" {metrics['guards/max_share']:.3g}"
      )
    distinct = int(metrics["guards/distinct"])
    if distinct < inside.min_distinct:
      verdict = "halt"
      self.halted = (
        f"step {step} has {distinct} different prompts; needed are"
        f" {inside.min_distinct} (config.guards.min_distinct_prompts)"
      )
    elif num := int(metrics["guards/dropped"]):
      verdict = "drop_rows"
      why.append(
        f"{num} of {len(prompts)} prompts were left out: used"
        f" {inside.repeats} times in {inside.repeat_window} steps"
      )
    if fallen:
      verdict = "halt"
      self.halted = f"after step {step} {'; '.join(fallen)}"
    if verdict == "halt":
      why.append(self.halted)
      if hosts.is_main():
        logging.warning("guards: %s", self.halted)
    head = {"step": step, "phase": phase, "verdict": verdict, "why": why}
    return {**head, "prompts": prompts, **entry}

  def error(self, last_step: int | None) -> Halted:
    """What a run that was halted ends with.

    Args:
      last_step: Of its last checkpoint.
    """
    kept = "there is no checkpoint yet"
    if last_step is not None:
      kept = f"its last checkpoint, step {last_step}, is from before"
    return Halted(
      f"guards: {self.halted}. The run has ended and was not saved; {kept}."
      f" Look at {AUDIT} for the prompts, and at the data with `python -m"
      " experiments.lint`; a guard is switched off by 0, all of them by"
      " --config.guards.on=False, in another --workdir."
    )


def _of_phases(
  config: config_lib.RunConfig,
) -> dict[str, guards_lib.Guards | None]:
  """What guards the steps of each phase."""
  return {
    name: config.guards.of_phase(config.section(name)) for name in config.phases
  }


def _looks(config: config_lib.RunConfig) -> bool:
  """Whether there are canaries in any phase."""
  guards = config.guards
  is_on = any(_of_phases(config).values())
  return bool(is_on and guards.canary_every and guards.canaries)


def check(config: config_lib.RunConfig, problem: problem_lib.Problem) -> None:
  """Raises ValueError if nobody gives what a canary of the run is to be."""
  if _looks(config):
    canaries.check(config.guards, problem)


def open_guards(
  config: config_lib.RunConfig,
  problem: problem_lib.Problem,
  phases: Sequence[runs.Phase],
  mesh: Mesh,
  evaluator: evaluation.Evaluator,
  workdir: paths.Path,
  position: Mapping[str, Any] | None,
) -> Guards:
  """The guards of a run at its start, or where its last checkpoint is.

  Args:
    config: The config of the run.
    problem, phases, mesh, evaluator: Those of the run.
    workdir: Its folder; the audit log there has been cut to the checkpoint.
    position: Extra data of that checkpoint; None at the start.
  """
  of_phases = _of_phases(config)
  guards = config.guards
  found = None
  if _looks(config):
    found = canaries.Canaries(
      config, problem, phases[0].parts.policy, mesh, evaluator
    )
  lines: Sequence[Mapping[str, Any]] = ()
  if position is not None and guards.on:
    if found is not None:
      found.resume(position["canaries"])
    if hosts.is_main():
      lines = metrics_log.read_lines(workdir / AUDIT)
  return Guards(of_phases, found, guards.canary_every, lines)
