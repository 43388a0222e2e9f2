"""The examples of docs/guides run, with fewer steps where they train."""

import re

import jax
import numpy as np
import pytest

import grpo_jax
from grpo_jax import algorithms
from grpo_jax.algorithms.contract import cases
from tests.experiments import command


def blocks(name):
  """Blocks of Python on a page that are programs."""
  text = (command.ROOT / f"docs/guides/{name}.md").read_text("utf-8")
  marker = "<!-- Executed by tests/experiments/guides_test.py. -->\n```python\n"
  return re.findall(rf"(?ms)^{re.escape(marker)}(.*?)^```$", text)


@pytest.fixture
def steps(monkeypatch):
  """Two steps of a small model, whatever the example asks for."""
  train, made = grpo_jax.train, []

  def short(config, workdir):
    config.sft.steps = config.rl.steps = 2
    config.model.width, config.model.mlp_width = 16, 32
    config.eval.num_prompts = config.eval.batch_size = 8
    config.required_accuracy = 0.0
    made.append(config)
    return train(config, workdir)

  monkeypatch.setattr(grpo_jax, "train", short, raising=False)
  return made


def test_the_environment_of_the_guide_answers():
  namespace = {}
  (block,) = blocks("environment")
  exec(compile(block, "environment.md", "exec"), namespace)
  session = namespace["make"]("Guess: ", {"answer": "7"}, 0)
  assert session.step("nine.") == ("a number, please\n", 0.0, False)
  assert session.step(" 9.") == ("lower\n", 0.0, False)
  assert session.step("5") == ("higher\n", 0.0, False)
  assert session.scores() == {"accuracy": 0.0}
  assert session.step("7.") == ("", 1.0, True)
  assert session.scores() == {"accuracy": 1.0}


@pytest.mark.slow
def test_the_algorithm_of_the_guide_squashes_what_grpo_has(monkeypatch):
  """One of eight completions is right: √2.475, and not √0.875 / 0.354."""
  made = []
  monkeypatch.setattr(
    grpo_jax, "train", lambda config, _: made.append(config), raising=False
  )
  namespace = {"__name__": "__main__"}
  (block,) = blocks("algorithm")
  exec(compile(block, "algorithm.md", "exec"), namespace)
  case = cases.make_case().take(np.arange(8))
  case.rewards = np.float32([1, 0, 0, 0, 0, 0, 0, 0])
  case.group_id, case.valid = np.zeros(8, int), np.ones(8, bool)
  squashed = namespace["SQUASHED"]
  for algorithm, advantage, options in (
    (squashed, 1.573, {}),
    (squashed, 4.450, {"advantage_scale": "group"}),
    ("grpo", 2.475, {}),
  ):
    algorithm = algorithms.get_algorithm(algorithm)
    config = algorithm.config_class(kl_coef=0.0, **options)
    with jax.disable_jit():
      found = cases.prepared(algorithm, config, case).advantages
    assert found[0] == pytest.approx(advantage, abs=1e-3)


@pytest.mark.slow  # Two short runs.
@pytest.mark.parametrize("name", ["task", "algorithm"])
def test_the_example_trains(name, steps, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  namespace = {"__name__": "__main__"}
  (block,) = blocks(name)
  exec(compile(block, f"{name}.md", "exec"), namespace)
  assert namespace["run"].result["step"] == 4
  if name == "task":
    extras = {"digits": np.array([8, 11, 5, 13])}
    verify, mask = namespace["verify"], np.array([True, True])
    right = verify(np.array([13, 2]), mask, extras)["accuracy"]
    wrong = verify(np.array([11, 2]), mask, extras)["accuracy"]
    assert (right, wrong) == (1.0, 0.0)
  else:
    assert steps[0].algorithm.power == 0.7
