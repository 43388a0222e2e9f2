"""Writes a trained policy as a Hugging Face checkpoint.

    grpo-export --workdir=runs/qwen --out=runs/exported/qwen

The run must have started from a checkpoint (config.model.checkpoint), whose
configuration and tokenizer files are copied beside the weights, so that
`transformers` and every tool that reads its format load the result. If the run
has another tokenizer (config.data.tokenizer) or end tokens of its own
(config.data.end_tokens), the folder has those. A model card, README.md in the
format of the hub, has the task, the settings and the commit of the training.
Adapters (config.model.lora_rank) are merged into the weights; --adapters writes
them alone, as PEFT does, and config.model.adapter_checkpoint starts from them
again. Layers that predict later tokens are copied from the checkpoint;
--nolater_layers leaves them out.
"""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl import flags

from grpo_jax.cli import flags as flags_lib
from grpo_jax.training.runtime import files

if TYPE_CHECKING:
  from grpo_jax import handle

_WORKDIR = flags.DEFINE_string(
  "workdir", None, "Folder of the run, local or gs://.", required=True
)
_OUT = flags.DEFINE_string(
  "out", None, "New folder, local or gs://.", required=True
)
_STEP = flags.DEFINE_integer("step", None, "Checkpoint; by default the last.")
_ADAPTERS = flags.DEFINE_bool(
  "adapters", False, "Write the adapters alone, in the format of PEFT."
)
_DTYPE = flags.DEFINE_enum(
  "dtype", None, ["float32", "bfloat16"], "Of the tensors; by default as is."
)
_LATER_LAYERS = flags.DEFINE_bool(
  "later_layers",
  True,
  "Copy layers that predict later tokens; else leave them out.",
)


def main(argv: Sequence[str]) -> int:
  """Loads the run and writes the folder."""
  from grpo_jax import api
  from grpo_jax.models.hf import families, peft, weights
  from grpo_jax.models.policies import lora
  from grpo_jax.training.problem import tokens

  del argv
  out = files.parse(_OUT.value)
  if files.is_remote(out) and out.exists():
    raise ValueError(
      f"--out={out} exists; nothing was changed. Pass another one."
    )
  if _ADAPTERS.value and (_DTYPE.value or not _LATER_LAYERS.value):
    raise ValueError(
      "--dtype and --nolater_layers are of merged weights, and --adapters"
      " writes the adapters as they are; leave them out."
    )
  folder = files.scratch(out)
  with api.load(_WORKDIR.value, _STEP.value) as run:
    model = run.config.model
    if not model.checkpoint:
      raise ValueError(
        f"--workdir={_WORKDIR.value}: this run started from scratch, so there"
        " is no Hugging Face configuration to write it with; export needs a"
        " run with config.model.checkpoint."
      )
    adapters = model.adapters()
    params = run.params
    if _ADAPTERS.value:
      if adapters is None:
        raise ValueError(
          f"--adapters: the run in {_WORKDIR.value} has none"
          " (config.model.lora_rank=0); leave the flag out."
        )
      _, family = families.from_config_json(model.directory())
      if family.fused or family.inputs_first:
        module = family.fused[0].name if family.fused else "attn.c_attn"
        raise ValueError(
          "--adapters: layers of the family"
          f" {family.name} have one module for several projections, such as"
          f" {module}, and PEFT no adapters for its parts; leave"
          " the flag out to merge them."
        )
      peft.check(model.transformer(run.loaded.problem.tokenizer.vocab_size))
      peft.save(
        *(folder, params, adapters, model.checkpoint, model.revision),
        nested=bool(family.nested),
      )
      _write_card(folder, run, "peft")
      files.publish(folder, out)
      print(f"adapters of step {run.step} -> {_OUT.value}")
      return 0
    if adapters is not None:
      params = lora.merge(params, adapters)
    data, text = run.config.data, run.loaded.problem.tokenizer
    other = None
    if data.tokenizer:
      other = files.parse(tokens.tokenizer_path(run.config))
    weights.export(
      params,
      model.transformer(text.vocab_size),
      model.directory(weights=True),
      folder,
      dtype=_DTYPE.value,
      later_layers=_LATER_LAYERS.value,
      tokenizer=other,
      end_ids=text.end_ids if data.tokenizer or data.end_tokens else (),
    )
    _write_card(folder, run, "transformers")
    files.publish(folder, out)
    print(f"step {run.step} of {_WORKDIR.value} -> {_OUT.value}")
  return 0


def _write_card(folder: pathlib.Path, run: handle.Run, library: str) -> None:
  """Writes README.md for users of the folder."""
  from grpo_jax.training.evaluation import cards

  assert run.workdir is not None
  text = cards.card(
    run.workdir,
    step=run.step,
    base=run.config.model.directory(),
    library=library,
  )
  (folder / cards.README).write_text(text, encoding="utf-8")


run = functools.partial(flags_lib.run, main)
