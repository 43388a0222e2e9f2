"""Curves of a run."""

import json
import pathlib
import sys

import numpy as np
import pytest

from grpo_jax.training.monitor import plots


def write_run(workdir: pathlib.Path, num_steps: int, **absent) -> None:
  random = np.random.default_rng(0)
  lines = [
    {"step": step, "phase": "sft", "loss": 3.0 - step / 50}
    for step in range(1, 51)
  ]
  for step in range(51, 51 + num_steps):
    x = (step - 50) / max(num_steps, 1)
    right = 0.1 + 0.8 * x**2 / (x**2 + 0.1)
    noise = random.normal(size=6)
    line = {
      "step": step,
      "phase": "rl",
      "accuracy": float(np.clip(right + 0.06 * noise[0], 0, 1)),
      "learning_rate": 1e-3,
      "reward/mean": right + 0.1 + 0.07 * noise[1],
      "length/mean": 60 + 120 * x + 9 * noise[2],
      "length/correct": 55 + 100 * x + 8 * noise[3] if step % 7 else None,
      "length/incorrect": 65 + 160 * x + 14 * noise[4],
      "entropy/mean": 0.2 + 1.1 * np.exp(-3 * x) + 0.03 * noise[5],
    }
    if step % 50 == 0:
      line["eval/accuracy"] = right - 0.03
    lines.append({k: v for k, v in line.items() if k not in absent})
  (workdir / "metrics.jsonl").write_text(
    "".join(json.dumps(line) + "\n" for line in lines) + '{"half'
  )


def drawn(workdir, monkeypatch) -> dict[str, dict[str, np.ndarray]]:
  """Title of each panel -> label of each curve -> its points [N, 2]."""
  from matplotlib import figure

  figures = []
  save = figure.Figure.savefig

  def keep(self, *args, **kwargs):
    figures.append(self)
    return save(self, *args, **kwargs)

  monkeypatch.setattr(figure.Figure, "savefig", keep)
  plots.plot_run(workdir, workdir / "curves.png")
  (canvas,) = figures
  return {
    axes.get_title(loc="left"): {
      line.get_label(): np.asarray(line.get_xydata())
      for line in axes.lines
      if not line.get_label().startswith("_")
    }
    for axes in canvas.axes
  }


@pytest.mark.slow
def test_png_has_four_panels_of_the_reinforcement_phase(tmp_path, monkeypatch):
  write_run(tmp_path, 300)
  panels = drawn(tmp_path, monkeypatch)
  assert {title: sorted(curves) for title, curves in panels.items()} == {
    "Reward": ["training"],
    "Accuracy": ["evaluation", "training"],
    "Completion length": ["all", "right answers", "wrong answers"],
    "Entropy": ["training"],
  }
  np.testing.assert_array_equal(
    panels["Reward"]["training"][:, 0], np.arange(51, 351)
  )
  np.testing.assert_array_equal(
    panels["Accuracy"]["evaluation"][:, 0], [100, 150, 200, 250, 300, 350]
  )
  # Steps without a right answer have no length of right answers.
  steps = panels["Completion length"]["right answers"][:, 0]
  assert (steps % 7 != 0).all()
  from matplotlib import image

  pixels = image.imread(tmp_path / "curves.png")
  assert pixels.shape[0] > 500
  assert pixels.shape[1] > 800
  assert pixels[..., :3].std() > 0.01  # Something is on it.


@pytest.mark.slow
def test_single_step_and_absent_metrics_are_drawn(tmp_path, monkeypatch):
  write_run(tmp_path, 1, **{"entropy/mean": None, "length/correct": None})
  panels = drawn(tmp_path, monkeypatch)
  assert panels["Entropy"] == {}
  assert sorted(panels["Completion length"]) == ["all", "wrong answers"]
  assert panels["Reward"]["training"].shape == (1, 2)


def test_smoothing_removes_noise_and_keeps_trends():
  line = np.linspace(-1, 2, 500)
  np.testing.assert_allclose(plots.smoothed(line)[12:-12], line[12:-12])
  noise = np.random.default_rng(0).normal(size=500)
  # 25 values are averaged, so a fifth of the deviation remains.
  assert 0.1 < plots.smoothed(noise).std() < 0.35
  np.testing.assert_array_equal(plots.smoothed(noise[:3]), noise[:3])


def test_missing_file_is_named(tmp_path):
  with pytest.raises(FileNotFoundError, match=r"metrics\.jsonl does not exist"):
    plots.plot_run(tmp_path, tmp_path / "x.png")


def test_run_without_reinforcement_steps_is_refused(tmp_path):
  write_run(tmp_path, 0)
  with pytest.raises(ValueError, match="no line of a reinforcement phase"):
    plots.plot_run(tmp_path, tmp_path / "x.png")
  assert not (tmp_path / "x.png").exists()


def test_missing_matplotlib_names_the_extra(tmp_path, monkeypatch):
  write_run(tmp_path, 3)
  monkeypatch.setitem(sys.modules, "matplotlib", None)
  with pytest.raises(ImportError, match=r"grpo_jax\[plot\]"):
    plots.plot_run(tmp_path, tmp_path / "x.png")
