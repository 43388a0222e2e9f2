"""Tools of an environment on the host, in prompts of a chat template.

A factory of sessions (`data.environment`) may have two attributes, which are
called with `environment.options`, as its `warm_up` is:

    schemas(**options) -> what a chat template reads as `tools`
    in_chat(chat_text, **options) -> an observation with all markup, without
        text; raises ValueError where the template writes other markup

`grpo_jax/rewards/agents/tools.py` has both.
"""

from __future__ import annotations

from typing import Any

from grpo_jax.rewards.workers import session_worker
from grpo_jax.settings import config as config_lib


def chat_options(config: config_lib.RunConfig, text: Any) -> dict[str, Any]:
  """What the chat template reads beside the messages, with the tools.

  Args:
    config: The config of the run. Tools that it names itself stay.
    text: The tokenizer.

  Raises:
    ValueError: The factory complains about its options or about the template,
      or its markup has no room in an observation.
  """
  data, turns = config.data, config.environment
  options = dict(data.chat_options)
  if data.template != "chat" or not data.environment:
    return options
  factory = session_worker.load_factory(data.environment, turns.options)
  if "tools" not in options and hasattr(factory, "schemas"):
    options["tools"] = factory.schemas()
  if hasattr(factory, "in_chat"):

    def chat_text(messages):
      return text.chat_text(messages, **options)

    markup = factory.in_chat(chat_text)
    if turns.max_observation_len is not None:
      text.observation_ids(markup, turns.max_observation_len)
  return options
