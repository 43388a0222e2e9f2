"""A run on conversations, of JSON lines and of Parquet, from end to end."""

import gzip
import json
import textwrap

import pytest

from grpo_jax.configs import jsonl
from grpo_jax.training import loop
from grpo_jax.training.runtime import log
from tests.data import chats
from tests.experiments import tiny_config

REWARD = """
  def asked(prompts, completions, level, **kwargs):
    roles = [[message["role"] for message in prompt] for prompt in prompts]
    right = roles == [["system", "user", "assistant", "tool"]] and level == [3]
    return [float(right and completions[0][0]["role"] == "assistant")]
"""
ROWS = [
  {
    "prompt": [*chats.CHAT[:-1], {"role": "tool", "content": f"{i} km"}],
    "completion": [chats.said(f"{i}"), chats.user("Yes?"), chats.said("Yes.")],
    "tools": chats.TOOLS,
    "extras": {"level": 3},
  }
  for i in range(4)
]


def make_config(folder, source, path):
  config = jsonl.get_config()
  config.data.source = source
  config.data.train_path = str(path)
  if source == "datasets":
    config.data.eval_split = "train"
  config.data.tokenizer = str(folder / "model")
  config.data.template = "chat"
  config.data.max_prompt_len = 320
  config.sampling.max_new_tokens = 40
  config.rewards.functions = ("chat_rewards:asked",)
  config.rewards.num_workers = 1
  tiny_config.shrink(config.model)
  for phase in config.sft, config.rl:
    phase.steps = 1
    phase.num_prompts = 4
  config.rl.group_size = 2
  config.eval.num_prompts = config.eval.batch_size = 2
  config.log.samples_every = config.log.traces_every = 1
  config.log.trackers = ()
  config.log.curves = False
  return config


@pytest.mark.slow
def test_a_conversation_trains_and_is_seen_whatever_keeps_it(
  tmp_path, monkeypatch, cache_of_datasets
):
  chats.write_tokenizer(tmp_path / "model")
  (tmp_path / "chat_rewards.py").write_text(textwrap.dedent(REWARD))
  monkeypatch.syspath_prepend(tmp_path)
  lines = tmp_path / "rows.jsonl"
  lines.write_text("\n".join(map(json.dumps, ROWS)))
  table = tmp_path / "rows.parquet"
  cache_of_datasets.Dataset.from_list(ROWS).to_parquet(str(table))
  logs = []
  for source, path in ("jsonl", lines), ("datasets", table):
    workdir = tmp_path / source
    loop.train(make_config(tmp_path, source, path), workdir)
    logs.append((workdir / "metrics.jsonl").read_text().splitlines()[1:])
  assert logs[0] == logs[1]  # The same ids, and so the same numbers.
  step = next(x for x in map(json.loads, logs[0]) if "reward/asked" in x)
  assert step["reward/asked"] == 1.0
  assert step["unscored"] == 0
  samples = log.read_lines(workdir / log.SAMPLES)
  assert any(
    x["prompt"].startswith("system: Be brief.\nuser: How long is the Rhine?")
    for x in samples
  )
  with gzip.open(workdir / "traces.jsonl.gz", "rt") as file:
    assert any("tool: 1 km" in line for line in file)
