r"""Trains a published model here and with TRL, on the same work, in turns.

    make smollm2
    python -m venv trl
    trl/bin/pip install torch trl==1.16.0
    python -m experiments.parity.beside_trl --cells_folder=runs/beside_trl \
        --trl=trl/bin/python --num_seeds=5

Both programs begin with the same parameters, read the same prompts in the same
order, and take as many gradient steps with the same loss and AdamW; what they
draw differs. A cell is one run of one program: a loss, a seed. Cells that have
ended are not run again, so the command may be stopped and started.

It prints a table and writes curves.png: held-out accuracy by greedy decoding
after the last step, the mean reward of the later half of the steps, seconds of
a step (the middle one, the first two left out), and the most memory of the
process. The difference of the programs has Welch's interval over the seeds. The
programs agree if it has 0 within. Exit status: 0, or 1 if they do not agree.

With --replay, TRL draws nothing: it learns from the completions that were drawn
here, of seed 0. Then the programs differ in nothing but the learner, and the
table has the largest gap of their gradients' norms, and the distance of their
last parameters as a share of the way that they have come.

With --draws=20, nobody learns: both programs draw so many completions of each
training prompt from the last parameters of the run of seed 0 here.
"""

from __future__ import annotations

import collections
import os
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from absl import flags

from experiments.parity import trl_run
from experiments.sweeps import figures
from experiments.sweeps import statistics as intervals
from grpo_jax.cli import flags as flags_lib
from grpo_jax.training.monitor import style
from grpo_jax.training.runtime import log, traces

_CELLS = flags.DEFINE_string(
  "cells_folder", None, "Folder for the runs.", required=True
)
_TRL = flags.DEFINE_string(
  "trl", "", "Python that has TRL; without it the cells that exist are shown."
)
_MODEL = flags.DEFINE_string(
  "published", "smollm2", "Model of configs/published.py."
)
_LOSSES = flags.DEFINE_list("losses", ["grpo", "dr_grpo"], "Algorithms.")
_NUM_SEEDS = flags.DEFINE_integer("num_seeds", 5, "Number of seeds.", 1)
_STEPS = flags.DEFINE_integer("gradient_steps", 10, "Gradient steps.", 3)
_REPLAY = flags.DEFINE_bool(
  "replay", False, "Lets TRL learn from the completions drawn here."
)
_DRAWS = flags.DEFINE_integer(
  "draws", 0, "Completions of a prompt that both draw from the same parameters."
)
_MICRO_BATCH = flags.DEFINE_integer(
  "trl_micro_batch", 16, "Rows of a backward pass of TRL.", 1
)

_PROGRAMS = "here", "TRL"
_COMPARED = "accuracy after", "reward, later half"
_FIRST = 2  # Steps that compile, or are slow for other reasons.
_CONFIG = "configs/published.py"
_REPLAYED = (
  "| loss | gap of the gradients' norms | distance of the parameters |"
)
_DRAWN = "| loss | completions | here | TRL | here − TRL, standard error |"


def cells() -> Iterator[tuple[str, int, str]]:
  """Yields the losses, seeds and programs in the order of the runs."""
  for seed in range(_NUM_SEEDS.value):
    for loss in _LOSSES.value:
      for program in _PROGRAMS:
        yield loss, seed, program


def changes(seed: int) -> dict[str, Any]:
  """Returns the settings in which a run differs from configs/published.py."""
  return {
    "seed": seed,
    "rl.steps": _STEPS.value,
    "rl.optimizer.warmup_steps": 0,
    "rl.optimizer.final_fraction": 0.0,
    "required_accuracy": 0.0,
    # Every completion, for --replay.
    **{"log.traces_every": 1, "log.trace_groups": 8},
  }


def config(loss: str, seed: int) -> Any:
  """Returns the config of the runs of a cell here."""
  import grpo_jax

  return grpo_jax.config(
    _CONFIG,
    f"{_MODEL.value},{loss}",
    **changes(seed),
  )


