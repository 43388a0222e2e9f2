"""The quickstart in small: a run of seconds in which every number moves.

Sequence scores that are rarely equal keep the gradients of the second phase
away from zero, so that a run which was resumed wrongly ends with other bytes.
The reference policy, the average of the parameters and, with the default
algorithm, its baseline are all part of the state.
"""

import pathlib

import ml_collections

from configs import quickstart
from grpo_jax.training.config import phase_config

_DATA = pathlib.Path(__file__).resolve().parents[1] / "data/gsm8k_sample"


def get_config(algorithm: str = "reinforce"):
  """Twenty steps in two phases, with a checkpoint every three.

  "on_host" is GRPO on text, scored on the host, with rollouts two updates old;
  "agent" is PPO with a critic on a chain whose contexts are compacted, in three
  phases; "sessions" is GRPO with a calculator on the host; "stages" alternates
  warm-ups and reinforcement, each with settings of its own; "judged" is GRPO by
  a verifier and by a reward model, which a phase in between has trained.
  """
  on_host, agent = algorithm == "on_host", algorithm == "agent"
  sessions = algorithm == "sessions"
  named = {"on_host": "grpo", "agent": "ppo", "sessions": "grpo"}
  named |= {"stages": "grpo", "judged": "grpo"}
  config = quickstart.get_config(named.get(algorithm, algorithm))
  options = config.data.task_options
  options.min_len = 2
  options.max_len = 3
  options.num_letters = 3
  options.teacher_error = 0.0
  config.rewards.functions = ("f1",)

  config.model.width = 16
  config.model.num_layers = 1
  config.model.num_heads = 2
  config.model.num_kv_heads = 1
  config.model.mlp_width = 32

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
    config.data.environment = "grpo_jax.rewards.python_tool:make"
    config.rewards.functions = ("malformed", "return")
    config.rewards.weights = (1.0, 1.0)
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
  if algorithm == "judged":
    config.phases = ("sft", "rm", "rl")
    config.sft.steps = 6
    config.rm = phase_config("preference", steps=4, num_prompts=8, group_size=4)
    config.reward_model.optimizer.learning_rate = 1e-2
    config.reward_model.num_updates = 2
    config.rewards.functions = ("f1", "reward_model")
    config.rewards.weights = (1.0, 0.5)
  if on_host:
    config.data.source = "jsonl"
    config.data.train_path = str(_DATA / "train.jsonl")
    config.data.format = "gsm8k"
    config.data.tokenizer = "gsm8k"
    config.data.max_prompt_len = 256
    config.sampling.max_new_tokens = 4
    config.rewards.functions = ("tests.rewards.bad_verifiers:length",)
    config.rl.staleness = 2
    config.algorithm.importance_mode = "truncate"
  return config
