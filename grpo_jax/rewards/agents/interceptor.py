"""A guard between a policy and the tools of its sessions.

Rules with a high recall flag a call, and of what they flag a judge confirms
the bad. A confirmed call never reaches the tool: the policy reads a dummy
observation, and the episode goes on. `call_rules.py` has rules,
`guarded_sessions.py` puts a guard before sessions, and `tasks/interceptor.py`
is the same in the graph.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

# Text; or (before, text, after), where special tokens are meant in the first
# and the last part, and not in the text: what a chat writes around a tool's
# output, and the output. Of several outputs, (before, text, between, text,
# after), and so on.
Observation = str | tuple[str, ...]
# (calls, contexts) -> for each whether it is bad; None: nobody can say.
Judge = Callable[[Sequence[str], Sequence[str]], Sequence[bool | None]]


class Event(NamedTuple):
  """What was decided about one action.

  Attributes:
    flagged: A rule said so.
    judged: The judge has said whether it is bad.
    blocked: The call was not executed.
    unjudged: The judge was asked and said nothing, so that it was blocked.
  """

  flagged: bool = False
  judged: bool = False
  blocked: bool = False
  unjudged: bool = False


@dataclasses.dataclass(frozen=True)
class Interceptor:
  """Which calls are not executed, and what happens instead.

  An exception of a rule or of the judge is not caught: a guard that fails must
  not let a call pass. For the same reason what nobody can judge is blocked.

  Attributes:
    rules: (call) -> bool; one that says True flags the call. Without rules
      nothing is ever blocked.
    judge: Asked about what was flagged, all calls of a turn at once; None
      confirms all of it.
    dummy: What the policy reads instead of an observation.
    abort: Whether a block ends the episode instead.
    penalty: λ >= 0, taken from the reward of a blocked call.
    call: What of an action is a call: what its group matches, of all matches,
      or the whole of a match where it has no group. An action without a match
      calls nothing. None: the whole action is a call.

  Raises:
    ValueError: If the penalty is negative.

  Source: GLM-5.2's recipe, which publishes neither rates nor the reward of
  blocked calls: the penalty is ours, and 0 by default.
  """

  rules: Sequence[Callable[[str], bool]]
  judge: Judge | None
  dummy: Observation
  abort: bool = False
  penalty: float = 0.0
  call: re.Pattern[str] | None = None

  def __post_init__(self):
    if self.penalty < 0:
      raise ValueError(
        f"Interceptor: penalty is {self.penalty}; it is taken from the reward"
        " and must be at least 0."
      )

  def decide(
    self, actions: Sequence[str], contexts: Sequence[str]
  ) -> list[Event]:
    """What becomes of the calls in some actions.

    Args:
      actions: What policies have written.
      contexts: What each had read and written before.
    """
    calls = [self._call(action) for action in actions]
    flagged = [
      i
      for i, call in enumerate(calls)
      if call and any(rule(call) for rule in self.rules)
    ]
    events = [Event() for _ in actions]
    verdicts: Sequence[bool | None] = [True] * len(flagged)
    if self.judge is not None and flagged:
      verdicts = self.judge(
        [calls[i] for i in flagged], [contexts[i] for i in flagged]
      )
    for i, is_bad in zip(flagged, verdicts, strict=True):
      events[i] = Event(
        flagged=True,
        judged=self.judge is not None and is_bad is not None,
        blocked=is_bad is not False,
        unjudged=is_bad is None,
      )
    return events

  def _call(self, action: str) -> str:
    if self.call is None:
      return action
    group = 1 if self.call.groups else 0
    return "\n".join(x.group(group) or "" for x in self.call.finditer(action))


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
