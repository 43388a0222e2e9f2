r"""Completes many prompts and writes the completions, or keeps right ones.

    grpo-generate --workdir=runs/mine \
        --prompts=prompts.jsonl --out=runs/completions.jsonl --num_samples=4
    grpo-generate --workdir=runs/mine --prompts=train \
        --num_prompts=10000 --num_samples=16 --keep=2 --out=runs/kept.jsonl
    grpo-generate --checkpoint=path/of/checkpoint \
        --config=configs/checkpoint.py --prompts=prompts.txt \
        --out=runs/base.jsonl

The policy is that of a run, or a Hugging Face checkpoint with a config for its
data, rewards and lengths. Prompts come from a file: JSON lines with the fields
of the run's own (config.data.format, config.data.fields), or a file that ends
in .txt, with a prompt on each line. Prompts of a .txt file have no score. Or
they are the run's own training prompts ("train") or held-out ones ("held_out").

With --keep=M this is rejection sampling. It keeps at most M completions of each
prompt that are right and came to an end, one for each answer (--distinct), the
shortest first (--order). A supervised phase imitates them:

    --config.sft.demonstrations=runs/kept.jsonl

A line of the file is a completion, in the order of the prompts. If the program
was killed, the same command goes on, and the file ends with the same bytes,
whatever the number of devices or of prompts at a time. A file that is complete
stays as it is. On several hosts, start the same command on each. Exit status:
0, or 2 after a mistake in the command or the data.
"""

from __future__ import annotations

import functools
import pathlib
import time
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl import flags

from grpo_jax import ranges
from grpo_jax.cli import flags as flags_lib
from grpo_jax.cli import policies
from grpo_jax.data import sources
from grpo_jax.settings import phase as phase_lib
from grpo_jax.training.runtime import files, terminal

if TYPE_CHECKING:
  from grpo_jax.training.evaluation import generation
  from grpo_jax.training.phases import checkpointed

_POLICY = policies.define()
_PROMPTS = flags.DEFINE_string(
  "prompts",
  None,
  "FILE.jsonl or FILE.txt, local or gs://; or train or held_out, of the run.",
  required=True,
)
_OUT = flags.DEFINE_string("out", None, "FILE.jsonl, local.", required=True)
_NUM_PROMPTS = flags.DEFINE_integer(
  "num_prompts", None, "The first so many; by default all of a file.", 1
)
_NUM_SAMPLES = flags.DEFINE_integer(
  "num_samples", 1, "Completions of each prompt.", 1
)
_TEMPERATURE = flags.DEFINE_float("temperature", 1.0, "0: greedy.", 0.0)
_TOP_P = policies.define_top_p()
_SEED = flags.DEFINE_integer("seed", 0, "Of the draws.", 0)
_BATCH_SIZE = flags.DEFINE_integer(
  "batch_size", None, "Prompts at a time; by default config.eval.batch_size.", 1
)
_LENGTHS = policies.define_lengths()
_SCORE = flags.DEFINE_bool(
  "score", None, "Ask the run's verifiers; by default, but for a .txt."
)
_KEEP = flags.DEFINE_integer(
  "keep", None, "Right completions of each prompt that are written at most.", 1
)
_ORDER = flags.DEFINE_enum(
  "order",
  "shortest",
  phase_lib.DEMONSTRATION_ORDERS,
  "With --keep: which come first.",
)
_DISTINCT = flags.DEFINE_enum(
  "distinct",
  "answer",
  phase_lib.DISTINCT,
  "With --keep: of completions with the same answer, or text, one is kept.",
)
_LEAST = flags.DEFINE_multi_string(
  "least",
  [],
  "With --keep: NAME=NUMBER, the least value of a component of the reward.",
)


def main(argv: Sequence[str]) -> int:
  """Generates completions, and prints the path of the file."""
  from grpo_jax.training.evaluation import data_sets, generation
  from grpo_jax.training.runtime import hosts

  del argv
  out = _out()
  is_text = _PROMPTS.value.endswith(".txt")
  keep = _keep()
  options = generation.FileSettings(
    draws=data_sets.Draws(
      _TEMPERATURE.value, _NUM_SAMPLES.value, _TOP_P.value, _SEED.value
    ),
    keep=keep,
    is_scored=not is_text if _SCORE.value is None else _SCORE.value,
  )
  options.check()
  with terminal.waiting("loading"):
    policy = _POLICY.opened("" if is_text else _PROMPTS.value)
  with policy as run:
    batch_size = _BATCH_SIZE.value or run.config.eval.batch_size
    options = generation.FileSettings(
      options.draws, options.keep, options.is_scored, batch_size
    )
    for name in () if keep is None else keep.bounds:
      weights = run.loaded.problem.reward.without_models().weights
      if name not in weights:
        raise ValueError(
          f"--least={name}: the verifiers of the policy have"
          f" {', '.join(weights)}; name one of these."
        )
    loaded = data_sets.with_lengths(run.loaded, *(x.value for x in _LENGTHS))
    source, digest = _source(loaded)
    num_prompts = _num_prompts(loaded, source)
    generation.check_prompts(loaded, source, num_prompts)
    settings = {
      "policy": _POLICY.name,
      "step": run.step,
      "prompts": _PROMPTS.value,
      "digest": digest,
      "max_prompt_len": loaded.problem.max_prompt_len,
      "max_new_tokens": loaded.problem.max_new_tokens,
      "config": generation.settings_of(_POLICY.config.value),
    }
    counts = _generate(loaded, source, num_prompts, out, options, settings)
  hosts.say(
    f"{ranges.counted(counts.lines, 'completion')} of"
    f" {ranges.counted(counts.prompts, 'prompt')}, {counts.tokens} tokens"
    f" drawn: {out}"
  )
  return 0


