r"""Trains a policy with a config.

    grpo-train --config=configs/quickstart.py \
        --workdir=runs/quickstart

Any setting can be changed: --config.rl.steps=100; the algorithm by
--config=configs/quickstart.py:gspo. If an unfinished run is started again with
the same workdir, it continues.

Exit status: 0 done (and accurate enough, if the config asks for it and a phase
is evaluated, which those of the kinds rl and pairs are); 1 not accurate enough,
or too many held-out completions without a score; 2 a mistake in the command,
the config, the data or a verifier; 3 stopped by a rule that config.health.halt
names, after saving, or by a guard; 75 another process of the run was lost; 130
stopped by Ctrl-C or 143 by SIGTERM, after saving. After 75, 130 and 143 the
same command continues.

On several hosts the same command is started on each. On Cloud TPU and under
SLURM the processes find each other. Elsewhere, these flags say where:

    --coordinator=HOST:PORT --num_processes=4 --process_id=0

Process 0 prints and writes for all.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import ml_collections
from absl import flags

from grpo_jax import ranges
from grpo_jax.cli import flags as flags_lib
from grpo_jax.training.runtime import files, terminal

if TYPE_CHECKING:
  from grpo_jax.training import run as run_lib

_CONFIG = flags_lib.define_config()
_WORKDIR = flags.DEFINE_string(
  "workdir", None, "Folder of the run, local or gs://.", required=True
)
# Completions that are printed at the end.
_NUM_SHOWN = 6


def main(argv: Sequence[str]) -> int:
  """Trains, then reports in words and as a picture."""
  import jax

  from grpo_jax.cli import report
  from grpo_jax.training import loop
  from grpo_jax.training.monitor import health
  from grpo_jax.training.runtime import hosts

  del argv
  start = time.time()
  config, workdir = _CONFIG.value, files.parse(_WORKDIR.value)
  several = ""
  if jax.process_count() > 1:
    several = f" of {jax.process_count()} processes"
  hosts.say(
    f"grpo_jax: {jax.device_count()} {jax.devices()[0].platform} device(s)"
    f"{several}, workdir {workdir}"
  )
  try:
    result = loop.train(config, workdir)
  except health.Halted as error:
    hosts.say(flags_lib.wrapped(f"HALTED: {error}"))
    return 3
  if result.preempted:
    by_hand = result.stopped_by == "SIGINT"
    hosts.say(
      f"stopped by {'Ctrl-C' if by_hand else 'SIGTERM'} {result.stopped};"
      " run the same command again to continue."
    )
    return 130 if by_hand else 143
  seconds = time.time() - start
  if result.after is None or result.before is None:
    hosts.say(f"done: {ranges.counted(result.step, 'step')} in {seconds:.0f} s")
    if config.required_accuracy is not None:
      hosts.say(
        f"no verdict on config.required_accuracy={config.required_accuracy:g}:"
        f" no phase of {tuple(config.phases)} is evaluated"
      )
    status = 0
  else:
    status = _report(config, result, seconds)
  if hosts.is_main():
    if text := report.alarms(workdir):
      terminal.say(flags_lib.wrapped(text), "bold yellow")
    has_plot = result.has_drawn and config.log.curves
    plot = _plot(workdir) if has_plot else None
    for line in report.places(
      workdir, plot, "tensorboard" in config.log.trackers
    ):
      terminal.say(line, "dim")
  return status


def _report(
  config: ml_collections.ConfigDict, result: run_lib.Result, seconds: float
) -> int:
  """Prints the changes; returns the exit status."""
  from grpo_jax.cli import report
  from grpo_jax.training.runtime import hosts

  assert result.before is not None
  assert result.after is not None
  how = "greedy"
  if config.eval.temperature:
    how = f"temperature {config.eval.temperature:g}"
  required = config.required_accuracy
  failure = report.failure(
    result.after, result.num_prompts, required, config.rewards.max_unscored
  )
  status = int(failure is not None)
  if not hosts.is_main():
    return status
  print(f"\nheld-out completions ({how}):")
  for completion in result.examples[:_NUM_SHOWN]:
    print(report.example(completion, terminal.columns()))
  head, *lines = report.before_and_after(
    result.before, result.after, result.num_prompts, how, seconds
  )
  terminal.say(f"\n{head}", "bold")
  terminal.say("\n".join(lines))
  if failure is not None:
    terminal.say(flags_lib.wrapped(f"FAIL: {failure}"), "bold red")
  elif required is not None:
    accuracy = result.after["eval/accuracy"]
    terminal.say(
      f"PASS: accuracy {accuracy:.3f} ≥ {required:.3f}", "bold green"
    )
  return status


def _plot(workdir: files.Path) -> files.Path | None:
  """Draws the curves: a convenience, which a server may do without."""
  if not importlib.util.find_spec("matplotlib"):
    logging.warning("no plot: install grpo_jax[plot] for %s", workdir)
    return None
  from grpo_jax.training.monitor import plots

  plots.plot_run(workdir, workdir / plots.CURVES)
  return workdir / plots.CURVES


run = functools.partial(flags_lib.run, main, several_processes=True)
