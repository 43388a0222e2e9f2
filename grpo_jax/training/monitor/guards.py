"""Guards of a run: verdicts on its steps, the audit log, and canaries.

`step/guards.py` bounds the influence of prompts inside a step. This module
turns its numbers into verdicts (`Guards`). `audit.jsonl` has a line for each
step:

    {"step": 12, "phase": "rl", "verdict": "drop_rows", "why": ["2 of 16 …"],
     "prompts": [176, …], "records": ["9c04d1aa", …],
     "influence": [3.2, …], "scale": [1.0, …], "kept": [true, …]}

`prompts` are occurrences in the stream, as in samples.jsonl; equal `records`
are the same prompt. The verdict is the worst of: ok; warn, a prompt was scaled
down; drop_rows, prompts were left out; halt.

A run that halts is not saved: its last checkpoint, which has passed all
canaries, is what remains.

A canary (`Canaries`) is a score that must not fall: a component of the reward,
on prompts that nobody trains on. The policy completes them every few steps,
with samples as in training. The canary falls when its mean is far below the
mean of all looks that have passed:

    b − v > max(k σ, d),    σ² = s² (1/n + 1/N)

with n new scores of mean v, N earlier ones of mean b, and s² the variance of
all of them together: of a score of 0 and 1, s² = p (1 − p). If the rate has not
changed, a look is wrong with a probability of 0.0013 at k = 3, and of less
where d decides.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from grpo_jax.ops import divergences, logprobs
from grpo_jax.settings import config as config_lib
from grpo_jax.step import guards as guards_lib
from grpo_jax.step import models
from grpo_jax.training.evaluation import evaluation
from grpo_jax.training.monitor import health
from grpo_jax.training.phases import checkpointed
from grpo_jax.training.phases import policy as policy_lib
from grpo_jax.training.problem.problem import Problem
from grpo_jax.training.runtime import files, hosts, log
from grpo_jax.types import Policy, Prompts, PyTree, Rollout, TrainState

_KEY = 0x6361  # Key of the draws; it differs from that of evaluations.
_CORRECT = "correct"  # Right answers, whichever component marks them.
_CHUNK_BYTES = 64 * 2**20  # Bytes of logits, for the KL.


@dataclasses.dataclass(frozen=True)
class Tally:
  """Sums of the scores of the looks that have passed.

  Attributes:
    total, squares: Sums of the scores and of their squares.
  """

  count: int = 0
  total: float = 0.0
  squares: float = 0.0

  @property
  def mean(self) -> float:
    return self.total / self.count if self.count else math.nan

  def with_scores(self, scores: Sequence[float]) -> Tally:
    """The tally after one more look."""
    return Tally(
      self.count + len(scores),
      self.total + float(np.sum(scores)),
      self.squares + float(np.square(scores).sum()),
    )


def bound(
  past: Tally, scores: Sequence[float], fall: float, sigmas: float
) -> float:
  """The lowest mean with which the scores of a look pass.

  Args:
    past: Tally of the looks that have passed; the bound is −inf before the
      first.
    fall: d, the largest fall that passes whatever the deviation.
    sigmas: k.
  """
  if not past.count or not len(scores):
    return -math.inf
  joint = past.with_scores(scores)
  variance = max(joint.squares / joint.count - joint.mean**2, 0.0)
  sigma = math.sqrt(variance * (1 / len(scores) + 1 / past.count))
  return past.mean - max(sigmas * sigma, fall)


@dataclasses.dataclass(frozen=True)
class Canary:
  """A score that must not fall.

  Attributes:
    component: Component of the reward; "correct" for right answers.
    sign: −1 if less is better, else 1.
    path: File with its prompts; "" for held-out ones.
  """

  text: str
  component: str
  sign: float
  path: str

  @classmethod
  def parse(cls, text: str) -> Canary:
    """Reads a text such as "-biased" or "format@probes.jsonl"."""
    component, _, path = text.partition("@")
    is_less = component.startswith("-")
    return cls(
      text, component.removeprefix("-"), -1.0 if is_less else 1.0, path
    )

  def scores(self, rows: Sequence[evaluation.Completion]) -> list[float]:
    """The scores of completions, larger ones better; an unscored one is wrong.

    A component other than "correct" leaves unscored completions out.
    """
    if self.component == _CORRECT:
      return [self.sign * row.right for row in rows]
    values = [row.components[self.component] for row in rows if row.valid]
    return [self.sign * x for x in values if not math.isnan(x)]


class Canaries:
  """The canaries of a run, and the tallies of their scores so far."""

  def __init__(
    self,
    config: config_lib.RunConfig,
    problem: Problem,
    policy: Policy,
    mesh: Any,
    evaluator: evaluation.Evaluator,
  ):
    """Makes the prompts of the canaries; compiles nothing yet.

    Args:
      evaluator: The evaluator of the run; its program is shared if it samples
        at the same temperature.

    Raises:
      ValueError: A canary has prompts of its own, and the task has no text, or
        they lack a field that verifiers read.
    """
    guards = self.guards = config.guards
    self._policy = policy
    self._temperature = config.sampling.temperature
    self._canaries = [Canary.parse(text) for text in guards.canaries]
    size = guards.canary_prompts
    if config.eval.temperature == self._temperature:
      sampler = evaluator.on(problem.held_out, size, size)
    else:
      sampler = evaluation.Evaluator(
        problem, policy, mesh, size, size, self._temperature
      )
    self._of = {"": sampler}
    for canary in self._canaries:
      if canary.path not in self._of:
        if config.data.is_made_of_ids:
          raise ValueError(
            f"config.guards.canaries: {canary.text!r} names a file, and the"
            f" prompts of the task {config.data.name!r} are made, not read;"
            " leave the file out."
          )
        # Canaries with prompts of their own are rare.
        from grpo_jax.training.evaluation import data_sets

        where = f"config.guards.canaries: {canary.text!r}"
        records = data_sets.read(config, problem, canary.path, where)
        count = min(size, len(records))
        self._of[canary.path] = sampler.on(records, count, count)
    self.past: dict[str, Tally] = {}

  def position(self) -> dict[str, Any]:
    """The tallies, as JSON for a checkpoint."""
    return {
      name: dataclasses.asdict(tally) for name, tally in self.past.items()
    }

  def resume(self, position: Mapping[str, Any]) -> None:
    """Continues from a checkpoint."""
    self.past = {name: Tally(**tally) for name, tally in position.items()}

  def look(self, state: TrainState) -> tuple[dict[str, float], tuple[str, ...]]:
    """Completes the prompts of all canaries; keeps the scores if all pass.

    Returns:
      `canary/NAME` of each, and `canary/kl` in nats per completion; and a
      sentence for each canary that has fallen.
    """
    params = policy_lib.evaluation_params(state.models["policy"])
    key = jax.random.key(_KEY)
    rows = {
      path: [row for group in sampler.completions(params, key) for row in group]
      for path, sampler in self._of.items()
      if any(canary.path == path for canary in self._canaries)
    }
    metrics, fallen, after = {}, [], dict(self.past)
    for canary in self._canaries:
      scores = canary.scores(rows[canary.path])
      past = self.past.get(canary.text, Tally())
      lowest = bound(
        past, scores, self.guards.canary_fall, self.guards.canary_sigmas
      )
      mean = float(np.mean(scores)) if scores else math.nan
      metrics[f"canary/{canary.text}"] = canary.sign * mean
      if past.count and not scores:
        fallen.append(
          f"{canary.text!r} has no score: no verifier has answered about it"
        )
      elif mean < lowest:
        fallen.append(
          f"{canary.text!r} is {canary.sign * mean:.3f} over"
          f" {len(scores)} completions, after {canary.sign * past.mean:.3f} so"
          f" far; allowed is {canary.sign * lowest:.3f}"
        )
      after[canary.text] = past.with_scores(scores)
    kl = self._kl(state, params, key)
    if kl is not None:
      metrics["canary/kl"] = kl
      if kl > self.guards.canary_max_kl:
        fallen.append(
          f"the KL to the reference is {kl:.3f} nats per completion; allowed is"
          f" config.guards.canary_max_kl={self.guards.canary_max_kl:g}"
        )
    if not fallen:
      self.past = after
    return metrics, tuple(fallen)

  def _kl(
    self, state: TrainState, params: PyTree, key: jax.Array
  ) -> float | None:
    """KL(policy ‖ reference) of completions, nats each; None: not measured."""
    if not self.guards.canary_max_kl or "reference" not in state.models:
      return None
    trees = {**state.params, "policy": params}
    parts_of_kl = [
      _kl_of(
        trees, prompts, rollout, policy=self._policy, scale=self._temperature
      )
      for prompts, rollout in self._of[""].rollouts(params, key)
    ]
    return float(np.mean(jax.device_get(parts_of_kl)))


@functools.partial(jax.jit, static_argnames=("policy", "scale"))
def _kl_of(
  params: Mapping[str, PyTree],
  prompts: Prompts,
  rollout: Rollout,
  *,
  policy: Policy,
  scale: float,
) -> jax.Array:  # []
  """The mean over completions of Σ_t k3, of tokens that the policy wrote."""
  mask = rollout.written  # [B, T]

  def logp(view):  # [B, T]
    h, _ = view.trunk.policy.hidden(
      view.trunk.params,
      *(prompts.tokens, prompts.mask),
      *(rollout.tokens, rollout.completion_mask, rollout.prompt_index),
      prompts.shown,
    )
    return logprobs.token_outputs(
      view.head, h, rollout.tokens, temperature=scale, chunk_bytes=_CHUNK_BYTES
    ).logp

  policy_logp = logp(models.policy_view(policy, params))
  reference_logp = logp(models.frozen_view(policy, "reference", params))
  kl = divergences.kl(policy_logp, reference_logp, mask, "k3")
  return kl.sum() / len(mask)


AUDIT = "audit.jsonl"
VERDICTS = ("ok", "warn", "drop_rows", "halt")


class GuardHalt(health.Halted):
  """A guard has ended a run; its last steps are not saved."""


class Ledger:
  """The influence of each prompt of a run on its updates, since it began."""

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
    """The fields of a step's line that are about its prompts; adds them up."""
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
    """Largest share of one prompt in the influence of all steps, or 0."""
    if not self._total:
      return 0.0
    return max(self._influence.values()) / self._total


