"""The small search task: what is written, and a run on it."""

import pytest

from experiments.rewards import search_task
from grpo_jax.configs import search_agent
from grpo_jax.data import demonstrations, tokenizer
from grpo_jax.rewards.agents import tools
from grpo_jax.training.runtime import log
from tests.experiments import command

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  path = tmp_path_factory.mktemp("search_task")
  search_task.write(path)
  return path


def test_the_bytes_are_the_same_each_time(folder, tmp_path):
  search_task.write(tmp_path)
  names = [path.name for path in folder.iterdir() if path.is_file()]
  assert len(names) == 4
  for name in (*names, "tokenizer/tokenizer.json"):
    assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


def test_names_of_the_test_are_in_passages_and_not_taught(folder):
  train, test = (
    log.read_lines(folder / f"{x}.jsonl") for x in ("train", "test")
  )
  assert (len(train), len(test)) == (448, 64)
  assert not {x["prompt"] for x in train} & {x["prompt"] for x in test}
  passages = {x["text"] for x in log.read_lines(folder / "passages.jsonl")}
  for row in (*train, *test):
    name = row["prompt"].split('"')[1]
    assert f"{name}: the code is {row['answer']}." in passages


def test_demonstrations_are_episodes_as_the_config_has_them(folder):
  text = tokenizer.Tokenizer(folder / "tokenizer")
  rows = log.read_lines(folder / "demonstrations.jsonl")
  source = demonstrations.DemonstrationSource(
    folder / "demonstrations.jsonl", text, is_text=True
  )
  assert len(rows) == len(source) == 6 * 448
  config = search_agent.get_config()
  kinds = set()
  for row in rows[:60]:
    observed = row.get("observed", [0] * len(row["completion_ids"]))
    assert len(row["completion_ids"]) <= config.sampling.max_new_tokens
    assert sum(observed) <= config.environment.max_observation_len
    read = text.exact_text(
      i for i, x in zip(row["completion_ids"], observed, strict=True) if x
    )
    written = text.exact_text(
      i for i, x in zip(row["completion_ids"], observed, strict=True) if not x
    )
    assert written.endswith("<|im_end|>")
    kinds.add((read[:48], written.count("<|im_end|>")))
    if "the code is" in read:
      assert row["completion"].endswith(row["answer"])
  opened = "\n<|im_start|>user\n<tool_response>\n"
  assert {(read.removeprefix(opened)[:4], n) for read, n in kinds} == {
    ("", 1),
    ("Erro", 2),
    ("[1] ", 2),
  }


def test_the_template_of_the_task_is_that_of_its_format(folder):
  text = tokenizer.Tokenizer(folder / "tokenizer")
  config = search_agent.get_config()
  options = {
    **config.environment.options,
    "corpus": str(folder / "passages.jsonl"),
  }
  options = {**options, "max_parallel": 3}

  def chat_text(messages):
    return text.chat_text(messages, tools=tools.schemas(**options))

  assert len(tools.in_chat(chat_text, **options)) == 9
  ours = dict(search_task.OPTIONS)
  theirs = dict(config.environment.options)
  assert theirs.pop("corpus").endswith("passages.jsonl")
  assert theirs == ours


@pytest.mark.long
def test_a_run_searches(folder, tmp_path, monkeypatch):
  """Runs as users do, with fewer steps."""
  monkeypatch.delitem(command.ENVIRONMENT, "XLA_FLAGS", raising=False)
  files = {
    "data.train_path": "train.jsonl",
    "data.eval_path": "test.jsonl",
    "data.tokenizer": "tokenizer",
    "environment.options.corpus": "passages.jsonl",
    "sft.demonstrations": "demonstrations.jsonl",
  }
  status, _, err = command.run(
    "train",
    "--config=configs/search_agent.py",
    *[f"--config.{name}={folder / file}" for name, file in files.items()],
    "--config.sft.steps=60",
    "--config.rl.steps=1",
    "--config.sft.num_lengths=1",  # Compiles faster.
    "--config.rl.num_lengths=1",
    f"--workdir={tmp_path / 'run'}",
  )
  assert status == 0, err
  lines = log.read_lines(tmp_path / "run" / log.METRICS)
  calls = [x["eval/reward/tool_calls"] for x in lines if "eval/reward" in x]
  assert calls[0] > 0.1
