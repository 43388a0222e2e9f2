"""Every config, on many chips: its plan and the page; nothing is compiled."""

import importlib
import pathlib

import pytest

from experiments.pods import recipes
from grpo_jax.settings import config as config_lib

_CONFIGS = pathlib.Path(__file__).resolve().parents[3] / "grpo_jax/configs"
_NAMES = [
  ".".join(path.relative_to(_CONFIGS.parents[1]).with_suffix("").parts)
  for path in sorted([*_CONFIGS.glob("*.py"), *_CONFIGS.glob("recipes/*.py")])
  if path.stem != "models"
]


@pytest.mark.parametrize("name", _NAMES)
def test_devices_share_the_update_of_every_config(name):
  """Equally, or not at all; where they do on 8, they do as far as rows go."""
  given = importlib.import_module(name).get_config()
  given.allow_unpublished = True  # Nothing is trained.
  if given.data.source == "jsonl" and not given.data.train_path:
    given.data.train_path = "any.jsonl"
  config = config_lib.resolve(given)
  for phase_name in dict.fromkeys(config.phases):
    phase = config.section(phase_name)
    for num_devices in (8, 16, 64, 256):
      minibatch = phase.num_rows // phase.num_minibatches
      if phase.num_prompts % num_devices or minibatch % num_devices:
        with pytest.raises(ValueError, match=r"config\.\w+\.num_.*needed: num"):
          recipes.plan(config, phase_name, num_devices)
        continue
      plan = recipes.plan(config, phase_name, num_devices)
      assert plan.num_shards == num_devices
      assert plan.micro_batch_size >= (phase.micro_batch_size or 1)
      assert minibatch % plan.micro_batch_size == 0
      assert plan.micro_batch_size % num_devices == 0
      rows = minibatch // num_devices
      assert plan.rows_of_prompt == 1 or rows % plan.rows_of_prompt == 0


def test_the_page_is_that_of_what_was_compiled():
  assert recipes.PAGE.read_text("utf-8") == recipes.page(recipes.records())
