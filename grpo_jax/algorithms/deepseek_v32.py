"""GRPO as DeepSeek-V3.2 stabilises it (arXiv:2512.02556).

    A_i = R_i − mean_g R
    M_i = 0 if A_i < 0 and (1/|y_i|) Σ_t [log π_μ − log π_θ] > δ, else 1
    L   = −(1/S) Σ_i (1/|y_i|) Σ_t [M_i min(r_it A_i, clip(r_it) A_i)
                                    − β r_it k3_it]

π_μ is the sampler. All parts are options of every algorithm; this is their
combination: `off_policy_threshold` (δ), `kl_kind` "k3_unbiased",
`kl_domain_weights` (β differs by domain), and `keep_sampling_mask` for
filtered sampling. The report does not print δ (0.5 is TRL's suggestion), β or
the clip range. For mixtures of experts its routing replay is the option
`keep_routing`. r is relative to the policy at the start of the update, so
completions of earlier parameters need `importance_mode` or `rejection` beside
M.
"""

from __future__ import annotations

import dataclasses

from grpo_jax.algorithms import grpo
from grpo_jax.algorithms.options import ClipConfig
from grpo_jax.ops import aggregation
from grpo_jax.types import Algorithm


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeepSeekV32Config(ClipConfig):
  kl_coef: float = 0.001
  kl_kind: str = "k3_unbiased"  # Section 3.1, "Unbiased KL Estimate".
  off_policy_threshold: float = 0.5  # Nats; "Off-Policy Sequence Masking".


DEEPSEEK_V32 = Algorithm(
  name="deepseek_v32",
  config_class=DeepSeekV32Config,
  advantages=grpo.advantages,
  policy_loss=grpo.policy_loss,
  aggregate=aggregation.over_sequences,
  needs=("old_logp",),
  min_group_size=2,
)
