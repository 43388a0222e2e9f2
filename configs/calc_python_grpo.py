"""GRPO with Python as the calculator: tools on the host, behind a guard.

    python -m experiments.train --config=configs/calc_python_grpo.py \
        --workdir=runs/calc_python

Differs from configs/calc_tool_grpo.py in who runs the calls: Python sessions
(`grpo_jax/rewards/agents/python_tool.py`) take the place of the task's
environment in the graph. Four times in ten the teacher takes the first result
for the answer, and sometimes it tries the leak first, which an interceptor
blocks. The run takes three minutes on 2 CPU cores.
"""

from grpo_jax.configs import calc_tool_grpo


def get_config(algorithm: str = "grpo"):
  """Config of the calculator in Python, with an algorithm for several turns."""
  config = calc_tool_grpo.get_config(algorithm)
  tool = "grpo_jax.rewards.agents.python_tool"
  config.data.environment = f"{tool}:make"
  config.interceptor.rules = (f"{tool}:has_hash",)
  config.interceptor.judge = f"{tool}:is_bare_hash"
  config.interceptor.dummy = ("<obs>?</obs>",)
  options = config.data.task_options
  options.leak = True
  options.teacher_leak = 0.15
  options.teacher_error = 0.4
  config.checkpoint.every = 30
  config.eval.every = 30
  config.rl.steps = 60
  return config
