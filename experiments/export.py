"""Writes a trained policy as a Hugging Face checkpoint.

    python -m experiments.export --workdir=runs/qwen --out=exported/qwen

The run must have started from a checkpoint (config.model.checkpoint), whose
configuration and tokenizer files are copied beside the weights, so that
`transformers` and every tool that reads its format load the result.
"""

from __future__ import annotations

from collections.abc import Sequence

from absl import flags

from experiments import flags as flags_lib
from grpo_jax.models import hub, weights
from grpo_jax.training import runs

_WORKDIR = flags.DEFINE_string(
  "workdir", None, "Folder of the run.", required=True
)
_OUT = flags.DEFINE_string("out", None, "New folder.", required=True)
_STEP = flags.DEFINE_integer("step", None, "Checkpoint; by default the last.")
_DTYPE = flags.DEFINE_enum(
  "dtype", None, ["float32", "bfloat16"], "Of the tensors; by default as is."
)


def main(argv: Sequence[str]) -> int:
  """Loads the run and writes the folder."""
  del argv
  with runs.load(_WORKDIR.value, _STEP.value) as loaded:
    model = loaded.config.model
    if not model.checkpoint:
      raise ValueError(
        f"--workdir={_WORKDIR.value}: this run started from scratch, so there"
        " is no Hugging Face configuration to write it with; export needs a"
        " run with config.model.checkpoint."
      )
    weights.export(
      loaded.params,
      model.transformer(loaded.problem.tokenizer.vocab_size),
      hub.local_directory(model.checkpoint),
      _OUT.value,
      dtype=_DTYPE.value,
    )
    print(f"step {loaded.step} of {_WORKDIR.value} -> {_OUT.value}")
  return 0


if __name__ == "__main__":
  flags_lib.run(main)
