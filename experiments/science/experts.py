"""One model for several domains, from experts or from all at once.

Sizes, difficulties and the learning rate were chosen after trial runs of seed 0
of `base`, `mixed` and two experts, before any other arm had been run; the rules
below were written then. They look at one number per seed: the held-out
accuracy, greedy, as the mean over the four domains ("macro"), at the end of an
arm. All arms have drawn as many completions. Where two arms are compared, it is
seed by seed. The mean has Student's 95 % interval, and the interval decides. A
claim is confirmed if all of its checks hold.

X1  Experts that are distilled into one model are not worse than GRPO on mixed
    batches: `opd-full` − `mixed` is not below 0.
X2  They are better: it is above 0.
X3  One domain after another forgets: the accuracy of the first three domains at
    the end of `sequential` is below that at the end of their own phase.
X4  Mixed batches are better than one domain after another.
X5  The whole distribution of a teacher is worth more than its word on the
    sampled token: `opd-full` − `opd-token` is above 0.
X6  The policy's own completions are the better place to learn from experts:
    `opd-full` − `sft-experts` is above 0.
X7  Domains interfere: the mean cosine between the gradients of two domains is
    below 0, at `base` and at the end of `mixed`.
"""

from __future__ import annotations

import copy
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import ml_collections
import numpy as np

from experiments.science import arms, pages
from experiments.science.claims import difference, rule, table
from experiments.sweeps import figures
from grpo_jax import api
from grpo_jax.configs import mixture
from grpo_jax.settings import config as config_lib
from grpo_jax.training.evaluation import interference
from grpo_jax.training.monitor import style

DOMAINS = tuple(str(part["name"]) for part in mixture.PARTS)


class Size(NamedTuple):
  """Amounts of computation.

  All arms but `base` draw the same number of completions: `mixed` and
  `sequential` in `steps` steps, the experts in fewer each, and `opd-full` and
  `opd-token` in the steps that remain. The experts keep completions of that
  number of steps in all; these are the budget of `sft-experts`.
  """

  num_seeds: int  # Number of seeds of each arm.
  imitation: int  # Number of steps of `base`.
  # Number of steps of `mixed`, and of `sequential` in all its phases.
  steps: int
  expert_steps: int  # Number of steps of each expert.
  on_experts: int  # Number of steps of `sft-experts`.
  num_prompts: int  # Number of held-out prompts of each domain.
  gradient_prompts: int  # Prompts of a gradient; a domain has four gradients.

  @property
  def keep_steps(self) -> int:
    """Number of steps in which each expert draws completions that are kept."""
    return self.steps // len(DOMAINS) - self.expert_steps

  @property
  def distillation_steps(self) -> int:
    """Steps of `opd-full` and `opd-token`."""
    return len(DOMAINS) * self.keep_steps


SIZES = {
  "full": Size(5, 1500, 400, 75, 200, 128, 128),
  "smoke": Size(2, 200, 8, 1, 2, 8, 8),
}
BASE = "base"  # Imitates teachers that err; all others start there.
EXPERTS = tuple(f"expert-{domain}" for domain in DOMAINS)
_ALGORITHMS = {"opd-full": "opd_full", "opd-token": "opd_token"}
ARMS = (BASE, "mixed", "sequential", *EXPERTS, *_ALGORITHMS, "sft-experts")
# Arms at whose end gradients of domains are compared.
MEASURED = (BASE, "mixed", "opd-full")
ALL = arms.Arms(ARMS, SIZES, BASE)
sweep = ALL.sweep


def get_config(argument: str) -> ml_collections.ConfigDict:
  """The config of an arm, without the runs that it follows on."""
  name, size = ALL.parsed(argument)
  config = mixture.get_config(_ALGORITHMS.get(name, "grpo"))
  config.rl.steps = size.steps
  config.sft.steps = size.imitation
  config.eval.num_prompts = size.num_prompts * len(DOMAINS)
  config.eval.batch_size = config.eval.num_prompts
  config.phases = ("rl",)
  if name == BASE:
    config.phases = ("sft", "rl")
    config.rl.steps = 0  # An evaluation.
  elif name == "sequential":
    config.phases = tuple(f"on_{domain}" for domain in DOMAINS)
    for domain in DOMAINS:
      section = copy.deepcopy(config.rl)
      section.steps = size.steps // len(DOMAINS)
      section.domains = (domain,)
      section.reset_optimizer = False
      config[f"on_{domain}"] = section
    config[config.phases[0]].reset_optimizer = True
  elif name in EXPERTS:
    config.phases = ("rl", "keep")
    config.rl.steps = size.expert_steps
    config.rl.domains = (name.removeprefix("expert-"),)
    config.keep = config_lib.phase_config(
      "rejection",
      steps=size.keep_steps,
      num_prompts=config.rl.num_prompts,
      group_size=config.rl.group_size,
      domains=config.rl.domains,
    )
    config.keep.keep.most = config.rl.group_size
    config.keep.keep.distinct = "none"
  elif name == "sft-experts":
    config.phases = ("sft", "rl")
    config.sft.steps = size.on_experts
    config.rl.steps = 0
  elif name in _ALGORITHMS:
    config.rl.steps = size.distillation_steps
  return arms.changed(config, {})


