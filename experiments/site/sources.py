"""Notebooks as pages, and pages of source files that some page links to."""

from __future__ import annotations

import ast
import json
import pathlib

from experiments.site import equations, links

_LARGEST = 200_000  # Bytes of a file that a page shows.
_LANGUAGES = {
  ".py": "python",
  ".pyi": "python",
  ".sh": "bash",
  ".md": "markdown",
  ".toml": "toml",
  ".yml": "yaml",
  ".json": "json",
  ".cff": "yaml",
  ".js": "javascript",
  ".css": "css",
  ".html": "html",
}
# Source is found by its names in the repository, and not by the search of the
# site, where it would hide the pages.
_FRONT = "---\nsearch:\n  exclude: true\n---\n\n"


def page(path: str) -> str:
  """Markdown of a page that shows a file, or lists a folder.

  Args:
    path: Path from the root of the repository.

  Raises:
    FileNotFoundError: The file or folder does not exist.
  """
  file = links.ROOT / path
  if file.is_dir():
    return _folder(path, file)
  if file.stat().st_size > _LARGEST:
    size = file.stat().st_size // 1024
    return f"{_FRONT}# {path}\n\nThe file has {size:,} KiB, too many to show.\n"
  text = file.read_text("utf-8", errors="replace").rstrip()
  language = _LANGUAGES.get(file.suffix, "text")
  return f"{_FRONT}# {path}\n\n`````{language}\n{text}\n`````\n"


def _folder(path: str, folder: pathlib.Path) -> str:
  lines = [f"{_FRONT}# {path}", "", "| file | about |", "|---|---|"]
  for file in sorted(folder.iterdir()):
    if file.name.startswith((".", "__")):
      continue
    about = _about(file).replace("|", "\\|")
    lines.append(f"| `{file.name}{'/' * file.is_dir()}` | {about} |")
  return "\n".join(lines) + "\n"


def _about(file: pathlib.Path) -> str:
  """First line of a module's docstring."""
  source = file / "__init__.py" if file.is_dir() else file
  if source.suffix != ".py" or not source.exists():
    return ""
  doc = ast.get_docstring(ast.parse(source.read_text("utf-8"))) or ""
  return doc.split("\n")[0]


def notebook(file: pathlib.Path) -> str:
  """Markdown of a notebook with its texts, its code and its output."""
  lines: list[str] = []
  for cell in json.loads(file.read_text("utf-8"))["cells"]:
    text = "".join(cell["source"]).rstrip()
    if cell["cell_type"] == "markdown":
      lines += [equations.as_text(text), ""]
      continue
    lines += ["```python", text, "```", ""]
    for output in cell.get("outputs", ()):
      lines += _output(output)
  return "\n".join(lines)


def _output(output: dict) -> list[str]:
  data = output.get("data", {})
  if "image/png" in data:
    png = "".join(data["image/png"]).replace("\n", "")
    return [f"![Figure](data:image/png;base64,{png})", ""]
  text = "".join(output.get("text", data.get("text/plain", ""))).rstrip()
  return ["```text", text, "```", ""] if text else []
