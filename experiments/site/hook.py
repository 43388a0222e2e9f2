"""Functions that mkdocs calls while it builds the site; see mkdocs.yml."""

from __future__ import annotations

from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

from experiments.site import (
  algorithms,
  functions,
  links,
  settings,
  sources,
)
from grpo_jax import algorithms as table

# Pages of the repository that are not in docs/.
_MOUNTED = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
_PICTURES = (".png", ".svg")
# Addresses that a search shows first, and those that it shows last.
_FIRST = ("index.md", "start/", "guides/", "python.md", "runs.md")
_LAST = (
  *("algorithms/", "reference/", "ops/", "types/", "benchmarks/", "changelog"),
  *("metrics.md", "architecture.md", "contributing.md"),
)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
  """Puts generated pages into the menu, at entries "generated: NAME"."""
  config.nav = _filled(config.nav)
  return config


def _filled(nav: list) -> list:
  out: list = []
  for entry in nav:
    if isinstance(entry, str) and entry.startswith("generated:"):
      out += _menu(entry.removeprefix("generated:").strip())
    elif isinstance(entry, dict):
      ((title, value),) = entry.items()
      out.append({title: _filled(value) if isinstance(value, list) else value})
    else:
      out.append(entry)
  return out


def _menu(name: str) -> list:
  if name == "algorithms":
    return [{n: f"algorithms/{n}.md"} for n in sorted(table.ALGORITHMS)]
  return [
    {module.title.partition(".")[2]: functions.site_path(module)}
    for module in functions.package(name)
  ]


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
  """Adds all pages that docs/ does not have."""
  pages = _pages()
  for path in _MOUNTED:
    pages[links.site_path(path)] = (path, _read(path))
  for file in sorted((links.ROOT / "benchmarks").rglob("*.md")):
    path = str(file.relative_to(links.ROOT))
    pages[links.site_path(path)] = (path, _read(path))
  for file in sorted((links.ROOT / "notebooks").glob("*.ipynb")):
    path = str(file.relative_to(links.ROOT))
    pages[links.site_path(path)] = (path, sources.notebook(file))
  for file in files.documentation_pages():
    path = f"docs/{file.src_uri}"
    pages[file.src_uri] = (path, _read(path))

  linked = {
    target
    for path, text in pages.values()
    for target in links.targets(path, text)
  }
  for uri, (path, text) in pages.items():
    _add(files, config, uri, links.on_the_site(path, text))
  for target in sorted(linked):
    _add_target(files, config, target)
  return files


def _pages() -> dict[str, tuple[str, str]]:
  """Address -> (path in the repository that links start from, Markdown)."""
  made = {
    f"algorithms/{name}.md": algorithms.page(name) for name in table.ALGORITHMS
  }
  made["algorithms/options.md"] = settings.options_page()
  made["reference/settings.md"] = settings.page()
  made["reference/python.md"] = functions.public_page()
  made["reference/compatibility.md"] = settings.compatibility_page()
  for name in ("ops", "types"):
    for module in functions.package(name):
      made[functions.site_path(module)] = functions.page(module)
  return {uri: (f"docs/{uri}", text) for uri, text in made.items()}


def _add_target(files: Files, config: MkDocsConfig, target: str) -> None:
  """Adds the target of a page's link, unless the site has it."""
  uri = links.site_path(target)
  if files.get_file_from_path(uri) is not None:
    return
  if target.endswith(_PICTURES):
    content: str | bytes = (links.ROOT / target).read_bytes()
    files.append(File.generated(config, uri, content=content))
    return
  _add(files, config, uri, sources.page(target))


def _add(files: Files, config: MkDocsConfig, uri: str, text: str) -> None:
  """Adds a page, or puts one in the place of that in docs/."""
  known = files.get_file_from_path(uri)
  if known is not None:
    files.remove(known)
  level = known.inclusion if known else InclusionLevel.NOT_IN_NAV
  files.append(File.generated(config, uri, content=text, inclusion=level))


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
  """Ranks pages for readers above generated pages in the search."""
  uri = page.file.src_uri
  if uri.startswith(_FIRST):
    page.meta.setdefault("search", {"boost": 4})
  elif uri.startswith(_LAST) and uri != "algorithms/index.md":
    page.meta.setdefault("search", {"boost": 0.2})
  return markdown


def on_page_context(
  context: dict[str, Any], *, page: Page, **_: Any
) -> dict[str, Any]:
  """Hides menu and table of contents on source pages."""
  if page.file.src_uri.startswith("source/"):
    page.meta.setdefault("hide", ["navigation", "toc"])
  return context


def _read(path: str) -> str:
  return (links.ROOT / path).read_text("utf-8")
