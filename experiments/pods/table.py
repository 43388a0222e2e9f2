r"""Writes benchmarks/pods.md: steps compiled for pods of TPUs.

    python -m experiments.pods.table                   # all rows, and the page
    python -m experiments.pods.table --only=7b-v5e-16  # one row anew
    python -m experiments.pods.table --only=           # the page alone

`experiments.pods.report` compiles rows one after another, each in a process of
its own (1 to 3 GB of memory, minutes). Its results are kept in
benchmarks/pods/ROW.json, from which the page is written.
"""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Sequence
from typing import Any

from absl import flags

from experiments.pods import flags as pod_flags
from experiments.pods import rows
from grpo_jax.cli import flags as flags_lib

# Row -> arguments of the report beside the config. Micro-batches have one row
# for each device that rows are split over, or four of small models.
ROWS = {
  "0.5b-v5e-8": (
    "--topology=v5e-8",
    "--mesh=fsdp:8",
    "--config.rl.num_prompts=16",
    "--config.rl.micro_batch_size=32",
  ),
  "0.5b-v5e-16": (
    "--topology=v5e-16",
    "--mesh=fsdp:16",
    "--config.rl.num_prompts=32",
    "--config.rl.micro_batch_size=64",
  ),
  "7b-v5e-16": (
    "--topology=v5e-16",
    "--mesh=fsdp:4,tensor:4",
    "--config.model.checkpoint=Qwen/Qwen2.5-7B",
    "--config.rl.num_prompts=8",
    "--config.rl.micro_batch_size=4",
  ),
  "7b-v5p-128": (
    "--topology=v5p-128",
    "--mesh=fsdp:16,tensor:4",
    "--config.model.checkpoint=Qwen/Qwen2.5-7B",
    "--config.rl.num_prompts=64",
    "--config.rl.micro_batch_size=128",
  ),
  "7b-v6e-64": (
    "--topology=v6e-64",
    "--mesh=fsdp:16,tensor:4",
    "--config.model.checkpoint=Qwen/Qwen2.5-7B",
    "--config.rl.num_prompts=32",
    "--config.rl.micro_batch_size=32",
  ),
  "30b-a3b-v5p-256": (
    "--topology=v5p-256",
    "--mesh=fsdp:8,expert:8,tensor:2",
    "--config.model.checkpoint=Qwen/Qwen3-30B-A3B",
    "--config.rl.num_prompts=64",
    "--config.rl.micro_batch_size=64",
  ),
  "7b-2-x-v5e-16": (
    "--topology=v5e-16",
    "--slices=2",
    "--mesh=data:2,fsdp:4,tensor:4",
    "--config.model.checkpoint=Qwen/Qwen2.5-7B",
    "--config.rl.num_prompts=16",
    "--config.rl.micro_batch_size=8",
  ),
  "7b-v5p-8192": (
    "--topology=v5p:16x16x16",
    "--mesh=data:16,fsdp:64,tensor:4",
    "--config.model.checkpoint=Qwen/Qwen2.5-7B",
    "--config.rl.num_prompts=2048",
    "--config.rl.micro_batch_size=2048",
  ),
}
# Of configs/pods_images.py, whose prompts show an image each.
_IMAGES = {
  "vl-3b-v5e-16": (
    "--topology=v5e-16",
    "--mesh=fsdp:8,tensor:2",
    "--config.rl.num_prompts=8",
    "--config.rl.micro_batch_size=8",
  ),
  "vl-7b-v5p-128": (
    "--topology=v5p-128",
    "--mesh=fsdp:16,tensor:4",
    "--config.model.checkpoint=Qwen/Qwen2.5-VL-7B-Instruct",
    "--config.rl.num_prompts=64",
    "--config.rl.micro_batch_size=128",
  ),
}
ROWS |= _IMAGES
# The same steps with a critic: PPO in place of GRPO.
_PPO = {f"{name}-ppo": name for name in ("0.5b-v5e-8", "7b-v5p-128")}
ROWS |= {name: ROWS[base] for name, base in _PPO.items()}
# The same steps with rollouts of rounded kernels; without a correction, so that
# nothing else differs.
_ROUNDED = {f"{name}-int8": name for name in ("0.5b-v5e-8",)}
ROWS |= {
  name: (
    *ROWS[base],
    "--config.sampling.weights_dtype=int8",
    "--config.sampling.uncorrected=True",
  )
  for name, base in _ROUNDED.items()
}
# Completions of 32 k and 128 k tokens; each device learns a row at a time.
_HALF_B = (
  "--mesh=fsdp:8,tensor:2",
  "--config.rl.num_prompts=8",
  "--config.rl.micro_batch_size=8",
)
_SEVEN_B = (
  "--mesh=fsdp:16,tensor:4",
  "--config.model.checkpoint=Qwen/Qwen2.5-7B",
  "--config.rl.num_prompts=16",
  "--config.rl.micro_batch_size=16",
)
ROWS |= {
  f"{name}-{tokens // 1024}k": (
    *arguments,
    f"--topology={name.partition('-')[2]}",
    f"--config.sampling.max_new_tokens={tokens}",
  )
  for name, arguments in (
    ("0.5b-v5p-32", _HALF_B),
    ("0.5b-v6e-16", _HALF_B),
    ("7b-v5p-128", _SEVEN_B),
    ("7b-v6e-64", _SEVEN_B),
  )
  for tokens in (2**15, 2**17)
}
# The one of them that does not fit, with positions split over `tensor`.
ROWS["7b-v6e-64-128k-split"] = (
  *ROWS["7b-v6e-64-128k"],
  "--config.model.split_positions=True",
)
# With the gated delta rule in three of four layers, and with attention in all.
ROWS |= {
  f"{name.lower()}-v5e-8-{tokens // 1024}k": (
    f"--config.model.checkpoint=benchmarks/pods/models/{name}",
    *("--topology=v5e-8", "--mesh=fsdp:8"),
    *("--config.rl.num_prompts=8", "--config.rl.micro_batch_size=8"),
    f"--config.sampling.max_new_tokens={tokens}",
  )
  for name in ("Qwen3.5-0.8B", "Full-0.8B")
  for tokens in (2**13, 2**15)
}
ROWS |= {
  f"{name}-rollout": (*ROWS[name], "--rollout")
  for name in ("qwen3.5-0.8b-v5e-8-8k", "full-0.8b-v5e-8-8k")
}
_ONLY = flags.DEFINE_list("only", list(ROWS), "Rows to compile anew.")
_FOLDER = flags.DEFINE_string("folder", "benchmarks/pods", "Of the files.")

