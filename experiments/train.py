r"""Trains a policy as a config says.

    python -m experiments.train --config=configs/quickstart.py \
        --workdir=runs/quickstart

Any setting can be changed: --config.rl.steps=100; the algorithm by
--config=configs/quickstart.py:gspo. Started again with the same workdir, an
unfinished run continues. Exit status: 0 done (and accurate enough, if the
config asks), 1 not accurate enough, 2 a mistake in the command, the config or
the data, 75 another process of the run was lost, 143 stopped by SIGTERM after
saving. After 75 and 143 the same command continues.

On several hosts the same command is started on each. On Cloud TPU and under
SLURM the processes find each other; elsewhere each is told where:

    --coordinator=HOST:PORT --num_processes=4 --process_id=0

Process 0 prints and writes for all.
"""

from __future__ import annotations

import importlib.util
import logging
import time
from collections.abc import Sequence

import jax
from absl import flags

from experiments import flags as flags_lib
from grpo_jax.training import evaluation, hosts, loop, paths, plots
from grpo_jax.training import run as run_lib

_CONFIG = flags_lib.define_config()
_WORKDIR = flags.DEFINE_string(
  "workdir", None, "Folder of the run, local or gs://.", required=True
)
# Completions that are printed at the end.
_NUM_SHOWN = 6


def main(argv: Sequence[str]) -> int:
  """Trains, then reports in words and as a picture."""
  del argv
  started = time.time()
  config, workdir = _CONFIG.value, paths.parse(_WORKDIR.value)
  several = ""
  if jax.process_count() > 1:
    several = f" of {jax.process_count()} processes"
  hosts.say(
    f"grpo_jax: {jax.device_count()} {jax.devices()[0].platform} device(s)"
    f"{several}, workdir {workdir}"
  )
  result = loop.train(config, workdir)
  if result.preempted:
    hosts.say(
      f"stopped by SIGTERM after step {result.step}, and saved; run the same"
      " command again to continue."
    )
    return 143
  if result.after is None or result.before is None:
    hosts.say(f"done: {result.step} steps in {time.time() - started:.0f} s")
    return 0
  how = "greedy"
  if config.eval.temperature:
    how = f"temperature {config.eval.temperature:g}"
  if not hosts.is_main():
    return _status(config, result)
  _show_examples(result.examples[:_NUM_SHOWN], how)
  status = _report(config, result, time.time() - started, how)
  # The picture is a convenience: a run on a server without matplotlib ends
  # as well as any other.
  if importlib.util.find_spec("matplotlib"):
    plots.plot_run(workdir, workdir / "curves.png")
    print(f"plot: {workdir / 'curves.png'}")
  else:
    logging.warning("no plot: install grpo_jax[plot] for %s", workdir)
  return status


def _show_examples(examples: Sequence[evaluation.Completion], how: str) -> None:
  print(f"\nheld-out completions ({how}):")
  for example in examples:
    prompt = _short(example.prompt, 30)
    text = _short(example.text, 34)
    verdict = f"{example.reward:.2f}" if example.valid else "unscored"
    print(f"  {prompt:<30} {text:<34} {verdict:>8}")


def _short(text: str, width: int) -> str:
  line = " ".join(text.split())
  return line if len(line) <= width else line[: width - 1] + "…"


def _report(config, result: run_lib.Result, seconds: float, how: str) -> int:
  """Prints before and after; returns the exit status."""
  assert result.before is not None
  assert result.after is not None
  n = result.num_prompts
  print(f"\n{f'held-out, {how}, n = {n}':<30} {'before':>8}  {'after':>8}")
  for name, after in result.after.items():
    before = result.before[name]
    print(f"  {name.removeprefix('eval/'):<28} {before:8.3f}  {after:8.3f}")
  accuracy = result.after["eval/accuracy"]
  low, high = evaluation.wilson_interval(accuracy * n, n)
  print(
    f"accuracy {result.before['eval/accuracy']:.3f} -> {accuracy:.3f}"
    f" (95 % interval {low:.3f}-{high:.3f}) in {seconds:.0f} s"
  )
  status, required = _status(config, result), config.required_accuracy
  if required is not None:
    print(
      f"{'FAIL' if status else 'PASS'}: accuracy {accuracy:.3f}"
      f" {'<' if status else '≥'} {required:.3f}"
    )
  return status


def _status(config, result: run_lib.Result) -> int:
  assert result.after is not None
  required = config.required_accuracy
  return int(required is not None and result.after["eval/accuracy"] < required)


if __name__ == "__main__":
  flags_lib.run(main, several_processes=True)
