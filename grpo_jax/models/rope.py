"""Frequencies of rotary positions, scaled for long contexts.

`N` pairs of channels, frequencies f_i, wavelengths λ_i = 2π / f_i tokens.

Sources: Peng et al., "YaRN: Efficient Context Window Extension of Large
Language Models", arXiv:2309.00071, Section 3.2; Ding et al., "LongRoPE",
arXiv:2402.13753; Meta's code of Llama 3.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from grpo_jax.models.architecture import TransformerConfig


def frequencies(config: TransformerConfig, dtype) -> jax.Array:  # [N]
  """Radians per token of each pair of channels."""
  half = config.turned_width // 2
  plain = config.rope_theta ** (-jnp.arange(half, dtype=dtype) / half)
  if config.gemma4 is not None and config.sliding_window is None:
    pairs = config.gemma4.full_turned // 2
    plain = jnp.where(jnp.arange(half) < pairs, plain, 0)
  if config.rope_scaling == "none":
    return plain
  if config.rope_scaling == "longrope":
    by_length = config.rope_short_factors, config.rope_long_factors
    return plain / jnp.array(by_length[config.long_context], dtype)
  scaled = plain / config.rope_factor
  if config.rope_scaling == "linear":
    return scaled
  if config.rope_scaling == "yarn":
    share = 1 - _ramp(config, dtype)
  else:
    # Llama 3: only pairs that turn slowly in the original context are scaled,
    # with a ramp between two bounds of the number of turns.
    turns = config.rope_original_len * plain / (2 * jnp.pi)
    low, high = config.rope_low_freq, config.rope_high_freq
    width = high - low or 1e-9  # A step, without a division by 0.
    share = jnp.clip((turns - low) / width, 0, 1)
  return share * plain + (1 - share) * scaled


def rows(config: TransformerConfig) -> tuple[int, ...]:  # N of them
  """Coordinate that turns each pair of channels: time 0, row 1 or column 2.

  Source: Qwen2-VL, arXiv:2409.12191, Section 2.1; for Qwen3-VL `transformers`.
  """
  _, of_row, of_column = config.rope_sections
  half = config.turned_width // 2
  if not config.rope_sections_mixed:
    counts = enumerate(config.rope_sections)
    return tuple(row for row, count in counts for _ in range(count))
  return tuple(
    pair % 3 if pair < 3 * (0, of_row, of_column)[pair % 3] else 0
    for pair in range(half)
  )


def _ramp(config: TransformerConfig, dtype) -> jax.Array:  # [N]
  """YaRN's ramp from 0 to 1: linear in the pairs; Llama 3's is in the turns."""

  def pair(turns: float) -> float:
    """Index of the pair with a number of turns in the original context."""
    tokens = config.rope_original_len / (2 * math.pi * turns)
    return config.turned_width * math.log(tokens) / (2 * log_base)

  log_base = math.log(config.rope_theta)
  low, high = pair(config.rope_high_freq), pair(config.rope_low_freq)
  if config.rope_truncate:
    low, high = math.floor(low), math.ceil(high)
  low, high = max(low, 0), min(high, config.turned_width - 1)
  if low == high:
    high += 0.001  # A step, without a division by 0.
  pairs = jnp.arange(config.turned_width // 2, dtype=dtype)
  return jnp.clip((pairs - low) / (high - low), 0, 1)


def yarn_amplitude(factor: float, weight: float = 1.0) -> float:
  """YaRN's 0.1 · weight · ln(factor) + 1; 1 for factors of at most 1."""
  return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0


def longrope_amplitude(factor: float, original_len: int) -> float:
  """LongRoPE's √(1 + ln(factor) / ln(original_len)); 1 for factors up to 1."""
  if factor <= 1:
    return 1.0
  return math.sqrt(1 + math.log(factor) / math.log(original_len))
