"""Tests of the style of figures: sizes, colours and names that stay apart."""

import itertools
import sys

import numpy as np
import pytest

from grpo_jax.training.monitor import style


def test_without_matplotlib_it_says_what_to_install(monkeypatch):
  monkeypatch.setitem(sys.modules, "matplotlib", None)
  with pytest.raises(ImportError, match=r"pip install 'grpo_jax\[plot\]'"):
    style.canvas(1, 1)


def test_a_canvas_has_the_width_of_a_page():
  drawn, grid = style.panels(2, 3, style.PAGE, 1.5)
  assert drawn.get_size_inches().tolist() == [6.75, 3.0]
  assert grid.shape == (2, 3)


def test_hue_and_dashes_are_of_two_factors():
  names = [("grpo", 0.2), ("grpo", 0.4), ("rloo", 0.2)]
  found = style.looks(names, lambda x: x[0], lambda x: x[1])
  one, variant, other = (found[name] for name in names)
  assert (one.colour, one.marker) == (variant.colour, variant.marker)
  assert one.dashes != variant.dashes
  assert other.colour != one.colour
  assert other.dashes == one.dashes
  # More names than colours: no two look the same.
  many = style.looks(range(20)).values()
  assert len({(x.colour, str(x.dashes)) for x in many}) == 20


# Machado, Oliveira, Fernandes, "A Physiologically-based Model for Simulation of
# Color Vision Deficiency", 2009: deuteranopia, of linear RGB.
DEUTERANOPIA = np.array(
  [
    [0.367322, 0.860646, -0.227968],
    [0.280085, 0.672501, 0.047413],
    [-0.011820, 0.042940, 0.968881],
  ]
)


def seen(colour: str) -> np.ndarray:
  """Color that a deuteranope sees, as sRGB."""
  rgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
  linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
  mixed = np.clip(DEUTERANOPIA @ linear, 0, 1)
  return np.where(
    mixed <= 0.0031308, mixed * 12.92, 1.055 * mixed ** (1 / 2.4) - 0.055
  )


def test_a_deuteranope_tells_the_first_six_colours_apart():
  for one, other in itertools.combinations(style.COLOURS[:6], 2):
    distance = np.linalg.norm(seen(one) - seen(other))
    # Where two come near each other, their markers differ.
    assert distance > 0.2, (one, other)
  assert len(set(style.MARKERS)) == len(style.MARKERS) == len(style.COLOURS)


def test_places_are_spread_and_stay_near():
  assert style.spread([0.0, 5.0], 1.0).tolist() == [0, 5]
  # Three that touch: a block around their mean.
  np.testing.assert_allclose(
    style.spread([1.0, 1.0, 1.3, 9.0], 1.0), [0.1, 1.1, 2.1, 9.0]
  )
  assert style.spread([], 1.0).tolist() == []


def test_lines_are_named_at_their_ends_or_in_a_legend():
  drawn = style.canvas(style.COLUMN, 2)
  axes = drawn.subplots()
  for number in range(3):
    axes.plot([0, 1], [0, 0.01 * number], label=f"line {number}")
  style.name_lines(drawn, axes)
  assert [text.get_text() for text in axes.texts] == [
    *("line 0", "line 1", "line 2")
  ]
  heights = [text.xy[1] for text in axes.texts]
  assert heights == sorted(heights)
  assert axes.get_legend() is None
  style.name_lines(drawn, axes, most=2)
  assert len(axes.get_legend().get_texts()) == 3


@pytest.mark.slow
def test_files_are_the_same_each_time(tmp_path):
  for kind in ("svg", "pdf"):
    paths = [tmp_path / f"{i}.{kind}" for i in (1, 2)]
    for path in paths:
      drawn, grid = style.panels(1, 1, style.COLUMN, 1)
      grid[0, 0].plot([0, 1], [0, 1], label="a")
      style.shared_legend(drawn, grid.flat)
      style.save(drawn, path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
  with pytest.raises(ValueError, match="ends in none of pdf, pgf"):
    style.save(drawn, tmp_path / "x.jpg")


@pytest.mark.slow
def test_pgf_needs_no_latex(tmp_path, monkeypatch):
  monkeypatch.setenv("PATH", "")
  drawn, grid = style.panels(1, 1, style.COLUMN, 1)
  grid[0, 0].set_title("a title")
  style.save(drawn, tmp_path / "x.pgf")
  assert "a title" in (tmp_path / "x.pgf").read_text("utf-8")
