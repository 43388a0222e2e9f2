"""Products of a kernel that does not state them: JAX's splash attention.

The text of a program has the calls of the kernel with the shapes of queries and
keys, the table of the blocks that it visits, and the sizes of the blocks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from experiments.pods.hlo import Array

# Products with the scores of a pair of tokens, over the width of keys and over
# that of values: the scores and what is attended; or what gradients need, for
# which the scores are made again.
_PRODUCTS = {"fwd": (1, 1), "dq": (2, 1), "dkv": (2, 2)}


def flops(name: str, operands: Sequence[Array], attributes: str) -> float:
  """Least number of operations of a call; 0 for an unknown kernel.

  The count is of pairs of a query and a key that is not after it; the last
  query stands at the last key. If the visited blocks have fewer pairs, as with
  a window, these are counted. The kernel also multiplies pairs that are masked
  within a block.

  Args:
    name: Name of the kernel.
    operands: Tables of blocks, queries [..., H, L, K], keys [..., C, M, K],
      values [..., C, M, K'], and others.
    attributes: Attributes of the call, with the sizes of blocks.
  """
  found = re.match(r"splash_m[hq]a_(fwd|dq|dkv)_", name)
  if found is None:
    return 0.0
  arrays = [x for x in operands if x.dtype in ("bf16", "f32")]
  tables = [x for x in operands if x.dtype[0] in "su" and len(x.dims) > 2]
  q, k, v = arrays[:3]
  length, slots = q.dims[-2], k.dims[-2]
  pairs = length * (slots - length) + length * (length + 1) / 2
  sizes = dict(re.findall(r"(block_q|block_kv)\w*\W+(\d+)", attributes))
  if tables and len(sizes) == 2:
    visited = math.prod(tables[0].dims[-2:])
    pairs = min(pairs, visited * int(sizes["block_q"]) * int(sizes["block_kv"]))
  of_keys, of_values = _PRODUCTS[found[1]]
  widths = of_keys * q.dims[-1] + of_values * v.dims[-1]
  return 2.0 * math.prod(q.dims[:-2]) * pairs * widths
