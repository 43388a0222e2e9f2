"""The pytrees that flow through the system, and the interfaces of its parts.

One alphabet of shapes everywhere:

| letter | meaning                                                        |
|--------|----------------------------------------------------------------|
| P      | prompts                                                        |
| G      | completions per prompt                                         |
| B      | rows (completions); P·G when every prompt has G                |
| S, T   | prompt slots, completion slots; L = S + T                      |
| V, D   | vocabulary, width                                              |
| N      | micro-batches                                                  |

Position `t` of every `[B, T]` array concerns completion token `t`; the shift
between logits and targets happens once, in `ops/logprobs.py` and the models.
Log-probabilities are in nats, at the sampling temperature.

The modules of this package define them; all other code imports them from here.
"""

from grpo_jax.types.algorithms import (
  Algorithm,
)
from grpo_jax.types.batches import (
  AnchorFields,
  AnswerFields,
  CriticFields,
  LossOutput,
  Maximum,
  PolicyOutputs,
  PromptFields,
  ReferenceFields,
  RouterOutputs,
  SamplerFields,
  ScoreFields,
  Term,
  TraceFields,
  TrainBatch,
  TurnFields,
  Weighted,
  fields_where,
  first_slots,
  get_field,
  needs_of,
  present_fields,
  providers,
  row_arrays,
  set_fields,
)
from grpo_jax.types.common import ROW_AXES, Extras, Images, Metrics, PyTree
from grpo_jax.types.episodes import (
  Compaction,
  Environment,
  HostCompaction,
  HostEnvironment,
  Turn,
)
from grpo_jax.types.models import (
  Critic,
  EpisodeSampler,
  ModelState,
  Policy,
  Reward,
  Sampler,
  TrainState,
)
from grpo_jax.types.rollouts import (
  Corrections,
  Prompts,
  Rollout,
  Rollouts,
  Scored,
  Traces,
)

__all__ = [
  "ROW_AXES",
  "Algorithm",
  "AnchorFields",
  "AnswerFields",
  "Compaction",
  "Corrections",
  "Critic",
  "CriticFields",
  "Environment",
  "EpisodeSampler",
  "Extras",
  "HostCompaction",
  "HostEnvironment",
  "Images",
  "LossOutput",
  "Maximum",
  "Metrics",
  "ModelState",
  "Policy",
  "PolicyOutputs",
  "PromptFields",
  "Prompts",
  "PyTree",
  "ReferenceFields",
  "Reward",
  "Rollout",
  "Rollouts",
  "RouterOutputs",
  "Sampler",
  "SamplerFields",
  "ScoreFields",
  "Scored",
  "Term",
  "TraceFields",
  "Traces",
  "TrainBatch",
  "TrainState",
  "Turn",
  "TurnFields",
  "Weighted",
  "fields_where",
  "first_slots",
  "get_field",
  "needs_of",
  "present_fields",
  "providers",
  "row_arrays",
  "set_fields",
]
