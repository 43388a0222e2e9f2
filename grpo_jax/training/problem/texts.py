"""Prompts that are text: records, tokenizer, images, and who reads the text."""

from __future__ import annotations

from typing import Any

from grpo_jax.data.encoder import Encoder
from grpo_jax.settings import config as config_lib
from grpo_jax.settings import environment as environment_lib
from grpo_jax.training.problem import records, rewards, tokens


def fields(config: config_lib.RunConfig) -> dict[str, Any]:
  """Opens data, tokenizer and verifiers; returns the fields of a `Problem`.

  Raises:
    KeyError, ValueError, FileNotFoundError: A setting is wrong, or a file is
      missing.
  """
  data = config.data
  text = tokens.make_tokenizer(config)
  assert data.max_prompt_len is not None  # `RunConfig` has checked it.
  assert config.sampling.max_new_tokens is not None
  if environment_lib.is_served(data.environment):
    from grpo_jax.training.problem import served  # A server, and its process.

    return served.fields(config, text)
  if data.environment:
    from grpo_jax.training.problem import environment  # Imports its factory.
  if data.source == "environment":
    sources = environment.open_sources(
      config, text, environment.environment(config, text, None)
    )
  else:
    sources = records.open_sources(data, config.seed)
  train, held_out, supervised, domains = sources
  chat = dict(data.chat_options)
  if data.environment:
    chat = environment.chat_options(config, text)
  reader = image_encoder = None
  if data.images:
    from grpo_jax.training.problem import images  # Processes, and processors.

    reader = images.opened(config)
    image_encoder = images.image_encoder(reader, data)
  encoder = Encoder(text, data.template, chat, image_encoder, data.system)
  values: dict[str, Any] = {
    "tokenizer": text,
    "train": train,
    "held_out": held_out,
    "supervised": supervised,
    "encoder": encoder,
    "reader": reader,
    "image_shapes": None if image_encoder is None else image_encoder.shapes,
    "answer_after": config.rewards.answer_after,
    "max_prompt_len": data.max_prompt_len,
    "max_new_tokens": config.sampling.max_new_tokens,
    "truncate_completions": True,
    "domains": domains,
    "provides": frozenset(
      name
      for name, is_provided in {
        "domain": bool(domains),
        "step_rewards": bool(config.rewards.steps),
      }.items()
      if is_provided
    ),
  }
  if data.environment:  # Its sessions add their scores.
    return values | {"reward": rewards.make(config, None, names=domains)}
  values["components"] = frozenset(rewards.of_text(config))
  verifier: rewards.InGraph | rewards.OnHost
  if config.rewards.in_graph:
    from grpo_jax.training.problem import in_graph  # Text as rows of bytes.

    values["train"] = in_graph.WithGolds(train)
    values["held_out"] = in_graph.WithGolds(held_out)
    verifier = in_graph.make(config, text.token_bytes(), text.stripped_spaces())
  else:
    path = str(tokens.tokenizer_path(config))
    options = {"end_tokens": list(data.end_tokens) or None}
    verifier = rewards.on_host(
      config, ("grpo_jax.data.tokenizer:Tokenizer", [path], options), domains
    )
  return values | {"reward": rewards.make(config, verifier, names=domains)}
