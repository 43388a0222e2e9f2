"""Opens the policy that flags name: that of a run, or a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

import ml_collections

if TYPE_CHECKING:
  from grpo_jax import handle


def opened(
  workdir: str | None,
  step: int | None,
  checkpoint: str | None,
  config: ml_collections.ConfigDict | None,
  prompts: str = "",
) -> handle.Run:
  """Opens the run or the checkpoint.

  Args:
    workdir: --workdir, the folder of a run.
    step: --step, the step of its checkpoint; None: the last.
    checkpoint: --checkpoint, the folder or hub name of a Hugging Face
      checkpoint.
    config: --config, the settings that a checkpoint lacks.
    prompts: File of prompts, if the config of a checkpoint has none.

  Raises:
    ValueError: The flags name none or two, or a config that is not needed.
  """
  from grpo_jax import api

  if bool(workdir) == bool(checkpoint):
    raise ValueError(
      "--workdir, of a run, and --checkpoint, of Hugging Face: needed is one of"
      " them."
    )
  if workdir:
    if config is not None:
      raise ValueError(
        f"--config belongs to --checkpoint: the run in {workdir} has its own;"
        " leave it out."
      )
    return api.load(workdir, step)
  if config is None or step is not None:
    raise ValueError(
      "--checkpoint needs a --config, for data, rewards and lengths, such as"
      " configs/checkpoint.py, and has no --step."
    )
  if config.data.source == "jsonl" and not config.data.train_path:
    # Nothing is trained: the prompts that are asked for are enough.
    config.data.train_path = prompts or config.data.eval_path
  return api.load_checkpoint(config, str(checkpoint))