def work(loss: str, seed: int) -> dict[str, Any]:
  """Returns prompts and settings of a run here, as TRL's program reads them."""
  from grpo_jax.settings import config as config_lib
  from grpo_jax.training import run as run_lib
  from grpo_jax.training.problem import problem as problem_lib
  from grpo_jax.training.runtime import sharding

  resolved = config_lib.resolve(config(loss, seed))
  rl = resolved.section("rl")
  problem = problem_lib.make_problem(resolved)
  stream = run_lib.make_stream(resolved, problem, sharding.make_mesh(1), 0)

  def row(record: Any) -> dict[str, Any]:
    return {
      "question": record["prompt"],
      "answer": record["answer"],
      "ids": np.asarray(problem.encoder.prompt(record)).tolist(),
    }

  optimizer = rl.optimizer
  return {
    "prompts": [
      [row(record) for record in next(stream).records] for _ in range(rl.steps)
    ],
    "held_out": [
      row(problem.held_out[number])
      for number in range(resolved.eval.num_prompts)
    ],
    "group_size": rl.group_size,
    "max_new_tokens": resolved.sampling.max_new_tokens,
    "learning_rate": optimizer.learning_rate,
    **{x: getattr(optimizer, x) for x in ("b1", "b2", "eps", "clip_norm")},
  }


def export(folder: pathlib.Path, workdir: pathlib.Path | None = None) -> None:
  """Writes parameters as a Hugging Face folder, unless it exists.

  Args:
    folder: The folder.
    workdir: Run whose last parameters they are; None: those that both programs
      begin with.
  """
  if folder.exists():
    return
  import grpo_jax
  from grpo_jax.models.hf import weights
  from grpo_jax.training.runtime import files

  start = config(_LOSSES.value[0], 0)
  with (
    grpo_jax.load(workdir)
    if workdir
    else grpo_jax.load_checkpoint(start, start.model.checkpoint)
  ) as run:
    model = run.config.model
    made = files.scratch(folder)
    weights.export(
      run.params,
      model.transformer(run.loaded.problem.tokenizer.vocab_size),
      model.directory(weights=True),
      made,
    )
    files.publish(made, folder)


def execute(command: Sequence[str], output: pathlib.Path) -> int:
  """Runs a program, and returns its largest memory in bytes.

  Raises:
    RuntimeError: It failed; its output is in the file.
  """
  with output.open("w", encoding="utf-8") as file:
    started = subprocess.Popen(command, stdout=file, stderr=file)
    _, status, usage = os.wait4(started.pid, 0)
  if status:
    raise RuntimeError(
      f"{' '.join(command)} ended with the status"
      f" {os.waitstatus_to_exitcode(status)}; its output is in {output}."
    )
  return 1024 * usage.ru_maxrss  # Linux counts KiB.


def run_trl(
  out: pathlib.Path,
  loss: str,
  seed: int,
  work: dict[str, Any],
  *more: str,
) -> dict[str, Any]:
  """Runs TRL's program, and returns its result with its memory in bytes."""
  given = out / f"work-{loss}-{seed}.json"
  result = out / "result.json"
  log.write_json(given, work)
  command = [
    _TRL.value,
    str(pathlib.Path(trl_run.__file__)),
    f"--work={given}",
    f"--model={out / 'model'}",
    f"--out={result}",
    f"--loss={loss}",
    f"--seed={seed}",
    f"--micro_batch={_MICRO_BATCH.value}",
    *more,
  ]
  size = execute(command, out / f"TRL-{loss}-{seed}.txt")
  return log.read_json(result, dict) | {"bytes": size}


def completions(workdir: pathlib.Path) -> list[list[list[int]]]:
  """Returns the token ids of a run's completions, by steps and rows."""
  drawn: dict[int, dict[int, list[int]]] = collections.defaultdict(dict)
  for group in traces.read(workdir):
    if group.split == "train":
      drawn[group.step] |= {row.row: row.ids.tolist() for row in group.rows}
  return [[rows[n] for n in sorted(rows)] for _, rows in sorted(drawn.items())]


