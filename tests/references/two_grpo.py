"""2-GRPO: GRPO with two completions per prompt, from arXiv:2510.00977."""

import functools

from tests.references import grpo

# Two different rewards give ±1/√2 (ddof 1), whatever lies between them.
advantages = grpo.advantages


# Without divergence.
loss = functools.partial(grpo.loss, kl_coef=0.0)
