"""Compilation times of JAX, and its cache of compiled programs."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import pathlib
import platform
import stat
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

import jax
from absl import logging

_DURATIONS = "/jax/core/compile/"
_BACKEND = "/jax/core/compile/backend_compile_duration"
_HIT = "/jax/compilation_cache/cache_hits"
# Programs that compile faster are not cached: a lookup would take longer.
_SMALL_S = 1.0
_NESTED = 10_000  # Events that may lie within one.


@dataclasses.dataclass(frozen=True)
class Count:
  """Counts of compiled programs.

  Attributes:
    seconds: Seconds of tracing and compiling, and of reading compiled programs.
    large: Programs that took longer than a second to compile.
    cached: Programs that were read from the cache.
  """

  seconds: float = 0.0
  large: int = 0
  cached: int = 0

  def __sub__(self, other: Self) -> Count:
    return Count(
      self.seconds - other.seconds,
      self.large - other.large,
      self.cached - other.cached,
    )

  def describe(self) -> str:
    """The counts in words: "traced and compiled in 12.3 s"."""
    if self.cached and self.large:
      source = f" ({self.cached} of {self.cached + self.large} from the cache)"
    elif self.cached:
      source = " (from the cache)"
    else:
      source = ""
    return f"traced and compiled in {self.seconds:.1f} s{source}"


class Clock:
  """Counts the compilations of JAX in this process.

  Attributes:
    count: Counts since the clock was made.
  """

  def __init__(self, clock: Callable[[], float] = time.perf_counter):
    self.count = Count()
    self._clock = clock
    # Starts of the latest events, and their seconds.
    self._within: collections.deque[tuple[float, float]] = collections.deque(
      maxlen=_NESTED
    )
    self._is_cached = False  # True: the program was cached.

  @property
  def seconds(self) -> float:
    """Seconds of tracing and compiling together."""
    return self.count.seconds

  def on_event(self, event: str, **_: Any) -> None:
    """Listens to events of JAX."""
    if event == _HIT:
      self._is_cached = True

  def on_duration(self, event: str, duration_secs: float, **_: Any) -> None:
    """Listens to durations of events of JAX that have ended."""
    if not event.startswith(_DURATIONS):
      return
    seconds = duration_secs
    large = cached = 0
    if event == _BACKEND:
      cached = int(self._is_cached)
      large = int(not cached and seconds > _SMALL_S)
      self._is_cached = False
    now, new = self._clock(), seconds
    # A function is traced while another one is: no second counts twice.
    while self._within and self._within[-1][0] >= now - seconds:
      new -= self._within.pop()[1]
    self._within.append((now - seconds, seconds))
    old = self.count
    self.count = Count(
      old.seconds + max(new, 0.0), old.large + large, old.cached + cached
    )


@contextlib.contextmanager
def clock() -> Iterator[Clock]:
  """Makes a clock that runs until the context is left."""
  counting = Clock()
  jax.monitoring.register_event_listener(counting.on_event)
  jax.monitoring.register_event_duration_secs_listener(counting.on_duration)
  try:
    yield counting
  finally:
    jax.monitoring.unregister_event_duration_listener(counting.on_duration)
    jax.monitoring.unregister_event_listener(counting.on_event)


_FOLDER = "jax_compilation_cache_dir"


def use() -> None:
  """Makes JAX keep compiled programs on disk, if no folder is set for them.

  The folder is in `$XDG_CACHE_HOME` or `~/.cache`, one for each machine, since
  homes are shared by machines with different processors.
  JAX_COMPILATION_CACHE_DIR names another folder, and
  JAX_ENABLE_COMPILATION_CACHE=false switches the cache off.
  """
  if jax.config.values[_FOLDER] is None:
    caches = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    folder = caches.expanduser() / "grpo_jax" / "programs" / platform.node()
    jax.config.update(_FOLDER, str(folder))
  _warn_of_strangers(jax.config.values[_FOLDER])


def _warn_of_strangers(folder: str) -> None:
  """Warns if other users can write compiled programs, since these are run."""
  path = pathlib.Path(folder)
  if not path.is_dir():
    return  # It will be made, or it is in a bucket.
  info = path.stat()
  # A group with the number of the user is the user's own.
  by_group = info.st_mode & stat.S_IWGRP and info.st_gid != info.st_uid
  if by_group or info.st_mode & stat.S_IWOTH or info.st_uid != os.getuid():
    logging.warning(
      "%s, with compiled programs of JAX, can be written by other users: what"
      " they put there is run. Share it with those you trust, or set"
      " JAX_COMPILATION_CACHE_DIR to a folder of your own.",
      folder,
    )
