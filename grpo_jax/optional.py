"""Imports of packages that only an extra of grpo_jax installs."""

from __future__ import annotations

import importlib
from typing import Any


def package(name: str, extra: str, user: str, *parts: str) -> Any:
  """Imports an optional package when it is needed.

  Args:
    name: The package.
    extra: The extra that installs it.
    user: The part that needs it, for the message.
    *parts: Modules of the package that its own import leaves out.

  Raises:
    ImportError: It is missing.
  """
  try:
    module = importlib.import_module(name)
    for part in parts:
      importlib.import_module(f"{name}.{part}")
  except ImportError as error:
    raise ImportError(
      f"{user} needs the package {name!r}; install grpo_jax[{extra}]."
    ) from error
  return module
