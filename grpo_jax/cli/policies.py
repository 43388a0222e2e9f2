"""The policy that flags name: that of a run, or a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from absl import flags

from grpo_jax.cli import flags as flags_lib

if TYPE_CHECKING:
  from grpo_jax import handle

# The flags that are defined here are shown as those of the program.
flags.disclaim_key_flags()


class PolicyFlags(NamedTuple):
  """The flags of a program that opens a policy.

  Attributes:
    config: --config, the settings that a checkpoint lacks.
    workdir: --workdir, the folder of a run.
    step: --step, the step of its checkpoint; None: the last.
    checkpoint: --checkpoint, the folder or hub name of a Hugging Face
      checkpoint, or a GGUF file.
  """

  config: flags.FlagHolder
  workdir: flags.FlagHolder[str | None]
  step: flags.FlagHolder[int | None]
  checkpoint: flags.FlagHolder[str | None]

  @property
  def name(self) -> str | None:
    """The workdir or checkpoint of the command line."""
    return self.workdir.value or self.checkpoint.value

  def opened(self, prompts: str = "", default: str = "") -> handle.Run:
    """Opens the run or the checkpoint.

    Args:
      prompts: File of prompts, if the config of a checkpoint has none.
      default: Name of the config of a checkpoint, if the flags have none;
        empty: they must have one.

    Raises:
      ValueError: The flags name none or two, or a config that is not needed.
    """
    from grpo_jax import api
    from grpo_jax.settings import overrides

    config, workdir = self.config.value, self.workdir.value
    if bool(workdir) == bool(self.checkpoint.value):
      raise ValueError(
        "--workdir, of a run, and --checkpoint, of Hugging Face: needs one"
        " of them."
      )
    if workdir:
      if config is not None:
        raise ValueError(
          f"--config belongs to --checkpoint: the run in {workdir} has its own;"
          " leave it out."
        )
      return api.load(workdir, self.step.value)
    if config is None and default:
      config = overrides.config(default)
    if config is None or self.step.value is not None:
      raise ValueError(
        "--checkpoint needs a --config, for data, rewards and lengths, such as"
        " configs/checkpoint.py, and has no --step."
      )
    if config.data.source == "jsonl" and not config.data.train_path:
      # Nothing is trained: the prompts that are asked for are enough.
      config.data.train_path = prompts or config.data.eval_path
    return api.load_checkpoint(config, str(self.checkpoint.value))


def define() -> PolicyFlags:
  """Defines --config, --workdir, --step and --checkpoint."""
  return PolicyFlags(
    flags_lib.define_config(),
    flags.DEFINE_string("workdir", None, "Folder of the run, local or gs://."),
    flags.DEFINE_integer("step", None, "Checkpoint; by default the last."),
    flags.DEFINE_string(
      "checkpoint",
      None,
      "Folder or hub name of a Hugging Face checkpoint, instead of a run;"
      " --config says the rest.",
    ),
  )


def define_lengths() -> list[flags.FlagHolder[int | None]]:
  """Defines --max_prompt_len and --max_new_tokens."""
  text = "Tokens; by default as in the run."
  names = "max_prompt_len", "max_new_tokens"
  return [flags.DEFINE_integer(name, None, text, 1) for name in names]


def define_top_p() -> flags.FlagHolder[float | None]:
  """Defines --top_p."""
  text = (
    "Tokens are drawn from the most likely ones that have this share of the"
    " probability; by default from all."
  )
  return flags.DEFINE_float("top_p", None, text, 1e-6, 1.0)
