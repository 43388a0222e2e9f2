r"""Shows the traces of a run: one page for a browser, or text.

    python -m experiments.traces --workdir=runs/quickstart \
        --out=runs/traces.html
    python -m experiments.traces --workdir=runs/a --other=runs/b \
        --out=runs/ab.html
    python -m experiments.traces --workdir=runs/quickstart --text \
        --filter=wrong-rewarded --filter=cut-off --search=answer

The page is one file, which loads no others. docs/traces.md describes it.
`--text` prints the completions that pass all filters, 80 columns wide.
"""

from __future__ import annotations

from collections.abc import Sequence

from absl import flags

from experiments.traces import filters, page, source, terminal
from grpo_jax.cli import flags as flags_lib
from grpo_jax.training.runtime import files

_WORKDIR = flags.DEFINE_string(
  "workdir", None, "Folder of the run, local or gs://.", required=True
)
_OTHER = flags.DEFINE_string(
  "other", None, "Folder of a run that the first is compared with."
)
_OUT = flags.DEFINE_string("out", None, "The page to write, local or gs://.")
_MEGABYTES = flags.DEFINE_float("megabytes", 5.0, "Of the page, at most.", 0.1)
_TEXT = flags.DEFINE_bool("text", False, "Print text; no page is needed then.")
_FILTER = flags.DEFINE_multi_enum(
  "filter",
  [],
  [x.name for x in filters.FILTERS],
  "With --text: only such completions; can be given several times.",
)
_SEARCH = flags.DEFINE_string("search", "", "With --text: only with this text.")
_STEP = flags.DEFINE_integer("step", None, "With --text: only of this step.")
_RECORD = flags.DEFINE_integer(
  "record", None, "With --text: only of this record, through training."
)
_SINCE = flags.DEFINE_integer(
  "since", None, "With --text: only prompts that score less than at this step."
)
_SPLIT = flags.DEFINE_enum("split", None, ["train", "eval"], "With --text.")
_RULE = flags.DEFINE_string(
  "rule", None, "With --text: only groups traced by this rule, as worst."
)
_LIMIT = flags.DEFINE_integer("limit", 20, "With --text: groups, at most.", 1)


def main(argv: Sequence[str]) -> int:
  """Writes the page, or prints."""
  del argv
  if not _TEXT.value and not _OUT.value:
    raise ValueError(
      "traces: neither --out nor --text was given; pass --out=runs/traces.html"
      " for a page, or --text to print."
    )
  out = flags_lib.file_to_write("out", _OUT.value)
  folders = [x for x in (_WORKDIR.value, _OTHER.value) if x]
  runs = [source.read(folder) for folder in folders]
  if _TEXT.value:
    question = terminal.Question(
      tuple(_FILTER.value),
      _SEARCH.value,
      _STEP.value,
      _RECORD.value,
      _SINCE.value,
      _SPLIT.value,
      _RULE.value,
    )
    for run in runs:
      for line in terminal.lines(run, question, _LIMIT.value):
        print(line)
  if out is not None:
    content = page.write(runs, int(_MEGABYTES.value * 1e6)).encode()
    files.write(out, content)
    number = sum(len(run.groups) for run in runs)
    print(f"page: {out} ({len(content) / 1e6:.2f} MB, {number} groups)")
  return 0


if __name__ == "__main__":
  flags_lib.run(main)
