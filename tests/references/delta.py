"""The gated delta rule in float64, token by token, from its equations."""

import numpy as np


def outputs(
  q,  # [B, L, G, K]
  k,  # [B, L, G, K]
  v,  # [B, L, G, R, V]
  log_decay,  # [B, L, G, R]
  beta,  # [B, L, G, R]
  memory,  # [B, G · R, K, V]
  mask,  # [B, L] bool
):
  """S_t = α S + k (β (v − α Sᵀ k))ᵀ and o_t = S_tᵀ q, slots without skipped.

  Returns:
    Outputs [B, L, G, R, V], 0 in slots without a token, and S after them.
  """
  y, memory = np.zeros(v.shape), np.array(memory, np.float64)
  num_rows, length, num_groups, share = log_decay.shape
  for b in range(num_rows):
    for t in range(length):
      if not mask[b, t]:
        continue
      for g in range(num_groups):
        for r in range(share):
          s = memory[b, g * share + r]
          s *= np.exp(np.float64(log_decay[b, t, g, r]))
          missing = beta[b, t, g, r] * (v[b, t, g, r] - s.T @ k[b, t, g])
          s += np.outer(k[b, t, g], missing)
          y[b, t, g, r] = s.T @ q[b, t, g]
  return y, memory


def convolved(kernel, x, mask):  # [G, M, W], [B, L, G, M], [B, L]
  """Causal sums over the last W tokens, [B, L, G, M]; 0 without a token."""
  y, num_taps = np.zeros(x.shape), kernel.shape[-1]
  for b in range(len(x)):
    slots = np.flatnonzero(mask[b])
    for n, t in enumerate(slots):
      for back in range(min(num_taps, n + 1)):
        y[b, t] += kernel[..., num_taps - 1 - back] * x[b, slots[n - back]]
  return y
