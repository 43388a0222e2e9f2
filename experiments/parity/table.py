r"""Writes a table of differences between checkpoints here and transformers.

    python scripts/make_tiny_checkpoints.py --output=runs/ck --variants \
        --bfloat16 --gradient
    python -m experiments.parity.table --checkpoints=runs/ck \
        --exports=runs/ck_exported
    python scripts/make_tiny_checkpoints.py --length=24 \
        --reference_of runs/ck_exported/*
    python -m experiments.parity.table --checkpoints=runs/ck \
        --exports=runs/ck_exported

The first and third need torch and transformers. Each folder of `ck` has a
checkpoint with a reference.npz of left-padded rows. A row of the table has the
largest difference of a logit, in float32,

  logits: of the forward pass;
  decoding: of the last slots, one at a time after a prefill;
  exported: between other parameters here and their export in transformers,
    once ck_exported has a reference;

the largest difference of an entry of the gradient, as a share of the largest
entry of its tensor (see `share`), if the folder has a gradient.safetensors; the
share of equal tokens of the greedy continuation; and, for what bfloat16 costs,
the largest difference of a bfloat16 forward pass from the float32 logits of
transformers, here and there. Exit status: 0 if no float32 difference is
above --tolerance and all tokens are equal, 1 otherwise.
"""

from __future__ import annotations

import dataclasses
import pathlib
import shutil
import tempfile
from collections.abc import Sequence

import jax
import numpy as np
from absl import flags

from experiments.parity import outputs
from grpo_jax.cli import flags as flags_lib
from grpo_jax.models import architecture
from grpo_jax.models.hf import weights
from grpo_jax.types import PyTree

_CHECKPOINTS = flags.DEFINE_string(
  "checkpoints", None, "Folder of checkpoints with references.", required=True
)
_EXPORTS = flags.DEFINE_string(
  "exports", None, "Folder for exports; what it lacks is written."
)
_TOLERANCE = flags.DEFINE_float(
  "tolerance", 2e-4, "Largest difference that passes.", 0.0
)

_FLOAT32 = ("logits", "decoding", "exported", "gradient")
_COLUMNS = (*_FLOAT32, "greedy", "bf16", "bf16, theirs")


def differences(
  directory: pathlib.Path, exported: pathlib.Path | None
) -> dict[str, float]:
  """Returns the cells of a row that can be filled.

  Args:
    directory: Folder of a checkpoint with its reference.npz.
    exported: Folder of its export, which may not exist yet.

  Raises:
    FileNotFoundError, ValueError: Checkpoint or reference are faulty.
  """
  config, params = weights.load(directory)
  reference = outputs.read_reference(directory / "reference.npz")
  cells = {
    "logits": outputs.compare(config, params, reference).largest,
    "decoding": _decoding(config, params, reference),
  }
  with np.load(directory / "reference.npz") as archive:
    others = {name: archive[name] for name in archive}
  if "greedy" in others:
    there = others["greedy"]
    here = outputs.greedy(
      config, params, *reference[:2], there.shape[1], reference.images
    )
    cells["greedy"] = float((here == there).mean())
  if (directory / "gradient.safetensors").exists():
    cells["gradient"] = _gradient(
      directory, config, params, reference, others.get("completions")
    )
  if "bfloat16_error" in others:
    cells["bf16, theirs"] = float(others["bfloat16_error"])
    narrow, params_narrow = weights.load(directory, param_dtype="bfloat16")
    narrow = dataclasses.replace(narrow, dtype="bfloat16")
    found = outputs.compare(narrow, params_narrow, reference)
    cells["bf16"] = found.largest
  if exported is not None:
    # Changed as by a training: equal parameters would also be in the source.
    params = jax.device_put(jax.tree.map(_other, params))
    if not exported.exists():
      weights.export(params, config, directory, exported)
    if (exported / "reference.npz").exists():
      reference = outputs.read_reference(exported / "reference.npz")
      found = outputs.compare(config, params, reference)
      cells["exported"] = found.largest
  return cells


