r"""A quarter of an hour on a GPU or a TPU: what fails there, and its figures.

    make accelerator ACCELERATOR=gpu
    python -m experiments.benchmarks.accelerator --budget_s=480
    python -m experiments.benchmarks.accelerator --render
    python -m experiments.benchmarks.accelerator --tiny

The first two commands measure the rows of `accelerator_items.py` in their
order, without network, and write benchmarks/accelerator.md, with the lines that
it is made of. With --render only the page is written, from the lines of the
last run. With --tiny the sizes are tiny and both files are in runs/: a
rehearsal of a minute or two on idle cores of a CPU.

Within seconds the command says which libraries and devices it has found. An
item whose library is missing, or sees no accelerator, is left out. Where torch
alone sees one, the items of torch are measured.

Each item is a process of its own, and each of its rows becomes a line of JSON
when it ends. If a row kills the process, a new process goes on with the rows
after it. At its deadline an item is killed. Seconds that it leaves are those of
the items after it.

A row with a floor gives seconds, operations and bytes, counted by hand
(`workload.py`). The floor is these operations at the rate of the best product
in bfloat16, or these bytes at the rate of a copy, whichever takes longer. Both
rates are of the same run.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import gc
import importlib
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from experiments.benchmarks import accelerator_items
from experiments.benchmarks.accelerator_items import Item
from grpo_jax.training.runtime import commit

_PROGRAM = "experiments.benchmarks.accelerator"
_LEAST_S = 5.0  # With fewer seconds left an item is not begun.
_PROBE_S = 120.0  # Until a library has found its devices.
_LONGEST = 2000  # Characters of an error that are kept.
NO_TIME, LEFT_OUT = "no time left", "left out: "
_PACKAGES = (
  *("jax", "jaxlib", "jax-cuda13-plugin", "jax-cuda12-plugin", "libtpu"),
  *("flax", "torch", "transformers", "trl"),
)
# Library -> a program that prints platform, number and kind of its devices.
_PROBES = {
  "jax": """
import jax
from experiments.benchmarks import accelerator_jax
found = jax.devices()
print(found[0].platform, len(found), found[0].device_kind, sep="|")
""",
  "torch": """
