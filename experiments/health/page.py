"""Writes docs/metrics.md: the meaning of each metric, and the health rules.

python -m experiments.health.page
"""

from __future__ import annotations

import pathlib

from grpo_jax.training.monitor import metrics
from grpo_jax.training.rules import rules

PATH = pathlib.Path(__file__).resolve().parents[2] / "docs/metrics.md"

_HEAD = """# Metrics and alarms

Suppose that the log has `dead_groups` 1 in every step. The table says that then
no advantage differs from 0, names the rule H01, and says what helps.

Each line of `metrics.jsonl` has the metrics of a step by these names, and
TensorBoard, W&B and Trackio show the same. null is a mean over nothing. A word
in capitals, as in `reward/NAME`, stands for any name. *healthy* is a rule of
thumb: compare the curves of a run with those of another run. The table that
programs read is `grpo_jax/training/monitor/metrics.toml`. The command that
writes this page is `python -m experiments.health.page`.
"""

_RULES = """## Rules

After each step a run checks these rules
(`grpo_jax/training/rules/rules.toml`). A rule warns once in a phase: on the
console, as `alarm/NAME` in the line of the step, in TensorBoard and W&B, in the
trace log with groups of that step, and in `result.json` with its numbers. In
the table, z is the statistic of Mann and Kendall's test for a trend, on ten
means of the window (`grpo_jax/training/rules/rules.py`).

    --config.health.halt="('perfect_score', 'H14')"
    --config.health.off="('cut_off',)"

With `halt`, a run saves and stops with exit status 3 when a named rule warns.
To continue such a run, give its command again with another `config.health`. The
setting `off` names rules that do not warn. A run that is continued reads the
lines of its phases again, so it warns at the same steps as a run that was never
stopped.

[False alarms](false_alarms.md) says how often each rule warns of healthy runs.
The first command measures this, and the second command does so for runs of
yours:

    python -m experiments.health.false_alarms
    python -m experiments.health.false_alarms runs/a runs/b

| rule | alarm | warns when | how long | reads | means | what to do |
|---|---|---|---|---|---|---|
"""


def page() -> str:
  """Text of docs/metrics.md."""
  lines = [_HEAD]
  for section, rows in metrics.SECTIONS.items():
    lines += [
      f"## {section}\n",
      "| metric | unit | meaning | healthy | if not |",
      "|---|---|---|---|---|",
      *(
        f"| `{row.name}` | {row.unit} | {row.meaning} | {row.healthy} |"
        f" {row.action} |"
        for row in rows
      ),
      "",
    ]
  return "\n".join([*lines, _RULES]) + "".join(map(_rule, rules.RULES))


def _rule(rule: rules.Rule) -> str:
  looks = f"looked at every {rule.every} steps" if rule.every > 1 else ""
  wait = rule.wait.removeprefix("for ") or looks
  reads = ", ".join(f"`{name}`" for name in rule.reads)
  cells = (rule.threshold, wait, reads, rule.meaning, rule.advice)
  text = " | ".join(cell.replace("|z|", "the size of z") for cell in cells)
  return f"| {rule.number} | `{rule.name}` | {text} |\n"


def main() -> None:
  """Writes the page."""
  PATH.write_text(page(), encoding="utf-8")
  print(f"wrote {PATH}")


if __name__ == "__main__":
  main()