_HEADING = """\
# Steps compiled for pods of TPUs

Written by `make pods`; nothing here has run on a TPU. Each row is the whole
step of `configs/pods.py` (512 + 1024 slots, 8 completions a prompt, AdamW in
float32, a reference), compiled ahead of time by libtpu for chips that are not
there: GRPO, or PPO (`-ppo`), whose critic has a trunk of the policy's size.
In rows of `int8` rollouts read kernels of 8 bits, and updates do not
([quantised sampling](../docs/quantised_sampling.md)).
In rows of `32k` and `128k` completions have up to 32 768 and 131 072 tokens
([long completions](../docs/guides/pod.md#long-completions)). Beside a `no`
stands what is missing on a device. Where a report lists kernels whose
operations are not counted, it is older than the count of what attention
multiplies.
Rows that end with `rollout` have no update: HBM and times are those of the
rollout alone, without optimizer and reference. `full-0.8b` is Qwen3.5-0.8B with
attention in all layers, without its gates ([models](pods/models)).
In rows of `vl` each prompt shows an image of up to 1024 patches, a tower is
trained too, and rewards come from the host (`configs/pods_images.py`).
[The program](../experiments/pods/report.py) says what the figures are and what
they are not: operations, bytes and what is sent are counted with the trip
counts of loops, every completion at its full length; a step takes at least the
time of the last column, and may take much longer. HBM is of one device, in GiB.
Seconds of compiling are those of a clock, on two cores that other programs used
too; a long one may have pauses of the process in it.
"""


