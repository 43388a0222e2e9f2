"""A page for each algorithm, made of its file.

The page has the equation, the deviations and the source from the docstring, the
settings from the config class, the code, and the tests that hold it. Paper and
config come from the table of docs/algorithms/index.md.
"""

from __future__ import annotations

import ast
import dataclasses

from experiments.site import links, markdown
from grpo_jax import algorithms
from grpo_jax.algorithms import options
from grpo_jax.settings import setting_docs

TABLE = "docs/algorithms/index.md"
_ENUMERATED = "tests/algorithms/enumeration_test.py"


def rows() -> dict[str, tuple[str, str]]:
  """Algorithm -> its paper and its config, as the table has them."""
  found = {}
  for line in (links.ROOT / TABLE).read_text("utf-8").splitlines():
    if line.startswith("| `") and "grpo_jax/algorithms/" in line:
      name, paper, _, config, _ = line.strip("| ").split(" | ")
      found[name.strip("`")] = (paper, config)
  return found


def path(name: str) -> str:
  """The file of an algorithm."""
  return f"grpo_jax/algorithms/{name}.py"


def page(name: str) -> str:
  """The page of an algorithm.

  Args:
    name: A name of the table `ALGORITHMS`.

  Returns:
    Markdown with links as of a page in docs/algorithms/.

  Raises:
    KeyError: The table of docs/algorithms/index.md has no such row.
  """
  paper, config = rows()[name]
  source = (links.ROOT / path(name)).read_text("utf-8")
  tree = ast.parse(source)
  doc = ast.get_docstring(tree) or ""
  head, _, body = doc.partition("\n\n")
  code = source[source.index("from __future__") :]
  algorithm = algorithms.ALGORITHMS[name]
  lines = [
    f"# `{name}`",
    "",
    markdown.prose(head),
    "",
    f"Paper: {paper}. The file `{path(name)}` is at the end of this page.",
    "",
    "## Equation",
    "",
    markdown.prose(body)
    or "The algorithm is what the sentence above says, and no more.",
    "",
    "## Run",
    "",
    *_command(name, config),
    "",
    "## Settings",
    "",
    *_settings(algorithm.config_class),
    "",
    "A setting is written `--config.algorithm.NAME=VALUE`. Options that all"
    " algorithms share are on [a page of their own](options.md). They are"
    " repeated here only if this algorithm changes the default.",
    "",
    "## What the loss reads",
    "",
    *_needs(algorithm),
    "",
    "## Tests",
    "",
    f"- [tests/references/{name}.py](../../tests/references/{name}.py) has the"
    " loss once more, as loops over NumPy float64."
    " [reference_test.py](../../tests/algorithms/reference_test.py) compares"
    " values, gradients and advantages.",
    "- [contract_test.py](../../tests/algorithms/contract_test.py) tests"
    " [what is true of all algorithms](../statements.md#for-every-algorithm).",
    f"- [enumeration_test.py](../../{_ENUMERATED}) sums over all completions of"
    " a small problem. [A page](../estimators.md) has the exact bias and"
    " variance of each policy gradient.",
    "",
    "```bash",
    f'make test ARGS="tests/algorithms -k {name}"',
    "```",
    "",
    "## Code",
    "",
    "```python",
    code.rstrip(),
    "```",
  ]
  return "\n".join(lines) + "\n"


def _command(name: str, config: str) -> list[str]:
  file = config.strip("`")
  if not file.startswith("configs/"):  # Supervised: a phase of every config.
    file = "configs/quickstart.py"
  return [
    "```bash",
    f"python -m experiments.train --config={file} --workdir=runs/{name}",
    "```",
  ]


def _settings(config_class: type) -> list[str]:
  """Fields that the common options lack, or whose defaults are others."""
  common = {f.name: f.default for f in dataclasses.fields(options.CommonConfig)}
  table = ["| setting | default | meaning |", "|---|---|---|"]
  for field in dataclasses.fields(config_class):
    if field.name in common and common[field.name] == field.default:
      continue
    table.append(
      f"| `{field.name}` | `{field.default!r}` |"
      f" {markdown.cell(setting_docs.text(config_class, field.name))} |"
    )
  if len(table) == 2:
    return ["The algorithm has no settings beyond the common ones."]
  return table


def _needs(algorithm) -> list[str]:
  lines = [
    f"- `{need}`, which is provided by:"
    f" {markdown.cell(options.NEEDS.get(need, ''))}"
    for need in algorithm.needs
  ]
  if algorithm.min_group_size > 1:
    lines.append(
      f"- at least {algorithm.min_group_size} completions of each prompt"
      " (`--config.rl.group_size`)"
    )
  return lines or ["The loss reads log-probs and rewards, and nothing else."]
