"""Settings of the order in which a phase draws its prompts."""

from __future__ import annotations

import dataclasses

from grpo_jax import ranges
from grpo_jax.learning import schedules
from grpo_jax.training.settings import one_of

# Every prompt once, in an order of each epoch's own.
EPOCHS = "epochs"
NAMES = (EPOCHS, *schedules.WEIGHTS)


@dataclasses.dataclass(frozen=True)
class ScheduleConfig:
  """Which prompts a step of a phase draws; docs/schedules.md.

  Attributes:
    name: "epochs": every prompt once before any comes again, in random order.
      Others draw from a pool by how often each prompt was solved so far:
      "uniform" (all alike), "frontier" (most often those that are solved half
      of the time), "easy_to_hard", "hard_to_easy", "interleave" (half of the
      weight by each of these two), or "target" (the num_prompts that are
      nearest to being solved half of the time).
    pool: The first so many records of the data are drawn from; None: all. A
      task that makes its problems has no end of them, and needs a number.
    uniform_share: Share of the probability that all prompts of the pool have
      alike, so that none is forgotten.
    decay: What earlier completions of a prompt still count, each time that it
      is drawn; 1: as much as new ones.
    start_share: Of "easy_to_hard", "hard_to_easy" and "interleave": the share
      of the pool that the first step draws from.
    pace_steps: Steps after which these draw from the whole pool.
  """

  name: str = EPOCHS
  pool: int | None = None
  uniform_share: float = 0.1
  decay: float = 0.9
  start_share: float = 0.2
  pace_steps: int = 100

  @property
  def chooses(self) -> bool:
    """Whether prompts are chosen by what became of others."""
    return self.name != EPOCHS

  def check(self, where: str) -> None:
    """Raises ValueError if a setting is out of range."""
    one_of(f"{where[7:]}.name", self.name, NAMES)
    ranges.check(
      self,
      where,
      pool=ranges.ROWS,
      uniform_share=ranges.SHARE,
      decay=ranges.SHARE,
      start_share=ranges.SHARE,
      pace_steps=ranges.SIZE,
    )
    unused = [
      field.name
      for field in dataclasses.fields(self)
      if field.name != "name" and getattr(self, field.name) != field.default
    ]
    if not self.chooses and unused:
      raise ValueError(
        f"{where} has {', '.join(unused)}, settings of a pool, and with"
        f" {where}.name={EPOCHS!r} every prompt comes once before any comes"
        f" again; set the name to one of {', '.join(NAMES[1:])}, or leave the"
        " others as they are."
      )
