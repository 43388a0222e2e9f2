"""Three verifiers on the gold answers of GSM8K, and on mutations of them.

    python -m experiments.rewards.agreement
    python -m experiments.rewards.agreement --mutations=1000 --out=/tmp

Compares the verifier of compiled programs, `math_accuracy` on the host, and
math-verify as it comes, and writes verifiers.md into the folder --out. Needs
GSM8K under TFDS_DATA_DIR, and takes a few minutes.
"""

from __future__ import annotations

import pathlib
import time
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from absl import flags

from experiments import flags as flags_lib
from experiments.rewards import agreement_page, mutations
from grpo_jax.data import sources
from grpo_jax.rewards import host
from grpo_jax.rewards.arrays import accuracy, numbers, text

_OUT = flags.DEFINE_string("out", "docs", "Folder of the page.")
_MUTATIONS = flags.DEFINE_integer("mutations", 20_000, "How many.")
_SEED = flags.DEFINE_integer("mutation_seed", 0, "Of the mutations.")

BATCH, MAX_BYTES = 1024, 1024
_CHUNK = 2000  # Rows of one call of the host scorer.


class Verdicts(NamedTuple):
  """What a verifier says of each row; NaN where it failed.

  Attributes:
    scores: [N] float32
    rows_per_s: Rows in a second.
  """

  scores: np.ndarray
  rows_per_s: float


def in_program(cases: Sequence[mutations.Case]) -> Verdicts:
  """The compiled verifier; the time is that of the program alone."""
  made = [numbers.gold(case.gold) for case in cases]
  golds = [gold for gold in made if gold is not None]
  if len(golds) < len(cases):
    raise ValueError(
      f"agreement: {len(cases) - len(golds)} gold answers need the host."
    )
  program = jax.jit(accuracy.accuracy)
  scores, seconds = [], 0.0
  for k in range(0, len(cases), BATCH):
    some = list(range(k, min(k + BATCH, len(cases))))
    padded = some + some[:1] * (BATCH - len(some))
    rows = text.encoded([cases[i].text for i in padded], MAX_BYTES)
    gold = {key: np.stack([golds[i][key] for i in padded]) for key in golds[0]}
    if k == 0:
      jax.block_until_ready(program(rows, gold))  # Compiles.
    start = time.perf_counter()
    batch = jax.block_until_ready(program(rows, gold))
    seconds += time.perf_counter() - start
    scores.append(np.asarray(batch)[: len(some)])
  batches = -(-len(cases) // BATCH)
  return Verdicts(np.concatenate(scores), batches * BATCH / seconds)


def on_host(cases: Sequence[mutations.Case], function: str) -> Verdicts:
  """A function of the host, through two processes."""
  scores = []
  with host.HostScorer(
    {"reward": function}, {"reward": 1.0}, step_timeout_s=600.0
  ) as scorer:
    start = time.perf_counter()
    for k in range(0, len(cases), _CHUNK):
      some = cases[k : k + _CHUNK]
      found = scorer.score(
        [""] * len(some),
        [case.text for case in some],
        range(len(some)),
        [{"answer": case.gold} for case in some],
      )
      scores.append(found.components["reward"])
    seconds = time.perf_counter() - start
  return Verdicts(np.concatenate(scores), len(cases) / seconds)


def _golds() -> list[str]:
  found = []
  for split in ("train", "test"):
    source = sources.TfdsSource("gsm8k", split)
    found += [source[i]["answer"] for i in range(len(source))]
  return found


def main(argv: Sequence[str]) -> int:
  """Compares, writes the page, and says where it is."""
  del argv
  out = pathlib.Path(_OUT.value)
  if not out.is_dir():
    raise FileNotFoundError(
      f"--out={_OUT.value}: there is no such folder. Start from the root of"
      " the repository, or make the folder first."
    )
  golds = _golds()
  cases = mutations.plain(golds)
  cases += mutations.mutated(golds, _MUTATIONS.value, _SEED.value)
  verdicts = {
    "program": in_program(cases),
    "host": on_host(cases, "math_accuracy"),
    "math-verify": on_host(
      cases, "experiments.rewards.raw:math_verify_of_answer"
    ),
    "math-verify alone": on_host(cases, "experiments.rewards.raw:math_verify"),
  }
  page = out / "verifiers.md"
  page.write_text(
    agreement_page.markdown(
      cases,
      {name: found.scores for name, found in verdicts.items()},
      {name: found.rows_per_s for name, found in verdicts.items()},
    ),
    encoding="utf-8",
  )
  print(f"{len(cases)} rows: {page}")
  return 0


if __name__ == "__main__":
  flags_lib.run(main)