class Guards:
  """The guards of a run.

  Attributes:
    halted: The reason why the run ends; empty while it does not.
    canaries: The canaries; None if there are none.
  """

  def __init__(
    self,
    of_phases: Mapping[str, guards_lib.InfluenceBounds | None],
    canaries: Canaries | None,
    every: int,
    lines: Sequence[Mapping[str, Any]] = (),
  ):
    """Begins, or continues from an audit log.

    Args:
      of_phases: Guards inside the steps of each phase, by its name.
      every: Steps between looks at the canaries.
      lines: Lines of the audit log of a run that continues.
    """
    self._of_phases = of_phases
    self._every = every
    self._ledger = Ledger(lines)
    self.canaries = canaries
    self.halted = ""

  def watches(self, phase: str) -> bool:
    """Says if canaries are looked at in a phase."""
    return self.canaries is not None and bool(self._of_phases.get(phase))

  def probes(self, phase: str, done: int, steps: int, is_saved: bool) -> bool:
    """Returns True if canaries are due after a number of steps of a phase."""
    if not self.watches(phase):
      return False
    return is_saved or done == steps or done % self._every == 0

  def look(self, state: Any) -> tuple[dict[str, float], tuple[str, ...]]:
    """Looks at the canaries; returns metrics, and those that have fallen."""
    assert self.canaries is not None
    return self.canaries.look(state)

  def judge(
    self,
    step: int,
    phase: str,
    metrics: dict[str, Any],
    fallen: Sequence[str] = (),
  ) -> dict[str, Any] | None:
    """Judges a step, and returns its line of the audit log.

    In phases without guards it returns None.

    Args:
      step: Step over all phases.
      metrics: Metrics of the step; arrays of guards are taken out, and the
        largest share of all time is added.
      fallen: Canaries that have fallen after the step.
    """
    inside = self._of_phases.get(phase)
    if inside is None:
      return None
    arrays = {name: metrics.pop(name) for name in guards_lib.ARRAYS}
    prompts = [int(x) for x in arrays[guards_lib.IDS]]
    entry = self._ledger.entry(arrays)
    metrics["guards/all_time_share"] = self._ledger.largest_share
    reasons, verdict = [], "ok"
    if num := int(metrics.get("guards/scaled", 0)):
      verdict = "warn"
      reasons.append(
        f"{num} of {len(prompts)} prompts were scaled to a share of"
        f" {metrics['guards/cap']:.3g}; the largest had"
        f" {metrics['guards/max_share']:.3g}"
      )
    distinct = int(metrics["guards/distinct"])
    if distinct < inside.min_distinct:
      verdict = "halt"
      self.halted = (
        f"step {step} has {distinct} different prompts; needs"
        f" {inside.min_distinct} (config.guards.min_distinct_prompts)"
      )
    elif num := int(metrics["guards/dropped"]):
      verdict = "drop_rows"
      reasons.append(
        f"{num} of {len(prompts)} prompts were left out: used"
        f" {inside.repeats} times in {inside.repeat_window} steps"
      )
    if fallen:
      verdict = "halt"
      self.halted = f"after step {step} {'; '.join(fallen)}"
    if verdict == "halt":
      reasons.append(self.halted)
      if hosts.is_main():
        logging.warning("guards: %s", self.halted)
    head = {"step": step, "phase": phase, "verdict": verdict, "why": reasons}
    return {**head, "prompts": prompts, **entry}

  def error(self, last_step: int | None) -> GuardHalt:
    """The exception for a run that a guard has halted.

    Args:
      last_step: Step of its last checkpoint; None if there is none.
    """
    last = "there is no checkpoint yet"
    if last_step is not None:
      last = f"its last checkpoint, step {last_step}, is from before"
    return GuardHalt(
      f"guards: {self.halted}. The run has ended and was not saved; {last}."
      f" Look at {AUDIT} for the prompts, and at the data with"
      " `grpo-lint`; a guard is switched off by 0, all of them by"
      " --config.guards.on=False, in another --workdir."
    )