def follows_on(name: str, root: pathlib.Path) -> list[str]:
  """Overrides that name the runs that an arm follows on, of its own seed."""
  found = ALL.follows_on(name, root)
  experts = [f"{root}/{expert}/seed={{seed}}" for expert in EXPERTS]
  if name in _ALGORITHMS:
    found.append(f"--config.rl.reference_workdirs={tuple(experts)!r}")
  if name == "sft-experts":
    files = tuple(f"{expert}/data-2-keep.jsonl" for expert in experts)
    found.append(f"--config.sft.demonstrations={files!r}")
  return found


_GENERATED = "tokens/generated"


def _accuracy(domain: str) -> str:
  return f"eval/domain/{domain}/accuracy"


def of_run(lines: list[dict[str, Any]]) -> dict[str, Any]:
  """The numbers of one run, from its log.

  The held-out accuracy of each domain at each evaluation, and the number of
  generated completion tokens of each phase.
  """
  seen = [line for line in lines if _accuracy(DOMAINS[0]) in line]
  tokens: dict[str, int] = {}
  for line in lines:
    if _GENERATED in line:
      before = tokens.get(line["phase"], 0)
      tokens[line["phase"]] = before + int(line[_GENERATED])
  return {
    "steps": [row["step"] for row in seen],
    "phases": [row["phase"] for row in seen],
    "accuracy": {
      domain: arms.column(seen, _accuracy(domain), digits=5)
      for domain in DOMAINS
    },
    "tokens": tokens,
  }


def collected(folder: pathlib.Path, size: Size) -> dict[str, Any] | None:
  """The numbers of an arm's runs; None while a run has not ended.

  Arms that are measured have the cosines between gradients of domains by seed,
  None where they are unknown.
  """
  found = arms.collected(of_run, folder)
  if found is None or folder.name not in MEASURED:
    return found
  cosines = []
  for seed in range(size.num_seeds):
    with api.load(folder / f"seed={seed}") as run:
      measured = interference.measure(
        run.loaded, num_prompts=size.gradient_prompts, seed=seed
      ).cosines
    rounded = np.round(measured, 5).tolist()
    cosines.append([[None if x != x else x for x in row] for row in rounded])
  return found | {"cosines": cosines}


class Results(arms.Recorded):
  """The arms that have ended."""

  names = ARMS

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
    if arm == "sft-experts":
      phases = ("rl", "keep")
    else:
      phases = ("rl",) if arm in _ALGORITHMS else ()
    experts = sum(self._own_tokens(x, phases) for x in EXPERTS if phases)
    return self._own_tokens(arm) + experts

  def _own_tokens(self, arm: str, phases: Sequence[str] = ()) -> float:
    """Mean over seeds of the tokens that phases of an arm draw themselves."""
    if arm not in self._found:
      return float("nan")
    counts = (seed["tokens"] for seed in self._found[arm]["seeds"])
    sums = [sum(c[x] for x in phases or c if x in c) for c in counts]
    return float(np.mean(sums))

  def cosines(self, arm: str) -> np.ndarray | None:
    """[S, D, D]; None where they were not measured."""
    found = self._found.get(arm, {}).get("cosines")
    return None if found is None else np.array(found, float)

  def score(self, arm: str, what: str) -> np.ndarray | None:
    """Returns a score of each seed [S].

    It is "macro", the mean accuracy of the domains at the end; "forgotten", the
    accuracy of all domains but the last at the end, minus that at the end of
    their own phases; or "cosine", the mean between different domains.
    """
    if what == "macro":
      return np.mean([self.accuracy(arm, x) for x in DOMAINS], axis=0)
    if what == "forgotten":
      return np.mean([self._change(x) for x in DOMAINS[:-1]], axis=0)
    cosines = self.cosines(arm)
    if cosines is None:
      return None
    others = ~np.eye(len(DOMAINS), dtype=bool)
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


