"""Addresses on the site of files of the repository, and links to them.

Pages link to files of the repository, as a reader of the repository needs it.
On the site, a page has the address that `site_path` gives. A file that is not a
page of the site has a page with its source.
"""

from __future__ import annotations

import pathlib
import posixpath
import re
from collections.abc import Callable

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Files and folders of the repository -> where they are on the site.
_MOUNTED = {
  "README.md": "index.md",
  "CONTRIBUTING.md": "contributing.md",
  "CHANGELOG.md": "changelog.md",
  # Files that the site has as pages, made of what they say.
  "grpo_jax/__init__.pyi": "reference/python.md",
  "grpo_jax/algorithms/options.py": "algorithms/options.md",
  "grpo_jax/settings/compatibility.toml": "reference/compatibility.md",
  "grpo_jax/settings/typed.pyi": "reference/settings.md",
}
_PAGES = (".md", ".png", ".svg")
# Fenced blocks and code spans: nothing in them is a link.
_CODE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
# `[name]: target`; where the name is code, its end is the start of a part.
_REFERENCE = re.compile(r"((?:^\[[^\]\n]+|\A)\]: )(\S+)($)", re.MULTILINE)
# The text of a link may have code, so `_LINK` begins where the text ends.
_HTML = re.compile(r'(\b(?:src|srcset|href)=")([^"]+)(")')


def site_path(path: str) -> str:
  """Address on the site of a file or folder of the repository.

  Args:
    path: File of the repository, such as "docs/rewards.md" or
      "grpo_jax/ops/ratios.py".

  Returns:
    The address, such as "rewards.md" or "reference/ops/ratios.md". A file
    without a page of its own is below "source/".
  """
  if path in _MOUNTED:
    return _MOUNTED[path]
  top, _, rest = path.partition("/")
  if top == "docs" and rest:
    return rest
  if top == "benchmarks" and path.endswith(_PAGES):
    return re.sub(r"(^|/)README\.md$", r"\1index.md", path)
  if path.endswith(".ipynb"):
    return f"{path.removesuffix('.ipynb')}.md"
  if match := re.fullmatch(r"grpo_jax/algorithms/(\w+)\.py", path):
    from grpo_jax import algorithms  # Only where it is needed: JAX is slow.

    if match[1] in algorithms.ALGORITHMS:
      return f"algorithms/{match[1]}.md"
  if match := re.fullmatch(r"grpo_jax/(ops|types)/([a-z]\w*)\.py", path):
    return f"reference/{match[1]}/{match[2]}.md"
  return f"source/{path.rstrip('/')}.md"


def mapped(text: str, change: Callable[[str], str]) -> str:
  """Applies `change` to each relative link of a page.

  Args:
    text: Markdown.
    change: Target without its #anchor -> the new target.

  Returns:
    The page; code, addresses with a scheme and bare anchors are as they were.
  """

  def replaced(match: re.Match[str]) -> str:
    target, sharp, anchor = match[2].partition("#")
    if not target or "://" in target or target.startswith("data:"):
      return match[0]
    return f"{match[1]}{change(target)}{sharp}{anchor}{match[3]}"

  parts = _CODE.split(text)
  for number in range(0, len(parts), 2):
    for pattern in (_LINK, _REFERENCE, _HTML):
      parts[number] = pattern.sub(replaced, parts[number])
  return "".join(parts)


def targets(page: str, text: str) -> list[str]:
  """Files of the repository that a page links to, as paths from its root."""
  found: list[str] = []

  def note(target: str) -> str:
    found.append(_resolved(page, target))
    return target

  mapped(text, note)
  return found


def on_the_site(page: str, text: str) -> str:
  """A page of the repository, with links that lead to pages of the site.

  Args:
    page: Path of the page in the repository, as "docs/rewards.md".
    text: Its Markdown.
  """
  here = posixpath.dirname(site_path(page))

  def moved(target: str) -> str:
    path = site_path(_resolved(page, target))
    return posixpath.relpath(path, here or ".")

  return mapped(text, moved)


def _resolved(page: str, target: str) -> str:
  path = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
  if path == "." or path.startswith(".."):
    raise ValueError(
      f"{page}: the link {target!r} leads out of the repository; needs a"
      " path, from the folder of the page, of a file in the repository."
    )
  return path
