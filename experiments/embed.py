r"""Clusters prompts by the hidden states of a policy, from easy to hard ones.

    python -m experiments.embed --workdir=runs/base --num_prompts=2048 \
        --out=runs/clusters.npz
    python -m experiments.embed --checkpoint=path/of/checkpoint \
        --config=configs/checkpoint.py \
        --config.data.train_path=prompts.jsonl --out=runs/clusters.npz

The policy is that of a run, or a Hugging Face checkpoint with a config for its
data. The embedding of a training prompt is its mean final hidden state; k-means
finds clusters of embeddings. The difficulty of a prompt is the mean negative
log-prob of its reference solution, in nats per token. That solution is the one
that supervised phases would imitate: the data's, or the trace of a task's
teacher. A schedule draws by the file:

    --config.rl.schedule.name=ads \
        --config.rl.schedule.clusters=runs/clusters.npz

The file names its records, and is refused with other records: the run must have
the same data and, for a task, the same seed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from absl import flags

from grpo_jax import ranges
from grpo_jax.cli import flags as flags_lib
from grpo_jax.cli import policies
from grpo_jax.data import clusters, demonstrations, sources
from grpo_jax.training.evaluation import embeddings
from grpo_jax.training.runtime import files, terminal

_POLICY = policies.define()
_OUT = flags.DEFINE_string(
  "out", None, "FILE.npz, local or gs://.", required=True
)
_NUM_PROMPTS = flags.DEFINE_integer(
  "num_prompts",
  None,
  "The first so many training prompts; by default all of a file.",
  1,
)
_NUM_CLUSTERS = flags.DEFINE_integer(
  "num_clusters", 64, "Clusters that k-means begins with.", 1
)
_LEAST = flags.DEFINE_integer(
  "least",
  32,
  "Prompts of a cluster; the members of smaller ones go to the nearest others.",
  1,
)
_SEED = flags.DEFINE_integer("seed", 0, "Of the clusters.", 0)
_BATCH_SIZE = flags.DEFINE_integer(
  "batch_size", None, "Prompts at a time; by default config.eval.batch_size.", 1
)


def main(argv: Sequence[str]) -> int:
  """Writes the file, and prints its contents."""
  del argv
  out = flags_lib.file_to_write("out", _OUT.value)
  assert out is not None
  with terminal.waiting("loading"):
    policy = _POLICY.opened()
  with policy as run:
    records = _records(run.loaded)
    with terminal.waiting(
      f"running the policy over {ranges.counted(len(records), 'prompt')}"
    ):
      measured = embeddings.measure(
        run.loaded, records, _BATCH_SIZE.value or run.config.eval.batch_size
      )
    about = {
      "policy": _POLICY.name,
      "step": run.step,
      "least": _LEAST.value,
      "seed": _SEED.value,
    }
  labels = clusters.k_means(
    measured.embeddings, _NUM_CLUSTERS.value, _LEAST.value, _SEED.value
  )
  known = clusters.Clusters(labels, measured.losses, _NUM_CLUSTERS.value)
  files.write(out, clusters.packed(records, known, about))
  sizes = np.bincount(labels)
  print(
    f"{ranges.counted(len(records), 'prompt')} in {len(sizes)} clusters of"
    f" {sizes.min()} to"
    f" {sizes.max()}, {measured.losses.mean():.3f} nats per token of their"
    f" solutions: {out}"
  )
  return 0


def _records(loaded) -> list[sources.Record]:
  """The first training records whose prompts are not too long.

  Raises:
    ValueError: The number of records is not set and the source has no end, or
      the source has fewer records.
  """
  source = loaded.problem.train
  endless = sources.task_of(source) is not None or sources.starts(source)
  if _NUM_PROMPTS.value is not None:
    source = demonstrations.First(source, _NUM_PROMPTS.value, "--num_prompts")
  elif endless:
    raise ValueError(
      f"the {len(source)} training prompts are made when they are asked for;"
      " set --num_prompts to as many as config.rl.schedule.pool."
    )
  most = loaded.problem.max_prompt_len
  records = [source[i] for i in range(len(source))]
  return [x for x in records if loaded.problem.encoder.prompt(x).size <= most]


if __name__ == "__main__":
  flags_lib.run(main, needs_config=False)
