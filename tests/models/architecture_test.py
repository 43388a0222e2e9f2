"""Sizes and switches of a transformer: what cannot be is refused."""

import dataclasses

import pytest

from tests.models import transformer_test

PLAIN, LINEAR = transformer_test.PLAIN, transformer_test.LINEAR


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"num_layers": 0}, "num_layers is 0"),
    ({"num_kv_heads": 3}, "4 query heads do not split over 3"),
    ({"num_heads": 6}, "width 8 does not split into 6 heads"),
    ({"head_dim": 3}, "3 channels of a head are turned"),
    ({"num_heads": 8}, "1 channels of a head are turned"),
    ({"dtype": "float16"}, "dtype is 'float16'"),
    ({"query_scaling": 1.0, "rope_sections": (1, 0, 0)}, "query_scaling is 1"),
    ({"rotary_layers": (True,)}, "rotary_layers has 1 entries for 2 layers"),
    ({"delta": LINEAR.delta, "num_layers": 3}, "3 layers are no multiple of"),
    (
      {"delta": LINEAR.delta, "decode_attention": "paged"},
      "decode_attention is 'paged', .* gated delta rule needs 'plain'",
    ),
    (
      {"delta": LINEAR.delta, "sliding_window": 3},
      "sliding_window is 3, .* gated delta rule needs None",
    ),
    ({"norm": "batch"}, "norm is 'batch'; use one of rms, plain, layer"),
    ({"norm": "layer", "norm_plus_one": True}, "only 'rms' adds 1"),
    ({"rotary_width": 0}, "0 channels of a head are turned"),
    ({"gate": False, "num_experts": 2}, "gate is False, and num_experts is 2"),
    ({"gate": False, "activation": "clamped"}, "'clamped' need a gate"),
  ],
)
def test_impossible_sizes_raise(change, message):
  with pytest.raises(ValueError, match=message):
    dataclasses.replace(PLAIN, **change)
