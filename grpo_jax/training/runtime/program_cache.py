"""Compiled programs that are kept for the next process."""

from __future__ import annotations

import os
import pathlib
import platform
import stat

import jax
from absl import logging

_FOLDER = "jax_compilation_cache_dir"


def use() -> None:
  """Keeps compiled programs for the next run, unless JAX was told where.

  In `$XDG_CACHE_HOME` or `~/.cache`, apart for each machine: homes are shared
  by machines whose processors differ. JAX_COMPILATION_CACHE_DIR names another
  folder, and JAX_ENABLE_COMPILATION_CACHE=false switches the cache off.
  """
  if jax.config.values[_FOLDER] is None:
    caches = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    folder = caches.expanduser() / "grpo_jax" / "programs" / platform.node()
    jax.config.update(_FOLDER, str(folder))
  _warn_of_strangers(jax.config.values[_FOLDER])


def _warn_of_strangers(folder: str) -> None:
  """Warns of compiled programs, which are run as they are, of other users."""
  path = pathlib.Path(folder)
  if not path.is_dir():
    return  # It will be made, or it is in a bucket.
  found = path.stat()
  # A group that has the number of a user is that user's own.
  by_group = found.st_mode & stat.S_IWGRP and found.st_gid != found.st_uid
  if by_group or found.st_mode & stat.S_IWOTH or found.st_uid != os.getuid():
    logging.warning(
      "%s, with compiled programs of JAX, can be written by other users: what"
      " they put there is run. Share it with those you trust, or set"
      " JAX_COMPILATION_CACHE_DIR to a folder of your own.",
      folder,
    )
