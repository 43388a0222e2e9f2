"""CompactionRL: contexts joined by own summaries (arXiv:2607.05378).

    python -m experiments.train \
        --config=configs/recipes/compaction_rl.py:MODEL \
        --workdir=runs/compaction_rl --config.allow_unpublished=True

MODEL is a name of `models.py`, or "toy". Result in the literature: SWE-bench
Verified rises from 50.5 to 56.0 with 30 B parameters (48.0 by PPO without
compaction), and from 59.8 to 66.8 with 106 B (60.0 without the token-level
loss, 63.0 without the discount across contexts). Not reproduced here.

1. "value": 50 steps of the critic alone.
2. "rl": 128 prompts with one rollout each; a gradient step of the policy and
   two of the critic, with 1.5 times its learning rate, over the tokens of all
   contexts. λ is 1 − 1/(1.5 l), l the tokens of the rollout.

The paper leaves open γ (here 1), the KL (here none), the unit of l
(--config.algorithm.length_adaptive_unit=context is the other reading), and how
a context ends (--config.algorithm.boundary=compaction_rl_bootstrap is the other
reading). We could not read the clip range, the length of a context, and whether
the critic's attention is frozen. Here it is not frozen;
--config.critic.freeze="('attention',)" freezes it as in SAO.

Contexts: a summary is due where fewer than 10 240 tokens are left, at most
three times, and the next context begins with the task, the summary and the last
two turns (docs/compaction.md). With a MODEL a context has 32 768 tokens, and
the tool is a Python interpreter (extra `tools`); problems of GSM8K will hardly
fill it. The paper's tasks are repositories and
terminals: --config.data.environment and --config.data.train_path name yours.

The toy is in the graph: a chain of 96 turns, in which the fact that is asked
for at the end is told at the beginning (`grpo_jax/tasks/memchain.py`). It is
compacted after 24 turns, and not when tokens run out. It takes five minutes on
2 CPU cores that others used too; docs/long_horizons.md compares algorithms on
such chains.

Memory: the cache of a rollout takes 336.0 GiB over all devices with qwen2.5-7b;
the rest is in `models.py`, and the critic has parameters and moments of its
own.
"""

import ml_collections

from grpo_jax.configs.recipes import models


def get_config(model: str = "qwen2.5-7b"):
  """The recipe with a model of `models.py`."""
  config = models.base("compaction_rl", model)
  config.phases = ("value", "rl")
  config.rl.num_prompts = 128
  config.rl.group_size = 1
  config.rl.num_minibatches = 1
  config.rl.optimizer.learning_rate = 2e-6
  config.sampling.max_new_tokens = 32_768  # not published
  config.algorithm.boundary = "compaction_rl"  # Eq. 14.
  config.algorithm.reward = "terminal"
  config.algorithm.weight = "token"
  config.algorithm.length_adaptive_alpha = 1.5
  config.algorithm.length_adaptive_unit = "trace"  # not published
  config.algorithm.lam_critic = 1.0
  config.algorithm.gamma = 1.0  # not published
  config.algorithm.kl_coef = 0.0  # not published
  config.algorithm.clip_low = 0.2  # not published
  config.algorithm.clip_high = 0.2  # not published
  config.critic.trunk = "own"
  config.critic.num_updates = 2
  config.critic.optimizer.learning_rate = 3e-6
  config.value.steps = 50
  config.value.num_prompts = 128
  config.value.micro_batch_size = config.rl.micro_batch_size
  config.unpublished = (
    *("sampling.max_new_tokens", "algorithm.length_adaptive_unit"),
    *("algorithm.gamma", "algorithm.kl_coef"),
    *("algorithm.clip_low", "algorithm.clip_high"),
  )
  config = models.finish(config, model)
  if model == "toy":
    return _on_a_chain(config)
  _with_tools(config)
  return config


def _with_tools(config: ml_collections.ConfigDict) -> None:
  """Sets episodes of many turns, and the compaction of their contexts."""
  config.data.template = "chat"
  config.data.max_prompt_len = 1024  # With the schemas of tools.
  config.data.environment = "grpo_jax.rewards.agents.tools:make"
  config.environment.options = {"tools": ("python",), "grade": "math"}
  config.environment.max_turns = 64
  config.environment.max_action_len = 4096
  config.environment.max_observation_len = 4096
  config.rewards.functions = ("accuracy",)
  config.environment.compaction.context_len = 32_768  # not published
  config.environment.compaction.reserve = 10_240
  config.environment.compaction.keep_turns = 2
  config.environment.compaction.max_compactions = 3
  config.environment.compaction.max_summary_len = 2048  # not published
  config.environment.compaction.max_prompt_len = 16_384
  config.unpublished += (
    *("environment.compaction.context_len",),
    *("environment.compaction.max_summary_len",),
  )


def _on_a_chain(config: ml_collections.ConfigDict):
  """The task of `configs/memchain_ppo.py`, with its model and its rate."""
  config.data.name = "memchain"
  config.data.task_options = ml_collections.ConfigDict(
    {
      "num_steps": 96,
      "every": 24,
      "keep_turns": 2,
      "num_digits": 2,
      "teacher_error": 0.7,
    }
  )
  config.model.width = 32
  config.model.mlp_width = 96
  config.model.num_heads = 2
  config.model.num_kv_heads = 1
  config.sft.steps = 300
  for section in (config.rl, config.critic):
    section.optimizer.learning_rate *= 3
  return config
