"""Pages of the site that are made of code, and links between pages."""

import dataclasses
import re

import pytest

import grpo_jax
from experiments.site import (
  algorithms,
  equations,
  functions,
  links,
  markdown,
  settings,
  sources,
)
from grpo_jax import algorithms as table
from grpo_jax.algorithms import options
from grpo_jax.settings import compatibility
from grpo_jax.settings import config as config_lib

_DOCS = sorted((links.ROOT / "docs").rglob("*.md"))


@pytest.mark.parametrize("name", table.ALGORITHMS)
def test_an_algorithm_has_its_equation_settings_tests_and_code(name):
  page = algorithms.page(name)
  assert page.startswith(f"# `{name}`\n")
  assert re.search(r"^ {4}\S.*=", page, re.MULTILINE) or "Eq" in page
  for field in dataclasses.fields(table.ALGORITHMS[name].config_class):
    default = getattr(options.CommonConfig, field.name, ...)
    shown = f"| `{field.name}` | `{field.default!r}` |" in page
    assert shown is (default is ... or default != field.default), field.name
  assert f"tests/references/{name}.py" in page
  assert "--config=configs/" in page
  assert f'  name="{name}",' in page  # Of its code.


def test_every_setting_is_on_a_page_with_its_meaning():
  config = config_lib.default_config("grpo").to_dict()
  names = set()

  def walk(values, prefix):
    for name, value in values.items():
      if isinstance(value, dict) and value:
        walk(value, f"{prefix}{name}.")
      else:
        names.add(prefix + name)

  walk({k: v for k, v in config.items() if k not in ("algorithm", "value")}, "")
  page = settings.page()
  rows = set(re.findall(r"^\| `(\S+)` \| `.*` \| .+ \|$", page, re.MULTILINE))
  for name in names:  # Some settings are dicts, and a row of the page.
    assert {name, name.rpartition(".")[0]} & rows, name
  common = settings.options_page()
  for field in dataclasses.fields(options.ClipConfig):
    assert f"| `{field.name}` | `" in common


def test_the_python_interface_has_every_public_name():
  page = functions.public_page()
  for name in grpo_jax.__all__[1:]:
    assert f"\n## `{name}`\n" in page
  assert "### `Run.sample`" in page
  assert "`grpo_jax.ALGORITHMS` is defined in" in page


def test_a_function_has_its_shapes_and_its_arguments():
  (ratios,) = (m for m in functions.package("ops") if m.title == "ops.ratios")
  page = functions.page(ratios)
  assert "## `sequence_ratio`" in page
  assert "  logp: jax.Array,  # [B, T]\n" in page
  assert "**Args**\n\n- `logp`: Log-probabilities under the policy" in page
  types = functions.package("types")
  (batches,) = (m for m in types if m.title == "types.batches")
  assert "class TrainBatch" in functions.page(batches)


def test_all_rows_of_excluding_features_are_on_their_page():
  page = settings.compatibility_page()
  for row in compatibility.TABLE:
    assert markdown.cell(row.remedy) in page
  in_graph, sessions, http = page.splitlines()[-3:]
  assert "partial rollouts" in http
  assert "partial rollouts" not in in_graph + sessions
  assert "lanes" in in_graph
  assert all("correction" in x for x in (in_graph, sessions, http))


def test_links_lead_to_pages_of_the_site():
  text = (
    "[a](../grpo_jax/algorithms/dapo.py) [b](../benchmarks/README.md#x)\n"
    "![c](traces.png) [`d`](guides/task.md) `[e](f.md)` [g](https://h.org/i)\n"
    "[j](../configs) [k](#l) [m](../grpo_jax/settings/typed.pyi)\n"
    "[`n`]: ../README.md\n"
  )
  assert links.on_the_site("docs/rewards.md", text) == (
    "[a](algorithms/dapo.md) [b](benchmarks/index.md#x)\n"
    "![c](traces.png) [`d`](guides/task.md) `[e](f.md)` [g](https://h.org/i)\n"
    "[j](source/configs.md) [k](#l) [m](reference/settings.md)\n"
    "[`n`]: index.md\n"
  )
  page = links.on_the_site(
    "docs/guides/task.md", "[a](../../notebooks/b.ipynb)"
  )
  assert page == "[a](../notebooks/b.md)"
  with pytest.raises(ValueError, match="leads out of the repository"):
    links.on_the_site("docs/rewards.md", "[a](../../elsewhere)")


def test_every_page_is_in_the_menu_once():
  menu = (links.ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]
  named = re.findall(r"(\S+\.md)$", menu, re.MULTILINE)
  assert len(named) == len(set(named))
  pages = {str(path.relative_to(links.ROOT / "docs")) for path in _DOCS}
  assert pages <= set(named)


def test_sources_and_notebooks_are_pages():
  page = sources.page("grpo_jax/ops/ratios.py")
  assert "`````python\n" in page
  assert "def token_ratio(" in page
  folder = sources.page("configs")
  assert "| `quickstart.py` | Sorting six letters" in folder
  (notebook, *_) = sorted((links.ROOT / "notebooks").glob("*.ipynb"))
  assert sources.notebook(notebook).startswith("# ")


def test_equations_of_notebooks_are_text():
  text = (
    r"$r = \pi_\theta / \pi_\text{old}$ and $$\frac{a-1}{e^{-u}}\,\bar r$$ end"
  )
  expected = "`r = π_θ / π_old` and \n\n    (a−1) / (e^(−u)) r\u0304\n\n end"
  assert equations.as_text(text) == expected
  with pytest.raises(ValueError, match="gamma is not known"):
    equations.as_text(r"$\gamma$")
  for notebook in (links.ROOT / "notebooks").glob("*.ipynb"):
    assert "$" not in re.sub(
      r"(?ms)^```.*?^```$|base64,\S*", "", sources.notebook(notebook)
    )


def test_text_of_a_docstring_is_no_html():
  assert markdown.prose("x <y> z\n\n    a < b\n") == "x &lt;y> z\n\n    a < b"
  assert markdown.prose("a `<b>` <c>") == "a `<b>` &lt;c>"
  assert markdown.cell("a | b\n  c") == "a \\| b c"
