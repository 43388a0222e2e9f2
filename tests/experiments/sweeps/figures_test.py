"""Tests of the shared parts of figures about experiments."""

import numpy as np

from experiments.sweeps import figures
from grpo_jax.training.monitor import style


def test_a_curve_is_the_mean_over_seeds_with_its_interval():
  drawn = style.canvas(style.COLUMN, 1)
  axes = drawn.subplots()
  values = np.array([[0.0, 1.0], [1.0, 3.0]])
  figures.curve(axes, np.array([1.0, 2.0]), values, style.look(1), "a")
  [line] = axes.lines
  assert line.get_ydata().tolist() == [0.5, 2.0]
  assert (line.get_color(), line.get_label()) == (style.RED, "a")
  [band] = axes.collections
  corners = band.get_paths()[0].vertices
  assert corners[:, 1].max() == 3.0
  figures.curve(axes, np.array([1.0, 2.0]), values[:1], style.look(0))
  assert len(axes.collections) == 1  # One seed has no interval.


def test_a_bar_shows_every_seed():
  drawn = style.canvas(style.COLUMN, 1)
  axes = drawn.subplots()
  samples = [np.array([1.0, 3.0]), np.array([5.0])]
  figures.bars(axes, samples, [style.SKY, style.RED])
  assert [bar.get_height() for bar in axes.patches] == [2.0, 5.0]
  assert [len(line.get_xdata()) for line in axes.lines] == [2, 2, 1]
