"""The examples of docs/python.md and README.md run, in their order."""

import pathlib
import re

import numpy as np
import pytest

from grpo_jax.settings import overrides
from tests.experiments import command

PAGE = (command.ROOT / "docs/python.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"(?ms)^```python\n(.*?)^```$", PAGE)
README = (command.ROOT / "README.md").read_text(encoding="utf-8")
(IN_README,) = re.findall(r"(?ms)^```python\n(import .*?)^```$", README)
# Three steps of imitation, where the page has the whole quickstart.
QUICKSTART = """
from tests.experiments import tiny_config

def get_config(algorithm="reinforce"):
  config = tiny_config.get_config(algorithm)
  config.phases = ("sft",)
  config.sft.steps = 3
  return config
"""


@pytest.fixture
def configs(tmp_path, monkeypatch):
  """The folder of configs, with a quickstart of seconds."""
  folder = tmp_path / "configs"
  folder.mkdir()
  (folder / "quickstart.py").write_text(QUICKSTART)
  for name in ("jsonl.py",):
    text = (command.ROOT / "configs" / name).read_text(encoding="utf-8")
    (folder / name).write_text(text)
  monkeypatch.setattr(overrides, "CONFIGS", folder)


@pytest.mark.slow
def test_the_page_runs_from_top_to_bottom(
  configs, finished, tmp_path, monkeypatch, capsys
):
  monkeypatch.chdir(tmp_path)
  finished.copy(tmp_path)
  pathlib.Path("runs").mkdir()
  pathlib.Path("run").rename("runs/quickstart")
  namespace = {"__name__": "__main__"}
  for number, block in enumerate(BLOCKS):
    exec(compile(block, f"docs/python.md block {number}", "exec"), namespace)
  out = capsys.readouterr().out
  shown = re.search(r"(?ms)^```\n(config: .*?)^```$", PAGE)[1]
  for line in shown.splitlines():
    assert line.removesuffix("…") in out
  assert namespace["run"].result["step"] == 20
  assert namespace["drawn"].rewards.shape == (8, 4)
  assert np.isfinite(namespace["late"])
  assert pathlib.Path("runs/mine/result.json").exists()
  (name,) = namespace["config"].rl.transforms
  assert name.endswith(":short")

  exec(compile(IN_README, "README.md", "exec"), {"__name__": "__main__"})
  assert pathlib.Path("runs/gspo/result.json").exists()
