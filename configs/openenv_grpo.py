"""GRPO on two environments that servers of OpenEnv run, at the same time.

    pip install 'grpo-jax[openenv]' openenv
    uvicorn --factory grpo_jax.configs.openenv_grpo:capitals --port 8000 &
    uvicorn --factory grpo_jax.configs.openenv_grpo:letters --port 8001 &
    python -m experiments.train --config=configs/openenv_grpo.py \
        --workdir=runs/openenv

The environments are at the end of this file, as an author of environments
writes them: they know nothing of grpo_jax, and their servers may be elsewhere.
Only they need the package openenv. Another one takes their place:

    --config.environment.options='{"servers": {"chess": {
      "url": "http://HOST:8000", "action": "move", "view": "board"}}}'

A policy of bytes, with parameters drawn at random, learns to answer in capital
letters, which both want, in 20 steps.
"""

import functools

import ml_collections

from grpo_jax.configs import verifiers_grpo


def get_config(algorithm: str = "grpo"):
  """Config of both environments, with any algorithm for several turns."""
  config = verifiers_grpo.get_config(algorithm)
  config.data.environment = "grpo_jax.rewards.agents.openenv:make"
  config.data.max_prompt_len = 16
  config.environment.options = ml_collections.ConfigDict(
    {
      "servers": {
        name: {
          "url": f"http://127.0.0.1:{port}",
          "action": "text",  # The field of the environment's action.
          "view": "said",  # The field of its observation.
          "scores": {"share": "share"},  # Field of its state, as a score.
        }
        for name, port in (("capitals", 8000), ("letters", 8001))
      }
    }
  )
  config.environment.max_turns = 2
  config.environment.max_observation_len = 8
  config.sampling.max_new_tokens = 20
  config.rewards.functions = ("return", "accuracy", "share")
  config.rewards.weights = (1.0, 0.0, 0.0)
  config.rewards.correct = "accuracy"
  config.rl.steps = 40
  config.eval.every = 20
  return config


def app(kind: str):
  """The server of an environment that wants one kind of characters, twice."""
  from openenv.core.env_server import (
    Action,
    Environment,
    Observation,
    State,
    create_app,
  )

  class Say(Action):
    text: str

  class Heard(Observation):
    said: str

  class Letters(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, **kwargs):
      self._state = State(episode_id=episode_id, share=0.0)
      return Heard(said=f"{(seed or 0) % 1000} {kind}: ")

    def step(self, action, timeout_s=None, **kwargs):
      wanted = str.isupper if kind == "capitals" else str.isalpha
      text = action.text.strip()
      share = sum(map(wanted, text)) / max(len(text), 1)
      self._state.step_count += 1
      self._state.share += share / 2
      done = self._state.step_count == 2
      return Heard(said="\nagain: ", reward=share / 2, done=done)

    @property
    def state(self):
      return self._state

  return create_app(Letters, Say, Heard, kind, max_concurrent_envs=256)


capitals = functools.partial(app, "capitals")
letters = functools.partial(app, "letters")
