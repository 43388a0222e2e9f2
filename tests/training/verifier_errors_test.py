"""The page of broken verifiers says what they say."""

import re

import pytest

from grpo_jax.cli import flags as flags_lib
from tests.cli import errors_test
from tests.experiments import command
from tests.training.problem import probe_test

PAGE = (command.ROOT / "docs/verifier_errors.md").read_text()
(CODE,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SAID = dict(re.findall(r"## `(\w+)`.*?```text\n(.*?)```", PAGE, re.DOTALL))
NAMES = re.findall(r"^def (\w+)", CODE, re.MULTILINE)


def message(folder, monkeypatch, name):
  """Message that a person reads below the command."""
  (folder / "my_rewards.py").write_text(CODE)
  monkeypatch.syspath_prepend(folder)
  config = errors_test.text(rewards__functions=(f"my_rewards:{name}",))
  config.rewards.row_timeout_s = 0.5  # Of the page, for a test.
  monkeypatch.chdir(folder)
  with pytest.raises(ValueError, match=name) as caught:
    probe_test.check(config)
  return flags_lib.wrapped(f"error: {caught.value}") + "\n"


@pytest.mark.parametrize("name", NAMES)
def test_the_page_has_the_message(tmp_path, monkeypatch, name):
  said, cut, rest = SAID[name].rpartition(" …\n")
  found = message(tmp_path, monkeypatch, name)
  assert found.startswith(said) if cut else found == rest


def test_the_page_is_whole():
  assert list(SAID) == NAMES
  assert len(NAMES) >= 5
