"""The completions of a run as lines of text, 80 columns wide.

Texts of a policy or a verifier are escaped, so that a terminal does not act
upon them.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import NamedTuple

from experiments.traces import filters, source
from grpo_jax import ranges
from grpo_jax.training.runtime import files, traces

COLUMNS = 80
# Of a text; a longer one is cut, and says so.
_MAX_CHARACTERS = 2000


class Question(NamedTuple):
  """Query for completions to print, all of whose conditions must hold.

  Attributes:
    filters: Names of `filters.FILTERS`.
    search: A text in prompt, completion, error or calls, in any case.
    step, record, split, rule: Values of the group; None allows any.
    since: Step; only groups that score less than their prompt did then.
  """

  filters: tuple[str, ...] = ()
  search: str = ""
  step: int | None = None
  record: int | None = None
  since: int | None = None
  split: str | None = None
  rule: str | None = None


def matches(
  run: source.Run, question: Question
) -> list[tuple[traces.Group, list[traces.TraceRow]]]:
  """Groups with the completions that match the question, without empty ones."""
  tests = [x.holds for x in filters.FILTERS if x.name in question.filters]
  is_worse = [True] * len(run.groups)
  if question.since is not None:
    is_worse = filters.regressed(run.groups, question.since)
  found = []
  for group, worse in zip(run.groups, is_worse, strict=True):
    asked = (
      worse
      and question.step in (None, group.step)
      and question.record in (None, group.record)
      and question.split in (None, group.split)
      and (question.rule is None or question.rule in group.chosen)
    )
    rows = [
      row
      for row in group.rows
      if asked
      and all(holds(row, group) for holds in tests)
      and filters.has_text(row, group, question.search)
    ]
    if rows:
      found.append((group, rows))
  return found


def lines(run: source.Run, question: Question, limit: int) -> Iterator[str]:
  """Yields the lines about a run.

  Args:
    run: The run.
    question: Query for the completions to print.
    limit: Largest number of groups; the rest are counted.
  """
  found = matches(run, question)
  number = sum(len(rows) for _, rows in found)
  yield _cut(f"{files.escaped(run.name)} ({files.escaped(run.algorithm)})")
  groups = ranges.counted(len(found), "group")
  yield _cut(f"{groups}, {ranges.counted(number, 'completion')}")
  for alarm in run.alarms:
    yield from _wrapped(f"alarm at step {alarm.step}: {alarm.rule}", "")
    yield from _wrapped(alarm.text, "  ")
  for doubt in run.doubts:
    yield from _wrapped(f"doubt: {doubt}", "")
  for group, rows in found[:limit]:
    yield ""
    yield from _group(group, rows)
  if len(found) > limit:
    yield ""
    yield f"{len(found) - limit} more groups; --limit prints more."


def _group(group: traces.Group, rows: list[traces.TraceRow]) -> Iterator[str]:
  about = [f"step {group.step}", group.phase, group.split]
  if group.record >= 0:
    about.append(f"record {group.record}")
  if group.split == "train":
    about.append(f"prompt {group.prompt_id}")
  about += group.chosen
  yield from _wrapped("── " + " · ".join(x for x in about if x), "")
  yield from _wrapped(group.prompt.strip(), "  ")
  for row in rows:
    yield from _row(row, group)


def _row(row: traces.TraceRow, group: traces.Group) -> Iterator[str]:
  number = f"{row.sample}.{row.context}" if row.context else str(row.sample)
  reward = "unscored" if row.reward is None else f"{row.reward:.3f}"
  verdict = {True: "right", False: "wrong", None: ""}[row.correct]
  labels = [x.label for x in filters.FILTERS if x.holds(row, group)]
  if row.reward is None:
    labels.remove("unscored")
  head = [f"#{number}", reward, verdict, *labels]
  yield from _wrapped("  ".join(x for x in head if x), "  ")
  if len(row.components) > 1:
    parts = [
      f"{name} {'–' if x is None else format(x, '.3f')}"
      for name, x in row.components.items()
    ]
    yield from _wrapped(", ".join(parts), "    ")
  if row.opening:
    yield from _wrapped(f"begins with: {row.opening}", "    ")
  yield from _wrapped(row.text, "    ")
  for call in row.calls:
    for name, text in source.call_texts(call).items():
      yield from _wrapped(f"{name}: {text}", "      ")
  if row.error:
    yield from _wrapped(f"error: {row.error}", "    ")


def _wrapped(text: str, indent: str) -> Iterator[str]:
  """Escaped lines that fit; the lines of the text stay lines."""
  cut = text[:_MAX_CHARACTERS]
  if len(text) > len(cut):
    cut += f" … ({len(text) - len(cut)} more characters)"
  for line in cut.split("\n"):
    yield from textwrap.wrap(
      files.escaped(line),
      COLUMNS,
      initial_indent=indent,
      subsequent_indent=indent,
      break_on_hyphens=False,
    ) or [indent.rstrip()]


def _cut(text: str) -> str:
  return text if len(text) <= COLUMNS else text[: COLUMNS - 1] + "…"
