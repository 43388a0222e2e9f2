"""Costs of programs against what is recorded; the TPUs' are in tests/aot."""

import copy
import json
import re
import types

import jax
import jax.numpy as jnp
import pytest
from jax import export

from experiments.pods import recorded
from tests.experiments import command

KNOWN = {
  "what": "a step",
  "versions": {"jax": "1"},
  "costs": {"flops": 1000, "all-gather, times": 2, "all-gather, bytes": 400},
  "exported": {"sha256": "0", "operations": {"stablehlo.add": 40}},
}


def changed(**costs) -> dict:
  found = copy.deepcopy(KNOWN)
  found["costs"] |= {name.replace("_", " "): of for name, of in costs.items()}
  return found


def test_what_is_within_five_percent_agrees():
  for flops in (951, 1000, 1049):
    assert recorded.differences("one", KNOWN, changed(flops=flops)) == []


def test_what_has_grown_is_named_with_both_numbers_and_the_command():
  text, agree = recorded.compare({"one": KNOWN}, {"one": changed(flops=1060)})
  assert not agree
  assert "one: flops: grew from 1,000 to 1,060 (+6.0%; 5% are allowed)." in text
  assert "experiments.pods.recorded --record --programs=one" in text


def test_what_has_fallen_asks_to_be_recorded():
  text, agree = recorded.compare({"one": KNOWN}, {"one": changed(flops=900)})
  assert not agree
  assert "flops: fell from 1,000 to 900 (-10.0%; 5% are allowed): rec" in text
  assert "--record --programs=one" in text


def test_a_collective_that_is_new_or_gone_is_a_difference():
  more = changed(**{"all-reduce, times": 1})
  (new,) = recorded.differences("one", KNOWN, more)
  assert "all-reduce, times: grew from 0 to 1 (there was none" in new
  (gone,) = recorded.differences("one", more, KNOWN)
  assert "all-reduce, times: fell from 1 to 0" in gone


def test_another_text_is_a_difference_though_it_costs_nothing():
  found = changed()
  found["exported"] = {"sha256": "1", "operations": {"stablehlo.add": 41}}
  (text,) = recorded.differences("one", KNOWN, found)
  assert "another program is exported: stablehlo.add 40 -> 41." in text
  found["exported"]["operations"] = KNOWN["exported"]["operations"]
  (text,) = recorded.differences("one", KNOWN, found)
  assert "the same operations, of other shapes, numbers or order" in text


def test_other_versions_widen_the_margin_and_say_so():
  found = changed(flops=1240)
  found["versions"] = {"jax": "2"}
  found["exported"] = {"sha256": "1", "operations": {"stablehlo.add": 45}}
  text, agree = recorded.compare({"one": KNOWN}, {"one": found})
  assert agree
  assert "recorded with jax 1, and here is jax 2" in text
  assert "may differ by 25% in the place of 5%" in text
  found["costs"]["flops"] = 1260
  found["exported"]["operations"] = {"stablehlo.add": 51}
  text, agree = recorded.compare({"one": KNOWN}, {"one": found})
  assert not agree
  assert "flops: grew from 1,000 to 1,260" in text
  assert "operations of the text: grew from 40 to 51" in text


def test_a_program_without_a_record_is_refused():
  text, agree = recorded.compare({}, {"one": KNOWN})
  assert not agree
  assert "one: nothing is recorded of it." in text


def exported(function, size: int = 3) -> str:
  found = export.export(jax.jit(function))(jnp.ones(size))
  return recorded.normalised(found.mlir_module())


def test_names_are_no_part_of_a_text_and_operations_are():
  @jax.jit
  def inner(value):
    return jnp.sin(value) * 2

  @jax.jit
  def renamed(argument):
    return jnp.sin(argument) * 2

  def outer(x):
    return {"y": inner(x) + 1}

  def other(values):
    return {"z": renamed(values) + 1}

  text = exported(outer)
  assert "func.call @f" in text or "call @f" in text
  assert "loc" not in text
  assert exported(other) == text
  assert exported(lambda x: {"y": inner(x) + 2}) != text
  assert exported(outer, 4) != text
  assert recorded.of_text(text)["operations"]["stablehlo.sine"] == 1


def test_all_programs_are_recorded_with_the_pinned_version_of_jax():
  pins = (command.ROOT / "constraints.txt").read_text("utf-8")
  (pinned,) = re.findall(r"(?m)^jax==(\S+)$", pins)
  found = recorded.read()
  assert list(found) == list(recorded.CASES)
  for name, case in recorded.CASES.items():
    assert found[name]["what"] == case.what
    assert found[name]["versions"]["jax"] == pinned, (
      "constraints.txt names another version of jax than benchmarks/costs.json;"
      " run python -m experiments.pods.recorded --record"
    )
    assert ("libtpu" in found[name]["versions"]) is bool(case.topology)
    assert ("exported" in found[name]) is case.exported
    assert found[name]["costs"]["flops"] > 0


def test_the_command_compares_or_records(tmp_path, monkeypatch, capsys):
  path = tmp_path / "costs.json"
  path.write_text(json.dumps({"slices": KNOWN, "quickstart": KNOWN}))
  monkeypatch.setattr(recorded, "PATH", path)
  monkeypatch.setattr(recorded, "measure", lambda *_: changed(flops=2000))
  monkeypatch.setattr(recorded.jax.config, "update", lambda *_: None)

  def run(record: bool, *only: str) -> int:
    for flag, value in (
      ("_PROGRAMS", only),
      ("_RECORD", record),
      ("_TEXT", ""),
    ):
      holder = types.SimpleNamespace(name=flag, value=value)
      monkeypatch.setattr(recorded, flag, holder)
    return recorded.main([])

  assert run(False, "quickstart") == 1
  assert "flops: grew from 1,000 to 2,000" in capsys.readouterr().out
  assert json.loads(path.read_text())["quickstart"] == KNOWN
  assert run(True, "quickstart") == 0
  assert "flops: grew from 1,000 to 2,000" in capsys.readouterr().out
  assert run(False, "quickstart") == 0
  saved = json.loads(path.read_text())
  assert list(saved) == ["quickstart", "slices"]
  assert saved["slices"] == KNOWN
  with pytest.raises(ValueError, match="no 'quick'; there are quickstart"):
    run(False, "quick")


@pytest.mark.slow
def test_the_quickstart_and_ppo_cost_what_is_recorded():
  """A step costs more or less, or is another: the message says what to do."""
  status, out, err = command.run("pods.recorded", "--programs=quickstart,ppo")
  assert status == 0, f"{out}\n{err}"
