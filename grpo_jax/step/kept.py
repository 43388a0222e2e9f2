"""Groups of completions that wait in the state for a later step.

Two things wait: the surplus of dynamic sampling, with which the next step
begins (`rounds.py`), and groups that are replayed in the place of dead ones
(`replay.py`). Both keep all that was recorded while they were drawn: their
tokens have the version and the log-probs of the policy that wrote them, so the
corrections of an update and `staleness/mean` see how old they are.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from grpo_jax.step import replay as replay_lib
from grpo_jax.step import rounds
from grpo_jax.types import Prompts, PyTree


@dataclasses.dataclass(frozen=True)
class Kept:
  """What a phase keeps of the groups that it draws.

  Attributes:
    prompts: Shapes of the prompts of a round.
    said: Shapes of what verifiers on the host say of a round; None: none is
      asked.
    recycles: Whether the surplus of a step is kept.
    replay: Which groups are replayed; None: none are.
  """

  prompts: Prompts
  said: Any = None
  recycles: bool = False
  replay: replay_lib.Replay | None = None

  def enter(self, drawn: rounds.Groups) -> dict[str, PyTree]:
    """The state at the start of a phase: nothing waits.

    Args:
      drawn: A round, or its shapes.
    """
    state: dict[str, PyTree] = {}
    if self.recycles:
      state["surplus"] = rounds.nothing(drawn)
    if self.replay is not None:
      state["replay"] = self.replay.init(drawn)
    return state


def surplus(state: PyTree) -> rounds.Groups | None:
  """The groups that the rounds of a step begin with.

  Args:
    state: `TrainState.kept`; None where a phase keeps nothing.
  """
  return None if state is None else state.get("surplus")


def with_surplus(state: PyTree, collected: rounds.Collected) -> PyTree:
  """`TrainState.kept` with what the rounds of a step have left over."""
  if collected.surplus is None:
    return state
  return state | {"surplus": collected.surplus}
