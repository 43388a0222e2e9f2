"""The names that a notebook imports."""

import subprocess
import sys

import numpy as np
import pytest

import grpo_jax
from grpo_jax import algorithms, api, handle
from grpo_jax.data import formats
from grpo_jax.settings import config, overrides
from grpo_jax.training.problem import records


def test_public_names_are_what_they_say():
  assert grpo_jax.train is api.train
  assert grpo_jax.load is api.load
  assert grpo_jax.Run is handle.Run
  assert grpo_jax.ALGORITHMS is algorithms.ALGORITHMS
  assert grpo_jax.phase_config is config.phase_config
  assert all(hasattr(grpo_jax, name) for name in grpo_jax.__all__)


def test_another_name_is_refused_with_those_there_are():
  with pytest.raises(AttributeError, match="'trian'; public are config, tr"):
    _ = grpo_jax.trian


def test_importing_the_package_imports_nothing_else():
  """So that a tool can ask for the version in a moment."""
  code = "import grpo_jax, sys; sys.exit('jax' in sys.modules)"
  assert (
    subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
  )


@pytest.mark.slow
@pytest.mark.parametrize("is_chosen", [False, True])
def test_warnings_are_plain_lines_unless_somebody_has_chosen(is_chosen):
  code = "import logging, sys; from grpo_jax import api;"
  if is_chosen:
    code += "logging.basicConfig(format='mine %(message)s', force=True);"
  else:
    code += "logging.basicConfig();"
  code += "api._prepare(); logging.warning('%d of them', 3)"
  done = subprocess.run(
    [sys.executable, "-c", code], check=True, capture_output=True, text=True
  )
  expected = "mine 3 of them" if is_chosen else "warning: 3 of them"
  assert done.stderr.strip() == expected


@pytest.mark.parametrize("given", ["quickstart", None, config.RunConfig])
def test_what_is_no_config_is_refused_before_there_is_a_folder(given, capsys):
  with pytest.raises(TypeError, match=r"train: config=.*grpo_jax.config\("):
    api.train(given)
  assert capsys.readouterr().out == ""


class Columns:
  """Stand-in for a data set of the package `datasets`."""

  column_names = ("question", "answer", "level")

  def __init__(self, rows):
    self._rows = rows

  def __len__(self):
    return len(self._rows)

  def __getitem__(self, index):
    return self._rows[index]


ROWS = [
  {"question": f"{i} + 1 =", "answer": f"#### {i + 1}", "level": np.int64(i)}
  for i in range(4)
]
NAMED = {"prompt": "question", "answer": "answer"}


@pytest.mark.parametrize(
  ("data", "settings", "prompt", "extras"),
  [
    (ROWS, {"data.fields": NAMED}, "1 + 1 =", {"level": 1}),
    (Columns(ROWS), {"data.format": "gsm8k"}, "1 + 1 =", {"level": 1}),
    (
      {"train": [{"prompt": "a", "x": 1, "extras": {"y": 2}}] * 2},
      {},
      "a",
      {"x": 1, "y": 2},
    ),
  ],
)
def test_records_in_memory_are_data(data, settings, prompt, extras):
  made = overrides.config("jsonl", data=data, **{"data.format": "", **settings})
  opened = records.open_sources(config.resolve(made).data, 0)
  record = opened.train[1]
  assert record["prompt"] == opened.held_out[1]["prompt"] == prompt
  assert record["extras"] == extras


def test_a_part_is_held_out():
  made = overrides.config("jsonl", data={"train": ROWS, "test": ROWS[:1]})
  assert made.data.train_path != made.data.eval_path
  again = overrides.config("jsonl", data=[dict(row) for row in ROWS])
  assert again.data.train_path == made.data.train_path


@pytest.mark.parametrize(
  ("data", "message"),
  [
    (["a"], r"data has 'a' \(str\); needs a list of dictionaries"),
    ([], r"data has \[\] \(list\)"),
    ("file.jsonl", r"data has 'file\.jsonl' \(str\)"),
    ({"train_path": ROWS}, r"parts \['train_path'\]; needs 'train'"),
  ],
)
def test_other_data_are_refused(data, message):
  with pytest.raises(TypeError, match=message):
    overrides.config("jsonl", data=data)


def _within_itself():
  found = []
  found += [found, found]
  return found


def _assigned(made, name, rows):
  setattr(made.data, name, rows)


@pytest.mark.parametrize(
  "wrong",
  [
    lambda made: overrides.config("jsonl", **{"data.train_path": ROWS * 99}),
    lambda made: overrides.config("jsonl", nothing=ROWS * 99),
    lambda made: _assigned(made, "train_path", ROWS * 99),
    lambda made: _assigned(made, "eval_path", {"train": ROWS * 99}),
    lambda made: _assigned(made, "max_prompt_len", ROWS * 99),
    lambda made: setattr(made, "data", ROWS * 99),
    lambda made: made.update({"data": {"train_path": ROWS * 99}}),
    lambda made: formats.plain_record({f"x{i}": 1 for i in range(9**5)}),
  ],
)
def test_errors_do_not_print_a_data_set(wrong):
  made = overrides.config("jsonl").copy_and_resolve_references()
  with pytest.raises((TypeError, KeyError, ValueError)) as caught:
    wrong(made)
  assert len(str(caught.value)) < 1000


def test_rows_in_the_place_of_a_path_are_told_where_they_go():
  with pytest.raises(TypeError, match=r"needs a text\. Records .*data=ROWS"):
    overrides.config("jsonl").data.train_path = ROWS


@pytest.mark.parametrize(
  ("row", "message"),
  [
    ({"q": 1}, r"config\.data: row 1: found no field 'prompt'; the row has"),
    (
      {"prompt": "a", "x": object()},
      r"row 1: found the columns \['x'\], of wh",
    ),
    ({"prompt": "a", "extras": {"x": id}}, r"row 1: found .*\['extras'\], of"),
    ({"prompt": "a", "domain": "b"}, r"row 1: found the domain 'b'"),
    ({"prompt": "a", "x": _within_itself()}, r"row 1: .* at most 64 of them"),
    ({"prompt": "a", "x": "\ud800"}, r"row 1: .* surrogates not allowed"),
    ({1: "a", "q": "b"}, r"the row has \['1', 'q'\]"),
  ],
)
def test_the_row_that_is_wrong_is_named(row, message):
  def opened():
    made = overrides.config("jsonl", data=[{"prompt": "a"}, row])
    made.data.format = ""
    records.open_sources(config.resolve(made).data, 0)

  with pytest.raises(ValueError, match=message):
    opened()
