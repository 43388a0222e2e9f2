"""The smallest run that processes share: text, scored on the host.

One supervised step, then steps whose rollouts are drawn ahead. The sum of
lengths is a reward in which every row has a part.
"""

import os
import pathlib
import sys

from jax._src import cache_key

from grpo_jax.settings import phase as phase_lib
from grpo_jax.settings.config import algorithm_config
from tests.experiments import tiny_config

if any(argument.startswith("--num_processes=") for argument in sys.argv):
  # On CPUs JAX gives each process of a run a key of its own for one and the
  # same program, and keeps what the first one has compiled alone.
  cache_key._hash_accelerator_config = cache_key._hash_devices


SESSION_STEPS = 12


def get_config(kind: str = "both"):
  """Five steps, with a checkpoint after the first, the third and the last.

  "long": of the first kind alone, so many that signals come in time.
  "sessions": `SESSION_STEPS` steps of the second kind alone, with a calculator
  on the host.
  "summaries": the same of text, whose contexts are compacted. Each step depends
  on the one before, by the schedule "ads", whose clusters are beside the file
  that the environment variable SCORED names.
  "partial": of a task with its verifier in the program, with rollouts that are
  cut at the end of each step, and go on in one of the next.
  """
  if kind == "partial":
    return _in_graph()
  sessions = kind in ("sessions", "summaries")
  config = tiny_config.get_config(kind if sessions else "on_host")
  config.sft.steps = 1
  config.sft.optimizer.warmup_steps = 0
  config.rl.steps = 4
  config.rl.num_minibatches = 1
  config.rl.ema_decay = None
  config.rl.staleness = 1
  config.algorithm.kl_coef = 0.0
  if kind == "both":  # Two processes hold each row: they share verification.
    config.mesh.tensor = config.model.num_kv_heads = 2
  if not sessions:
    config.rewards.functions = (
      "tests.rewards.workers.bad_verifiers:logged_length",
    )
  config.rewards.num_workers = 1
  config.rewards.variables = ("SCORED",)
  config.eval.every = 0
  config.checkpoint.every = 2
  config.log.trackers = ()
  config.hosts.timeout_s = 10.0
  if kind != "both":  # Compiles faster.
    config.phases = ("rl",)
  if sessions:
    config.rl.staleness = 0
    config.rl.num_lengths = 1
  if kind == "sessions":
    config.rl.steps = SESSION_STEPS
    config.rl.staleness = 1
  if kind == "summaries":
    config.algorithm = algorithm_config("grpo")
    config.algorithm.kl_coef = 0.0
    for name in phase_lib.OF_CRITIC:
      del config[name]
    config.rl.num_prompts = config.rl.group_size = 4
    config.rl.schedule.name = "ads"
    config.rl.schedule.pool = 12
    config.rl.schedule.drawn_clusters = config.rl.schedule.window = 2
    scored = pathlib.Path(os.environ["SCORED"])
    config.rl.schedule.clusters = str(scored.with_name("clusters.npz"))
  if kind == "long":
    config.phases = ("sft",)
    config.sft.steps = 150
    config.checkpoint.every = 10
  return config


def _in_graph():
  config = tiny_config.get_config("grpo")
  config.sft.steps = 8
  config.rl.steps = 4
  config.rl.num_minibatches = 1
  config.rl.ema_decay = None
  config.rl.staleness = 3
  config.algorithm.importance_mode = "truncate"
  config.eval.every = 0
  config.checkpoint.every = 2
  config.log.trackers = ()
  config.hosts.timeout_s = 10.0
  config.rl.partial_len = 2
  return config
