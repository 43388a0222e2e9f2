"""The config of OpenEnv's two environments, beside a server that breaks."""

from grpo_jax.configs import openenv_grpo

STEPS = 24


def get_config(ports: str):
  """The config of servers at three ports; the last of them is broken."""
  config = openenv_grpo.get_config()
  servers = config.environment.options.servers
  servers["broken"] = servers["letters"].copy_and_resolve_references()
  for name, port in zip(
    ("capitals", "letters", "broken"), ports.split(","), strict=True
  ):
    servers[name].url = f"http://127.0.0.1:{port}"
  config.rl.steps = STEPS
  config.rl.num_prompts = 12
  config.rl.num_lengths = 1
  config.rewards.row_timeout_s = 60.0  # The machine may be busy.
  config.rewards.max_unscored = 0.9
  config.environment.options.timeout_s = 20.0
  config.eval.every = 0
  config.checkpoint.every = 6
  config.log.trackers = ()
  config.log.curves = False
  config.required_accuracy = 0.0
  return config
