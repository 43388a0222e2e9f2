"""The sources of records that a config's `data` means."""

from __future__ import annotations

from typing import NamedTuple

from grpo_jax.data import gym, quarantine, sources, streaming, teacher
from grpo_jax.data.sources import Source
from grpo_jax.training.settings import DataConfig


class Opened(NamedTuple):
  """Records of a run.

  Attributes:
    train: To learn from.
    held_out: To evaluate on.
    supervised: The training records, with what a warm start imitates.
  """

  train: Source
  held_out: Source
  supervised: Source


def open_sources(data: DataConfig, seed: int) -> Opened:
  """Opens the files or datasets of text that a config names.

  Args:
    data: Its `source` is any but "task".
    seed: Of the run.

  Raises:
    FileNotFoundError, ImportError, OSError, ValueError: From the source.
  """
  train, held_out = _train_and_held_out(data, seed)
  if data.quarantine:
    train = quarantine.Without(train, data.quarantine)
  named = sources.base_name(data.name) if data.source == "tfds" else ""
  if (data.format or (not data.fields and named)) == "gsm8k":
    # Worked answers: a teacher puts them into the format to be learnt.
    lessons = teacher.ThinkAnswerSource(train, seed, data.drop_tag_probability)
    return Opened(train, held_out, lessons)
  if data.rejected_share:
    both = teacher.RejectedSource(train, seed, data.rejected_share)
    return Opened(train, held_out, both)
  return Opened(train, held_out, train)


def _train_and_held_out(data: DataConfig, seed: int) -> tuple[Source, Source]:
  format = data.format or None
  held_out_path = data.eval_path or data.train_path
  if data.source == "tfds":
    splits = data.train_split, data.eval_split
    train, held_out = (
      sources.TfdsSource(data.name, split, format=format, fields=data.fields)
      for split in splits
    )
    return train, held_out
  if data.source == "text":
    return (
      sources.TextSource(data.train_path, data.separator),
      sources.TextSource(held_out_path, data.separator),
    )
  if data.source == "reasoning_gym":
    # Its own seed: held-out problems differ between no two runs.
    return (
      gym.GymSource(data.datasets, "train", seed),
      gym.GymSource(data.datasets, "test", 0),
    )
  kind = (
    streaming.StreamedJsonlSource if data.streaming else sources.JsonlSource
  )
  return (
    kind(data.train_path, format, data.fields),
    kind(held_out_path, format, data.fields),
  )