def steps(workdir: pathlib.Path) -> list[dict[str, Any]]:
  """Returns the metrics of a run's steps."""
  lines = log.read_lines(workdir / log.METRICS)
  return [line for line in lines if "reward/mean" in line]


def trained(out: pathlib.Path, loss: str) -> tuple[pathlib.Path, pathlib.Path]:
  """Returns the run of seed 0 here, and a folder with its last parameters."""
  if not (out / f"here-{loss}-0.json").exists():
    run(out, loss, 0, "here")
  workdir, last = out / f"here-{loss}-0", out / f"last-{loss}"
  export(last, workdir)
  return workdir, last


def draw(out: pathlib.Path, loss: str) -> str:
  """Draws with both programs from the same parameters; a row of a table."""
  import grpo_jax

  workdir, last = trained(out, loss)
  content = work(loss, 0)
  prompts = [row for step in content["prompts"] for row in step]
  # The last --model counts.
  more = f"--model={last}", f"--draws={_DRAWS.value}"
  there = run_trl(out, loss, 0, content, *more)["rewards"]
  records = [{"prompt": x["question"], "answer": x["answer"]} for x in prompts]
  with grpo_jax.load(workdir) as run:
    here = run.sample(records, n=_DRAWS.value, temperature=1.0).rewards
  rewards = np.stack([here, np.reshape(there, here.shape)])  # [2, P, draws]
  means = rewards.mean(axis=(1, 2))
  errors = rewards.var(axis=2, ddof=1).sum() / rewards[0].size / len(prompts)
  return (
    f"| {loss} | {here.size} | {means[0]:.3f} | {means[1]:.3f}"
    f" | {means[0] - means[1]:.3f} ± {errors**0.5:.3f} |"
  )


def replay(out: pathlib.Path, loss: str) -> str:
  """Lets TRL learn from the completions of seed 0, and returns a table's row.

  Raises:
    ValueError: The run has not traced all completions, or TRL's program finds
      other rewards.
  """
  workdir, last = trained(out, loss)
  content = work(loss, 0)
  drawn = completions(workdir)
  rows = content["group_size"] * len(content["prompts"][0])
  if [len(x) for x in drawn] != [rows] * len(content["prompts"]):
    raise ValueError(
      f"--replay, {loss}: {workdir} has not traced all of its completions; give"
      " a new --cells_folder, where the run is made again."
    )
  content["completions"] = drawn
  there = run_trl(out, loss, 0, content, f"--expected={last}")
  here = steps(workdir)
  rewards = [line["reward/mean"] for line in here]
  if not np.allclose(rewards, there["rewards"], rtol=0, atol=1e-6):
    raise ValueError(
      f"--replay, {loss}: the rewards are {rewards} here, {there['rewards']} in"
      " TRL; the completions of a step are not the same."
    )
  norms = np.array([line["gradient_norm"] for line in here])
  gap = abs(np.array(there["gradient_norms"]) / norms - 1).max()
  return f"| {loss} | {gap:.1e} | {there['distance']:.1e} |"


def run(out: pathlib.Path, loss: str, seed: int, program: str) -> None:
  """Runs a cell and writes its file."""
  name = f"{program}-{loss}-{seed}"
  if program == "TRL":
    found = run_trl(out, loss, seed, work(loss, seed))
  else:
    folder = out / name
    command = [
      *(sys.executable, "-m", "experiments.train", f"--workdir={folder}"),
      f"--config={_CONFIG}:{_MODEL.value},{loss}",
      *(f"--config.{name}={value}" for name, value in changes(seed).items()),
    ]
    size = execute(command, out / f"{name}.txt")
    ended = log.read_json(folder / log.RESULT, dict)
    found = {
      "before": ended["before"]["eval/accuracy"],
      "after": ended["after"]["eval/accuracy"],
      "rewards": [line["reward/mean"] for line in steps(folder)],
      "seconds": [
        line["time/step_s"] for line in log.read_lines(folder / log.TIMINGS)
      ],
    }
    found["bytes"] = size
  log.write_json(out / f"{name}.json", found)


