"""Writes what holds of each family into docs/checkpoints.md.

    python -m experiments.parity.families

The figures are those of benchmarks/profiles/parity.txt, the largest of all rows
of a family; the rows of pods are the files in benchmarks/pods. What was not
measured is a "–".
"""

from __future__ import annotations

import json
import pathlib
import re

from grpo_jax.models.architecture import TransformerConfig
from grpo_jax.models.hf import families, gguf, peft

_ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = _ROOT / "docs" / "checkpoints.md"
_DATA = _ROOT / "tests" / "data"

# Checkpoints of parity.txt whose names do not begin with a model_type.
_KINDS = {
  "deepseek_r1_distill": "qwen2",
  "deepseek_v3-glm4_moe_lite": "glm4_moe_lite",
  "phi4_mini": "phi3",
}
_PODS = {
  "benchmarks/pods/models/Full-0.8B": "qwen3",
  "benchmarks/pods/models/Qwen3.5-0.8B": "qwen3_5",
  "Qwen/Qwen2.5-0.5B": "qwen2",
  "Qwen/Qwen2.5-7B": "qwen2",
  "Qwen/Qwen2.5-VL-3B-Instruct": "qwen2_5_vl",
  "Qwen/Qwen2.5-VL-7B-Instruct": "qwen2_5_vl",
  "Qwen/Qwen3-30B-A3B": "qwen3_moe",
}
# Files of text parts; and those of Mistral, which without a window is Llama.
_FILES_OF = {
  "gemma3": "gemma3_text",
  "llama4": "llama4_text",
  "mistral": "llama",
  "mistral3": "ministral3",
}
_FIGURES = ("logits", "gradient", "decoding", "exported")
_NONE = "–"
HEADING = "### By family\n\n"
_HEADER = (
  "| `model_type` | logits | gradient | decoding | greedy | exported | adapters"
  " | GGUF | rows of pods |\n|---|---|---|---|---|---|---|---|---|\n"
)


def kind_of(checkpoint: str) -> str:
  """The model_type of a row of parity.txt."""
  named = next((x for x in _KINDS if checkpoint.startswith(x)), None)
  return _KINDS[named] if named else checkpoint.partition("-")[0]


def figures() -> dict[str, dict[str, list[float]]]:
  """Numbers of parity.txt by model_type and column."""
  text = (_ROOT / "benchmarks" / "profiles" / "parity.txt").read_text("utf-8")
  header, _, *rows = (
    [cell.strip() for cell in line.strip("|\n").split("|")]
    for line in text.splitlines()
    if line.startswith("|")
  )
  found: dict[str, dict[str, list[float]]] = {}
  for name, *cells in rows:
    of_kind = found.setdefault(kind_of(name), {})
    for column, cell in zip(header[1:], cells, strict=True):
      if cell != "-":
        of_kind.setdefault(column, []).append(float(cell.removesuffix("%")))
  return found


def _configs() -> dict[str, dict]:
  """The first config.json of each model_type of which the tests have one."""
  paths = [
    *sorted(_DATA.glob("checkpoints/*/config.json")),
    *sorted(_DATA.glob("configs/*.json")),
  ]
  configs: dict[str, dict] = {}
  for path in paths:
    config = json.loads(path.read_text("utf-8"))
    configs.setdefault(config["model_type"], config)
  return configs


def _adapters(config: dict) -> str:
  """The form of exported adapters of a model with this config.json."""
  fields, family = families.from_config_json(config)
  try:
    peft.check(TransformerConfig(**fields))
  except ValueError:
    return "merged"
  whole = family.fused or family.inputs_first
  return "merged" if whole else "merged, PEFT"


def table() -> str:
  """The rows of all families, with a header."""
  numbers, configs = figures(), _configs()
  files: dict[str, list[str]] = {}
  for name, kind in gguf.FAMILIES.items():
    for one in (kind, *gguf.OTHERS.get(name, {}).values()):
      files.setdefault(one, []).append(name)
  for kind, other in _FILES_OF.items():
    files[kind] = files[other]
  pods: dict[str, list[str]] = {}
  for path in sorted((_ROOT / "benchmarks" / "pods").glob("*.json")):
    if path.stem.endswith("-rollout"):  # No whole step.
      continue
    size = re.sub(r"-(\d-x-)?v\d.*", "", path.stem)
    kind = _PODS[json.loads(path.read_text("utf-8"))["model"]]
    pods.setdefault(kind, []).append(size)
  rows = []
  for name in families.FAMILIES:
    of_kind = numbers.get(name, {})
    cells = {x: f"{max(of_kind[x]):.1e}" for x in _FIGURES if x in of_kind}
    if "greedy" in of_kind:
      cells["greedy"] = f"{min(of_kind['greedy']):.0f} %"
    counts = {x: pods[name].count(x) for x in pods.get(name, ())}
    listed = [
      *(cells.get(x, _NONE) for x in ("logits", "gradient", "decoding")),
      *(cells.get(x, _NONE) for x in ("greedy", "exported")),
      _adapters(configs[name]),
      ", ".join(f"`{x}`" for x in files.get(name, ())) or _NONE,
      ", ".join(f"{n} of {x}" for x, n in counts.items()) or _NONE,
    ]
    rows.append(f"| `{name}` | {' | '.join(listed)} |\n")
  return _HEADER + "".join(rows)


def page() -> str:
  """The text of the page with its table made anew.

  Raises:
    ValueError: The page has no heading of this table.
  """
  before, heading, after = PAGE.read_text("utf-8").partition(HEADING)
  if not heading:
    raise ValueError(f"{PAGE} has no heading {HEADING.strip()!r}; add it.")
  text, _, rest = after.partition("\n\n| `model_type`")
  _, _, rest = rest.partition("\n\n")
  return f"{before}{heading}{text}\n\n{table()}\n{rest}"


if __name__ == "__main__":
  PAGE.write_text(page(), "utf-8")
