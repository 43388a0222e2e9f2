r"""Costs of the host in a run: verifiers, the tokenizer and checkpoints.

    python -m experiments.benchmarks.host
    python -m experiments.benchmarks.host --host_parts=verifiers \
        --scored_rows=100000
    python -m experiments.benchmarks.host --host_parts=checkpoints \
        --state_gb=0.1,1,10 --state_folder=/some/disk

Each part prints a table. Each measurement stands beside its floor, which is
measured before and after it in the same process: the reward functions in a
loop, the tokenizer in a loop, a plain write and fsync of the same number of
bytes. If other programs run on the machine, trust the ratios and not the
seconds. Memory is read from Linux.

- `verifiers` sends rows through the pool that training has. Completions have
  about 70 words; half of them are right. With 0 workers, this process checks
  each row as a worker does, and nothing ends a row that hangs.
- `tokenizer` reads prompts of about 90 words through the stream of training,
  with 0, 1 and 2 threads that work ahead; training has one.
- `checkpoints` saves and restores a state of normal numbers. A state of 10 GB
  needs a disk with 30 GB and memory for 12 GB.
"""

from __future__ import annotations

import pathlib
import tempfile
from collections.abc import Iterable, Mapping, Sequence

from absl import flags

from experiments.benchmarks import accelerator, host_rows, host_states
from grpo_jax.cli import flags as flags_lib

PARTS = ("verifiers", "tokenizer", "checkpoints")

_PARTS = flags.DEFINE_list("host_parts", list(PARTS), "Of the benchmark.")
_ROWS = flags.DEFINE_integer("scored_rows", 10_000, "Rows of a call.", 1)
_BOXED = flags.DEFINE_integer("boxed_rows", 100, "Rows of programs.", 1)
_WORKERS = flags.DEFINE_list(
  "host_workers", ["0", "1", "2", "4"], "Worker processes; 0: none."
)
_RECORDS = flags.DEFINE_integer("records", 10_000, "Prompts to encode.", 1)
_THREADS = flags.DEFINE_list(
  "data_threads", ["0", "1", "2"], "Threads that read ahead."
)
_GB = flags.DEFINE_list("state_gb", ["0.1", "1"], "Sizes of states, 10⁹ bytes.")
_FOLDER = flags.DEFINE_string(
  "state_folder", None, "Where states are saved; by default a temporary folder."
)
_ROUNDS = flags.DEFINE_integer("save_rounds", 3, "Saves of each state.", 1)


def _numbers(flag: flags.FlagHolder, kind: type, least: float) -> list:
  """Parses the numbers of a flag.

  Raises:
    ValueError: A text is not a number, or a number is too small.
  """
  try:
    found = [kind(text) for text in flag.value]
  except ValueError:
    found = []
  if not found or min(found) < least:
    raise ValueError(
      f"benchmarks.host: --{flag.name}={','.join(flag.value)}; needs"
      f" numbers from {least:g} on, as {','.join(flag.default)}."
    )
  return found


def _print(rows: Iterable[Mapping[str, float | str]]) -> None:
  """Prints a table; each row has the names of the columns."""
  for number, row in enumerate(rows):
    if not number:
      print(f"| {' | '.join(row)} |\n|{'---:|' * len(row)}")
    cells = (
      x if isinstance(x, str) else accelerator.number(x) for x in row.values()
    )
    print(f"| {' | '.join(cells)} |", flush=True)


def main(argv: Sequence[str]) -> int:
  """Prints the tables of the parts."""
  del argv
  workers = _numbers(_WORKERS, int, 0)
  threads = _numbers(_THREADS, int, 0)
  sizes = _numbers(_GB, float, 1e-6)
  if unknown := sorted({*_PARTS.value} - {*PARTS}):
    raise ValueError(
      f"benchmarks.host: --host_parts has {', '.join(unknown)}; there are"
      f" {', '.join(PARTS)}."
    )
  with tempfile.TemporaryDirectory() as temporary:
    folder = pathlib.Path(_FOLDER.value or temporary)
    if not folder.is_dir():
      raise FileNotFoundError(
        f"benchmarks.host: --state_folder={folder}: there is no such folder;"
        " make it first."
      )
    if "verifiers" in _PARTS.value:
      _print(
        row
        for mix in host_rows.MIXES
        for row in host_rows.scored(
          mix, _BOXED.value if mix == "code" else _ROWS.value, workers
        )
      )
    if "tokenizer" in _PARTS.value:
      _print(host_rows.encoded(_RECORDS.value, threads))
    if "checkpoints" in _PARTS.value:
      _print(
        host_states.saved(int(size * 1e9), folder, _ROUNDS.value)
        for size in sizes
      )
  return 0


if __name__ == "__main__":
  flags_lib.run(main)
