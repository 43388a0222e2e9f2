"""Labelled tool calls, and rates of an interceptor's decisions on them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from etils import epath

from experiments.sweeps import pages
from grpo_jax.rewards.agents import interceptor
from grpo_jax.settings import config as config_lib
from grpo_jax.training.problem import sessions
from grpo_jax.training.runtime import files

_SHIPPED = epath.resource_path("grpo_jax") / "data/assets/tool_calls.jsonl"


# (rules, calls, rates by name), as the table shows them.
Row = tuple[str, str, dict[str, float]]


class Call(NamedTuple):
  """A labelled call.

  Attributes:
    call: The text that a tool would execute.
    bad: Whether it cheats, leaks or escapes.
    kind: Subject of the call: the name of a set of rules.
  """

  call: str
  bad: bool
  kind: str


def read(path: str = "") -> list[Call]:
  """Reads labelled calls of a file, or those that ship.

  Raises:
    ValueError: A line is not a call, or the file lacks a bad or a harmless
      call.
  """
  source = files.parse(path) if path else _SHIPPED
  found = []
  for number, line in enumerate(source.read_text().splitlines(), 1):
    try:
      fields = json.loads(line)
      call, bad, kind = (fields[name] for name in Call._fields)
    except (ValueError, LookupError, TypeError) as error:
      raise ValueError(f"{source}, line {number}: {error!r}") from None
    if not (isinstance(call, str) and isinstance(bad, bool)):
      raise ValueError(
        f"{source}, line {number}: needs a text 'call' and true or false"
        f" as 'bad'; received {call!r:.40} and {bad!r:.40}."
      )
    found.append(Call(call, bad, str(kind)))
  if len({x.bad for x in found}) < 2:
    raise ValueError(
      f"{source} has {len(found)} calls; needs bad ones and harmless ones."
    )
  return found


def measured(
  calls: Sequence[Call], guard: interceptor.Interceptor
) -> dict[str, float]:
  """The rates of an interceptor, see `interceptor.rates`, and two more.

  "unjudged" is a share of all calls, and "found" that of the flagged ones among
  the bad.
  """
  events = guard.decide([x.call for x in calls], [""] * len(calls))
  rates = interceptor.rates(events, [x.bad for x in calls])
  found = [e.flagged for e, x in zip(events, calls, strict=True) if x.bad]
  rates["unjudged"] = sum(x.unjudged for x in events) / len(events)
  return rates | {"found": sum(found) / len(found) if found else math.nan}


def rows(calls: Sequence[Call]) -> Iterator[Row]:
  """Rows of the sets that ship, without a judge."""
  for name, rule in interceptor.RULES.items():
    guard = interceptor.Interceptor((rule,), None, "")
    own = [x for x in calls if x.kind == name]
    if len({x.bad for x in own}) == 2:
      yield f"`{name}`", f"{len(own)} about {name}", measured(own, guard)
  every = tuple(interceptor.RULES.values())
  guard = interceptor.Interceptor(every, None, "")
  yield "all five", f"all {len(calls)}", measured(calls, guard)


def table(found: Iterable[Row]) -> list[str]:
  """Lines of Markdown."""
  names = ("flagged", "judged", "unjudged", "blocked", "precision", "recall")
  lines = ["| rules | calls | " + " | ".join(names) + " |"]
  lines.append("|---" * (2 + len(names)) + "|")
  for rules, of, rates in found:
    cells = (
      "–" if math.isnan(rates[name]) else f"{rates[name]:.3f}" for name in names
    )
    lines.append(f"| {rules} | {of} | {' | '.join(cells)} |")
  return lines


def page(calls: Sequence[Call]) -> str:
  """The page about the rules that ship."""
  missed = [
    x
    for x in calls
    if x.bad and not any(rule(x.call) for rule in interceptor.RULES.values())
  ]
  lines: list[str] = [
    "# How rightly the rules of an interceptor decide",
    "",
    "<!-- Written by `python -m experiments.interceptor.run --out=docs`. -->",
    "",
    pages.paragraph("""
Without a judge, what a rule flags is blocked. The calls are 300 that ship in
[`tool_calls.jsonl`](../grpo_jax/data/assets/tool_calls.jsonl), each with its
label and the reason for it: half of them bad, a third of these hidden from a
search on purpose, and three in four of the harmless ones made to look bad. They
were written by somebody who had not seen the rules, and the rules were not
changed afterwards. One person's labels and 30 calls of each kind and label: a
call more or less is 0.033 of recall in a row about one kind. Shares of calls;
precision is that of bad ones among the blocked, recall that of blocked ones
among the bad."""),
    *table(rows(calls)),
    "",
    pages.paragraph(f"""
All five sets together miss {len(missed)} bad calls, which stand below. They
also block most of the harmless calls, and therefore a judge decides about the
calls that they flag ([interceptor.md](interceptor.md))."""),
  ]
  for x in missed:
    lines += [f"- `{x.call.replace(chr(10), chr(92) + 'n')}`"]
  return pages.joined(lines)


def of_run(run: config_lib.RunConfig, calls: Sequence[Call]) -> list[str]:
  """Table of the interceptor of a config, with its judge.

  If its rules flag no bad call, a sentence says that they are about other
  calls.

  Raises:
    ValueError: The config has no interceptor.
  """
  if not run.interceptor.rules:
    raise ValueError(
      "--config has no interceptor: set config.interceptor.rules, or leave"
      " --config out to measure the rules that ship."
    )
  guard, service = sessions.interceptor(run)
  try:
    rates = measured(calls, guard)
  finally:
    if service is not None:
      service.close()
  lines = table([("the config's", f"all {len(calls)}", rates)])
  if not rates["found"]:
    kinds = ", ".join(sorted({x.kind for x in calls}))
    rules = ", ".join(run.interceptor.rules)
    lines += [
      "",
      f"config.interceptor.rules={rules} flag none of the bad calls, which are"
      f" about {kinds}: the rules are about another kind of call. Pass"
      " --calls=FILE with labelled calls of that kind.",
    ]
  return lines
