"""Teacher completions for a supervised warm start on worked solutions.

A base model of a toy size has never seen `<think>` and `<answer>`. The warm
start teaches the layout from human solutions. A sloppy teacher leaves out one
tag in a known share of rows, so that the format reward has something to teach.
"""

from __future__ import annotations

import numpy as np

from grpo_jax.data import sources
from grpo_jax.data.sources import Record, Source

# Tags that a sloppy teacher may leave out; it always begins with `<think>`.
DROPPABLE_TAGS = ("</think>", "<answer>", "</answer>")


def think_answer(
  record: Record, rng: np.random.Generator, drop_tag_probability: float
) -> str:
  """Writes `<think>reasoning</think>\\n<answer>42</answer>`.

  Args:
    record: A record whose `completion` is the reasoning.
    rng: Generator of two draws: one decides whether a tag is dropped, the other
      chooses the tag.
    drop_tag_probability: Probability, in [0, 1], that one tag of
      `DROPPABLE_TAGS` is missing; all tags are equally likely.
  """
  text = (
    f"<think>{record['completion']}</think>\n"
    f"<answer>{record['answer']}</answer>"
  )
  sloppy = rng.random() < drop_tag_probability
  tag = DROPPABLE_TAGS[rng.integers(len(DROPPABLE_TAGS))]
  return text.replace(tag, "") if sloppy else text


class ThinkAnswerSource:
  """A source whose completions are written by `think_answer`.

  Record i is the same in every epoch: its draws depend on (seed, i) only.
  """

  def __init__(self, source: Source, seed: int, drop_tag_probability: float):
    if not 0 <= drop_tag_probability <= 1:
      raise ValueError(
        f"ThinkAnswerSource: drop_tag_probability is {drop_tag_probability};"
        " it must lie in [0, 1]."
      )
    self._source = source
    self._seed = seed
    self._drop_tag_probability = drop_tag_probability
    self.starts = sources.starts(source)

  def __len__(self) -> int:
    return len(self._source)

  def __getitem__(self, index: int) -> Record:
    record = self._source[index]
    if record["completion"] is None:
      raise ValueError(
        f"ThinkAnswerSource: record {index} has no completion; a teacher"
        " needs the reasoning there."
      )
    rng = np.random.default_rng((self._seed, index))
    text = think_answer(record, rng, self._drop_tag_probability)
    return {**record, "completion": text}


class RejectedSource:
  """A source of pairs in which a share of completions are the rejected texts.

  A policy that prefers one text to another must be able to write both: DPO
  assumes that pairs are drawn from the policy from which it starts.

  Record i is the same in every epoch: its draw depends on (seed, i) only.
  """

  def __init__(self, source: Source, seed: int, share: float):
    """Describes the records.

    Args:
      share: Share of the records, in [0, 1], whose rejected text is imitated.
    """
    self._source = source
    self._seed = seed
    self._share = share
    self.starts = sources.starts(source)

  def __len__(self) -> int:
    return len(self._source)

  def __getitem__(self, index: int) -> Record:
    record = self._source[index]
    rng = np.random.default_rng((self._seed, index))
    if rng.random() >= self._share:
      return record
    return {**record, "completion": record["rejected"]}
