"""A tiny policy of bytes and an environment of `verifiers` that wants an a."""

from tests.training.phases import served

STEPS = 20


def get_config(path: str = "verifiers_envs"):
  config = served.config_of("")
  config.data.source = "environment"
  config.data.train_path = ""
  config.data.environment = f"verifiers:tests.rewards.workers.{path}"
  config.rewards.in_graph = False
  config.rewards.functions = ("return",)
  config.rewards.correct = "return"
  config.rewards.row_timeout_s = 60.0
  config.phases = ("rl",)
  config.rl.steps = STEPS
  config.rl.num_prompts = 4
  config.rl.group_size = 4
  config.rl.num_lengths = 1
  config.rl.optimizer.learning_rate = 2e-2
  config.algorithm.kl_coef = 0.0
  config.eval.num_prompts = 4
  config.eval.batch_size = 4
  config.checkpoint.every = 5
  config.log.samples_every = 1
  config.log.trackers = ()
  config.required_accuracy = 0.0
  return config
