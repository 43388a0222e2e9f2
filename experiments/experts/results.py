"""Record of an arm, and the numbers computed from it.

`ARM.json` has for each seed the held-out accuracy of each domain at each
evaluation and the number of generated completion tokens. Arms that are measured
also have the cosines between the gradients of domains. The file also has the
seconds of all seeds together.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.experts import arms
from experiments.sweeps import arms as sweeps_lib

_GENERATED = "tokens/generated"


def _accuracy(domain: str) -> str:
  return f"eval/domain/{domain}/accuracy"


def of_run(lines: list[dict[str, Any]]) -> dict[str, Any]:
  """The numbers of one run, from its log."""
  seen = [line for line in lines if _accuracy(arms.DOMAINS[0]) in line]
  tokens: dict[str, int] = {}
  for line in lines:
    if _GENERATED in line:
      before = tokens.get(line["phase"], 0)
      tokens[line["phase"]] = before + int(line[_GENERATED])
  return {
    "steps": [row["step"] for row in seen],
    "phases": [row["phase"] for row in seen],
    "accuracy": {
      domain: [round(row[_accuracy(domain)], 5) for row in seen]
      for domain in arms.DOMAINS
    },
    "tokens": tokens,
  }


class Results(sweeps_lib.Recorded):
  """The arms that have ended, by name."""

  def __init__(self, folder: pathlib.Path):
    super().__init__(folder, arms.ARMS)

  @property
  def num_seeds(self) -> int:
    return min(len(one["seeds"]) for one in self._found.values())

  def accuracy(self, arm: str, domain: str) -> np.ndarray:
    """Returns the accuracy of a domain at the end [S]."""
    return self.curve(arm, domain)[1][:, -1]

  def curve(self, arm: str, domain: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps [N] from the beginning of the arm, and accuracies [S, N]."""
    seeds = self._found[arm]["seeds"]
    steps = np.array(seeds[0]["steps"])
    values = np.array([seed["accuracy"][domain] for seed in seeds])
    return steps, values

  def tokens(self, arm: str) -> float:
    """Generated tokens of a seed, with those of the experts that it needs."""
    phases: tuple[str, ...] = ()
    if arm in ("opd-full", "opd-token"):
      phases = ("rl",)
    if arm == "sft-experts":
      phases = ("rl", "keep")
    return self._own_tokens(arm) + sum(
      self._own_tokens(expert, phases) for expert in arms.EXPERTS if phases
    )

  def _own_tokens(self, arm: str, phases: Sequence[str] = ()) -> float:
    """Mean over seeds of the tokens that phases of an arm draw themselves."""
    if arm not in self._found:
      return float("nan")
    counts = [seed["tokens"] for seed in self._found[arm]["seeds"]]
    return float(
      np.mean(
        [
          sum(x for k, x in c.items() if not phases or k in phases)
          for c in counts
        ]
      )
    )

  def cosines(self, arm: str) -> np.ndarray | None:
    """[S, D, D]; None where they were not measured."""
    found = self._found[arm].get("cosines")
    if found is None:
      return None
    return np.array(
      [[[np.nan if x is None else x for x in r] for r in m] for m in found]
    )

  def scores(self, arm: str, what: str) -> np.ndarray | None:
    """Returns a score of each seed [S]; None while the arm is missing.

    Args:
      arm: Its name.
      what: "macro", the mean accuracy of the domains at the end; "forgotten",
        the accuracy of all domains but the last at the end, minus that at the
        end of their own phases; "cosine", the mean between different domains;
        or a domain.
    """
    if arm not in self._found:
      return None
    if what in arms.DOMAINS:
      return self.accuracy(arm, what)
    if what == "macro":
      return np.mean([self.accuracy(arm, x) for x in arms.DOMAINS], axis=0)
    if what == "forgotten":
      return np.mean([self._change(x) for x in arms.DOMAINS[:-1]], axis=0)
    cosines = self.cosines(arm)
    if cosines is None:
      return None
    others = ~np.eye(len(arms.DOMAINS), dtype=bool)
    return np.nanmean(cosines[:, others], axis=1)

  def after_phase(self, domain: str, phase: str) -> np.ndarray:
    """Accuracy of a domain when the phase of one has ended [S]."""
    phases = self._found["sequential"]["seeds"][0]["phases"]
    last = max(i for i, x in enumerate(phases) if x == f"on_{phase}")
    return self.curve("sequential", domain)[1][:, last]

  def _change(self, domain: str) -> np.ndarray:
    """Accuracy at the end minus that at the end of the domain's phase [S]."""
    last = self.accuracy("sequential", domain)
    return last - self.after_phase(domain, domain)