def measured(cell: dict[str, Any]) -> dict[str, float]:
  """Returns the numbers of a cell that the table has."""
  rewards = cell["rewards"]
  return {
    "accuracy before": cell["before"],
    "accuracy after": cell["after"],
    "reward, later half": float(np.mean(rewards[len(rewards) // 2 :])),
    "seconds a step": statistics.median(cell["seconds"][_FIRST:]),
    "memory, GiB": cell["bytes"] / 2**30,
  }


def table(
  found: dict[tuple[str, int, str], dict[str, Any]],
) -> tuple[list[str], bool]:
  """Returns the lines of the table, and whether the programs agree.

  Args:
    found: The cells by loss, seed and program. Seeds count that both programs
      have run, and losses with at least two such seeds.
  """
  lines = [
    "| loss | number | here | TRL | here − TRL | here ÷ TRL |",
    "|---|---|---:|---:|---:|---:|",
  ]
  agree = True
  for loss in dict.fromkeys(loss for loss, *_ in found):
    seeds = [
      seed
      for name, seed, program in found
      if program == "TRL" and name == loss and (loss, seed, "here") in found
    ]
    if len(seeds) < 2:
      continue
    here, there = (
      [measured(found[loss, seed, program]) for seed in seeds]
      for program in _PROGRAMS
    )
    for name in here[0]:
      a, b = (np.array([x[name] for x in rows]) for rows in (here, there))
      between = intervals.contrast([(1, a), (-1, b)])
      if name in _COMPARED:
        agree &= not (between.is_below or between.is_above)
      lines.append(
        f"| {loss} ({len(seeds)}) | {name} | {a.mean():.3f} | {b.mean():.3f}"
        f" | {between.estimate:.3f} [{between.low:.3f}, {between.high:.3f}]"
        f" | {a.mean() / b.mean():.2f} |"
      )
  return lines, agree


def figure(
  found: dict[tuple[str, int, str], dict[str, Any]], path: pathlib.Path
) -> None:
  """Draws the mean reward of each step: a panel a loss, a line a program."""
  losses = list(dict.fromkeys(loss for loss, *_ in found))
  drawn, grid = style.panels(1, len(losses), sharey=True)
  for axes, loss in zip(grid[0], losses, strict=True):
    for program, look in style.looks(_PROGRAMS).items():
      rewards = [
        cell["rewards"]
        for (name, _, made), cell in found.items()
        if (name, made) == (loss, program)
      ]
      if rewards:
        values = np.array(rewards)  # [seeds, steps]
        steps = 1 + np.arange(values.shape[1])
        figures.curve(axes, steps, values, look, program)
    style.label(axes, loss, "step", "reward of the rollouts")
    axes.legend()
  style.save(drawn, path)


def main(argv: Sequence[str]) -> int:
  """Runs what is missing, and prints the table."""
  del argv
  out = pathlib.Path(_CELLS.value)
  out.mkdir(parents=True, exist_ok=True)
  if _TRL.value:
    export(out / "model")
  for is_asked, row, head in (
    (_REPLAY.value, replay, _REPLAYED),
    (_DRAWS.value, draw, _DRAWN),
  ):
    if is_asked:
      print(head, "|---" + "|---:" * (head.count("|") - 2) + "|", sep="\n")
      for loss in _LOSSES.value:
        print(row(out, loss), flush=True)
      return 0
  found = {}
  for loss, seed, program in cells():
    path = out / f"{program}-{loss}-{seed}.json"
    if _TRL.value and not path.exists():
      print(f"{loss}, seed {seed}: {program}", flush=True)
      run(out, loss, seed, program)
    if path.exists():
      found[loss, seed, program] = log.read_json(path, dict)
  lines, agree = table(found)
  print("\n".join(lines))
  if found:
    figure(found, out / "curves.png")
  return 0 if agree else 1


if __name__ == "__main__":
  flags_lib.run(main, needs_config=False)
