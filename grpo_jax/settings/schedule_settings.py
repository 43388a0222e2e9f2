"""Settings of the order in which a phase draws its prompts."""

from __future__ import annotations

import dataclasses

from grpo_jax import ranges
from grpo_jax.settings.settings import one_of
from grpo_jax.step import schedules

# Every prompt once, in an order of each epoch's own.
EPOCHS = "epochs"
ADS = "ads"
SPO = "spo"
NAMES = (EPOCHS, *schedules.WEIGHTS, ADS, SPO)
_OF_WEIGHTS = ("pool", "uniform_share", "decay", "start_share", "pace_steps")
# What each of them reads; of the others, those with weights read the same.
_READS = {
  EPOCHS: (),
  ADS: ("pool", "clusters", "drawn_clusters", "window", "rate", "tolerance"),
  SPO: ("pool", "samples", "memory_low"),
}
# Paths, in which the seed of a run may stand.
PATHS = ("clusters", "samples")


@dataclasses.dataclass(frozen=True)
class ScheduleConfig:
  """Which prompts a step of a phase draws; docs/schedules.md.

  Attributes:
    name: "epochs": every prompt once before any comes again, in random order.
      Others draw from a pool by how often each prompt was solved so far:
      "uniform" (all alike), "frontier" (most often those that are solved half
      of the time), "easy_to_hard", "hard_to_easy", "interleave" (half of the
      weight by each of these two), "target" (the num_prompts that are
      nearest to being solved half of the time), or "spo" (by the deviation of
      right and wrong, and it forgets by how far the policy moved:
      arXiv:2509.13232). "ads" draws clusters of like prompts, and of each a
      window that moves to harder or easier ones (arXiv:2606.22305).
    pool: The first so many records of the data are drawn from; None: all. A
      task that makes its problems has no end of them, and needs a number.
    uniform_share: Share of the probability that all prompts of the pool have
      alike, so that none is forgotten.
    decay: What earlier completions of a prompt still count, each time that it
      is drawn; 1: as much as new ones.
    start_share: Of "easy_to_hard", "hard_to_easy" and "interleave": the share
      of the pool that the first step draws from.
    pace_steps: Steps after which these draw from the whole pool.
    clusters: Of "ads": the file that experiments.embed has written of the data.
      "{seed}" in it stands for the seed of the run.
    drawn_clusters: Of "ads": clusters of a step (C). Times `window` they are
      num_prompts.
    window: Of "ads": prompts of a cluster that a step draws (B).
    rate: Of "ads": how fast the probability of a cluster follows the share of
      right completions (α).
    tolerance: Of "ads": by how much that share of a prompt may be off ½ before
      the window moves on.
    samples: Of "spo": a file that experiments.generate has written of the
      training prompts, with verdicts, from which counts begin; empty: from one
      half right and one half wrong. "{seed}" stands for the seed.
    memory_low: Of "spo": the least that earlier completions of a prompt count
      when it is drawn, however far the policy has moved (ρ_low); below 0.96,
      what they count at most.
  """

  name: str = EPOCHS
  pool: int | None = None
  uniform_share: float = 0.1
  decay: float = 0.9
  start_share: float = 0.2
  pace_steps: int = 100
  clusters: str = ""
  drawn_clusters: int = 4
  window: int = 32
  rate: float = 0.3
  tolerance: float = 0.17
  samples: str = ""
  memory_low: float = 0.875

  @property
  def chooses(self) -> bool:
    """Whether prompts are chosen by what became of others."""
    return self.name != EPOCHS

  @property
  def tracks(self) -> bool:
    """Whether it counts right and wrong completions of each prompt."""
    return self.name not in (EPOCHS, ADS)

  def check(self, where: str, num_prompts: int) -> None:
    """Raises ValueError if a setting is out of range.

    Args:
      where: As "config.rl.schedule".
      num_prompts: Of a step of the phase.
    """
    one_of(f"{where[7:]}.name", self.name, NAMES)
    ranges.check(
      self,
      where,
      pool=ranges.ROWS,
      uniform_share=ranges.SHARE,
      decay=ranges.SHARE,
      start_share=ranges.SHARE,
      pace_steps=ranges.SIZE,
      drawn_clusters=ranges.ROWS,
      window=ranges.ROWS,
      rate=ranges.SHARE,
      tolerance=ranges.SHARE,
      memory_low=ranges.Range(0, 0.96),
    )
    self._check_unused(where)
    if self.name != ADS:
      return
    if not self.clusters:
      raise ValueError(
        f"{where}.name={ADS!r} needs {where}.clusters, a file with the clusters"
        " of the prompts; `python -m experiments.embed` writes it."
      )
    if self.drawn_clusters * self.window != num_prompts:
      raise ValueError(
        f"{where}: drawn_clusters {self.drawn_clusters} × window {self.window}"
        f" = {self.drawn_clusters * self.window} prompts of a step, and"
        f" num_prompts is {num_prompts}; they must be equal. Change one of the"
        " three."
      )

  def _check_unused(self, where: str) -> None:
    """Raises ValueError if a setting is changed that nothing reads."""
    read = ("name", *_READS.get(self.name, _OF_WEIGHTS))
    unused = [
      field.name
      for field in dataclasses.fields(self)
      if field.name not in read and getattr(self, field.name) != field.default
    ]
    if not unused:
      return
    if not self.chooses:
      raise ValueError(
        f"{where} has {', '.join(unused)}, settings of a pool, and with"
        f" {where}.name={EPOCHS!r} every prompt comes once before any comes"
        f" again; set the name to one of {', '.join(NAMES[1:])}, or leave the"
        " others as they are."
      )
    raise ValueError(
      f"{where} has {', '.join(unused)}, which {where}.name={self.name!r} does"
      f" not read: it reads {', '.join(read[1:])}. Leave the others as they"
      " are, or choose another name."
    )
