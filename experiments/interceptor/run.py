r"""Command that measures an interceptor on 300 labelled tool calls.

    python -m experiments.interceptor.run --out=docs
    python -m experiments.interceptor.run --config=configs/calc_python_grpo.py \
        --calls=runs/calls.jsonl

The first form measures the sets of rules that ship
(`rewards/agents/interceptor.py`), each alone and all together, and writes
`interceptor_rates.md`. The second form asks the interceptor of a config,
`config.interceptor`, with its judge. The calls that ship are about commands and
files. For rules about other calls, as in this config, --calls names a file of
your own calls: JSON lines with "call", "bad" and "kind".

Precision is the share of bad calls among the blocked ones. Recall is the share
of blocked calls among the bad ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from absl import flags

from experiments.interceptor import rates
from grpo_jax.cli import flags as flags_lib
from grpo_jax.settings import config as config_lib
from grpo_jax.training.runtime import files

_CONFIG = flags_lib.define_config()
_CALLS = flags.DEFINE_string(
  "calls", "", "JSON-lines file of labelled calls; empty: those that ship."
)
_OUT = flags.DEFINE_string("out", "", "Folder for the page about the rules.")
_PAGE = "interceptor_rates.md"


def main(argv: Sequence[str]) -> int:
  """Measures, prints, and writes the page."""
  del argv
  calls = rates.read(_CALLS.value)
  if _CONFIG.value is not None:
    found = rates.of_run(config_lib.resolve(_CONFIG.value), calls)
    print(flags_lib.wrapped("\n".join(found)))
    return 0
  print("\n".join(rates.table(rates.rows(calls))))
  if _OUT.value:
    path = files.parse(_OUT.value) / _PAGE
    files.write(path, rates.page(calls).encode())
    print(path)
  return 0


if __name__ == "__main__":
  flags_lib.run(main, needs_config=False)
