"""What figures about experiments have in common."""

import sys

import pytest

from experiments.sweeps import figures


def test_a_canvas_has_its_size():
  canvas = figures.canvas(13, 7.4)
  assert canvas.get_size_inches().tolist() == [13, 7.4]
  assert canvas.dpi == 100
  assert figures.canvas(1, 1, dpi=110).dpi == 110


def test_without_matplotlib_it_says_what_to_install(monkeypatch):
  monkeypatch.setitem(sys.modules, "matplotlib", None)
  with pytest.raises(ImportError, match=r"pip install 'grpo_jax\[plot\]'"):
    figures.canvas(1, 1)