def page(folder: pathlib.Path) -> str:
  """Text of the page about the existing rows, in the order of `ROWS`."""
  found: dict[str, dict[str, Any]] = {}
  for name in ROWS:
    path = folder / f"{name}.json"
    if path.exists():
      found[name] = json.loads(path.read_text(encoding="utf-8"))
  head = (
    "row",
    "mesh",
    "prompts",
    "compile s",
    "fits",
    "HBM",
    "parameters",
    "optimizer",
    "reference",
    "cache",
    "temporary",
    "TFLOP",
    "HBM GB",
    "sent GB",
    "sent per token, MB",
    "at least s",
  )
  cells = [_cells(name, results) for name, results in found.items()]
  table = "\n".join(map(_line, (head, ["---"] * len(head), *cells)))
  # The report of each row, one heading down.
  reports = [
    "#" + (folder / f"{name}.md").read_text(encoding="utf-8") for name in found
  ]
  return "\n".join((_HEADING, table + "\n", *reports))


def _line(cells: Sequence[str]) -> str:
  return f"| {' | '.join(cells)} |"


def _missing(results: dict[str, Any]) -> str:
  """Memory that a device lacks, from the compiler's message; "" if unknown.

  If the temporaries alone do not fit, the message is about them alone.
  """
  said = results["compiler"]
  if found := re.search(r"capacity by ([\d.]+)([KMG])", said):
    return f"{found[1]} {found[2]}iB"
  sizes = re.findall(r"\(([\d.]+)G\)", said)
  if len(sizes) != 2:
    return ""
  return f"{float(sizes[0]) - float(sizes[1]):.2f} GiB and the arguments"


def _cells(name: str, results: dict[str, Any]) -> list[str]:
  mesh = " ".join(
    f"{axis} {size}" for axis, size in results["mesh"].items() if size > 1
  )
  anchor = name.replace(".", "")  # As renderers of Markdown make it.
  first = [f"[{name}](#{anchor})", mesh, str(results["num_prompts"])]
  if not results["fits"]:
    shown = f"no, by {missing}" if (missing := _missing(results)) else "no"
    return [*first, "", shown, *[""] * 11]
  sizes = results["hbm"]
  kinds = (
    "total",
    "parameters",
    "optimizer",
    "reference",
    "cache",
    "temporary",
  )
  phases = results["phases"].values()
  per_token = results["in_token_loop"]["sent_bytes"] / results["decode_steps"]
  return [
    *first,
    f"{results['compile_s']:.0f}",
    "yes",
    *(f"{sizes[kind] / 2**30:.2f}" for kind in kinds),
    f"{sum(of['flops'] for of in phases) / 1e12:.1f}",
    f"{sum(of['hbm_bytes'] for of in phases) / 1e9:.0f}",
    f"{sum(of['sent_bytes'] for of in phases) / 1e9:.1f}",
    f"{per_token / 1e6:.2f}",
    f"{results['at_least_s']:.2f}",
  ]


def _config(name: str) -> str:
  """The config of a row."""
  if name in _IMAGES:
    return "configs/pods_images.py:grpo"
  return f"configs/pods.py:{'ppo' if name in _PPO else 'grpo'}"


def main(argv: Sequence[str]) -> int:
  """Compiles the rows, and writes the page; 1 if a row could not be made."""
  del argv
  folder = pathlib.Path(_FOLDER.value)
  asked = {
    name: (f"--config={_config(name)}", *ROWS[name])
    for name in pod_flags.chosen(_ONLY, ROWS)
  }
  failed = rows.compile_all(asked, folder)
  folder.with_suffix(".md").write_text(page(folder), encoding="utf-8")
  return 1 if failed else 0


if __name__ == "__main__":
  flags_lib.run(main)
