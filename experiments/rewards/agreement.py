"""Four verifiers on the gold answers of GSM8K, and on mutations of them.

    python -m experiments.rewards.agreement
    python -m experiments.rewards.agreement --mutations=1000 --out=/tmp

The program compares the verifier of compiled programs, `math_accuracy` on the
host, and math-verify with and without the extracted answer. It writes
verifiers.md into the folder --out. It needs GSM8K under TFDS_DATA_DIR, and
takes a few minutes.
"""

from __future__ import annotations

from collections.abc import Sequence

from absl import flags

from experiments.rewards import agreement_page, mutations, verdicts
from grpo_jax.cli import flags as flags_lib
from grpo_jax.data import sources

_OUT = flags.DEFINE_string("out", "docs", "Folder of the page.")
_MUTATIONS = flags.DEFINE_integer("mutations", 20_000, "How many.")
_SEED = flags.DEFINE_integer("mutation_seed", 0, "Of the mutations.")


def _golds() -> list[str]:
  found = []
  for split in ("train", "test"):
    source = sources.TfdsSource("gsm8k", split)
    found += [source[i]["answer"] for i in range(len(source))]
  return found


def main(argv: Sequence[str]) -> int:
  """Compares, writes the page, and prints its path."""
  del argv
  out = flags_lib.existing_folder(_OUT)
  golds = _golds()
  cases = mutations.plain(golds)
  cases += mutations.mutated(golds, _MUTATIONS.value, _SEED.value)
  found = {
    "program": verdicts.in_program(cases),
    "host": verdicts.on_host(cases, "math_accuracy"),
    "math-verify": verdicts.on_host(
      cases, "experiments.rewards.raw:math_verify_of_answer"
    ),
    "math-verify alone": verdicts.on_host(
      cases, "experiments.rewards.raw:math_verify"
    ),
  }
  page = out / "verifiers.md"
  page.write_text(
    agreement_page.markdown(
      cases,
      {name: one.scores for name, one in found.items()},
      {name: one.rows_per_s for name, one in found.items()},
    ),
    encoding="utf-8",
  )
  print(f"{len(cases)} rows: {page}")
  return 0


if __name__ == "__main__":
  flags_lib.run(main)
