"""Writes docs/metrics.md: what each metric means, and the rules of health.

python -m experiments.health.page
"""

from __future__ import annotations

import pathlib

from grpo_jax.training import alarms, metric_table

PATH = pathlib.Path(__file__).resolve().parents[2] / "docs/metrics.md"

_HEAD = """# Metrics and alarms

Every line of metrics.jsonl has the metrics of a step, by these names, and
TensorBoard and W&B show the same. null is a mean over nothing. Words in
capitals stand for any name. What is healthy is a rule of thumb and no law:
curves of one run are best compared with those of another. The table in Python
is `grpo_jax/training/metric_table.py`, and this page is written by
`python -m experiments.health.page`.
"""

_RULES = """## Rules

After each step these rules are asked (`grpo_jax/training/alarms.py`). A rule
warns once a phase: on the console, as `alarm/NAME` in the line of the step, in
TensorBoard and W&B, in the trace log, which takes groups of that step, and in
result.json with its numbers. z is that of Mann and Kendall's test for a trend,
on ten means of the window (`grpo_jax/training/trends.py`).

    --config.health.halt="('perfect_score', 'H14')"
    --config.health.off="('cut_off',)"

`halt` names rules that stop the run after saving, with exit status 3; it goes
on with the same command and another `config.health`. A run that continues reads
the lines of its phases again, so it warns at the same steps as one that was
never stopped. [How often a rule warns of healthy runs](false_alarms.md) is
measured, and of runs of your own the second command says it:

    python -m experiments.health.false_alarms
    python -m experiments.health.false_alarms runs/a runs/b

| rule | alarm | warns when | how long | reads | means | what to do |
|---|---|---|---|---|---|---|
"""


def page() -> str:
  """docs/metrics.md."""
  lines = [_HEAD]
  for section, rows in metric_table.SECTIONS.items():
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
  return "\n".join([*lines, _RULES]) + "".join(map(_rule, alarms.RULES))


def _rule(rule: alarms.Rule) -> str:
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
