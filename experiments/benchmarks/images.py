r"""The cost of images: a step with and without them, at equal token counts.

    python -m experiments.benchmarks.images --preset=S --json=runs/images.json

The step is the fused one of `experiments.benchmarks.step`, with the model and
the lengths of its preset. Half of the tokens of a prompt are placeholders of an
image, each for 2 x 2 patches of 14 x 14 pixels. Four cases are timed in the
same rounds:

| case     | the model has a tower | prompts have images |
|----------|-----------------------|---------------------|
| tokens   | no                    | no                  |
| unused   | yes                   | no                  |
| frozen   | yes, not trained      | yes                 |
| images   | yes                   | yes                 |

The floor of the tower is the time of its matrix products at the rate of a large
product, which is measured in the same rounds. A forward pass over N patches of
F numbers, with L layers of width D and an MLP of width M, and R tokens of
merge² patches for a language model of width W, has

    2 N (F D + L (4 D² + 2 D M)) + 4 L D N² + 2 R merge² D W

FLOPs for each prompt. A step has one such pass in the rollout. The update has
three, because the backward pass has two products for each product of the
forward pass; with a frozen tower it has one. Of the flags of that program, the
sizes, --repeats and --json are read.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.sharding import Mesh

from experiments.benchmarks import compared, workload
from grpo_jax.cli import flags as flags_lib
from grpo_jax.models.architecture import TowerConfig
from grpo_jax.settings.model import TowerSettings
from grpo_jax.types import Images, Prompts

# Name -> (has a tower, which is trained, and prompts with images).
CASES = {
  "tokens": (False, False, False),
  "unused": (True, True, False),
  "frozen": (True, False, True),
  "images": (True, True, True),
}


def tower_of(work: workload.Work, trained: bool = True) -> TowerSettings:
  """Makes a tower as wide and as deep as the language model."""
  return TowerSettings(
    kind="siglip",
    width=work.hidden,
    num_layers=work.layers,
    num_heads=work.heads,
    mlp_width=4 * work.hidden,
    patch_size=14,
    merge=2,
    side=16,
    trained=trained,
    image_token=work.vocab - 1,
  )


def num_places(work: workload.Work) -> int:
  """Number of tokens of a prompt that are placeholders of an image."""
  return work.prompt_len // 2


def forward_flops(
  tower: TowerConfig, work: workload.Work, num_tokens: int
) -> float:
  """FLOPs of a pass over the images of all prompts; products alone.

  Args:
    tower: Its sizes.
    work: The prompts, and the width of the language model.
    num_tokens: R, of each prompt.
  """
  patches, width = num_tokens * tower.patches_per_token, tower.width
  per_patch = tower.patch_width * width
  per_patch += tower.num_layers * (4 * width**2 + 2 * width * tower.mlp_width)
  per_patch += width * work.hidden  # The connector.
  pairs = 4 * tower.num_layers * width * patches**2
  return work.prompts * (2.0 * patches * per_patch + pairs)


def with_images(
  prompts: Prompts, tower: TowerSettings, num_tokens: int
) -> Prompts:
  """Prompts whose first tokens are the placeholders of a random image each."""
  tokens = np.minimum(prompts.tokens, tower.image_token - 1)
  tokens[:, :num_tokens] = tower.image_token
  rows, columns = tower.merge, num_tokens * tower.merge  # A strip of patches.
  block, row, column = np.indices((num_tokens, rows, rows)).reshape(3, -1)
  place = np.stack([row, block * rows + column], axis=1)
  shape = len(tokens), len(place)
  arrays: dict[str, Any] = {
    "patches": np.random.default_rng(2)
    .normal(size=(*shape, tower.patch_width))
    .astype(np.float32),
    "image": np.zeros(shape, np.int32),
    "place": np.tile(place.astype(np.int32), (shape[0], 1, 1)),
    "grid": np.tile(np.array([[rows, columns]], np.int32), (shape[0], 1, 1)),
  }
  return dataclasses.replace(prompts, tokens=tokens, images=Images(**arrays))


def measure(work: workload.Work, repeats: int) -> dict[str, Any]:
  """Seconds, bytes and floors of all cases."""

  def make(mesh: Mesh) -> dict[str, compared.Step]:
    found = {}
    for name, (has_tower, is_trained, sees) in CASES.items():
      tower = tower_of(work, is_trained)
      shown = functools.partial(
        with_images, tower=tower, num_tokens=num_places(work)
      )
      found[name] = compared.Step(
        work,
        mesh,
        shown if sees else lambda prompts: prompts,
        tower=tower if has_tower else None,
      )
    return found

  def floors(name: str, rate: float) -> dict[str, float]:
    _, is_trained, sees = CASES[name]
    passes = (4 if is_trained else 2) if sees else 0
    flops = passes * forward_flops(tower_of(work), work, num_places(work))
    return {"tower_gflops": flops / 1e9, "tower_floor_s": flops / rate}

  tower = tower_of(work)
  return {
    **compared.measure(work, repeats, make, "tokens", floors),
    "tower": dataclasses.asdict(tower),
    "patches": num_places(work) * tower.patches_per_token,
  }


def table(results: dict[str, Any]) -> str:
  """Returns the measurements as a Markdown table."""
  work = results["work"]
  lines = [
    f"{compared.machine(results)}, {work['prompts']} prompts of"
    f" {work['prompt_len']} tokens, {results['patches']} patches,"
    f" {work['group']} completions of {work['completion_len']} tokens; median"
    f" of {results['repeats']}",
    "",
    "| | step, s | × tokens | tower, GFLOP | its floor, s | MiB"
    " | parameters, M |",
    "|---|---|---|---|---|---|---|",
  ]
  lines += [
    f"| {name} | {row['median_s']:.2f} | {row['of_tokens']:.2f}"
    f" | {row['tower_gflops']:.1f} | {row['tower_floor_s']:.2f}"
    f" | {row['program_bytes'] / 2**20:.0f} | {row['parameters'] / 1e6:.2f} |"
    for name, row in results["cases"].items()
  ]
  return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
  """Measures, prints the table and writes the file."""
  del argv
  return compared.run(measure, table)


if __name__ == "__main__":
  flags_lib.run(main)
