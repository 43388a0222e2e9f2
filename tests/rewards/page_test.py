"""Tests of docs/rewards.md: its table, and its examples, run."""

import pathlib
import re

import numpy as np
import pytest

from grpo_jax.data import tokenizer
from grpo_jax.rewards import derived, registry
from grpo_jax.rewards.workers import host
from grpo_jax.settings import config as config_lib
from grpo_jax.settings import rewards
from grpo_jax.training.problem import in_graph
from grpo_jax.training.problem import rewards as rewards_lib

PAGE = (pathlib.Path(__file__).parents[2] / "docs/rewards.md").read_text(
  encoding="utf-8"
)
MODULE, SETTINGS, TOGETHER = re.findall(
  r"^```python\n(.*?)^```$", PAGE, re.M | re.S
)
ROWS = {
  name: [cell.strip() for cell in cells.split("|")]
  for name, cells in re.findall(r"^\| `(\w+)` \|(.*)\|$", PAGE, re.M)
}


@pytest.fixture
def module(tmp_path, monkeypatch):
  (tmp_path / "my_rewards.py").write_text(MODULE, encoding="utf-8")
  monkeypatch.syspath_prepend(tmp_path)


def test_the_table_has_every_reward():
  models = {rewards.REWARD_MODEL, rewards.JUDGE}
  known = {*registry.BUILTIN, *derived.DERIVED, *models}
  assert ROWS.keys() == known
  assert all(f'"{name}"' in PAGE for name in registry.STEPS)


def test_the_table_has_every_option_and_place():
  for name, cells in ROWS.items():
    said = re.findall(r"`([\w.]+)`", cells[3])
    if name in derived.DERIVED:
      assert cells[2] == "made"
      with pytest.raises(ValueError, match="it has") as error:
        derived.check_options(name, {"nothing": 1})
    elif name in registry.BUILTIN:
      on_arrays = name in (*in_graph._ON_ARRAYS, "math_accuracy")
      assert cells[2] == ("both" if on_arrays else "host")
      with pytest.raises(ValueError, match="it has") as error:
        registry.check_options(name, {"nothing": 1})
    else:
      continue
    options = str(error.value).partition("it has ")[2].partition(".")[0]
    found = [] if options == "no options" else options.split(", ")
    assert said == found, name


@pytest.mark.slow
def test_rewards_of_ones_own(module):
  text = tokenizer.Tokenizer(tokenizer.GSM8K_BPE)
  completions = ["12.", "", "1234 1234 1234 5.", "12."]
  tokens = [text.encode(x) for x in completions]
  names = ("brevity", "longest", "rubric", "few_tokens")
  context = registry.Context(
    tokenizer=(
      "grpo_jax.data.tokenizer:Tokenizer",
      [str(tokenizer.GSM8K_BPE)],
      {"end_tokens": None},
    )
  )
  with host.HostScorer(
    {name: f"my_rewards:{name}" for name in names},
    dict.fromkeys(names, 1.0),
    num_workers=1,
    options={"few_tokens": {"most": 8}},
    steps="my_rewards:sentences",
    context=context,
  ) as scorer:
    said = scorer.score(
      ["?"] * 4,
      completions,
      [0, 0, 1, 1],
      [{"rubric": "4", "brief": i != 1} for i in range(4)],
      tokens,
    )
  assert not said.failed.any(), said.errors
  np.testing.assert_allclose(
    said.components["brevity"], [1 / 4, np.nan, 1 / 18, 1 / 4]
  )
  assert said.components["longest"].tolist() == [1, 0, 1, 0]
  assert said.components["rubric"].tolist() == [0, 0, 1, 0]
  few = [float(len(row) <= 8) for row in tokens]
  assert said.components["few_tokens"].tolist() == few
  assert {*few} == {0.0, 1.0}
  assert said.steps == [[(3, 1.0)], [], [(17, 1.0)], [(3, 1.0)]]


def _judge(settings, names=()):
  """The judges of a run on a file of prompts with some settings of the page."""
  config = config_lib.default_config()
  config.data.source = "jsonl"
  config.data.train_path = "prompts.jsonl"
  config.data.tokenizer = "gsm8k"
  config.data.max_prompt_len = 32
  config.sampling.max_new_tokens = 24
  config.phases = ("rl",)
  exec(settings, {"config": config})
  return rewards_lib.make(config_lib.resolve(config), None, names=names)


def test_rewards_that_are_normalised_as_one():
  judge = _judge(TOGETHER)
  (total,) = judge.rewards
  assert total.sources == ("math_accuracy", "think_answer_format")
  seen = derived.RewardInputs(
    {"math_accuracy": np.ones(2), "think_answer_format": np.arange(2.0)},
    *[None] * 4,
  )
  np.testing.assert_allclose(total.function(seen), [1.0, 1.5])


def test_rewards_by_the_kind_of_prompts(module):
  judge = _judge(SETTINGS, ("reasoning", "chat"))
  assert judge.correct == "math_accuracy"
  assert judge.weights["rubric"] == 1.0
  assert judge.domains["rubric"] == (1,)
  assert {*judge.domains} == {*judge.weights}
  assert judge.schedules["language_consistency"] == ((0, 100), (0.0, 0.1))
