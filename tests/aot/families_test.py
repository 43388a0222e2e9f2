"""Steps of families with layers of their own, for TPUs that are not there.

Run by `make test-tpu-aot`. Published configs with smaller numbers: so large
that each kernel counts as a weight, and with more tokens than an indexer takes.
"""

import json
import pathlib

import pytest

from experiments.pods import chips, steps
from grpo_jax.configs import pods
from grpo_jax.settings import config as config_lib

PUBLISHED = pathlib.Path(__file__).parent.parent / "models/hf/published"
NEW = 64

_SPARSE = {
  "first_k_dense_replace": 1,
  "hidden_size": 512,
  "index_n_heads": 8,
  "index_topk": 48,
  "intermediate_size": 1024,
  "kv_lora_rank": 128,
  "moe_intermediate_size": 256,
  "n_routed_experts": 16,
  "num_attention_heads": 8,
  "num_experts_per_tok": 4,
  "num_hidden_layers": 3,
  "num_key_value_heads": 8,
  "q_lora_rank": 256,
  "vocab_size": 512,
}
_LINEAR = {
  "head_dim": 64,
  "hidden_size": 256,
  "intermediate_size": 512,
  "layer_types": ["linear_attention"] * 3 + ["full_attention"],
  "linear_num_key_heads": 4,
  "linear_num_value_heads": 4,
  "num_attention_heads": 4,
  "num_hidden_layers": 4,
  "vocab_size": 512,
}
# Published name -> what is changed, and the mesh.
FAMILIES = {
  "DeepSeek-V3.2": (_SPARSE, {"fsdp": 2, "expert": 2, "tensor": 2}),
  "Qwen3.5-0.8B": (_LINEAR, {"fsdp": 4, "tensor": 2}),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_no_weight_is_gathered_for_a_token(name, tmp_path):
  change, mesh = FAMILIES[name]
  published = json.loads((PUBLISHED / f"{name}.json").read_text("utf-8"))
  if "text_config" in published:
    change = {"text_config": {**published["text_config"], **change}}
  keys = json.dumps({**published, **change})
  (tmp_path / "config.json").write_text(keys, encoding="utf-8")
  config = pods.get_config()
  config.allow_unpublished = True
  config.model.checkpoint = str(tmp_path)
  config.data.max_prompt_len = 32
  config.sampling.max_new_tokens = NEW
  config.rl.num_prompts = config.rl.group_size = 8
  config.rl.num_lengths = 1
  config.mesh.update(mesh)
  devices = chips.devices(chips.parse("v5e:2x4"))
  compiled = steps.compile_step(config_lib.resolve(config), devices)
  analysis = steps.analyze(compiled)
  assert analysis.weight_gathers == []
  assert analysis.unresolved == analysis.transfers == []
  # A few times the activations of its 16 rows in bfloat16 leave a device.
  text = change.get("text_config", change)
  loop = [one for one in analysis.collectives if one.in_token_loop]
  sent = sum(one.sent for one in loop) / (NEW - 1)
  width, layers = text["hidden_size"], text["num_hidden_layers"]
  assert sent <= 8 * layers * 16 * width * 2