CLAIMS = table(
  "X1 Distilled experts are not worse than mixed batches.",
  difference("macro", "opd-full", "mixed", "not below"),
  "X2 Distilled experts are better than mixed batches.",
  difference("macro", "opd-full", "mixed"),
  "X3 One domain after another forgets.",
  rule(
    "change after its own phase, `sequential`",
    *("below", ("sequential", "forgotten")),
  ),
  "X4 Mixed batches are better than one domain after another.",
  difference("macro", "mixed", "sequential"),
  "X5 The whole distribution is worth more than sampled tokens.",
  difference("macro", "opd-full", "opd-token"),
  "X6 Own completions are better than those of experts.",
  difference("macro", "opd-full", "sft-experts"),
  "X7 The gradients of domains are opposed.",
  *(
    rule(f"mean cosine between domains, `{arm}`", "below", (arm, "cosine"))
    for arm in (BASE, "mixed")
  ),
)
CONFIRMED = "X5"
REFUTED = "X1 X2 X7"


def numbers(results: Results) -> dict[str, Any]:
  """Tables and numbers of the page."""

  def end(name: str) -> list[str]:
    return [
      f"`{name}`",
      *(f"{results.accuracy(name, x).mean():.3f}" for x in DOMAINS),
      pages.cell(results.scores(name, "macro")),
      f"{results.tokens(name) / 1000:.0f}",
      results.minutes(name),
    ]

  def phase(name: str) -> list[str]:
    found = (results.after_phase(domain, name) for domain in DOMAINS)
    return [name, *(f"{x.mean():.3f}" for x in found)]

  more = ("mean, 95 % interval", "tokens", "minutes")
  return {
    "num_seeds": results.num_seeds,
    "ends": pages.table(("arm", *DOMAINS, *more), map(end, results.arms)),
    "phases": pages.table(("after", *DOMAINS), map(phase, DOMAINS))
    if "sequential" in results.arms
    else None,
    "cosines": (
      line for arm in MEASURED for line in (*_cosines(results, arm), "")
    ),
  }


def _cosines(results: Results, arm: str):
  cosines = results.cosines(arm)
  if cosines is not None:
    known = np.isfinite(cosines).any(axis=0)
    means = np.nanmean(np.where(known, cosines, 0), axis=0)
    rows = (
      [domain, *np.where(is_known, [f"{x:.3f}" for x in row], "–")]
      for domain, row, is_known in zip(DOMAINS, means, known, strict=True)
    )
    yield from pages.table((f"`{arm}`", *DOMAINS), rows)


_LEARNING = ("mixed", "sequential", "opd-full", "opd-token")


def plot(path: pathlib.Path, results: Results) -> None:
  """Draws accuracy of each domain over drawn completions, and by arm."""
  canvas, axes = style.panels(2, len(DOMAINS), style.PAGE, 2.3, sharey=True)
  looks = {BASE: style.FigureStyle(style.GREY, "")}
  looks |= style.looks((*_LEARNING, "sft-experts"))
  for place, domain in enumerate(DOMAINS):
    over, end = axes[0, place], axes[1, place]
    for arm in _LEARNING:
      if arm in results.arms:
        steps, values = results.curve(arm, domain)
        figures.curve(over, steps, values, looks[arm], arm)
    shown = [arm for arm in looks if arm in results.arms]
    samples = [results.accuracy(arm, domain) for arm in shown]
    figures.bars(end, samples, [looks[arm].colour for arm in shown])
    expert = f"expert-{domain}"
    if expert in results.arms:
      mean = results.accuracy(expert, domain).mean()
      end.axhline(mean, color="black", ls="--", lw=1)
    style.label(over, domain, "steps of the arm")
    over.locator_params(axis="x", nbins=4)
    end.set_xticks(range(len(shown)), shown, rotation=60, ha="right")
    for one in (over, end):
      one.set_ylim(0, 1.02)
  axes[0, 0].set_ylabel("held-out accuracy")
  axes[1, 0].set_ylabel("at the end\n(dashed: the expert)")
  style.shared_legend(canvas, axes[0])
  style.save(canvas, path)
