"""Compares the logits of a checkpoint with those that another program recorded.

    python -m experiments.parity.compare_logits --checkpoint=DIR \\
        --reference=FILE.npz
    python -m experiments.parity.compare_logits --checkpoint=DIR \\
        --reference=FILE.npz --dtype=bfloat16 --tolerance=0.5

The reference holds input_ids [B, L], attention_mask [B, L] (padding on the
left or right) and logits [B, L, V], for instance from transformers:

    model = transformers.AutoModelForCausalLM.from_pretrained(
      DIR, dtype=torch.float32, attn_implementation="eager")
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    with torch.no_grad():
      logits = model(**batch).logits
    numpy.savez("FILE.npz", logits=logits, input_ids=batch["input_ids"],
                attention_mask=batch["attention_mask"])

Positions of padding are not compared. Exit status: 0 if no logit is further
away than --tolerance, 1 if one is, 2 if there is nothing to compare.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence

import jax
from absl import flags

from experiments.parity import outputs
from grpo_jax.cli import flags as flags_lib
from grpo_jax.models.hf import weights

_CHECKPOINT = flags.DEFINE_string(
  "checkpoint",
  None,
  "Folder with config.json and safetensors.",
  required=True,
)
_REFERENCE = flags.DEFINE_string(
  "reference", None, "File with the arrays to compare with.", required=True
)
_TOLERANCE = flags.DEFINE_float(
  "tolerance", 2e-4, "Largest difference of a logit that passes.", 0.0
)
_DTYPE = flags.DEFINE_enum(
  "dtype",
  "float32",
  ["float32", "float64", "bfloat16"],
  "Of parameters and activations here.",
)


def main(argv: Sequence[str]) -> int:
  """Prints the comparison; 1 if it is above the tolerance."""
  del argv
  reference = outputs.read_reference(pathlib.Path(_REFERENCE.value))
  dtype = _DTYPE.value
  # Accelerators multiply float32 matrices in fewer bits unless told.
  with (
    jax.enable_x64(dtype == "float64"),
    jax.default_matmul_precision("highest"),
  ):
    config, params = weights.load(_CHECKPOINT.value, param_dtype=dtype)
    config = dataclasses.replace(config, dtype=dtype, param_dtype=dtype)
    found = outputs.compare(config, params, reference)
  num_rows, length = reference.input_ids.shape
  print(
    f"{_CHECKPOINT.value}: {config.num_layers} layers, width {config.width},"
    f" vocabulary {config.vocab_size}"
  )
  print(
    f"{num_rows} rows of {length} slots, {found.num_positions} positions with"
    f" tokens; {dtype} on {jax.default_backend()}"
  )
  print(f"largest difference   {found.largest:.3e}")
  print(f"mean difference      {found.mean:.3e}")
  print(
    f"largest at           row {found.row}, position {found.position}, entry"
    f" {found.entry}: {found.here:.6g} here, {found.there:.6g} there"
  )
  print(
    f"same likeliest token {found.num_agreeing} of {found.num_positions}"
    f" positions ({found.num_agreeing / found.num_positions:.1%})"
  )
  passed = found.largest <= _TOLERANCE.value
  print(
    f"{'PASS' if passed else 'FAIL'}: {found.largest:.3e} is"
    f" {'within' if passed else 'above'} the tolerance {_TOLERANCE.value:g}"
  )
  return 0 if passed else 1


if __name__ == "__main__":
  flags_lib.run(main)
