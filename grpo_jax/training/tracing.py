"""Chooses the groups of a step and the held-out prompts to trace; writes them.

A traced step costs a pause and a forward pass over its rows: the host waits for
the step, and runs the new policy over the rows before the next step takes the
state. Other steps cost nothing. The program of a step is the same whatever is
traced.

Groups of a step and held-out prompts are chosen by these rules:

| rule              | chooses                                                |
|-------------------|--------------------------------------------------------|
| named             | all prompts of `config.log.trace_prompts` that come    |
| largest spread    | the group whose rewards differ most                    |
| regressed         | the held-out prompt that has lost most reward since    |
|                   | the last evaluation                                    |
| worst, best       | the group of the row with the least, the most reward   |
| most clipped      | the group with the most clipped tokens                 |
| random            | others, as many as are left, by a key of (seed, step); |
|                   | the same held-out prompts each time, by the seed       |

If several are equal, their place in the random order decides. A step that has
raised an alarm is traced too, and all of its groups have the rule "alarm" too.

`config.log.traces_max_mib` is shared out: what is left of it is divided by the
number of steps and evaluations that are still to be traced. The choice and the
size depend on the config and on what was written before, so a run that was
killed writes the same traces as one that was not.

A phase whose completions come with the data has no traces, since the policy
wrote nothing in it. In a phase that does not train the policy, as where a
reward model learns, tokens have no numbers from after the update.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Sequence
from typing import Any

import jax
import numpy as np

from grpo_jax.settings import config as config_lib
from grpo_jax.step import after as after_lib
from grpo_jax.step.rows import StepRows
from grpo_jax.training import run as run_lib
from grpo_jax.training.evaluation import rows, trace_rows
from grpo_jax.training.phases import executors
from grpo_jax.training.runtime import hosts, jit, sharding, traces
from grpo_jax.types import TrainState


@dataclasses.dataclass(frozen=True)
class Numbers:
  """Numbers of B rows that the rules read; all groups have as many rows.

  Attributes:
    reward: Reward of each row; any number where the row is not scored.
    scored: True on scored rows. Of a rollout's contexts only the last is one.
    clipped: Number of clipped tokens of each row; None without clipping.
    lost: Reward of each row in the last evaluation minus its reward now; None
      in a step and in the first evaluation.
  """

  reward: np.ndarray  # [B] float32
  scored: np.ndarray  # [B] bool
  clipped: np.ndarray | None = None  # [B] int32
  lost: np.ndarray | None = None  # [B] float32


def choose(
  numbers: Numbers,
  size: int,
  count: int,
  named: Collection[int],
  key: Sequence[int],
  is_alarm: bool = False,
) -> dict[int, tuple[str, ...]]:
  """Returns the groups to trace, most important first, with their rules.

  Args:
    count: Groups at most, beside those that are named.
    named: Groups that are chosen whatever their numbers.
    key: Key of the random order, whole numbers from 0.
    is_alarm: True if the step has raised an alarm.
  """
  order = np.random.default_rng(tuple(key)).permutation(
    len(numbers.reward) // size
  )
  groups: dict[int, list[str]] = {int(group): ["named"] for group in named}
  limit = len(groups) + count
  for rule, score in _scores(numbers, size):
    best = max(order.tolist(), key=lambda group: score[group])
    if score[best] == -np.inf or (best not in groups and len(groups) == limit):
      continue
    groups.setdefault(best, []).append(rule)
  for group in order.tolist():
    if len(groups) < limit and group not in groups:
      groups[group] = ["random"]
  alarm = ["alarm"] if is_alarm else []
  return {group: (*rules, *alarm) for group, rules in groups.items()}


def _scores(numbers: Numbers, size: int) -> list[tuple[str, np.ndarray]]:
  """Scores [P] of groups by each rule; −inf where a rule finds nothing."""

  def over(reduce: Any, values: np.ndarray) -> np.ndarray:
    return reduce(values.reshape(-1, size), axis=1)

  inf = np.float64(np.inf)
  reward = numbers.reward.astype(np.float64)
  highest = over(np.max, np.where(numbers.scored, reward, -inf))
  lowest = over(np.min, np.where(numbers.scored, reward, inf))
  scores = []
  if size > 1:
    scores.append(("largest spread", _if(highest > lowest, highest - lowest)))
  if numbers.lost is not None:
    lost = over(np.max, np.where(numbers.scored, numbers.lost, -inf))
    scores.append(("regressed", _if(lost > 0, lost)))
  scores += [("worst", -lowest), ("best", highest)]
  if numbers.clipped is not None:
    clipped = over(np.sum, numbers.clipped.astype(np.float64))
    scores.append(("most clipped", _if(clipped > 0, clipped)))
  return scores


def _if(mask: np.ndarray, values: np.ndarray) -> np.ndarray:
  with np.errstate(invalid="ignore"):
    return np.where(mask & np.isfinite(values), values, -np.inf)


def is_named(names: Sequence[str], number: int, prompt: str) -> bool:
  """Says if a config names a prompt, by its number or by a part of its text."""
  return any(
    name == str(number) or (not name.isdecimal() and name in prompt)
    for name in names
  )


_MIB = 2**20


def is_traced(config: config_lib.RunConfig, name: str, done: int) -> bool:
  """Says if step `done` of a phase is traced when it raises no alarm."""
  phase = config.section(name)
  every = config.log.traces_every
  if not every or not phase.samples:
    return False
  return done == 1 or run_lib.due(every, done, phase.steps)


class Tracer:
  """Traces the steps of one phase of a run."""

  def __init__(self, run: run_lib.OpenRun, index: int):
    """Compiles nothing yet."""
    self._run = run
    self._name = run.config.phases[index]
    self._phase = run.phases[index].phase
    mesh = run.mesh
    replicated = sharding.replicated(mesh)
    self._after = run.program(
      "after",
      index,
      lambda: jit.Program(
        functools.partial(_after, phase=self._phase),
        replicated,
        out_shardings=(sharding.by_rows(mesh), replicated),
      ),
    )
    self._heads = jax.jit(_heads, out_shardings=replicated)

  def write(
    self,
    step: int,
    outcome: executors.StepResult,
    is_current: bool = True,
    is_alarm: bool = False,
  ) -> None:
    """Writes groups of a step.

    Args:
      step: Step over all phases.
      is_current: True if the state of the run is the one after this step;
        otherwise tokens have no numbers from after the update.
      is_alarm: True if the step has raised an alarm.
    """
    assert outcome.rows is not None
    log = self._run.config.log
    with jax.transfer_guard("allow"):
      step_rows = outcome.rows()
      after, heads = self._read(step_rows, is_current)
      size = len(heads["reward"]) // self._num_prompts
      choices = choose(
        Numbers(heads["reward"], heads["scored"], heads.get("clipped")),
        size,
        log.trace_groups,
        self._named_groups(outcome, heads["prompt_id"][::size].tolist()),
        (self._run.config.seed, step),
        is_alarm,
      )
      groups = self._groups(step, outcome, step_rows, after, choices, heads)
    if hosts.is_main():
      _write(self._run, groups, step, 1)

  def group(
    self, step: int, outcome: executors.StepResult, prompt_id: int
  ) -> traces.Group | None:
    """Traces a prompt's group in the last step; None if it has none."""
    assert outcome.rows is not None
    with jax.transfer_guard("allow"):
      step_rows = outcome.rows()
      after, heads = self._read(step_rows, is_current=True)
      size = len(heads["reward"]) // self._num_prompts
      ids = heads["prompt_id"][::size].tolist()
      if prompt_id not in ids:
        return None
      choices: dict[int, tuple[str, ...]] = {ids.index(prompt_id): ()}
      (group,) = self._groups(step, outcome, step_rows, after, choices, heads)
      return group

  @property
  def _num_prompts(self) -> int:
    return self._run.config.section(self._name).num_prompts

  def _read(
    self, step_rows: StepRows, is_current: bool
  ) -> tuple[after_lib.After | None, dict[str, np.ndarray]]:
    """Returns the log-probs after the update, and the numbers that rules read.

    The first are None if the state is not the one after the step.
    """
    after = None
    if is_current:
      after, heads = self._after(self._run.state, step_rows)
    else:
      heads = self._heads(step_rows, None)
    return after, jax.device_get(heads)

  def _named_groups(
    self, outcome: executors.StepResult, ids: Sequence[int]
  ) -> list[int]:
    """Returns the groups of the prompts that the config names."""
    names = self._run.config.log.trace_prompts
    if not names:
      return []
    prompt_ids = [
      prompt_id
      for prompt_id, (number, record) in _fed(outcome).items()
      if is_named(names, number, self._text(record))
    ]
    everywhere = {x for part in hosts.gather(prompt_ids) for x in part}
    return [i for i, prompt_id in enumerate(ids) if prompt_id in everywhere]

  def _text(self, record: dict) -> str:
    return self._run.problem.prompt_texts([record])[0]

  def _groups(
    self,
    step: int,
    outcome: executors.StepResult,
    step_rows: StepRows,
    after: after_lib.After | None,
    choices: dict[int, tuple[str, ...]],
    heads: dict[str, np.ndarray],
  ) -> list[traces.Group]:
    """Returns the chosen groups; all processes call it, and get all groups."""
    size = len(heads["reward"]) // self._num_prompts
    logp, clipped = (None, None) if after is None else after
    arrays = trace_rows.read_arrays(step_rows, logp, clipped)
    fetched = [
      rows.take(
        self._run.mesh, arrays, np.arange(number * size, (number + 1) * size)
      )
      for number in choices
    ]
    ids = [int(heads["prompt_id"][number * size]) for number in choices]
    prompts = self._prompts(outcome, ids)
    places = [int(heads["prompt"][number * size]) for number in choices]
    missing = {
      x: place for x, place in zip(ids, places, strict=True) if x not in prompts
    }
    if missing:  # Drawn by an earlier step, whose records are gone.
      read = rows.texts_of_prompts(
        *(self._run.problem, self._run.mesh, step_rows, [*missing.values()])
      )
      prompts |= {
        x: (-1, text, [], {}) for x, text in zip(missing, read, strict=True)
      }
    return [
      traces.Group(
        step=step,
        phase=self._name,
        split="train",
        prompt_id=prompt_id,
        record=prompts[prompt_id][0],
        prompt=prompts[prompt_id][1],
        chosen=rules,
        rows=trace_rows.make_rows(
          self._run.problem, part, number * size, dict(prompts[prompt_id][2])
        ),
        **prompts[prompt_id][3],
      )
      for (number, rules), part, prompt_id in zip(
        choices.items(), fetched, ids, strict=True
      )
    ]

  def _prompts(
    self, outcome: executors.StepResult, ids: Sequence[int]
  ) -> dict[int, tuple[int, str, list, dict[str, Any]]]:
    """Gathers prompts' texts and errors from the processes that feed them.

    Returns:
      Prompt id -> number of the record, text, errors of its rows, and the
      fields of a `traces.Group` about its images.
    """
    fed = {x: pair for x, pair in _fed(outcome).items() if x in ids}
    entries = [
      [prompt_id, number, self._text(record), trace_rows.of_record(record)]
      for prompt_id, (number, record) in fed.items()
    ]
    errors = [
      [prompt_id, place, text]
      for (prompt_id, place), text in outcome.errors.items()
      if prompt_id in ids
    ]
    prompts: dict[int, tuple[int, str, list, dict[str, Any]]] = {}
    everyone = hosts.gather([entries, errors])
    for records, _ in everyone:
      for prompt_id, number, text, images in records:
        prompts[prompt_id] = (number, text, [], images)
    for _, messages in everyone:
      for prompt_id, place, text in messages:
        prompts[prompt_id][2].append((place, text))
    return prompts


