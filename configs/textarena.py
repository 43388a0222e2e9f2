"""A game of textarena, Tic Tac Toe, against opponents that do not learn.

    pip install 'grpo-jax[games,hf]'
    python -m experiments.train --config=configs/textarena.py \
        --workdir=runs/textarena

The board is shown as nine characters, of which x are the policy's own, and the
policy begins every other game. The warm start imitates random legal moves; then
GRPO gets the reward of the game, 1, 0 or -1, against an opponent that moves at
random. Share of 512 held-out games that are won, sampled at temperature 1:

| seed   | 0     | 1     | 2     | 3     |
|--------|-------|-------|-------|-------|
| before | 0.422 | 0.434 | 0.410 | 0.412 |
| after  | 0.742 | 0.764 | 0.777 | 0.746 |

A run takes 8 minutes of processor time, 5 to 9 minutes on 2 cores that other
programs used too. Another game is another `env`; docs/games.md has the options.
"""

import ml_collections

from grpo_jax import algorithms
from grpo_jax.settings import config as config_lib

_GAME = "grpo_jax.rewards.agents.tic_tac_toe"


def get_config(algorithm: str = "grpo"):
  """Config of Tic Tac Toe, with any algorithm for several turns."""
  config = config_lib.default_config(algorithm)
  config.phases = ("sft", "rl")

  config.data.source = "environment"
  config.data.environment = "grpo_jax.rewards.agents.games:make"
  config.data.tokenizer = "bytes"
  config.data.max_prompt_len = 9
  config.environment.options = ml_collections.ConfigDict(
    {
      "env": "textarena:TicTacToe-v0",
      "seat": "alternate",
      "opponent": "random",
      "view": f"{_GAME}:view",
    }
  )
  config.environment.max_turns = 6
  config.environment.max_action_len = 4
  config.environment.max_observation_len = 9
  config.environment.action_ends = ("]",)
  config.sampling.max_new_tokens = 64

  config.model.width = 64
  config.model.num_layers = 2
  config.model.num_heads = 4
  config.model.num_kv_heads = 2
  config.model.mlp_width = 192

  config.rewards.functions = ("return", "accuracy", "drawn", "invalid_moves")
  config.rewards.weights = (1.0, 0.0, 0.0, 0.0)
  config.rewards.correct = "accuracy"

  config.sft.steps = 400
  config.sft.num_prompts = 64
  config.sft.optimizer.learning_rate = 3e-3
  config.sft.optimizer.schedule = "cosine"
  config.sft.optimizer.warmup_steps = 20

  config.rl.steps = 80
  config.rl.group_size = algorithms.group_size(algorithm, 8)
  config.rl.num_prompts = 192 // config.rl.group_size
  config.rl.optimizer.learning_rate = 1e-3
  config.rl.optimizer.schedule = "linear"
  config.rl.optimizer.warmup_steps = 10
  config.rl.optimizer.final_fraction = 0.1
  config.algorithm.kl_coef = 0.0

  config.eval.num_prompts = 512
  config.eval.batch_size = 256
  config.eval.temperature = 1.0
  config.eval.every = 40
  config.checkpoint.every = 80
  return config
