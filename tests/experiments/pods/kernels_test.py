"""Tests of the products of splash attention, counted from a call's shapes."""

import pytest

from experiments.pods import kernels
from experiments.pods.hlo import Array

# 2 heads with 6 queries that begin after 2 keys, and blocks of 2.
TABLE = Array("s8", (1, 3, 4))
QUERIES = Array("bf16", (1, 2, 6, 16))
KEYS, VALUES = Array("bf16", (1, 1, 8, 16)), Array("bf16", (1, 1, 8, 4))
SIZES = '"{\\"block_q_dkv\\": 2, \\"block_kv_dkv\\": 2}"'
# Each sees itself and those before it: 3, 4, 5, 6, 7 and 8 keys.
PAIRS = 33


@pytest.mark.parametrize(
  ("phase", "widths"),
  [("fwd", 16 + 4), ("dq", 2 * 16 + 4), ("dkv", 2 * 16 + 2 * 4)],
)
def test_pairs_that_are_seen_are_counted(phase, widths):
  name = f"splash_mha_{phase}_segmented_residuals"
  operands = [TABLE, TABLE, QUERIES, KEYS, VALUES, Array("s32", (6, 128))]
  found = kernels.flops(name, operands, SIZES)
  assert found == 2 * 2 * PAIRS * widths


def test_blocks_that_are_not_visited_are_not_counted():
  """Takes a window, for which the table has fewer columns."""
  table = Array("s8", (1, 3, 2))
  found = kernels.flops(
    "splash_mha_fwd_no_residuals", [table, QUERIES, KEYS, VALUES], SIZES
  )
  assert found == 2 * 2 * (3 * 2 * 2 * 2) * (16 + 4)


def test_other_kernels_are_not_known():
  assert kernels.flops("gmm", [QUERIES, KEYS], "") == 0
