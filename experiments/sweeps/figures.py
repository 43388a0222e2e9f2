"""What figures about experiments have in common."""

from __future__ import annotations

from typing import Any


def canvas(width: float, height: float, dpi: int = 100) -> Any:
  """An empty `matplotlib.figure.Figure`.

  Args:
    width, height: Its size in inches.
    dpi: Dots per inch.

  Raises:
    ImportError: matplotlib is not installed.
  """
  try:
    from matplotlib import figure
  except ImportError as error:
    raise ImportError(
      "report: matplotlib is not installed; run `pip install 'grpo_jax[plot]'`."
    ) from error
  return figure.Figure(figsize=(width, height), dpi=dpi, layout="constrained")
