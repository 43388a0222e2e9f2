"""The command that measures interceptors, its calls and its page."""

from __future__ import annotations

import collections
import json

import pytest

from experiments.interceptor import rates as rates_lib
from grpo_jax.settings import config as config_lib
from grpo_jax.settings import overrides
from tests.experiments import command

PAGE = command.ROOT / "docs/interceptor_rates.md"


def test_labelled_calls_are_half_bad_and_half_harmless_of_each_kind():
  calls = rates_lib.read()
  counts = collections.Counter((x.kind, x.bad) for x in calls)
  assert len(calls) == len({x.call for x in calls}) == 300
  assert len(counts) == 10
  assert set(counts.values()) == {30}


def test_the_page_is_what_the_rules_do_now():
  assert PAGE.read_text("utf-8") == rates_lib.page(rates_lib.read())


def test_rates_by_hand():
  calls = [
    rates_lib.Call("curl x", True, "network"),
    rates_lib.Call("wget x", False, "network"),
    rates_lib.Call("ls", False, "network"),
    rates_lib.Call("echo", True, "network"),
    rates_lib.Call("import this", False, "golds"),
  ]
  found = {rules: (of, rates) for rules, of, rates in rates_lib.rows(calls)}
  assert found.keys() == {"`network`", "all five"}
  of, rates = found["`network`"]
  assert of == "4 about network"
  assert (rates["flagged"], rates["blocked"]) == (0.5, 0.5)
  assert (rates["precision"], rates["recall"]) == (0.5, 0.5)
  assert found["all five"][1]["flagged"] == 0.4


@pytest.mark.parametrize(
  ("lines", "message"),
  [
    (["{"], "line 1: JSONDecodeError"),
    ([{"call": "ls", "bad": True}], r"line 1: KeyError\('kind'\)"),
    ([{"call": "ls", "bad": 1, "kind": "x"}], "received 'ls' and 1"),
    ([{"call": "ls", "bad": True, "kind": "x"}], "has 1 calls; needs bad"),
  ],
)
def test_unusable_calls_are_refused(tmp_path, lines, message):
  path = tmp_path / "calls.jsonl"
  path.write_text(
    "\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines)
  )
  with pytest.raises(ValueError, match=message):
    rates_lib.read(str(path))


def test_rules_about_other_calls_say_so():
  run = config_lib.resolve(overrides.config("calc_python_grpo"))
  *table, _, said = rates_lib.of_run(run, rates_lib.read())
  assert len(table) == 3
  assert "flag none of the bad calls" in said
  assert "Pass --calls=FILE" in said


@pytest.mark.slow
def test_an_interceptor_of_a_config_is_measured(tmp_path):
  path = tmp_path / "calls.jsonl"
  calls = {"<tool>#</tool>": True, "<tool>#a</tool>": False, "ls": False}
  path.write_text(
    "\n".join(
      json.dumps({"call": call, "bad": bad, "kind": "leak"})
      for call, bad in calls.items()
    )
  )
  config = f"--config={command.ROOT / 'configs/calc_python_grpo.py'}"
  status, out, err = command.run("interceptor.run", config, f"--calls={path}")
  assert status == 0, err
  assert out.splitlines()[-1] == (
    "| the config's | all 3 | 0.667 | 0.667 | 0.000 | 0.333 | 1.000 | 1.000 |"
  )
  status, _, err = command.run(
    "interceptor.run", f"--config={command.ROOT / 'configs/quickstart.py'}"
  )
  assert status == 2
  assert "has no interceptor" in err
