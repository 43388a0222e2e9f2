"""Rewards of text, compiled for a TPU that is not there."""

import pathlib
import re

import jax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from experiments.pods import chips
from grpo_jax.settings import config as config_lib
from grpo_jax.training.problem import problem as problem_lib
from grpo_jax.types import Prompts, Rollout

SAMPLE = pathlib.Path(__file__).parent.parent / "data/gsm8k_sample/train.jsonl"
HOST_TRAFFIC = re.compile(
  r"callback|infeed|outfeed|\bsend\b|\brecv\b|host_transfer", re.IGNORECASE
)
P, G, T = 4, 4, 32


def make_config() -> config_lib.RunConfig:
  config = config_lib.default_config()
  config.data.source = "jsonl"
  config.data.train_path = str(SAMPLE)
  config.data.format = "gsm8k"
  config.data.tokenizer = "gsm8k"
  config.data.max_prompt_len = 256
  config.sampling.max_new_tokens = T
  config.rewards.functions = (
    *("math_accuracy", "think_answer_format", "tag_count"),
    *("language_consistency", "cosine_length", "kimi_length", "repetition"),
  )
  config.rewards.weights = (1.0,) * 7
  config.rewards.in_graph = True
  return config_lib.resolve(config)


@pytest.fixture(scope="module")
def text() -> str:
  """The verdict on some completions, as a program for a TPU."""
  problem = problem_lib.make_problem(make_config())
  (device, *_) = chips.devices(chips.parse("v5e:2x2"))
  mesh = jax.sharding.Mesh([device], ("data",))
  here = NamedSharding(mesh, PartitionSpec())

  def array(shape, dtype) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=here)

  extras = problem.train[0]["extras"]
  prompts = Prompts(
    tokens=array((P, 1), "int32"),
    mask=array((P, 1), "bool"),
    ids=array((P,), "int32"),
    extras={
      name: array((P, *value.shape), value.dtype)
      for name, value in extras.items()
    },
  )
  floats, row = array((P * G, T), "float32"), array((P * G,), "int32")
  rollout = Rollout(
    tokens=array((P * G, T), "int32"),
    completion_mask=array((P * G, T), "bool"),
    behavior_logp=floats,
    sampler_logp=floats,
    entropy=floats,
    terminated=array((P * G,), "bool"),
    prompt_index=row,
    group_id=row,
    num_groups=P,
  )
  judge = jax.jit(lambda p, r: problem.reward.score({}, p, r))
  return judge.lower(prompts, rollout).compile().as_text()


def test_the_host_has_no_part_in_it(text):
  assert not HOST_TRAFFIC.search(text)
