"""Pages of modules: their subjects, functions and classes.

Headers are copied from the source, since the shapes of arrays stand there as
comments.
"""

from __future__ import annotations

import ast
import dataclasses
import pathlib

from experiments.site import links, markdown

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_PUBLIC = """# Python interface

These are the names of `import grpo_jax`. [From Python](../python.md) shows them
at work, in examples that a test executes.
"""
_PACKAGE = links.ROOT / "grpo_jax"


@dataclasses.dataclass(frozen=True)
class Module:
  """Page of the reference.

  Attributes:
    path: The file, counted from the root of the repository.
    title: The title of the page.
    names: Names of the module on the page; empty means all public ones.
  """

  path: str
  title: str
  names: tuple[str, ...] = ()

  @property
  def source(self) -> str:
    """The text of the file."""
    return (links.ROOT / self.path).read_text("utf-8")


def public() -> list[Module]:
  """Modules of the names that `import grpo_jax` has."""
  tree = ast.parse((_PACKAGE / "__init__.py").read_text("utf-8"))
  (table,) = (
    ast.literal_eval(node.value)
    for node in tree.body
    if isinstance(node, ast.Assign)
    and isinstance(node.targets[0], ast.Name)
    and node.targets[0].id == "_WHERE"
  )
  found: dict[str, list[str]] = {}
  for name, module in table.items():
    found.setdefault(module, []).append(name)
  pages = []
  for module, names in found.items():
    path = _PACKAGE / (module.replace(".", "/") + ".py")
    if not path.exists():
      path = _PACKAGE / module / "__init__.py"
    relative = str(path.relative_to(links.ROOT))
    pages.append(Module(relative, f"grpo_jax.{module}", tuple(names)))
  return pages


def public_page() -> str:
  """Markdown of the page of all names that `import grpo_jax` has."""
  lines = [_PUBLIC]
  for module in public():
    lines += members(module)
    for name in module.names:
      if not _is_described(module, name):
        value = f"`grpo_jax.{name}` is defined in `{module.path}`."
        lines += [f"## `{name}`", "", value, ""]
  return "\n".join(lines)


def _is_described(module: Module, name: str) -> bool:
  return any(
    isinstance(node, (*_FUNCTIONS, ast.ClassDef)) and node.name == name
    for node in ast.parse(module.source).body
  )


def package(name: str) -> list[Module]:
  """Modules of a folder of the package, as "ops", in alphabetical order."""
  return [
    Module(str(path.relative_to(links.ROOT)), f"{name}.{path.stem}")
    for path in sorted((_PACKAGE / name).glob("*.py"))
    if path.stem != "__init__"
  ]


def page(module: Module) -> str:
  """Markdown of a page of its own: the module, then its public names."""
  tree = ast.parse(module.source)
  doc = ast.get_docstring(tree) or ""
  return "\n".join(
    [
      f"# {module.title}",
      "",
      markdown.prose(doc),
      "",
      f"File: `{module.path}`.",
      "",
      *members(module),
    ]
  )


def members(module: Module) -> list[str]:
  """Lines on the public functions and classes of a module, in their order."""
  lines: list[str] = []
  text = module.source.splitlines()
  for node in ast.parse(module.source).body:
    if not isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
      continue
    chosen = module.names or (node.name,)
    if node.name.startswith("_") or node.name not in chosen:
      continue
    lines += _described(node, text, "##")
    if isinstance(node, ast.ClassDef):
      for method in node.body:
        if isinstance(method, _FUNCTIONS) and not method.name.startswith("_"):
          lines += _described(method, text, "###", f"{node.name}.")
  return lines


def _described(
  node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef,
  text: list[str],
  level: str,
  owner: str = "",
) -> list[str]:
  """A heading, the header as code, and the docstring."""
  first = node.body[0].lineno - 1
  header = text[node.lineno - 1 : first]
  if isinstance(node, ast.ClassDef):
    header += _fields(node, text)
  indent = len(header[0]) - len(header[0].lstrip())
  code = [line[indent:].rstrip() for line in header if line.strip()]
  return [
    f"{level} `{owner}{node.name}`",
    "",
    "```python",
    *code,
    "```",
    "",
    markdown.prose(ast.get_docstring(node) or ""),
    "",
  ]


def _fields(node: ast.ClassDef, text: list[str]) -> list[str]:
  """The lines of a class that declare its fields, with their comments."""
  lines: list[str] = []
  for child in node.body:
    if isinstance(child, ast.AnnAssign):
      lines += text[child.lineno - 1 : child.end_lineno]
  return lines


def site_path(module: Module) -> str:
  """Address of the page of a module in the reference."""
  path = pathlib.PurePosixPath(module.path)
  return f"reference/{path.parent.name}/{path.stem}.md"
