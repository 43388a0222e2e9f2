"""Rewards that read text as arrays of bytes, inside the compiled program."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.data import domains, sources
from grpo_jax.rewards import registry
from grpo_jax.rewards.in_graph import accuracy, forms, numbers
from grpo_jax.rewards.in_graph import text as text_lib
from grpo_jax.settings import config as config_lib
from grpo_jax.training.problem.rewards import ACCURACY, InGraph, of_text
from grpo_jax.types import Prompts, Rollout

# Bytes of a completion for which there is room, for each token of the budget. A
# longer completion is mostly white space, and has no answer.
_BYTES_PER_TOKEN = 8


# Golds that are looked at before anything is compiled.
_NUM_GOLDS = 1000


ArrayReward = Callable[..., jax.Array]


# Rewards of text that can be inside the program: (text, options) -> [B].
_ON_ARRAYS: dict[str, ArrayReward] = {
  "language_consistency": forms.language_consistency,
  "tag_count": forms.tag_count,
  "think_answer_format": forms.think_answer_format,
}


_GOLD = "gold/"


def make(
  config: config_lib.RunConfig, pieces: Sequence[bytes], strips: int
) -> InGraph:
  """Makes the config's functions of text, on arrays.

  Args:
    strips: Spaces that it drops at the beginning of a text.

  Raises:
    ValueError: One of the functions has no form for arrays.
  """
  functions = of_text(config)
  names = sorted((*_ON_ARRAYS, ACCURACY))
  if absent := sorted(set(functions.values()) - set(names)):
    raise ValueError(
      f"config.rewards.in_graph=True: {absent} have no form for arrays, and are"
      f" for the host; there are {names}. Leave them out, or set"
      " config.rewards.in_graph=False."
    )
  for name, path in functions.items():
    registry.check_options(path, config.rewards.arguments(name))
  table = text_lib.table(pieces, strips)
  budget = config.sampling.max_new_tokens
  assert budget is not None  # `RunConfig` has checked it.
  room = budget * min(max(map(len, pieces)), _BYTES_PER_TOKEN)

  def components(prompts: Prompts, rollout: Rollout) -> dict[str, jax.Array]:
    text = text_lib.written(
      table, rollout.tokens, rollout.completion_mask, room
    )
    scores = {}
    for name, path in functions.items():
      if path == ACCURACY:
        scores[name] = _accuracy(prompts, rollout, text)
      else:
        options = config.rewards.arguments(name)
        scores[name] = _ON_ARRAYS[path](text, **options)
    return scores

  def _accuracy(prompts: Prompts, rollout: Rollout, text: text_lib.Text):
    gold = {
      name.removeprefix(_GOLD): x[rollout.prompt_index]
      for name, x in prompts.extras.items()
      if name.startswith(_GOLD)
    }
    is_known = gold.pop("known")
    after = config.rewards.answer_after
    is_right = accuracy.accuracy(text, gold, after)
    return jnp.where(is_known, is_right, jnp.nan)

  return InGraph(components)


class WithGolds:
  """Records with their gold answers as arrays, for `in_graph`."""

  def __init__(self, source: Any):
    """Checks the first thousand golds.

    Raises:
      ValueError: One of these golds cannot be compared on arrays.
    """
    self._source = source
    self.starts = sources.starts(source)
    number = min(len(source), _NUM_GOLDS)
    golds = [source[i]["answer"] for i in range(number)]
    bad = [gold for gold in golds if numbers.gold(gold) is None]
    if bad:
      raise ValueError(
        f"config.rewards.in_graph=True: {len(bad)} of the first {number} golds"
        " are no numbers that can be compared on arrays, such as"
        f" {bad[0]!r:.60}; symbols are for the host: set"
        " config.rewards.in_graph=False."
      )
    self._none = {
      name: np.zeros_like(value)
      for name, value in (numbers.gold("0") or {}).items()
    }

  def __len__(self) -> int:
    return len(self._source)

  def number(self, index: int) -> int:
    """See `sources.number`."""
    return sources.number(self._source, index)

  def only(self, domain_ids: Collection[int]) -> WithGolds:
    """See `domains.only`."""
    other = copy.copy(self)
    other._source = domains.only(self._source, domain_ids)
    return other

  def __getitem__(self, index: int) -> dict[str, Any]:
    record = self._source[index]
    gold = numbers.gold(record["answer"])
    arrays = (self._none if gold is None else gold) | {
      "known": np.array(gold is not None)
    }
    extras = {f"{_GOLD}{name}": value for name, value in arrays.items()}
    return {**record, "extras": {**record["extras"], **extras}}
