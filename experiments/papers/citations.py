"""BibTeX of the papers that algorithms come from.

The table of docs/algorithms/index.md has the paper of each algorithm, by its
number on arXiv. Known titles and first authors are written below. Any other
paper has the name in the table and lacks an author, which a citation must add.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from experiments.site import algorithms as pages

# Number on arXiv -> (first author, title).
_PAPERS = {
  "1707.06347": ("Schulman, John", "Proximal Policy Optimization Algorithms"),
  "2203.02155": (
    "Ouyang, Long",
    "Training language models to follow instructions with human feedback",
  ),
  "2305.18290": (
    "Rafailov, Rafael",
    "Direct Preference Optimization: Your Language Model is Secretly a Reward"
    " Model",
  ),
  "2305.20050": ("Lightman, Hunter", "Let's Verify Step by Step"),
  "2306.13649": (
    "Agarwal, Rishabh",
    "On-Policy Distillation of Language Models: Learning from Self-Generated"
    " Mistakes",
  ),
  "2310.10505": (
    "Li, Ziniu",
    "ReMax: A Simple, Effective, and Efficient Reinforcement Learning Method"
    " for Aligning Large Language Models",
  ),
  "2312.08935": (
    "Wang, Peiyi",
    "Math-Shepherd: Verify and Reinforce LLMs Step-by-step without Human"
    " Annotations",
  ),
  "2402.03300": (
    "Shao, Zhihong",
    "DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open"
    " Language Models",
  ),
  "2402.14740": (
    "Ahmadian, Arash",
    "Back to Basics: Revisiting REINFORCE Style Optimization for Learning from"
    " Human Feedback in LLMs",
  ),
  "2503.01491": (
    "Yuan, Yufeng",
    "What's Behind PPO's Collapse in Long-CoT? Value Optimization Holds the"
    " Secret",
  ),
  "2503.14476": (
    "Yu, Qiying",
    "DAPO: An Open-Source LLM Reinforcement Learning System at Scale",
  ),
  "2503.19595": (
    "Tang, Yunhao",
    "Optimizing Language Models for Inference Time Objectives using"
    " Reinforcement Learning",
  ),
  "2503.20783": (
    "Liu, Zichen",
    "Understanding R1-Zero-Like Training: A Critical Perspective",
  ),
  "2504.02546": (
    "Chu, Xiangxiang",
    "GPG: A Simple and Strong Reinforcement Learning Baseline for Model"
    " Reasoning",
  ),
  "2504.05118": (
    "Yue, Yu",
    "VAPO: Efficient and Reliable Reinforcement Learning for Advanced Reasoning"
    " Tasks",
  ),
  "2505.10978": (
    "Feng, Lang",
    "Group-in-Group Policy Optimization for LLM Agent Training",
  ),
  "2505.22617": (
    "Cui, Ganqu",
    "The Entropy Mechanism of Reinforcement Learning for Reasoning Language"
    " Models",
  ),
  "2505.23585": (
    "Hao, Yaru",
    "On-Policy RL with Optimal Reward Baseline",
  ),
  "2506.13585": (
    "MiniMax",
    "MiniMax-M1: Scaling Test-Time Compute Efficiently with Lightning"
    " Attention",
  ),
  "2507.18071": ("Zheng, Chujie", "Group Sequence Policy Optimization"),
  "2507.20673": ("Zhao, Yuzhong", "Geometric-Mean Policy Optimization"),
  "2508.09726": (
    "Shrivastava, Vaishnavi",
    "Sample More to Think Less: Group Filtered Policy Optimization for Concise"
    " Reasoning",
  ),
  "2509.13232": ("Xu, Zhongwen", "Single-stream Policy Optimization"),
  "2510.00977": ("Wu, Yihong", "It Takes Two: Your GRPO Is Secretly DPO"),
  "2512.02556": (
    "DeepSeek-AI",
    "DeepSeek-V3.2: Pushing the Frontier of Open Large Language Models",
  ),
}
# Papers that are not on arXiv: algorithm -> entry.
_OTHERS = {
  "reinforce": """@article{williams1992,
  title = {Simple statistical gradient-following algorithms for connectionist
    reinforcement learning},
  author = {Williams, Ronald J.},
  journal = {Machine Learning},
  volume = {8},
  year = {1992}
}""",
  "opd_token": """@misc{lu2025onpolicy,
  title = {On-Policy Distillation},
  author = {Lu, Kevin and others},
  howpublished = {Thinking Machines Lab},
  year = {2025}
}""",
}
LIBRARY = """@software{grpo_jax,
  title = {grpo\\_jax: GRPO, its descendants and PPO in JAX},
  author = {{The grpo\\_jax authors}},
  year = {2026},
  version = {0.2.0}
}"""
_NUMBER = re.compile(r"\b(\d{4})\.(\d{5})\b")


def of(names: Iterable[str]) -> tuple[str, list[str]]:
  """BibTeX of the library and of algorithms.

  Args:
    names: Names of algorithms; those of other packages have no entry.

  Returns:
    The entries, and the algorithms without one.
  """
  rows = pages.rows()
  entries, without = {"": LIBRARY}, []
  for name in dict.fromkeys(names):
    paper = rows[name][0] if name in rows else ""
    found = False
    for shown in paper.split(", with "):
      for number in _NUMBER.finditer(shown):
        entries[number[0]] = _entry(number[0], shown)
        found = True
    if name in _OTHERS:
      entries[name] = _OTHERS[name]
    elif not found:
      without.append(name)
  return "\n\n".join(entries.values()) + "\n", without


def key(number: str) -> str:
  """The key of a paper of arXiv, such as yu2025dapo."""
  author, title = _PAPERS.get(number, ("", ""))
  name = re.sub(r"\W", "", author.partition(",")[0]).lower()
  word = (
    re.sub(r"\W", "", title.split()[0].partition(":")[0]).lower()
    if title
    else ""
  )
  return f"{name}20{number[:2]}{word}" if author else f"arxiv{number}"


def _entry(number: str, shown: str) -> str:
  """Entry of a paper of arXiv; `shown` is its name in the table."""
  author, title = _PAPERS.get(number, ("", ""))
  if not title:
    title = re.sub(r"[\[\]]|\(http[^)]*\)|,?\s*\d{4}\.\d{5}", "", shown).strip()
  lines = [f"title = {{{{{title}}}}}"]
  if author:
    more = "" if "," not in author else " and others"
    name = author if "," in author else f"{{{author}}}"
    lines.append(f"author = {{{name}{more}}}")
  lines += [
    f"year = {{20{number[:2]}}}",
    f"eprint = {{{number}}}",
    "archivePrefix = {arXiv}",
    f"url = {{https://arxiv.org/abs/{number}}}",
  ]
  return f"@misc{{{key(number)},\n  " + ",\n  ".join(lines) + "\n}"
