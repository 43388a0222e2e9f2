"""The table of families, in docs/checkpoints.md."""

import pytest

from experiments.parity import families
from grpo_jax.models.hf import families as families_lib


def test_the_page_has_the_records():
  assert families.page() == families.PAGE.read_text("utf-8")


def test_each_row_of_the_records_is_of_a_family():
  found = families.figures()
  assert found.keys() <= families_lib.FAMILIES.keys()
  assert len(found["qwen2"]["logits"]) >= 4


@pytest.mark.parametrize(
  ("checkpoint", "kind"),
  [
    ("deepseek_r1_distill", "qwen2"),
    ("deepseek_v3-direct_queries", "deepseek_v3"),
    ("deepseek_v3-glm4_moe_lite", "glm4_moe_lite"),
    ("gemma3-with_images", "gemma3"),
    ("llama-deepseek_r1_distill", "llama"),
    ("phi4_mini-plain_window", "phi3"),
  ],
)
def test_names_of_checkpoints(checkpoint, kind):
  assert families.kind_of(checkpoint) == kind