def _of_phases(
  config: config_lib.RunConfig,
) -> dict[str, guards_lib.InfluenceBounds | None]:
  """The guards inside the steps of each phase, by its name."""
  return {
    name: config.guards.of_phase(config.section(name)) for name in config.phases
  }


def _looks(config: config_lib.RunConfig) -> bool:
  """Says if there are canaries in any phase."""
  guards = config.guards
  is_on = any(_of_phases(config).values())
  return bool(is_on and guards.canary_every and guards.canaries)


def check(config: config_lib.RunConfig, problem: Problem) -> None:
  """Raises ValueError if a canary of the run is not a reward's component.

  Rewards by models do not count, because held-out prompts are judged without
  them.
  """
  names = problem.components | problem.reward.without_models().derived
  for text in config.guards.canaries if _looks(config) else ():
    if Canary.parse(text).component not in {*names, _CORRECT}:
      raise ValueError(
        f"config.guards.canaries: {text!r} is no component of the reward; they"
        f" are {', '.join(sorted(names))}, and {_CORRECT!r}. One that is only"
        " looked at has the weight 0 in config.rewards.weights. Models are not"
        " asked about held-out prompts."
      )


def open_guards(
  config: config_lib.RunConfig,
  problem: Problem,
  phases: Sequence[checkpointed.OpenPhase],
  mesh: Mesh,
  evaluator: evaluation.Evaluator,
  workdir: files.Path,
  position: Mapping[str, Any] | None,
) -> Guards:
  """Opens the guards of a run at its start, or at its last checkpoint.

  Args:
    workdir: Folder of the run; the audit log there has been cut to the
      checkpoint.
    position: Extra data of that checkpoint; None at the start.
  """
  of_phases = _of_phases(config)
  guards = config.guards
  probe = None
  if _looks(config):
    probe = Canaries(config, problem, phases[0].phase.policy, mesh, evaluator)
  lines: Sequence[Mapping[str, Any]] = ()
  if position is not None and guards.on:
    if probe is not None:
      probe.resume(position["canaries"])
    if hosts.is_main():
      lines = log.read_lines(workdir / AUDIT)
  return Guards(of_phases, probe, guards.canary_every, lines)
