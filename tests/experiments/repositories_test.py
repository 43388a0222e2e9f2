"""Tasks for a coding agent, made from packages."""

import json

import pytest

from experiments.rewards import fault_problems, repositories, repository_hacks
from grpo_jax.configs import coding_agent
from grpo_jax.data import formats, tokenizer
from tests.experiments import command

pytestmark = pytest.mark.slow

_MODULE = '''"""A module with examples."""

from . import other


def most(a, b):
  """The larger one.

  >>> most(1, 2)
  2
  >>> most(2, 1)
  2
  >>> x = most(3, 4)
  >>> x < 5
  True
  >>> most(other.twice(2), 3)
  4
  >>> most("a", 1)
  Traceback (most recent call last):
  TypeError
  """
  return a if a > b else b


def is_even(n):
  """
  >>> is_even(2)
  True
  >>> is_even(3)
  False
  """
  return n % 2 == 0
'''


def test_half_of_the_examples_are_hidden():
  text, visible, hidden = repositories.without_every_second(_MODULE)
  assert [x["call"] for x in visible] == ["most(1, 2)", "x < 5", "is_even(2)"]
  assert [x["call"] for x in hidden] == [
    "most(2, 1)",
    "most(other.twice(2), 3)",
    "is_even(3)",
  ]
  assert visible[1]["lines"].endswith("\nx = most(3, 4)")
  assert not any(f">>> {x['call']}\n" in text for x in hidden)
  assert all(f">>> {x['call']}\n" in text for x in visible)
  assert "return a if a > b else b" in text
  assert "TypeError" in text


def test_faults_differ_in_one_expression():
  found = list(repositories.faults(_MODULE))
  assert {(name, right, wrong) for name, _, right, wrong in found} == {
    ("most", "a > b", "a >= b"),
    ("is_even", "n % 2 == 0", "n % 2 != 0"),
    ("is_even", "n % 2", "n // 2"),
    ("is_even", "2", "3"),
    ("is_even", "0", "1"),
  }
  for _, text, right, wrong in found:
    assert len(text) - len(_MODULE) == len(wrong) - len(right)
    compile(text, "text", "exec")


def test_tasks_of_a_package(tmp_path, monkeypatch):
  folder = tmp_path / "small_package"
  folder.mkdir()
  (folder / "__init__.py").write_text("")
  (folder / "some.py").write_text(_MODULE)
  (folder / "other.py").write_text("def twice(x):\n  return 2 * x\n")
  monkeypatch.syspath_prepend(tmp_path)
  (source,) = repositories.sources("small_package", "module")
  assert set(source.files) == {
    "small_package/__init__.py",
    "small_package/some.py",
    "small_package/other.py",
  }
  made = list(repositories.tasks(source, 4))
  # `a >= b` fails no test: it is no fault.
  assert {name for name, _ in made} == {"small_package.some.is_even"}
  for _, record in made:
    calls, scores = repository_hacks.played(repository_hacks.honest, record)
    assert (scores["accuracy"], len(calls)) == (1.0, 7)
    before = repository_hacks.played(lambda record: iter(()), record)[1]
    assert before["accuracy"] == 0.0 < before["passed"]
    assert formats.plain_record(record)["extras"] == record["extras"]
  parts = list(repositories.sources("small_package", "function"))
  assert [x.module for x in parts] == ["most", "is_even"]


def test_a_package_that_is_missing():
  with pytest.raises(ValueError, match="'no_such_package', which is not"):
    list(repositories.sources("no_such_package", "module"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  path = tmp_path_factory.mktemp("coding_task")
  records = fault_problems.problems()
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(fault_problems, "NUM_TEST", 8)
    patch.setattr(fault_problems, "problems", lambda: records[:24])
    fault_problems.write(path)
  return path


def test_the_small_task(folder):
  records = fault_problems.problems()
  assert len({json.dumps(x) for x in records}) == len(records) == 294
  text = tokenizer.Tokenizer(folder / "tokenizer")
  config = coding_agent.get_config()
  assert dict(config.environment.options) == fault_problems.OPTIONS
  kinds = set()
  rows = (folder / "demonstrations.jsonl").read_text().splitlines()
  for row in map(json.loads, rows):
    said = row["completion"]
    assert len(row["completion_ids"]) <= config.sampling.max_new_tokens
    assert len(text.encode(row["prompt"])) <= config.data.max_prompt_len
    kinds.add(("FAILED" in said, "Error" in said, '"replace"' in said))
    if "FAILED" in said:
      assert f'a {row["answer"]} b"}}}}' in said
  assert kinds == {
    (False, False, True),
    (False, True, False),
    (True, False, True),
  }


@pytest.mark.long
def test_a_run_repairs(folder, tmp_path):
  """Runs as users do, with fewer steps."""
  files = {
    "data.train_path": "train.jsonl",
    "data.eval_path": "test.jsonl",
    "data.tokenizer": "tokenizer",
    "sft.demonstrations": "demonstrations.jsonl",
  }
  status, _, err = command.run(
    "train",
    "--config=configs/coding_agent.py",
    *[f"--config.{name}={folder / file}" for name, file in files.items()],
    "--config.sft.steps=60",
    "--config.rl.steps=1",
    "--config.rl.num_prompts=2",
    "--config.eval.num_prompts=8",
    "--config.eval.batch_size=8",
    "--config.sft.num_lengths=1",  # Compiles faster.
    "--config.rl.num_lengths=1",
    f"--workdir={tmp_path / 'run'}",
  )
  assert status == 0, err
