"""The quickstart in small: a run of seconds in which every number moves.

Sequence scores that are rarely equal keep the gradients of the second phase
away from zero, so that a run which was resumed wrongly ends with other bytes.
The reference policy, the average of the parameters and, with the default
algorithm, its baseline are all part of the state.
"""

import functools
import operator
import pathlib

import ml_collections

from grpo_jax.configs import quickstart
from grpo_jax.settings.config import phase_config

_DATA = pathlib.Path(__file__).resolve().parents[1] / "data/gsm8k_sample"


def change(config, changes):
  """Sets settings, of any type, by names in which `__` stands for the dot."""
  for name, value in changes.items():
    *path, leaf = name.split("__")
    node = functools.reduce(operator.getitem, path, config)
    with node.unlocked(), node.ignore_type():
      node[leaf] = value
  return config


def shrink(model):
  """Sets the sizes of a model that compiles in seconds."""
  model.width, model.mlp_width = 16, 32
  model.num_layers, model.num_heads, model.num_kv_heads = 1, 2, 1


def get_config(algorithm: str = "reinforce"):
  """Twenty steps in two phases, with a checkpoint every three.

  "on_host" is GRPO on text, scored on the host, with rollouts two updates old
  and mixed inputs;
  "agent" is PPO with a critic on a chain whose contexts are compacted, in three
  phases; "sessions" is GRPO with a calculator on the host, whose episodes are
  played two updates ahead; "summaries" is CompactionRL on text with sessions on
  the host, whose contexts are compacted, in three phases; "stages" alternates
  warm-ups and reinforcement, each with settings of its own; "judged" is GRPO by
  a verifier and by a reward model, which a phase in between has trained;
  "iterative" does both by turns, by REINFORCE; "r1" keeps right completions,
  and imitates them from the first policy on; "curriculum" draws prompts by how
  often they were solved; "process" has a reward model that scores steps of
  additions, and these scores alone are rewarded.
  """
  on_host, agent = algorithm == "on_host", algorithm == "agent"
  sessions = algorithm == "sessions"
  summaries = algorithm == "summaries"
  named = {"on_host": "grpo", "agent": "ppo", "sessions": "grpo"}
  named |= {"summaries": "compaction_rl"}
  named |= {"stages": "grpo", "judged": "grpo", "iterative": "reinforce"}
  named |= {"curriculum": "grpo", "r1": "grpo", "process": "grpo_ps"}
  config = quickstart.get_config(named.get(algorithm, algorithm))
  options = config.data.task_options
  options.min_len = 2
  options.max_len = 3
  options.num_letters = 3
  options.teacher_error = 0.0
  config.rewards.functions = ("f1",)

  shrink(config.model)

  config.sft.steps = 10
  config.sft.num_prompts = 8
  config.sft.optimizer.learning_rate = 5e-2
  config.sft.optimizer.schedule = "constant"
  config.sft.optimizer.warmup_steps = 2
  config.rl.steps = 10
  config.rl.num_prompts = 4
  config.rl.group_size = 4
  config.rl.num_minibatches = 2
  config.rl.ema_decay = 0.5
  config.rl.optimizer.learning_rate = 2e-3
  config.rl.optimizer.warmup_steps = 2
  config.algorithm.kl_coef = 0.1

  config.eval.num_prompts = 8
  config.eval.batch_size = 8
  config.eval.every = 4
  config.checkpoint.every = 3
  config.log.samples_every = 1
  config.log.curves = False
  config.log.traces_every = 3
  config.required_accuracy = 0.0

  if agent:
    config.phases = ("sft", "value", "rl")
    config.data.name = "memchain"
    config.data.task_options = ml_collections.ConfigDict(
      {"num_steps": 8, "every": 3, "keep_turns": 1, "num_digits": 2}
    )
    config.rewards.functions = ("semicolons",)
    config.sft.steps = 6
    config.value.steps = 4
    config.value.num_prompts = 8
    config.critic.num_updates = 2
    config.critic.freeze = ("attention",)
    config.critic.optimizer.learning_rate = 1e-2
    config.value.num_lengths = config.rl.num_lengths = 1  # Compiles faster.
    config.rl.num_prompts = 16
    config.rl.group_size = 1
  if sessions:
    config.data.name = "calc_tool"
    config.data.task_options = ml_collections.ConfigDict({"leak": True})
    tool = "grpo_jax.rewards.agents.python_tool"
    config.data.environment = f"{tool}:make"
    config.interceptor.rules = (f"{tool}:has_hash",)
    config.interceptor.judge = f"{tool}:is_bare_hash"
    config.interceptor.dummy = ("<obs>?</obs>",)
    config.rewards.functions = ("malformed", "return")
    config.rewards.weights = (1.0, 1.0)
    config.rl.staleness = 2
    config.algorithm.importance_mode = "truncate"
  if algorithm == "stages":
    config.phases = ("sft", "rl", "sft2", "rl2")
    config.sft.steps = config.rl.steps = 4
    config.rl.optimizer.schedule = "constant"
    config.sft2 = phase_config("supervised", steps=5, num_prompts=4)
    config.sft2.optimizer.learning_rate = 1e-3
    config.rl2 = phase_config(
      "rl", steps=7, num_prompts=8, group_size=2, set_reference=False
    )
    config.rl2.optimizer.learning_rate = 1e-3
    config.rl2.optimizer.name = "adafactor"
  if algorithm == "curriculum":
    config.sft.steps = 4
    config.rl.steps = 6
    config.rl.schedule.name = "frontier"
    config.rl.schedule.pool = 12
  if algorithm == "r1":
    config.phases = ("sft", "rl", "rejection", "sft2", "rl2")
    config.rewards.functions = ("f1", "accuracy")
    config.rewards.weights = (1.0, 0.0)
    config.rewards.correct = "accuracy"
    config.sft.steps = 5
    config.sft.num_records = 64
    config.rl.steps = 3
    config.rejection = phase_config(
      "rejection", steps=5, num_prompts=4, group_size=4
    )
    config.rejection.keep.distinct = "text"
    config.rejection.keep.most = 2
    config.sft2 = phase_config(
      "supervised",
      steps=4,
      num_prompts=4,
      reset_policy=True,
      demonstrations=("rejection", "own"),
      num_records=8,
    )
    config.sft2.optimizer.learning_rate = 1e-2
    config.rl2 = phase_config(
      "rl",
      steps=3,
      num_prompts=4,
      group_size=4,
      temperature=0.7,
      reward_weights=(0.5, 1.0),
    )
  if algorithm in ("judged", "iterative"):
    config.phases = ("sft", "rm", "rl")
    config.sft.steps = 6
    config.rm = phase_config("preference", steps=4, num_prompts=8, group_size=4)
    config.reward_model.optimizer.learning_rate = 1e-2
    config.reward_model.num_updates = 2
    config.rewards.functions = ("f1", "reward_model")
    config.rewards.weights = (1.0, 0.5)
  if algorithm == "iterative":
    config.phases = ("sft", *2 * ("rm", "rl"))
    config.rm.steps = 3
    config.reward_model.history_share = 0.25
    config.reward_model.history_size = 16
    config.rl.steps = 4
  if algorithm == "process":
    config.phases = ("sft", "rm", "rl")
    config.data.name = "add"
    config.data.task_options = ml_collections.ConfigDict(
      {"level": 1, "scratchpad": True, "teacher_error": 0.3}
    )
    config.sft.steps = 60
    config.rl.steps = 2
    config.rm = phase_config("process", steps=6, num_prompts=8, group_size=4)
    config.reward_model.optimizer.learning_rate = 1e-2
    config.reward_model.step_ends = (";",)
    config.reward_model.of_steps = "product"
    config.rewards.functions = ("accuracy", "reward_model")
    config.rewards.weights = (0.0, 1.0)
  if on_host or summaries:
    config.data.source = "jsonl"
    config.data.train_path = str(_DATA / "train.jsonl")
    config.data.format = "gsm8k"
    config.data.tokenizer = "gsm8k"
    config.data.max_prompt_len = 256
  if on_host:
    config.sampling.max_new_tokens = 4
    config.sampling.mix_rate = 0.5
    config.sampling.mix_until = ""
    config.rewards.functions = ("tests.rewards.workers.bad_verifiers:length",)
    config.rl.staleness = 2
    config.algorithm.importance_mode = "truncate"
  if summaries:
    _on_text(config)
  return config


def _on_text(config):
  """Up to three contexts of about two turns, each of a few tokens."""
  config.sampling.max_new_tokens = 24
  config.data.environment = "tests.training.host_sessions:echo"
  config.environment.max_turns = 5
  config.environment.max_action_len = 3
  config.environment.max_observation_len = 6
  compaction = config.environment.compaction
  compaction.context_len = 300
  compaction.every = 2
  compaction.keep_turns = 1
  compaction.max_compactions = 2
  compaction.max_summary_len = 4
  compaction.instruction = ("Sum it up:",)
  compaction.resume = ("Summary:", "")
  config.rewards.functions = ("accuracy", "return")
  config.rewards.weights = (0.0, 1.0)
  config.rewards.correct = "accuracy"
  config.phases = ("sft", "value", "rl")
  config.sft.steps = 6
  config.value.steps = 4
  config.value.num_prompts = 8
  config.value.num_lengths = 1
  config.critic.optimizer.learning_rate = 1e-2
  config.rl.num_prompts = 8
  config.rl.group_size = 1
  config.rl.num_lengths = 1  # Compiles faster.