def _other(x: jax.Array) -> np.ndarray:
  """Other parameters; a table of experts of tokens (DeepSeek-V4) stays."""
  x = np.asarray(x)  # NumPy compiles nothing for it.
  return np.float32(0.9) * x if x.dtype == np.float32 else x


def _decoding(
  config: architecture.TransformerConfig,
  params: PyTree,
  reference: outputs.Reference,
) -> float:
  ids, mask, there, images = reference
  # Every row has a token in the prompt, and all that shows images.
  split = int(mask.argmax(axis=1).max()) + 1
  if images is not None:
    shows = (ids == config.image_token).any(axis=0)
    split = max(split, int(np.flatnonzero(shows)[-1]) + 1)
  here = outputs.step_by_step(
    *(config, params, ids[:, :split], mask[:, :split], ids[:, split:]), images
  )
  return float(abs(np.asarray(here) - there[:, split - 1 :]).max())


def _gradient(
  directory: pathlib.Path,
  config: architecture.TransformerConfig,
  params: PyTree,
  reference: outputs.Reference,
  completions: np.ndarray | None,  # [B, T] of prompts with images
) -> float:
  with tempfile.TemporaryDirectory() as folder:
    shutil.copy(directory / "config.json", folder)
    written = pathlib.Path(folder, "model.safetensors")
    shutil.copy(directory / "gradient.safetensors", written)
    there = weights.load(folder)[1]["trained"]
  here: PyTree
  if reference.images is None:
    here = outputs.gradient(config, params, *reference[:2])
  else:
    here = outputs.gradient_of_completions(
      config, params, *reference[:2], completions, reference.images
    )
  return share(*jax.device_get((here, there)))


def share(here: PyTree, there: PyTree) -> float:
  """The largest difference of an entry as a share of the largest of its tensor.

  A gradient of 0, as that of a router whose one expert has the weight 1, is
  round-off there. So a tensor without an entry above 1e-6 of the largest of all
  is compared with that one.
  """
  sizes = jax.tree.map(lambda x: float(abs(x).max()), there)
  largest = max(jax.tree.leaves(sizes))
  shares = jax.tree.map(
    lambda x, y, size: (
      abs(x - y).max() / (size if size > 1e-6 * largest else largest)
    ),
    *(here, there, sizes),
  )
  return float(max(jax.tree.leaves(shares)))


def main(argv: Sequence[str]) -> int:
  """Prints the table, row by row."""
  del argv
  root = pathlib.Path(_CHECKPOINTS.value)
  directories = sorted(path.parent for path in root.glob("*/reference.npz"))
  if not directories:
    raise ValueError(
      f"--checkpoints={root}: no folder in it has a reference.npz; make some"
      " with scripts/make_tiny_checkpoints.py."
    )
  width = max(len("checkpoint"), *(len(path.name) for path in directories))
  _print_row("checkpoint".ljust(width), *(f"{n:>7}" for n in _COLUMNS))
  _print_row("-" * width, *("-" * max(len(n), 7) for n in _COLUMNS))
  passed = True
  exports = pathlib.Path(_EXPORTS.value) if _EXPORTS.value else None
  for directory in directories:
    # A process cannot map the programs of all of them.
    jax.clear_caches()
    # Accelerators multiply float32 matrices in fewer bits unless told.
    with jax.default_matmul_precision("highest"):
      cells = differences(directory, exports and exports / directory.name)
    text = {name: f"{value:.1e}" for name, value in cells.items()}
    if "greedy" in cells:
      text["greedy"] = f"{cells['greedy']:.0%}"
    _print_row(
      directory.name.ljust(width),
      *(f"{text.get(n, '-'):>{max(len(n), 7)}}" for n in _COLUMNS),
    )
    wide = max(cells.get(n, 0.0) for n in _FLOAT32)
    passed &= wide <= _TOLERANCE.value and cells.get("greedy", 1.0) == 1
  print(
    f"{'PASS' if passed else 'FAIL'}: {len(directories)} checkpoints, tolerance"
    f" {_TOLERANCE.value:g}"
  )
  return 0 if passed else 1


def _print_row(*cells: str) -> None:
  print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
  flags_lib.run(main)