import torch
has = torch.cuda.is_available()
kind = torch.cuda.get_device_name() if has else "cpu"
print("gpu" if has else "cpu", torch.cuda.device_count(), kind, sep="|")
""",
}
_ADVICE = {
  "jax": "install jax[cuda13] or jax[tpu], as `make accelerator"
  " ACCELERATOR=gpu` (or tpu) does, and look at JAX_PLATFORMS",
  "torch": "install a wheel of torch for the CUDA of the driver",
}
# JAX takes memory as it needs it. Else torch, or the next process, would find
# three quarters of the device taken.
_ENVIRONMENT = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **os.environ}


# --- the machine -------------------------------------------------------------


def machine() -> dict[str, Any]:
  """Card, versions, date and commit."""
  card, versions = "unknown", {}
  query = "--query-gpu=name,driver_version,memory.total"
  with contextlib.suppress(OSError, subprocess.SubprocessError):
    command = ["nvidia-smi", query, "--format=csv,noheader"]
    card = subprocess.check_output(command, text=True, timeout=20).strip()
  for name in _PACKAGES:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
      versions[name] = importlib.metadata.version(name)
  known = commit.git() or {"commit": "unknown", "dirty": False}
  return {
    "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
    "commit": known["commit"][:12] + " with changes" * known["dirty"],
    "card": card,
    "cores": os.cpu_count(),
    "versions": {"Python": sys.version.split()[0], **versions},
  }


def lacks(library: str, takes_cpu: bool) -> str:
  """Says why the items of a library are left out; "" if they are not."""
  if importlib.util.find_spec(library) is None:
    return f"the package {library} is not installed"
  if library not in _PROBES:
    return ""
  try:
    done = subprocess.run(
      [sys.executable, "-c", _PROBES[library]],
      capture_output=True,
      env=_ENVIRONMENT,
      text=True,
      timeout=_PROBE_S,
    )
  except subprocess.TimeoutExpired:
    return f"{library} did not find its devices within {_PROBE_S:.0f} s"
  if done.returncode:
    return f"{library} cannot be used: {done.stderr.strip().splitlines()[-1]}"
  platform, count, kind = done.stdout.strip().splitlines()[-1].split("|")
  print(f"{library}: {count} × {kind} ({platform})", flush=True)
  if platform != "cpu" or takes_cpu:
    return ""
  return f"{library} sees no accelerator; {_ADVICE[library]}"


# --- processes ---------------------------------------------------------------


def _write(lines: pathlib.Path, item: str, row: str, **said: Any) -> None:
  line = {"item": item, "row": row, **said}
  with lines.open("a", encoding="utf-8") as file:
    # Numbers of NumPy, too.
    text = json.dumps(line, ensure_ascii=False, default=float)
    file.write(text + "\n")
  text = str(said.get("error") or said["result"]).partition("\n")[0]
  print(f"{item}: {row}: {text[:100]}", flush=True)


def read(lines: pathlib.Path) -> list[dict[str, Any]]:
  """The lines of a run; the first one is about the machine."""
  return [*map(json.loads, lines.read_text("utf-8").splitlines())]


def _child(order: str) -> None:
  """Measures rows one after the other, and writes the line of each."""
  item, function, rows, lines = json.loads(order)
  module, _, name = function.partition(":")
  measured = getattr(importlib.import_module(module), name)
  for row, arguments in rows.items():
    start, said = time.perf_counter(), {}
    try:
      said["result"] = measured(**arguments)
    except Exception as error:
      said["error"] = f"{type(error).__name__}: {error}"[:_LONGEST]
    gc.collect()  # Arrays of the row.
    said["seconds"] = time.perf_counter() - start
    _write(pathlib.Path(lines), item, row, **said)


def _run(item: Item, rows: dict, lines: pathlib.Path, left_s: float) -> str:
  """Measures rows in a process; returns its end, if there was an error."""
  order = json.dumps([item.name, item.function, rows, str(lines)])
  with tempfile.TemporaryFile("w+", encoding="utf-8") as errors:
    process = subprocess.Popen(
      [sys.executable, "-m", _PROGRAM, f"--child={order}"],
      env=_ENVIRONMENT,
      stdin=subprocess.DEVNULL,
      stderr=errors,
      start_new_session=True,  # It is killed with all that it has started.
    )
    try:
      status = process.wait(left_s)
    except subprocess.TimeoutExpired:
      return f"timed out: the process was killed after {left_s:.0f} s"
    finally:
      with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
      process.wait()
    errors.seek(0)
    return f"ended with status {status}\n{errors.read().strip()[-_LONGEST:]}"


def measure(
  items: Sequence[Item],
  lacking: dict[str, str],
  budget_s: float,
  lines: pathlib.Path,
) -> None:
  """Measures items in their order, and writes a line for each row.

  Args:
    items: The items.
    lacking: Library -> why its items are left out, or "".
    budget_s: Seconds for all of them.
    lines: File to which lines are added.
  """
  deadline = time.monotonic()
  end = deadline + budget_s
  for item in items:
    deadline = min(deadline + item.limit_s, end)
    rows, reason = dict(item.rows), NO_TIME
    if missing := [lacking[name] for name in item.needs if lacking[name]]:
      reason = LEFT_OUT + "; ".join(missing)
    while rows and not missing:
      left_s = deadline - time.monotonic()
      if left_s < _LEAST_S:
        break
      said = _run(item, rows, lines, left_s)
      for line in read(lines)[1:]:
        if line["item"] == item.name:
          rows.pop(line["row"], None)
      if rows:
        row = next(iter(rows))
        del rows[row]
        _write(lines, item.name, row, error=said)
    for row in rows:
      _write(lines, item.name, row, error=reason)


# --- the page ----------------------------------------------------------------


def number(value: float | None) -> str:
  """Three digits, or all before the point; a dash for what is not known."""
  if value is None or value != value:
    return "–"
  return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _cells(
  result: dict[str, Any], rates: Sequence[float], beside: dict[str, float]
) -> dict[str, str]:
  """The cells of a row by the names of their columns.

  Args:
    result: The numbers of the row.
    rates: FLOP/s and bytes/s; NaN if they were not measured.
    beside: Item of the same row elsewhere -> its tokens/s.
  """
  cells = {k: number(x) for k, x in result.items() if k != "floors"}
  for name, of in result.get("floors", {}).items():
    floor = max(of["flops"] / rates[0], of["bytes"] / rates[1])
    cells[f"{name}, ms"] = number(of["seconds"] * 1e3)
    cells[f"{name}, × floor"] = number(of["seconds"] / floor)
  for name, tokens in beside.items():
    cells[f"× {name}"] = number(result["tokens/s"] / tokens)
  return cells


def _table(rows: dict[str, dict[str, str]]) -> list[str]:
  columns = [*dict.fromkeys(name for cells in rows.values() for name in cells)]
  return [
    f"| | {' | '.join(columns)} |",
    f"|---|{'---:|' * len(columns)}",
    *(
      f"| {row} | {' | '.join(cells.get(name, '') for name in columns)} |"
      for row, cells in rows.items()
    ),
    "",
  ]


def page(run: Sequence[dict[str, Any]], items: Sequence[Item]) -> str:
  """The text of the page about the lines of a run."""
  about, *rows = run
  found: dict[str, dict[str, Any]] = {line["item"]: {} for line in rows}
  failed, left = [], []
  for line in rows:
    place, error = f"{line['item']}: {line['row']}", line.get("error", "")
    if not error:
      found[line["item"]][line["row"]] = line["result"]
    elif error.startswith((NO_TIME, LEFT_OUT)):
      left.append(f"- {place}: {error}")
    else:
      failed += [f"**{place}**", "", "```", error, "```", ""]
  versions = ", ".join(f"{k} {x}" for k, x in about["versions"].items())
  text = [
    "# Figures from an accelerator",
    "",
    *["A rehearsal with tiny sizes: no figure says anything.", ""]
    * about["tiny"],
    "Written by `make accelerator`; [the program]"
    "(../experiments/benchmarks/accelerator.py) says what a row and a floor"
    " are. A row was measured once or a few times: read no difference of less"
    " than 15 %.",
    "",
    f"{about['date']}, commit {about['commit']}. Card, driver, memory:"
    f" {about['card']}; {about['cores']} cores. {versions}.",
    "",
  ]
  ceilings = found.get("Ceilings", {})
  rates = [
    ceilings.get(row, {}).get(unit, float("nan")) * scale
    for row, unit, scale in accelerator_items.RATES
  ]
  for item in items:
    cells = {}
    for row, result in found.get(item.name, {}).items():
      other = found.get(item.beside, {}).get(row, {})
      beside = {item.beside: other["tokens/s"]} if other else {}
      cells[row] = _cells(result, rates, beside)
    text += [f"## {item.name}", "", item.about, "", *_table(cells)]
  text += ["## What failed", "", *(failed or ["Nothing.", ""])]
  return "\n".join([*text, "## What stays open", "", *(left or ["–"]), ""])


def main() -> int:
  """Measures and writes the page; 1 if no library sees an accelerator."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--budget_s", type=float, default=480.0)
  parser.add_argument("--folder", help="Folder of lines and page.")
  parser.add_argument("--items", default="", help="Regular expression of them.")
  parser.add_argument("--render", action="store_true", help="Write the page.")
  parser.add_argument("--tiny", action="store_true", help="Rehearse.")
  parser.add_argument("--child", help=argparse.SUPPRESS)
  given = parser.parse_args()
  if given.child:
    _child(given.child)
    return 0
  folder = given.folder or ("runs" if given.tiny else "benchmarks")
  lines = pathlib.Path(folder, "accelerator.jsonl")
  items = [x for x in accelerator_items.ITEMS if re.search(given.items, x.name)]
  if not items:
    names = ", ".join(item.name for item in accelerator_items.ITEMS)
    parser.error(f"--items={given.items} matches none of {names}.")
  if given.render and not lines.exists():
    parser.error(f"--render: {lines} is missing; measure, or give --folder.")
  if not given.render:
    about = {"tiny": given.tiny, **machine()}
    print(f"card, driver, memory: {about['card']}", flush=True)
    lacking = {
      library: lacks(library, given.tiny)
      for library in dict.fromkeys(x for item in items for x in item.needs)
    }
    print(*filter(None, lacking.values()), sep="\n", flush=True)
    if all(any(map(lacking.get, item.needs)) for item in items):
      print("error: nothing can be measured here.", file=sys.stderr)
      return 1
    if given.tiny:
      items = [*map(accelerator_items.tiny, items)]
    lines.parent.mkdir(parents=True, exist_ok=True)
    lines.write_text(json.dumps(about) + "\n", encoding="utf-8")
    measure(items, lacking, given.budget_s, lines)
  path = lines.with_suffix(".md")
  path.write_text(page(read(lines), items), encoding="utf-8")
  print(f"{path} is written from {lines}.")
  return 0


if __name__ == "__main__":
  sys.exit(main())
