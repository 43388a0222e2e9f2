"""The sources of text records, from the config's `data`."""

from __future__ import annotations

from typing import NamedTuple

from grpo_jax import imports
from grpo_jax.data import (
  domains,
  formats,
  gym,
  quality,
  sources,
  streaming,
  teacher,
)
from grpo_jax.data.sources import Source
from grpo_jax.settings import groups
from grpo_jax.settings.groups import DataConfig


class Sources(NamedTuple):
  """Records of a run.

  Attributes:
    train: Records to learn from.
    supervised: The training records, with the completions that a warm start
      imitates.
    domains: Names of the domains of all records, by number; empty: they have
      none.
  """

  train: Source
  held_out: Source
  supervised: Source
  domains: tuple[str, ...] = ()


def open_sources(data: DataConfig, seed: int) -> Sources:
  """Opens the files or datasets of text that a config names.

  Args:
    data: Data whose records are text.

  Raises:
    FileNotFoundError, ImportError, OSError, ValueError: A file or dataset is
      missing, or not as described.
  """
  if data.source == "mixture":
    return _mixed(data, seed)
  train, held_out, names = _with_domains(data, *_train_and_held_out(data, seed))
  return _with_lessons(data, seed, train, held_out)._replace(domains=names)


def _mixed(data: DataConfig, seed: int) -> Sources:
  """The sources of a mixture as one; see `open_sources`."""
  parts = groups.parts(data)
  splits = {name: open_sources(part.data, seed) for name, part in parts.items()}
  weights = [part.weight for part in parts.values()]
  train, supervised = (
    domains.weighted(
      {name: getattr(part, field) for name, part in splits.items()}, weights
    )
    for field in ("train", "supervised")
  )
  held_out = {name: part.held_out for name, part in splits.items()}
  return Sources(train, domains.in_turn(held_out), supervised, tuple(parts))


def _with_domains(
  data: DataConfig, train: Source, held_out: Source
) -> tuple[Source, Source, tuple[str, ...]]:
  """Adds numbers of domains to the sources; returns the domains' names too.

  Raises:
    ValueError: Names are given and there are no domains, or too many.
  """
  if not formats.has_domain(train[0]):
    for name in ("domain_key", "domains"):
      if value := getattr(data, name):
        raise ValueError(
          f"config.data.{name}={value!r}: the training records have no domain;"
          " set config.data.domain_key to one of their fields,"
          f" {sorted(train[0]['extras'])} of their extras among them, or leave"
          " both empty."
        )
    return train, held_out, ()
  names = data.domains
  if not names and not data.domain_key and _format(data) == "math":
    names = formats.MATH_TYPES
  names = names or domains.names_of(train)
  if data.source == "reasoning_gym":
    if len(names) != len(data.datasets):
      raise ValueError(
        f"config.data.domains={names}: needs a name for each of the"
        f" {len(data.datasets)} datasets."
      )
    return train, held_out, names
  return (
    domains.Numbered(train, names),
    domains.Numbered(held_out, names),
    names,
  )


def _format(data: DataConfig) -> str:
  """The format of the rows; that of a TFDS dataset is its name."""
  name = sources.base_name(data.name) if data.source == "tfds" else ""
  return data.format or ("" if data.fields else name)


def _with_lessons(
  data: DataConfig, seed: int, train: Source, held_out: Source
) -> Sources:
  """Adds the completions that a warm start imitates."""
  if data.quarantine:
    train = quality.Without(train, data.quarantine)
  if _format(data) == "gsm8k":
    # A teacher puts worked answers into the format to be learnt.
    lessons = teacher.ThinkAnswerSource(train, seed, data.drop_tag_probability)
    return Sources(train, held_out, lessons)
  if data.rejected_share:
    pairs = teacher.RejectedSource(train, seed, data.rejected_share)
    return Sources(train, held_out, pairs)
  return Sources(train, held_out, train)


def format_of(data: DataConfig) -> formats.Format:
  """The format of the rows; an import path becomes its function.

  Raises:
    ValueError: There is no such function.
  """
  if ":" not in data.format:
    return data.format or None
  form = " that takes a row and returns a dictionary with 'prompt'"
  return imports.load(data.format, "config.data.format", "function", form=form)


def _train_and_held_out(data: DataConfig, seed: int) -> tuple[Source, Source]:
  format = format_of(data)
  held_out_path = data.eval_path or data.train_path
  if data.source == "tfds":
    splits = data.train_split, data.eval_split
    train, held_out = (
      sources.TfdsSource(
        data.name,
        split,
        format=format,
        fields=data.fields,
        domain_key=data.domain_key,
        images=data.images,
      )
      for split in splits
    )
    return train, held_out
  if data.source == "text":
    return (
      sources.TextSource(data.train_path, data.separator),
      sources.TextSource(held_out_path, data.separator),
    )
  if data.source == "reasoning_gym":
    # A fixed seed: all runs have the same held-out problems.
    return (
      gym.GymSource(data.datasets, "train", seed),
      gym.GymSource(data.datasets, "test", 0),
    )
  options = format, data.fields, data.domain_key, data.images
  if data.source == "datasets":
    from grpo_jax.data import tables  # The package `datasets`.

    def table(path: str, split: str) -> Source:
      return tables.DatasetSource(
        path or data.name,
        split,
        *options,
        is_on_hub=not path,
        is_streamed=data.streaming,
      )

    return (
      table(data.train_path, data.train_split),
      table(held_out_path, data.eval_split),
    )

  def file_source(path: str) -> Source:
    if imports.is_object(path):
      rows = imports.load(path, "config.data")
      return sources.RowsSource(rows, *options)
    if data.streaming:
      return streaming.StreamedJsonlSource(path, *options)
    return sources.JsonlSource(path, *options)

  return file_source(data.train_path), file_source(held_out_path)
