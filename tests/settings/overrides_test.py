"""Settings that are set by their names."""

import numpy as np
import pytest

from grpo_jax.settings import config as config_lib
from grpo_jax.settings import overrides


@pytest.fixture
def config():
  return config_lib.default_config("gspo")


@pytest.mark.parametrize(
  ("name", "value", "expected"),
  [
    ("rl.steps", 7, 7),
    ("rl.steps", np.int64(7), 7),
    ("rl.optimizer.learning_rate", 1, 1.0),
    ("rl.optimizer.learning_rate", np.float32(0.5), 0.5),
    ("rl.micro_batch_size", 4, 4),
    ("rl.micro_batch_size", None, None),
    ("log.curves", False, False),
    ("phases", ["rl"], ("rl",)),
    ("rewards.functions", "f1", ("f1",)),
    ("data.task_options", {"level": 2}, {"level": 2}),
    ("algorithm.clip_high", 0.5, 0.5),
  ],
)
def test_settings_are_set(config, name, value, expected):
  overrides.apply(config, {name: value})
  found = overrides.at(config, name)
  found = found.to_dict() if isinstance(expected, dict) else found
  assert found == expected
  assert type(found) is type(expected)


@pytest.mark.parametrize(
  ("name", "value", "kind", "message"),
  [
    ("rl.stepz", 5, KeyError, r"rl\.stepz=5: .*'stepz'\. .*mean rl\.steps\?"),
    ("r1.steps", 5, KeyError, r"no setting 'r1'\. Did you mean rl\?"),
    ("rl.steps.more", 5, KeyError, r"config\.rl\.steps is a value"),
    ("rl", 5, KeyError, r"a group of settings; .* rl\.group_size"),
    ("rl.steps", "5", TypeError, "'5': needs a whole number"),
    ("rl.steps", 5.5, TypeError, "needs a whole number"),
    ("rl.steps", True, TypeError, "needs a whole number"),
    ("rl.optimizer.b1", "x", TypeError, "needs a number"),
    ("log.curves", 1, TypeError, "needs True or False"),
    ("data.name", 3, TypeError, "needs a text"),
    ("data.task_options", 3, TypeError, "needs a dictionary"),
    ("data.task_options.level", 3, KeyError, r"whole: data\.task_options=\{'l"),
    ("algorithm", "grpo", ValueError, r"config\(FILE, 'grpo'\)"),
    ("algorithm.name", "grpo", ValueError, "chosen with the file"),
    ("algorithm.ratio_max", 2.0, KeyError, "no setting 'ratio_max'"),
  ],
)
def test_what_cannot_be_set_is_refused(config, name, value, kind, message):
  before = config.to_json()
  with pytest.raises(kind, match=message):
    overrides.apply(config, {name: value})
  assert config.to_json() == before


def test_a_locked_config_takes_free_names_only_where_they_are_free(config):
  config.lock()
  config.data.task_options.level = 3
  config.rl.steps = 3
  for group in (config, config.rl, config.rl.optimizer, config.algorithm):
    with pytest.raises(AttributeError, match="stepz"):
      group.stepz = 3
  with pytest.raises(AttributeError, match='mean "steps"'):
    _ = config.rl.stepz


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("x = 1", r"defines no get_config"),
    ("def get_config(): return 3", r"returned 3; needs a ConfigDict"),
    ("def get_config(): return {}['a']", r"c\.py: a \(KeyError\)"),
    ("import no_such", r"No module named 'no_such' \(ModuleNotFoundError\)"),
  ],
)
def test_a_file_that_makes_no_config_is_named(tmp_path, text, message):
  path = tmp_path / "c.py"
  path.write_text(text)
  with pytest.raises(ValueError, match=message) as caught:
    overrides.load(str(path))
  assert str(path) in str(caught.value)