def _fed(outcome: executors.StepResult) -> dict[int, tuple[int, dict]]:
  """Returns number and record of each prompt that this process feeds, by id."""
  batch = outcome.batch
  assert batch is not None
  numbers = batch.numbers or [-1] * len(batch.records)
  ids = batch.prompts.ids.tolist()
  return dict(zip(ids, zip(numbers, batch.records, strict=True), strict=True))


def _after(
  state: TrainState, step_rows: StepRows, *, phase: Any
) -> tuple[after_lib.After | None, dict[str, jax.Array]]:
  after = after_lib.after_update(state, step_rows, phase=phase)
  return after, _heads(step_rows, after)


def _heads(
  step_rows: StepRows, after: after_lib.After | None
) -> dict[str, jax.Array]:  # each [B]
  """Returns the numbers of rows that rules read."""
  batch = step_rows.batch
  is_last = batch.traces.is_last
  is_scored = batch.valid if is_last is None else batch.valid & is_last
  heads = {
    "reward": step_rows.rewards,
    "scored": is_scored,
    "prompt_id": step_rows.prompt_id,
    "prompt": batch.prompt_index,
  }
  if after is not None and after.clipped is not None:
    heads["clipped"] = after.clipped.sum(axis=1)
  return heads


def write_evaluation(
  run: run_lib.OpenRun, name: str, step: int, at_start: bool = False
) -> None:
  """Writes some of the held-out prompts of the run's last evaluation.

  Args:
    step: Step over all phases.
    at_start: True if the phase has made no step yet.
  """
  log, completions = run.config.log, run.examples
  if not log.traces_every:
    return
  reward = np.array([row.reward for row in completions], np.float32)
  scored = np.array([row.valid for row in completions])
  lost = None
  if run.rewards is not None:
    lost = np.array(run.rewards, np.float32) - reward  # None is NaN.
    lost = np.where(np.isnan(lost), -np.inf, lost)
  run.rewards = [
    float(x) if valid else None for x, valid in zip(reward, scored, strict=True)
  ]
  if not hosts.is_main():
    return
  named = [
    number
    for number, row in enumerate(completions)
    if is_named(log.trace_prompts, number, row.prompt)
  ]
  choices = choose(
    Numbers(reward, scored, lost=lost),
    1,
    log.trace_groups,
    named,
    (run.config.seed,),
  )
  groups = [
    trace_rows.of_evaluation(
      *(run.problem, step, name, number, completions[number], rules)
    )
    for number, rules in choices.items()
  ]
  _write(run, groups, step, 2 if at_start else 0)


def _write(
  run: run_lib.OpenRun, groups: Sequence[traces.Group], step: int, order: int
) -> None:
  """Writes groups within their share of the size of the file."""
  total = run.config.log.traces_max_mib * _MIB
  room = max(total - run.log.position()[traces.FILE], 0)
  size = room // max(num_left(run.config, step, order), 1)
  if content := trace_rows.bounded(groups, size):
    run.log.write_traces(content)


def num_left(config: config_lib.RunConfig, step: int, order: int) -> int:
  """The number of times that the run still writes traces, this time included.

  Args:
    step: Step over all phases.
    order: 0 for the evaluation after the step, 1 for the step itself, 2 for the
      evaluation before the first step of the phase that follows.
  """
  count = offset = 0
  for name in config.phases:
    phase = config.section(name)
    evaluates = phase.of_kind.evaluates
    for done in range(max(step - offset, 0), phase.steps + 1):
      due = [
        evaluates
        and done > 0
        and run_lib.due(config.eval.every, done, phase.steps),
        done > 0 and is_traced(config, name, done),
        evaluates and done == 0,
      ]
      first = order if offset + done == step else 0
      count += sum(due[first:])
    offset += phase.steps
  return count
