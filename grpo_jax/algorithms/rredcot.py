"""RREDCoT: the credit of a segment is the change of the expected utility.

    V̂(s)  = Σ_{y ∈ Y} π(y, end | s, opener) u(y)
    r_k   = V̂(s_k) − V̂(s_{k−1}),  k < K        r_K = R − V̂(s_{K−1})
    A_it  = z(r_{k(t)})                                   "rudder"
          = R_i − V̂(s_{k(t)−1})                           "return"
          = w A_i^GRPO + (1 − w) z(r_{k(t)})              "mix"
    L     = GRPO's, by default without its KL

s_k is the prompt and the first k segments of a completion. After each segment
the opener of an answer (`</think><answer>`) is appended, and the policy gives
the probability of each known answer y. Y has the distinct answers of the group
and a right answer; u(y) is the verifier's score of y. Tokens are not sampled
for this. z standardises over all segments of the group. Telescoping gives
Σ_k r_k = R − V̂(s_0). Answers missing in Y make V̂ too small, never too large.

`step/prefix_value.py` cuts the segments and computes V̂.

Source: RREDCoT, arXiv:2606.06475, in the lineage of Arjona-Medina et al.,
"RUDDER", arXiv:1806.07857.

Deviations: the code is not public, and the paper does not state the sequences
of its importance-sampling estimate. Y, the opener, the rule of the segments and
the number added to the deviation are ours. Longer segments count more, since
the loss is a mean over tokens.
"""

from __future__ import annotations

import dataclasses

import jax

from grpo_jax.algorithms import grpo
from grpo_jax.algorithms.options import ClipConfig
from grpo_jax.ops import aggregation, baselines, masked, segments
from grpo_jax.types import Algorithm, TrainBatch

MODES = ("mix", "rudder", "return")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RREDCoTConfig(ClipConfig):
  """GRPO's options, and those of segments and utilities.

  Attributes:
    mode: Credit of a token: "mix", "rudder" or "return".
    mix_weight: w of GRPO's advantage in "mix", in [0, 1].
    opener: Text of the tokenizer that is appended to ask for an answer. In a
      completion, segments do not end behind its first token.
    closer: Text that ends an answer; its tokens are part of the probability.
    delimiters: Texts that end a segment if a token's text ends with one of
      them; a delimiter of letters must be the whole token, except for spaces.
    entropy_quantile: Quantile of a completion's entropies above which a token
      begins a segment; 1 for delimiters alone.
    min_gap: Fewest tokens of a segment that ends before such a token.
    max_segments: K, the most segments of a completion; the last one has all
      remaining tokens.
  """

  mode: str = "mix"
  mix_weight: float = 0.5
  opener: str = "</think><answer>"
  closer: str = "</answer><eos>"
  delimiters: tuple[str, ...] = ("\n", ";", ".", "wait", "so", "therefore")
  entropy_quantile: float = 0.9
  min_gap: int = 4
  max_segments: int = 16
  # Ours: without it, standardised credits of 1e-3 would weigh as much as 1.
  advantage_eps: float = 0.01

  def __post_init__(self):
    super().__post_init__()
    if self.mode not in MODES:
      self.complain("mode", f"is unknown; choose one of {', '.join(MODES)}")
    for name in ("mix_weight", "entropy_quantile"):
      if getattr(self, name) > 1:
        self.complain(name, "must be in [0, 1]")
    for name in ("min_gap", "max_segments"):
      if getattr(self, name) < 1:
        self.complain(name, "must be at least 1")
    for name in ("opener", "closer"):
      if not getattr(self, name):
        self.complain(
          name, "is empty, and an answer must stand between two texts"
        )

  @property
  def scale_free(self) -> bool:
    return self.mode != "return"  # Standardised here.


def advantages(config: RREDCoTConfig, batch: TrainBatch) -> jax.Array:  # [B, T]
  mask = batch.mask & batch.valid[:, None]
  if config.mode == "return":
    gain = batch.rewards[:, None] - batch.answers.prefix_utility
    return jax.lax.stop_gradient(masked.select(gain, mask))
  is_end = segments.last_included(batch.answers.segment_end, mask)
  credits = segments.credits(
    batch.answers.prefix_utility, batch.answers.segment_end, batch.rewards, mask
  )
  standardized = baselines.group_standardized(
    credits.reshape(-1),
    is_end.reshape(-1),
    batch.group_id.repeat(mask.shape[1]),
    batch.num_groups,
    eps=config.advantage_eps,
  ).reshape(mask.shape)
  per_token = masked.select(segments.spread(standardized, is_end), mask)
  if config.mode == "rudder":
    return per_token
  of_rows = baselines.group_standardized(
    batch.rewards,
    batch.valid,
    batch.group_id,
    batch.num_groups,
    eps=config.advantage_eps,
  )[:, None]
  mixed = config.mix_weight * of_rows + (1 - config.mix_weight) * per_token
  return masked.select(mixed, mask)


RREDCOT = Algorithm(
  name="rredcot",
  config_class=RREDCoTConfig,
  advantages=advantages,
  policy_loss=grpo.policy_loss,
  aggregate=aggregation.over_sequences,
  needs=("old_logp", "prefix_utility"),
  whole_completions=True,
  min_group_size=2,
)