def _generate(
  loaded: checkpointed.Loaded,
  source: sources.Source,
  num_prompts: int,
  out: pathlib.Path,
  options: generation.FileSettings,
  settings: dict,
) -> generation.Counts:
  """Goes through the prompts, and shows the progress."""
  from grpo_jax.training.evaluation import generation
  from grpo_jax.training.runtime import hosts

  start = time.monotonic()
  parts = generation.generate(
    loaded, source, num_prompts, out, options, settings
  )
  first = counts = next(parts)
  if counts.prompts:
    hosts.say(f"continuing after {ranges.counted(counts.prompts, 'prompt')}")
  with terminal.Progress("generate", num_prompts) as display:
    for counts in parts:
      seconds = time.monotonic() - start
      rate = (counts.prompts - first.prompts) / seconds
      if hosts.is_main():
        display.update(
          counts.prompts,
          {"completions": float(counts.lines)},
          (counts.tokens - first.tokens) / seconds,
          (num_prompts - counts.prompts) / rate,
        )
  return counts


def _out() -> pathlib.Path:
  """Returns the file of --out, checked before any work.

  Raises:
    FileNotFoundError: The file could not be written.
    ValueError: The file is not on a disk.
  """
  out = files.parse(_OUT.value)
  if not isinstance(out, pathlib.Path):
    raise ValueError(
      f"--out={_OUT.value}: an object in a bucket cannot grow; name a file on a"
      " disk, and copy it when it is complete."
    )
  if not out.parent.is_dir():
    raise FileNotFoundError(
      f"--out={out}: there is no folder {out.parent}; make it first."
    )
  return out


def _keep() -> phase_lib.KeepConfig | None:
  """The `phase.KeepConfig` of --keep and its flags; None without --keep.

  Raises:
    ValueError: One of these flags is given without --keep, or is not a
      number.
  """
  if _KEEP.value is None:
    about = {"order": _ORDER, "distinct": _DISTINCT, "least": _LEAST}
    for name, flag in about.items():
      if flag.present:
        raise ValueError(
          f"--{name} says which completions are kept; give --keep=M too."
        )
    return None
  return phase_lib.KeepConfig(
    _KEEP.value, _ORDER.value, _DISTINCT.value, tuple(_LEAST.value)
  )


def _source(loaded: checkpointed.Loaded) -> tuple[sources.Source, int]:
  """The prompts, and a digest of their file; 0 without one.

  Raises:
    FileNotFoundError, ValueError: The file is faulty, or the run has no
      tokenizer for text.
  """
  name = _PROMPTS.value
  by_name = {"train": loaded.problem.train, "held_out": loaded.problem.held_out}
  if name in by_name:
    return by_name[name], 0
  if loaded.config.data.is_made_of_ids:
    raise ValueError(
      f"--prompts={name}: the policy was trained on ids of"
      f" {loaded.config.data.shown_task} and reads no text; name train or"
      " held_out, or use grpo-sample."
    )
  if name.endswith(".txt"):
    if not files.parse(name).exists():
      raise FileNotFoundError(f"--prompts={name}: there is no such file.")
    source: sources.Source = sources.TextSource(name)
  else:
    from grpo_jax.training.evaluation import data_sets

    (data_set,) = data_sets.opened(loaded, {"prompts": name})
    source = data_set.source
  return source, zlib.crc32(files.parse(name).read_bytes())


def _num_prompts(loaded: checkpointed.Loaded, source: sources.Source) -> int:
  """Number of prompts to sample.

  Raises:
    ValueError: --num_prompts is not set, and the source has no end.
  """
  if _NUM_PROMPTS.value is not None:
    return _NUM_PROMPTS.value
  if loaded.config.data.is_made_of_ids or sources.starts(source):
    raise ValueError(
      f"--prompts={_PROMPTS.value}: these are {len(source)} prompts, made when"
      " they are asked for; set --num_prompts."
    )
  return len(source)


run = functools.partial(
  flags_lib.run, main, several_processes=True, needs_config=False
)
