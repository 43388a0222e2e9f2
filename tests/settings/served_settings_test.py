"""Settings of environments that ask over HTTP."""

import pytest

from grpo_jax.settings import config as config_lib
from tests.experiments import tiny_config
from tests.training.phases import served_config


def resolved(**changes):
  config = tiny_config.change(served_config.get_config(), changes)
  return config_lib.resolve(config)


def test_an_environment_has_prompts_of_its_own():
  assert resolved(served__calls="qwen").served.calls == "qwen"


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"data__source": "text", "data__train_path": "x"}, "prompts of its own"),
    ({"environment__max_turns": 3}, r"config\.environment\.max_turns=3"),
    ({"environment__action_ends": ("x",)}, "decides that by itself"),
    ({"interceptor__rules": ("shell",)}, "nothing stands between"),
    ({"served__calls": "quen"}, "did you mean 'qwen'"),
    ({"served__num_rows": 0}, r"config\.served\.num_rows"),
    ({"served__pause_s": 0.0}, r"config\.served\.pause_s"),
  ],
)
def test_what_does_not_go_together_is_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    resolved(**changes)


def test_settings_that_nobody_reads_are_refused():
  config = config_lib.default_config()
  config.served.calls = "qwen"
  with pytest.raises(ValueError, match="nobody asks over HTTP"):
    config_lib.resolve(config)
