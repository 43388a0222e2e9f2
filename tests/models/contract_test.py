"""Each family in bfloat16: alone, with adapters, and with a base in codes.

A step is traced and not compiled; what has the wrong type is seen there. As in
a run, α is an input of the program.
"""

import json
import pathlib
import re

import jax
import jax.numpy as jnp
import pytest

from grpo_jax.models import architecture
from grpo_jax.models.hf import families
from grpo_jax.models.policies import lora
from grpo_jax.training.phases import policy as policy_lib
from grpo_jax.training.runtime import jit
from tests.models import transformer_test

_DATA = pathlib.Path(__file__).resolve().parents[1] / "data"
# The path of each config.json by its name; some have no weights beside them.
CONFIGS = {
  **{x.parent.name: x for x in _DATA.glob("checkpoints/*/config.json")},
  **{x.stem: x for x in _DATA.glob("configs/*.json")},
}
FAMILIES = sorted(CONFIGS)
# How the base is kept; None: no adapters.
BASES = (None, "none", "int8", "nf4", "nf4_double")
_PRODUCT = re.compile(r"dot_general.*: \(tensor<([^>]*)>, tensor<([^>]*)>\)")


def step(policy):
  """Draws by a loop, computes logits at once, and a gradient."""

  def run(params, batch):
    def loss(trained):
      whole = {**params, "trained": trained}
      h, _ = policy.hidden(whole, *batch, None)
      logits = policy.head(whole, h)
      return jnp.square(logits).mean(), (h, logits)

    drawn = transformer_test.step_by_step(policy, params, batch)
    gradient, (h, logits) = jax.grad(loss, has_aux=True)(params["trained"])
    return h, logits, drawn, gradient

  return run


def types(tree):
  return jax.tree.map(lambda leaf: (leaf.shape, jnp.dtype(leaf.dtype)), tree)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("family", "base", "remat"),
  [
    ("qwen2", "nf4", "full"),
    *(("qwen2", base, "dots") for base in BASES),
    *(("qwen2", base, "none") for base in BASES),
    *((family, None, "none") for family in FAMILIES),
    *((family, "int8", "full") for family in FAMILIES),
  ],
)
def test_no_type_is_widened_on_the_way(family, base, remat):
  config = json.loads(CONFIGS[family].read_text("utf-8"))
  fields, _ = families.from_config_json(config)
  fields |= {"dtype": "bfloat16", "param_dtype": "bfloat16", "remat": remat}
  adapters = None
  if base is not None:
    alpha = jit.number("model.lora_alpha", 3.0)
    adapters = lora.LoRAConfig(rank=2, alpha=alpha, quantization=base)
  policy = policy_lib.policy_of(
    architecture.TransformerConfig(**fields), adapters
  )
  params = jax.eval_shape(policy.init, jax.random.key(0))
  program = jit.Program(step(policy))
  lowered = program.lower(params, transformer_test.make_batch())
  assert program.names == (
    ("truediv(config.model.lora_alpha, 2)",) if base else ()
  )
  h, logits, drawn, gradient = lowered.out_info
  assert h.dtype == jnp.bfloat16
  assert logits.dtype == drawn.dtype == jnp.float32
  assert types(gradient) == types(params["trained"])
  found = _PRODUCT.findall(lowered.as_text())
  wide = [pair for pair in found if any(x.endswith("f32") for x in pair)]
  assert len(found) > len(wide)
  # Routers compute in float32, and so does the gated delta rule.
  if not fields.get("num_experts") and not fields.get("delta"):
    assert not wide
