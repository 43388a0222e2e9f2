"""Draws a completion of a run again, bit for bit.

A step is a function of the state before it, of its prompts and of the seed. So
the run is repeated up to the step, from the last checkpoint before it, or from
the start of the run. Nothing is written, and the run stays as it is. The same
versions on the same kind and number of devices give the same bits. A run of a
sweep that was one program with other runs (`many.py`) is repeated alone, and
may differ from itself by round-off.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

from grpo_jax.settings import config as config_lib
from grpo_jax.training import loop, steps, tracing
from grpo_jax.training import run as run_lib
from grpo_jax.training.phases import checkpointed, executors
from grpo_jax.training.phases import policy as policy_lib
from grpo_jax.training.phases import workdir as workdir_lib
from grpo_jax.training.problem import problem as problem_lib
from grpo_jax.training.runtime import checkpoints, files, log, sharding, traces


def replay(
  workdir: str | os.PathLike, step: int, *prompt_ids: int
) -> list[traces.Group]:
  """Draws the completions of prompts in a step again, with all their numbers.

  Args:
    workdir: Folder of the run, local or gs://.
    step: Step over all phases, from 1.
    *prompt_ids: Occurrences of prompts in the stream of the step's phase.

  Raises:
    FileNotFoundError: There is no run in the folder.
    ValueError: The run has no such step or prompt, or the step has drawn
      nothing; or there are fewer devices than the run had.
  """
  return replay_steps(workdir, {step: prompt_ids})


def replay_steps(
  workdir: str | os.PathLike, prompts: Mapping[int, Sequence[int]]
) -> list[traces.Group]:
  """Replays several steps, in their order, in one pass through the run.

  Args:
    workdir: Folder of the run, local or gs://.
    prompts: Step -> prompts of that step; not empty.
  """
  folder = files.parse(workdir)
  settings = workdir_lib.settings(folder)
  for step in prompts:
    _check_step(settings, step)
  groups: list[traces.Group] = []
  with opened(folder, settings, min(prompts)) as run:
    for index in range(run.first, len(settings.phases)):
      tracer = tracing.Tracer(run, index)
      for step, outcome in _outcomes(run, index):
        for prompt_id in prompts.get(step, ()):
          group = tracer.group(step, outcome, prompt_id)
          if group is None:
            raise ValueError(
              f"replay: step {step} of {folder} has no prompt {prompt_id}, but"
              f" {_ids(outcome)}. These are occurrences in the stream of its"
              " phase, `prompt` on the page of traces; a record is not one."
            )
          groups.append(group)
        if step == max(prompts):
          return groups
  raise AssertionError("a step that the run has is taken")


def _outcomes(
  run: run_lib.OpenRun, index: int
) -> Iterator[tuple[int, executors.StepResult]]:
  """Yields number and result of each step that is left of a phase.

  The number is the step over all phases.
  """
  run_lib.enter(run, index)
  crew = loop.OneRun(run, index)
  feed = steps.Batches([run], index, crew)
  counts = [run.config.section(name).steps for name in run.config.phases]
  offset = sum(counts[:index])
  for done in range(int(run.state.phase_step), counts[index]):
    (outcome,) = crew.advance(feed.next(counts[index] - done))
    yield offset + done + 1, outcome


def _ids(outcome: executors.StepResult) -> str:
  assert outcome.batch is not None
  ids = sorted(outcome.batch.prompts.ids.tolist())
  return ", ".join(map(str, ids[:32])) + (", …" if len(ids) > 32 else "")


def _check_step(settings: config_lib.RunConfig, step: int) -> None:
  """Refuses a step in which a run has drawn nothing.

  Raises:
    ValueError: The run has no such step, or its completions come with the data.
  """
  before = 0
  for name in settings.phases:
    phase = settings.section(name)
    if before < step <= before + phase.steps:
      if not phase.samples:
        raise ValueError(
          f"replay: step {step} is in phase {name}, whose completions come with"
          " the data: the policy wrote none."
        )
      return
    before += phase.steps
  raise ValueError(f"replay: step {step} is none of the run's, 1 to {before}.")


@contextlib.contextmanager
def opened(
  folder: files.Path, settings: config_lib.RunConfig, step: int
) -> Iterator[run_lib.OpenRun]:
  """Opens a run at its last checkpoint before a step, or at its start."""
  mesh = sharding.make_mesh(**dataclasses.asdict(settings.mesh))
  with contextlib.ExitStack() as stack:
    stack.enter_context(jax.set_mesh(mesh))
    store = checkpoints.Checkpoints(
      folder / "checkpoints", keep=settings.checkpoint.keep
    )
    stack.callback(store.close)
    problem = problem_lib.make_problem(settings)
    stack.callback(problem.close)
    policy = policy_lib.make_policy(settings, problem, mesh)
    phases = checkpointed.make_phases(settings, problem, policy, mesh)
    start = max((x for x in store.steps() if x < step), default=None)
    position = None
    if start is None:
      state = checkpointed.first_state(settings, problem, policy, mesh)
    else:
      position = store.extra(start)
      shapes = checkpointed.abstract_start(policy, settings.seed)
      state = checkpointed.restore(store, start, phases, shapes, mesh)
    nobody: Any = None  # Nothing is watched, saved or evaluated.
    guards = dataclasses.replace(settings.guards, canary_every=0)
    yield run_lib.OpenRun(
      config=dataclasses.replace(settings, guards=guards),
      config_hash="",
      problem=problem,
      mesh=mesh,
      phases=phases,
      streams=[
        run_lib.make_stream(settings, problem, mesh, index, folder)
        for index in range(len(phases))
      ],
      evaluator=nobody,
      store=store,
      log=log.NoLog(),
      profile_dir=folder,
      stop=nobody,
      watch=nobody,
      compiling=nobody,
      state=state,
      position=position,
    )


def recorded(
  workdir: str | os.PathLike, step: int, prompt_id: int
) -> traces.Group | None:
  """Returns the group as the run has traced it; None if it has not."""
  for group in traces.read(workdir):
    key = group.split, group.step, group.prompt_id
    if key == ("train", step, prompt_id):
      return group
  return None


def differences(row: traces.TraceRow, expected: traces.TraceRow) -> list[str]:
  """Compares a row that was drawn again with its trace.

  Args:
    row: The row that was drawn again.
    expected: The trace, which may be cut.

  Returns:
    Names of the fields and of the numbers of tokens that differ; empty if all
    bits are equal.
  """
  count = len(expected.ids)
  names = ["reward", "correct", "terminated", "components", "context"]
  if not expected.cut:
    names += ["text", "tokens", "calls", "opening"]
  differing = [x for x in names if getattr(row, x) != getattr(expected, x)]
  if row.ids[:count].tobytes() != expected.ids.tobytes():
    differing.append("ids")
  return differing + [
    name
    for name, values in expected.values.items()
    if name not in row.values
    or row.values[name][:count].tobytes() != values.tobytes()
  ]
