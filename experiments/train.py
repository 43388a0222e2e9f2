r"""Trains a policy as a config says.

    python -m experiments.train --config=configs/quickstart.py \
        --workdir=runs/quickstart

Any setting can be changed: --config.rl.steps=100; the algorithm by
--config=configs/quickstart.py:gspo. Started again with the same workdir, an
unfinished run continues. Exit status: 0 done (and accurate enough, if the
config asks), 1 not accurate enough, 2 a mistake in the command, the config or
the data, 143 stopped by SIGTERM after saving.
"""

from __future__ import annotations

import importlib.util
import logging
import pathlib
import time
from collections.abc import Sequence

import jax
from absl import flags

from experiments import flags as flags_lib
from grpo_jax.training import evaluation, loop, plots

_CONFIG = flags_lib.define_config()
_WORKDIR = flags.DEFINE_string(
  "workdir", None, "Folder of the run.", required=True
)
# Completions that are printed at the end.
_NUM_SHOWN = 6


def main(argv: Sequence[str]) -> int:
  """Trains, then reports in words and as a picture."""
  del argv
  started = time.time()
  config, workdir = _CONFIG.value, pathlib.Path(_WORKDIR.value)
  print(
    f"grpo_jax: {jax.device_count()} {jax.devices()[0].platform} device(s),"
    f" workdir {workdir}"
  )
  result = loop.train(config, workdir)
  if result.preempted:
    print(
      f"stopped by SIGTERM after step {result.step}, and saved; run the same"
      " command again to continue."
    )
    return 143
  if result.after is None or result.before is None:
    print(f"done: {result.step} steps in {time.time() - started:.0f} s")
    return 0
  how = "greedy"
  if config.eval.temperature:
    how = f"temperature {config.eval.temperature:g}"
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


def _report(config, result: loop.Result, seconds: float, how: str) -> int:
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
  required = config.required_accuracy
  if required is None:
    return 0
  passed = accuracy >= required
  print(
    f"{'PASS' if passed else 'FAIL'}: accuracy {accuracy:.3f}"
    f" {'≥' if passed else '<'} {required:.3f}"
  )
  return 0 if passed else 1


if __name__ == "__main__":
  flags_lib.run(main)
