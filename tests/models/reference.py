"""The transformer in NumPy loops: one sequence, one position, one head."""

import numpy as np


def _norm(x, scale, eps):
  return x / np.sqrt((x * x).mean() + eps) * scale


def _rotate(x, position, theta):
  half = len(x) // 2
  turned = np.zeros_like(x)
  for i in range(half):
    angle = position / theta ** (2 * i / len(x))
    c, s = np.cos(angle), np.sin(angle)
    turned[i] = x[i] * c - x[i + half] * s
    turned[i + half] = x[i] * s + x[i + half] * c
  return turned


def _gated(gate, up, down, x):
  gated = x @ gate
  return (gated / (1 + np.exp(-gated)) * (x @ up)) @ down


def _mlp(config, mlp, layer, x):
  if not config.num_experts:
    kernels = (mlp[name]["kernel"][layer] for name in ("gate", "up", "down"))
    return _gated(*kernels, x)
  scores = np.exp(x @ mlp["router"]["kernel"][layer])
  scores /= scores.sum()
  best = sorted(range(config.num_experts), key=lambda e: (-scores[e], e))
  best = best[: config.experts_per_token]
  total = sum(scores[e] for e in best) if config.norm_topk else 1.0
  y = np.zeros_like(x)
  for e in best:
    kernels = (mlp["experts"][n][layer][e] for n in ("gate", "up", "down"))
    y += scores[e] / total * _gated(*kernels, x)
  return y


def logits(config, params, tokens):
  """Logits [L, V] of one sequence of existing tokens, float64."""
  trained = params["trained"]
  embedding = trained["embed"]["embedding"]
  num_groups = config.num_heads // config.num_kv_heads
  stream = [np.array(embedding[token]) for token in tokens]
  for layer in range(config.num_layers):
    weights = trained["layers"]
    attention, mlp = weights["attention"], weights["mlp"]
    queries, keys, values = [], [], []
    for position, x in enumerate(stream):
      x = _norm(x, weights["attention_norm"]["scale"][layer], config.norm_eps)
      q, k, v = {}, {}, {}
      for c in range(config.num_kv_heads):
        kernel = attention["qkv"]["kernel"][layer][:, c]  # [D, R + 2, K]
        projected = [x @ kernel[:, r] for r in range(num_groups + 2)]
        if config.qkv_bias:
          bias = attention["qkv"]["bias"][layer][c]
          projected = [p + b for p, b in zip(projected, bias, strict=True)]
        if config.qk_norm != "none":
          for r in range(num_groups + 1):
            name = "query_norm" if r < num_groups else "key_norm"
            scale = attention[name]["scale"][layer]
            projected[r] = _norm(projected[r], scale, config.norm_eps)
        for r in range(num_groups):
          q[c, r] = _rotate(projected[r], position, config.rope_theta)
        k[c] = _rotate(projected[num_groups], position, config.rope_theta)
        v[c] = projected[num_groups + 1]
      queries.append(q)
      keys.append(k)
      values.append(v)
    for position, x in enumerate(stream):
      total = np.zeros_like(x)
      for (c, r), q in queries[position].items():
        scores = [q @ keys[i][c] / np.sqrt(len(q)) for i in range(position + 1)]
        probs = np.exp(scores) / np.exp(scores).sum()
        attended = sum(p * values[i][c] for i, p in enumerate(probs))
        total += attended @ attention["out"]["kernel"][layer][c, r]
      x = x + total
      y = _norm(x, weights["mlp_norm"]["scale"][layer], config.norm_eps)
      stream[position] = x + _mlp(config, mlp, layer, y)
  final = [
    _norm(x, trained["final_norm"]["scale"], config.norm_eps) for x in stream
  ]
  if config.tied_embeddings:
    return np.stack(final) @ embedding.T
  return np.stack(final) @ trained["head"]["kernel"]
