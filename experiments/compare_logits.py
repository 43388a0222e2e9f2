"""Compares the logits of a checkpoint with those that another program recorded.

    python -m experiments.compare_logits --checkpoint=DIR --reference=FILE.npz
    python -m experiments.compare_logits --checkpoint=DIR \\
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
import functools
import pathlib
import zipfile
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from experiments import flags as flags_lib
from grpo_jax.models import transformer, weights
from grpo_jax.types import PyTree

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


class Reference(NamedTuple):
  """What another program computed."""

  input_ids: np.ndarray  # [B, L] int64, 0 on padding
  attention_mask: np.ndarray  # [B, L] bool
  logits: np.ndarray  # [B, L, V] float


class Comparison(NamedTuple):
  """Differences over the positions that exist.

  Attributes:
    largest: Absolute; inf if a logit is not a finite number.
    mean: Absolute.
    row, position, entry: Of the largest one, in the arrays.
    here, there: The two logits of the largest one.
    num_positions: Positions compared.
    num_agreeing: Those at which both prefer the same token.
  """

  largest: float
  mean: float
  row: int
  position: int
  entry: int
  here: float
  there: float
  num_positions: int
  num_agreeing: int


@functools.partial(jax.jit, static_argnums=0)
def logits(
  config: transformer.TransformerConfig,
  params: PyTree,
  input_ids: jax.Array,  # [B, L]
  attention_mask: jax.Array,  # [B, L] bool
) -> jax.Array:  # [B, L, V]
  """Logits after every slot; those of padding mean nothing."""
  policy = transformer.transformer_policy(config)
  # The first slot is the prompt. The state of slot i is asked for as what
  # predicts completion token i, and the last predicts one that is not there.
  ids = jnp.pad(input_ids, ((0, 0), (0, 1)))
  mask = jnp.pad(attention_mask, ((0, 0), (0, 1)))
  h, _ = policy.hidden(
    params,
    ids[:, :1],
    mask[:, :1],
    ids[:, 1:],
    mask[:, 1:],
    jnp.arange(len(ids)),
    None,
  )
  return policy.head(params, h)


def read_reference(path: pathlib.Path) -> Reference:
  """Reads and checks a reference.

  Args:
    path: A file as `numpy.savez` writes it.

  Raises:
    FileNotFoundError: There is no such file.
    ValueError: It is no such file, lacks an array, or arrays do not fit.
  """
  if not path.is_file():
    raise FileNotFoundError(
      f"--reference={path}: there is no such file; give an .npz file with"
      f" {', '.join(Reference._fields)}."
    )
  try:
    with np.load(path) as archive:  # A context only if it is an archive.
      arrays = {
        name: archive[name] for name in Reference._fields if name in archive
      }
      known = ", ".join(archive) or "nothing"
  except (ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
    raise ValueError(
      f"--reference={path} cannot be read as .npz ({error}); needed is a file"
      " as numpy.savez writes it, with plain arrays."
    ) from error
  missing = [name for name in Reference._fields if name not in arrays]
  if missing:
    raise ValueError(
      f"--reference={path} has no {' and no '.join(missing)}; it has {known}."
      " Save input_ids [B, L], attention_mask [B, L] and logits [B, L, V]."
    )
  problem = _problem(**arrays)
  if problem:
    raise ValueError(f"--reference={path}: {problem}")
  mask = arrays["attention_mask"].astype(bool)
  ids = np.where(mask, arrays["input_ids"], 0).astype(np.int64)
  return Reference(ids, mask, arrays["logits"])


def _problem(input_ids, attention_mask, logits) -> str | None:
  """Why the arrays are no reference, or None if they are."""
  if input_ids.ndim != 2 or input_ids.dtype.kind not in "iu":
    return (
      f"input_ids are {input_ids.dtype} {list(input_ids.shape)}; needed are"
      " whole numbers [B, L]."
    )
  if attention_mask.shape != input_ids.shape:
    return (
      f"attention_mask is {list(attention_mask.shape)} and input_ids"
      f" {list(input_ids.shape)}; both must be [B, L]."
    )
  if logits.ndim != 3 or logits.shape[:2] != input_ids.shape:
    return (
      f"logits are {list(logits.shape)}, but must be [B, L, V] with [B, L] ="
      f" {list(input_ids.shape)} as of input_ids."
    )
  if logits.dtype.kind != "f":
    return f"logits are {logits.dtype}; save them as float32."
  if not np.isin(attention_mask, (0, 1)).all():
    return "attention_mask must be 1 on tokens and 0 on padding."
  mask = attention_mask.astype(np.int8)
  if not mask.any():
    return "attention_mask is 0 everywhere; nothing is left to compare."
  starts = (np.diff(mask, axis=1, prepend=0) == 1).sum(axis=1)
  if (starts > 1).any():
    return (
      f"row {starts.argmax()} of attention_mask has padding between tokens; pad"
      " rows on the left or on the right."
    )
  return None


def compare(
  config: transformer.TransformerConfig, params: PyTree, reference: Reference
) -> Comparison:
  """Compares row by row, so that the logits of one row are held at a time.

  Args:
    config: The transformer's.
    params: Its parameters.
    reference: What to compare with.

  Raises:
    ValueError: The reference is of another vocabulary.
  """
  vocab_size = reference.logits.shape[-1]
  if vocab_size != config.vocab_size:
    raise ValueError(
      f"compare_logits: the reference has logits of {vocab_size} tokens, but"
      f" the checkpoint's vocabulary has {config.vocab_size}; make the"
      " reference with this checkpoint, from all of its logits."
    )
  ids = reference.input_ids
  if ids.min() < 0 or ids.max() >= vocab_size:
    raise ValueError(
      f"compare_logits: input_ids reach from {ids.min()} to {ids.max()}, but"
      f" the checkpoint's vocabulary ends at {vocab_size - 1}; make the"
      " reference with the tokenizer of this checkpoint."
    )
  worst: tuple[float, ...] = (-1.0,)
  total, num_positions, num_agreeing = 0.0, 0, 0
  for row, mask in enumerate(reference.attention_mask):
    if not mask.any():
      continue
    here = logits(config, params, ids[row : row + 1], mask[None])[0]
    here = np.asarray(here, np.float64)[mask]  # [N, V]
    there = reference.logits[row, mask].astype(np.float64)
    with np.errstate(invalid="ignore"):  # inf − inf
      difference = abs(here - there)
    difference = np.where(np.isfinite(difference), difference, np.inf)
    n, v = np.unravel_index(difference.argmax(), difference.shape)
    if difference[n, v] > worst[0]:
      position = int(np.flatnonzero(mask)[n])
      worst = difference[n, v], row, position, int(v), here[n, v], there[n, v]
    total += difference.sum()
    num_positions += len(here)
    num_agreeing += int((here.argmax(-1) == there.argmax(-1)).sum())
  largest, row, position, entry, here_value, there_value = worst
  return Comparison(
    largest=float(largest),
    mean=float(total / (num_positions * vocab_size)),
    row=int(row),
    position=int(position),
    entry=int(entry),
    here=float(here_value),
    there=float(there_value),
    num_positions=num_positions,
    num_agreeing=num_agreeing,
  )


def main(argv: Sequence[str]) -> int:
  """Prints the comparison; 1 if it is above the tolerance."""
  del argv
  reference = read_reference(pathlib.Path(_REFERENCE.value))
  dtype = _DTYPE.value
  # Accelerators multiply float32 matrices in fewer bits unless told.
  with (
    jax.enable_x64(dtype == "float64"),
    jax.default_matmul_precision("highest"),
  ):
    config, params = weights.load(_CHECKPOINT.value, param_dtype=dtype)
    config = dataclasses.replace(config, dtype=dtype, param_dtype=dtype)
    found = compare(config, params, reference)
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
