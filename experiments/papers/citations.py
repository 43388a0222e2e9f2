"""BibTeX of the papers that algorithms come from.

The table of docs/algorithms/index.md has the paper of each algorithm, by its
number on arXiv. Known titles and first authors are in `papers.toml`. Any other
paper has the name in the table and lacks an author, which a citation must add.
"""

from __future__ import annotations

import pathlib
import re
import tomllib
from collections.abc import Iterable

from experiments.site import algorithms as pages

# Number on arXiv -> [first author, title].
_PAPERS = tomllib.loads(
  pathlib.Path(__file__).with_name("papers.toml").read_text("utf-8")
)
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
  """BibTeX of the library and of algorithms, and the names without an entry.

  Algorithms of other packages have none.
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
