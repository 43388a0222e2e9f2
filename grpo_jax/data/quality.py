"""Checks of data before training, and a source without excluded records.

The checks of prompts and labels need no policy. Prompts are sequences of tokens
of any kind. Two prompts are near-duplicates if their sets of 5-grams have a
Jaccard index above 0.8:

    J(x, y) = |x ∩ y| / |x ∪ y|

Pairs are found by an inverted index over prefixes, which misses none: two sets
that are so similar share one of their rarest 5-grams. Then each candidate is
compared exactly.

Source of the index: Bayardo, Ma and Srikant, "Scaling up all pairs similarity
search", WWW 2007, Section 4.3; of the prefix for Jaccard: Xiao et al.,
"Efficient similarity joins for near duplicate detection", WWW 2008.

`Without` leaves out the records that a file lists by a hash of their content.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import json
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from grpo_jax import ranges
from grpo_jax.data import sources
from grpo_jax.data.sources import Record, Source

GRAM = 5  # Tokens.
ALIKE = 0.8  # Jaccard index above which prompts are near-duplicates.
# Thresholds of `of_skew`: labels by the value of an attribute.
_MIN_RECORDS = 20
_SKEWED = 0.9
_OVERALL = 0.6
_MAX_VALUES = 50  # An attribute with more values is a number or a name.
_MAX_NAMED = 5  # Most records that a message names.


@dataclasses.dataclass(frozen=True)
class Finding:
  """A fault of the data that a check has found.

  Attributes:
    check: Name of the check.
    is_error: Whether training should not begin; else it is a warning.
    message: The fault, and a remedy, in words.
    records: Numbers of the records.
  """

  check: str
  is_error: bool
  message: str
  records: tuple[int, ...] = ()


def duplicates(
  prompts: Sequence[Sequence[Hashable]],
) -> dict[int, int]:
  """Maps the number of each repeated prompt to that of the first equal one."""
  first: dict[tuple[Hashable, ...], int] = {}
  copies = {}
  for number, prompt in enumerate(prompts):
    earlier = first.setdefault(tuple(prompt), number)
    if earlier != number:
      copies[number] = earlier
  return copies


def near_duplicates(
  prompts: Sequence[Sequence[Hashable]], alike: float = ALIKE
) -> list[tuple[int, int, float]]:
  """Pairs of different prompts whose sets of 5-grams are similar.

  Args:
    prompts: Tokens of each prompt; a prompt shorter than a gram is one gram.
    alike: Threshold in (0, 1); a pair is found if its Jaccard index is larger.

  Returns:
    (number, smaller number, Jaccard index), in order. Equal prompts are
    represented by the first of them.
  """
  same = duplicates(prompts)
  frequency: collections.Counter[tuple] = collections.Counter()
  grams: dict[int, set[tuple]] = {}
  for number, prompt in enumerate(prompts):
    if number not in same:
      tokens = tuple(prompt)
      count = max(len(tokens) - GRAM + 1, 1)
      grams[number] = {tokens[i : i + GRAM] for i in range(count)}
      frequency.update(grams[number])
  order = {
    gram: i for i, (gram, _) in enumerate(reversed(frequency.most_common()))
  }
  index: dict[tuple, list[int]] = collections.defaultdict(list)
  pairs = []
  # In the order of size, so that a partner is never larger.
  for number in sorted(grams, key=lambda n: (len(grams[n]), n)):
    own = grams[number]
    rarest = sorted(own, key=order.__getitem__)
    # A similar pair shares more than alike · len(own) grams. So at least one of
    # them is among the rarest grams of this prefix.
    prefix = len(own) - math.floor(alike * len(own) + 1e-9)
    candidates = {
      other
      for gram in rarest[:prefix]
      for other in index[gram]
      if len(grams[other]) > alike * len(own)
    }
    for other in candidates:
      shared = len(own & grams[other])
      jaccard = shared / (len(own) + len(grams[other]) - shared)
      if jaccard > alike:
        pairs.append((max(number, other), min(number, other), jaccard))
    for gram in rarest[:prefix]:
      index[gram].append(number)
  return sorted(pairs)


def of_duplicates(prompts: Sequence[Sequence[Hashable]]) -> list[Finding]:
  """Warnings about prompts that are equal, or nearly equal."""
  findings = []
  if same := duplicates(prompts):
    findings.append(
      Finding(
        "duplicates",
        False,
        f"{len(same)} of {len(prompts)} prompts were there before, such as"
        f" {_pairs(sorted(same), same)}; each copy adds to the influence of a"
        " prompt. Keep one of each.",
        tuple(sorted(same)),
      )
    )
  if pairs := near_duplicates(prompts):
    later = {number: earlier for number, earlier, _ in pairs}
    findings.append(
      Finding(
        "near-duplicates",
        False,
        f"{len(later)} of {len(prompts)} prompts share more than {ALIKE:g} of"
        f" their {GRAM}-grams with an earlier one, such as"
        f" {_pairs(sorted(later), later)}. Keep one of each, or make sure that"
        " none is held out.",
        tuple(sorted(later)),
      )
    )
  return findings


def _pairs(numbers: Sequence[int], partner: Mapping[int, int]) -> str:
  text = ", ".join(f"{n} (as {partner[n]})" for n in numbers[:_MAX_NAMED])
  return text + (" and others" if len(numbers) > _MAX_NAMED else "")


def of_count(
  num_distinct: int, num_prompts: int, least: int, is_all: bool = True
) -> list[Finding]:
  """An error if there are too few different prompts.

  Args:
    least: Fewest different prompts: 8 × the prompts of a step.
  """
  if num_distinct >= least:
    return []
  where = "" if is_all else "the first "
  return [
    Finding(
      "few prompts",
      True,
      f"{num_distinct} different prompts among {where}{num_prompts}; needs"
      f" {least}, which is 8 times the prompts of a step: few prompts decide"
      " what a policy becomes. Add prompts, or make config.rl.num_prompts"
      " smaller.",
    )
  ]


def of_conflicts(
  prompts: Sequence[Sequence[Hashable]], labels: Sequence[Hashable]
) -> list[Finding]:
  """An error if the same prompt has different labels."""
  of_prompt: dict[tuple, Hashable] = {}
  conflicts = []
  for number, (prompt, label) in enumerate(zip(prompts, labels, strict=True)):
    if of_prompt.setdefault(tuple(prompt), label) != label:
      conflicts.append(number)
  if not conflicts:
    return []
  examples = ", ".join(map(str, conflicts[:_MAX_NAMED]))
  return [
    Finding(
      "conflicts",
      True,
      f"{len(conflicts)} prompts were there before with another label, such as"
      f" {examples}: one of the two is wrong. Correct the labels.",
      tuple(conflicts),
    )
  ]


def of_skew(
  attributes: Sequence[Mapping[str, Any]], labels: Sequence[Hashable]
) -> list[Finding]:
  """Warnings about values of attributes that nearly always have one label.

  For such a value, at least 20 records have it, a share of 0.9 of them have one
  label, and at most a share of 0.6 of all records have that label.

  Args:
    attributes: Attributes of each record; numbers, texts and flags count.
  """
  overall = collections.Counter(labels)
  findings = []
  for name in sorted({name for record in attributes for name in record}):
    of_value: dict[Any, collections.Counter] = collections.defaultdict(
      collections.Counter
    )
    members: dict[Any, list[int]] = collections.defaultdict(list)
    for number, (record, label) in enumerate(
      zip(attributes, labels, strict=True)
    ):
      value = record.get(name)
      if isinstance(value, (str, int, bool)):
        of_value[value][label] += 1
        members[value].append(number)
    if len(of_value) > _MAX_VALUES:
      continue
    for value, counts in of_value.items():
      label, count = counts.most_common(1)[0]
      total = counts.total()
      if (
        total >= _MIN_RECORDS
        and count >= _SKEWED * total
        and overall[label] <= _OVERALL * len(labels)
      ):
        findings.append(
          Finding(
            "skew",
            False,
            f"{count} of {total} records with {name}={value!r} have the label"
            f" {label!r}, and {overall[label]} of all {len(labels)}: a policy"
            " can learn the label from the attribute. Balance them.",
            tuple(members[value]),
          )
        )
  return findings


def key(record: Record) -> str:
  """Hashes the prompt with its tools, the answer and the images of a record."""
  prompt = record["prompt"]
  text = prompt if isinstance(prompt, str) else np.asarray(prompt).tolist()
  options = getattr(prompt, "options", None)
  further = [*record.get("pictures", ()), *([options] if options else [])]
  content = json.dumps([text, record["answer"], *further])
  return hashlib.sha256(content.encode()).hexdigest()[:16]


def described(
  source: Source, why: Mapping[int, Sequence[str]]
) -> list[dict[str, Any]]:
  """Content of a file about records: key, number, reasons, and their text.

  Only the key is read again; the rest is for people. `why` has the reasons by
  the number of a record.
  """
  return [
    {
      "key": key(source[number]),
      "number": number,
      "why": list(reasons),
      "prompt": str(source[number]["prompt"])[:200],
      "answer": str(source[number]["answer"])[:200],
    }
    for number, reasons in sorted(why.items())
  ]


class Without(sources.Chosen):
  """A source without the records that a file names."""

  def __init__(self, source: Source, path: epath.PathLike):
    """Reads the file, and every record once.

    Args:
      source: A source that is held in memory, or cheap to read.
      path: JSON file with a list of objects with a `key`.

    Raises:
      FileNotFoundError: There is no such file.
      ValueError: The file has no such list, or all records are in it.
    """
    path = epath.Path(path)
    if not path.exists():
      raise FileNotFoundError(
        f"config.data.quarantine={path}: there is no such file;"
        " `grpo-lint --out=FILE` writes one."
      )
    try:
      names = {entry["key"] for entry in json.loads(path.read_text("utf-8"))}
    except (ValueError, TypeError, KeyError) as error:
      raise ValueError(
        f"config.data.quarantine={path}: needs a JSON list of objects with"
        " a 'key', as `grpo-lint` writes it."
      ) from error
    rows = [i for i in range(len(source)) if key(source[i]) not in names]
    if not rows:
      raise ValueError(
        f"config.data.quarantine={path}: of"
        f" {ranges.counted(len(source), 'record')} none is left to train on."
      )
    super().__init__(source, rows)
