"""A guard between a policy and tools that are Python functions of text.

Rules with a high recall flag a call, and of what they flag a judge confirms
the bad. A confirmed call never reaches the tool: the policy reads a dummy
observation, and the episode goes on. `tasks/interceptor.py` is the same in the
graph.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple


class Event(NamedTuple):
  """What was decided about one call.

  Attributes:
    flagged: A rule said so.
    judged: The judge was asked.
    blocked: The call was not executed.
    reward: To be added to the reward of the action: -λ if blocked, else 0.
    over: The episode must end here.
  """

  flagged: bool
  judged: bool
  blocked: bool
  reward: float
  over: bool


@dataclasses.dataclass(frozen=True)
class Interceptor:
  """Which calls are not executed, and what happens instead.

  Exceptions of rules, judge and tool are not caught: a guard that fails must
  not let a call pass.

  Attributes:
    rules: Functions (call) -> bool; one that says True flags the call.
      Without rules nothing is ever blocked.
    judge: (call, context) -> bool, whether a flagged call is bad; asked about
      flagged calls only. None confirms all that is flagged.
    dummy: What the policy reads instead of an observation.
    abort: Whether a block ends the episode instead.
    penalty: λ >= 0, taken from the reward of a blocked call.

  Raises:
    ValueError: If the penalty is negative.

  Source: GLM-5.2's recipe, which publishes neither rates nor the reward of
  blocked calls: the penalty is ours, and 0 by default.
  """

  rules: Sequence[Callable[[str], bool]]
  judge: Callable[[str, str], bool] | None
  dummy: str
  abort: bool = False
  penalty: float = 0.0

  def __post_init__(self):
    if self.penalty < 0:
      raise ValueError(
        f"Interceptor: penalty is {self.penalty}; it is taken from the reward"
        " and must be at least 0."
      )

  def __call__(
    self, call: str, context: str, execute: Callable[[str], str]
  ) -> tuple[str, Event]:
    """Executes a call, or does not.

    Args:
      call: What the policy wants to be executed.
      context: What it has read and written before.
      execute: The tool.

    Returns:
      The observation and the event.
    """
    flagged = any(rule(call) for rule in self.rules)
    judged = flagged and self.judge is not None
    blocked = flagged
    if flagged and self.judge is not None:
      blocked = self.judge(call, context)
    event = Event(
      flagged,
      judged,
      blocked,
      reward=-self.penalty if blocked else 0.0,
      over=blocked and self.abort,
    )
    return (self.dummy if blocked else execute(call)), event


def rates(
  events: Sequence[Event], labels: Sequence[bool] | None = None
) -> dict[str, float]:
  """How often calls were flagged, judged and blocked, and how rightly.

  Args:
    events: At least one.
    labels: Which of the calls were bad, if that is known.

  Returns:
    "flagged", "judged", "blocked": shares of all calls. With labels also
    "precision", the share of bad ones among the blocked, and "recall", the
    share of blocked ones among the bad; NaN where there are none to share.

  Raises:
    ValueError: If there is no event, or not one label for each.
  """
  if not events or (labels is not None and len(labels) != len(events)):
    given = "no" if labels is None else len(labels)
    raise ValueError(
      f"interceptor.rates: received {len(events)} events and {given} labels;"
      " needed is at least one event, and a label for each or none at all."
    )
  counted = {
    name: sum(getattr(event, name) for event in events)
    for name in ("flagged", "judged", "blocked")
  }
  shares = {name: count / len(events) for name, count in counted.items()}
  if labels is None:
    return shares
  hits = sum(
    event.blocked and bool(label)
    for event, label in zip(events, labels, strict=True)
  )
  return {
    **shares,
    "precision": _share(hits, counted["blocked"]),
    "recall": _share(hits, sum(map(bool, labels))),
  }


def _share(part: int, whole: int) -> float:
  return part / whole if whole else float("nan")
