"""Checks pages in a browser: attacks, exact numbers, filters, keys, load.

    python -m experiments.traces.check --pictures=/tmp/pictures

The program needs Chromium on the PATH and Playwright (extra `test`). It makes
runs for the checks: texts that would run, end the page, reverse its writing or
flood it; and 50 000 completions. It prints one line for each check. Exit
status: 0 if all hold, 1 if one does not.
"""

from __future__ import annotations

import pathlib
import tempfile
from collections.abc import Iterator, Sequence

import numpy as np
from absl import flags

from experiments.traces import attacks, filters, page, source, terminal
from experiments.traces.chromium import Browser
from grpo_jax.cli import flags as flags_lib

_PICTURES = flags.DEFINE_string(
  "pictures", None, "Folder for pictures on desktop, phone and in the dark."
)
_ROWS = flags.DEFINE_integer("rows", 50_000, "Completions of the long log.", 8)

Check = tuple[str, bool, str]  # Claim, whether it holds, a detail.
_PAGE_BYTES = 5_000_000
_LOAD_SECONDS = 5.0


def main(argv: Sequence[str]) -> int:
  """Makes the pages, opens them, and prints the checks."""
  del argv
  failed = 0
  with tempfile.TemporaryDirectory() as name, Browser() as browser:
    for found in (
      _attacked(browser, pathlib.Path(name)),
      _asked(browser, pathlib.Path(name)),
      _flooded(browser, pathlib.Path(name), _ROWS.value),
      _complaints(browser),
    ):
      for what, holds, detail in found:
        failed += not holds
        print(f"{'ok' if holds else 'FAIL':<5}{what:<50} {detail}", flush=True)
  print(f"{failed} failed")
  return int(failed > 0)


def _open(
  browser: Browser,
  folder: pathlib.Path,
  runs: Sequence[source.Run],
  max_bytes: int = _PAGE_BYTES,
) -> tuple[float, int]:
  """Writes and opens a page; returns seconds and bytes."""
  path = folder / "page.html"
  content = page.write(runs, max_bytes).encode()
  path.write_bytes(content)
  return browser.open(path), len(content)


def _attacked(browser: Browser, folder: pathlib.Path) -> Iterator[Check]:
  """Checks texts that attack the page, in every place that shows text."""
  browser.size(1280, 860)
  run = attacks.run()
  _open(browser, folder, [run], 10 * _PAGE_BYTES)
  elements = "document.querySelectorAll('script, img, iframe, a, b > b').length"
  before = browser.value(elements)
  for group in range(len(run.groups)):
    browser.value(
      f"app.select(app.runs[0].groups[{group}],"
      f" app.runs[0].groups[{group}].first)"
    )
    for key in "ncdn":
      browser.press(key)
  yield "no text has become markup", browser.value(elements) == before, ""
  ran = browser.value("window.attacked === undefined")
  yield "no text has run", ran and not browser.dialogs, str(browser.dialogs)
  hidden = browser.value(
    "[...document.documentElement.textContent.matchAll("
    r"/[\u202a-\u202e\u2066-\u2069\u200b-\u200f\u061c\ufeff\u0000-\u0008\u001b]"
    "/gu)].length"
  )
  yield "nothing that turns or hides text is in the page", hidden == 0, ""
  yield from _shown(browser, run)
  yield from _long_row(browser, run)
  yield from _guarded(browser)


def _shown(browser: Browser, run: source.Run) -> Iterator[Check]:
  """Checks that each text is there by its characters, some of them escaped."""
  wrong = turned = otherwise = 0
  for number, group in enumerate(run.groups):
    for place, row in enumerate(group.rows):
      if len(row.text) > 1000:
        continue
      shown = browser.value(
        f"(() => {{ const group = app.runs[0].groups[{number}];"
        f" app.select(group, group.first + {place});"
        " const box = document.querySelector('.completion .text')"
        ".cloneNode(true); box.querySelectorAll('.escape, .label, .more')"
        ".forEach((x) => x.remove()); return box.textContent; })()"
      )
      shown = attacks.without_marks(shown)
      wrong += shown != attacks.without_hidden(row.text)
      turned += browser.value(attacks.TURNED)
      otherwise += browser.value(attacks.TURNED_OTHERWISE)
  yield "every text is shown", wrong == 0, f"{wrong} differ"
  yield (
    "tokens stand in their order",
    turned == 0 < otherwise,
    (f"{turned} do not, of {otherwise} that would not"),
  )


def _long_row(browser: Browser, run: source.Run) -> Iterator[Check]:
  number = next(
    i for i, x in enumerate(run.groups) if len(x.rows[0].text) > 1e6
  )
  browser.value(
    f"app.select(app.runs[0].groups[{number}],"
    f" app.runs[0].groups[{number}].first)"
  )
  size = "document.querySelector('.completion .text').textContent.length"
  short = browser.value(size)
  browser.value("document.querySelector('.completion .more').click()")
  longer = browser.value(size)
  yield (
    "1 MB is cut, and more is shown",
    short < 30_000 < longer,
    (f"{short}, then {longer} characters"),
  )
  wide = browser.value("document.documentElement.scrollWidth")
  yield "no text makes the page wider", wide <= 1280, f"{wide} pixels"


def _guarded(browser: Browser) -> Iterator[Check]:
  """Checks that the browser refuses, even with a mistake in the scripts."""
  known = len(browser.messages)
  for what, code in (
    (
      "markup made of strings is refused",
      "(() => { try { document.createElement('p').innerHTML = '<i>x</i>';"
      " return false; } catch { return true; } })()",
    ),
    (
      "a script that is added does not run",
      "(() => { try { const x = document.createElement('script');"
      " x.append('window.attacked = 1'); document.body.append(x); x.remove();"
      " } catch {} return window.attacked === undefined; })()",
    ),
    (
      "no address can be asked",
      "fetch('https://example.org/').then(() => false, () => true)",
    ),
    (
      "no picture is loaded",
      "new Promise((done) => { const x = new Image(); x.onerror = () =>"
      " done(true); x.onload = () => done(false);"
      " x.src = 'data:image/gif;base64,R0lGODlhAQABAAAAACw='; })",
    ),
  ):
    yield what, browser.value(code) is True, ""
  del browser.messages[known:]  # They were asked for.
  browser.requests = [x for x in browser.requests if x.startswith("file:")]


def _asked(browser: Browser, folder: pathlib.Path) -> Iterator[Check]:
  """Checks filters, search, numbers, keys and two runs."""
  runs = [attacks.plain_run("one", 0), attacks.plain_run("two", 1)]
  _open(browser, folder, runs)
  run = runs[0]
  questions = [
    *(
      (x.name, f"{{flags: {1 << i}}}", terminal.Question((x.name,)))
      for i, x in enumerate(filters.FILTERS)
    ),
    ("search", "{search: 'THE 7'}", terminal.Question(search="THE 7")),
    ("since", "{since: '20'}", terminal.Question(since=20)),
    ("split", "{split: 'eval'}", terminal.Question(split="eval")),
  ]
  for name, patch, question in questions:
    browser.value("app.clear()")
    browser.value(f"app.change({patch})")
    found = browser.value("app.found.map((x) => x.rows.length)")
    wanted = [len(rows) for _, rows in terminal.matches(run, question)]
    yield f"{name}: as in the terminal", found == wanted, f"{sum(wanted)} rows"
  browser.value("app.clear()")
  yield from _numbers(browser, run)
  yield from _keys(browser)
  browser.press("o")
  panes = browser.value("document.querySelectorAll('.pane').length")
  yield "two runs are side by side", panes == 2, f"{panes} panes"
  yield from _looked_at(browser)


def _numbers(browser: Browser, run: source.Run) -> Iterator[Check]:
  """Checks that the card has the run's numbers, to the last bit of float32."""
  browser.value(
    "app.select(app.runs[0].groups[0], app.runs[0].groups[0].first)"
  )
  row = run.groups[0].rows[0]
  wrong = 0
  for at in range(len(row.tokens)):
    browser.value(f"document.querySelectorAll('.token[data-at]')[{at}].focus()")
    card = browser.value(
      "Object.fromEntries([...document.querySelectorAll('#card dt')].map("
      "(x) => [x.textContent, x.nextSibling.textContent]))"
    )
    for name, values in row.values.items():
      label = browser.value(f"COLOURS['{name}'] || '{name}'")
      if values.dtype == np.float32:
        wrong += np.float32(card[label]) != values[at]
        wrong += len(card[label]) > len(np.format_float_scientific(values[at]))
  yield "numbers are exact and short", wrong == 0, f"{wrong} are not"


def _keys(browser: Browser) -> Iterator[Check]:
  at = "app.found.findIndex((x) => x.group === app.state.group)"
  seen = [browser.value(at)]
  for key in "jjk":
    browser.press(key)
    seen.append(browser.value(at))
  yield "j and k move", seen == [0, 1, 2, 1], str(seen)
  yield from _other_keys(browser)
  browser.press("?")
  yield "? explains", browser.value("document.querySelector('dialog').open"), ""
  browser.press("Escape")
  browser.press("e")
  browser.press("ArrowRight")
  at = browser.value("document.activeElement.dataset.at")
  yield "e and arrows reach tokens", at == "1", f"token {at}"
  browser.press("c")
  at = browser.value("document.activeElement.dataset.at")
  yield "the focus stays where it was", at == "1", f"token {at}"
  browser.press("/")
  name = browser.value("document.activeElement.id")
  yield "/ searches", name == "search", name
  browser.value("document.getElementById('since').focus()")
  for key in "20":
    browser.press(key)
  since = browser.value("app.state.since")
  yield "a step can be typed", since == "20", since
  browser.value("app.clear()")
  browser.press("Escape")


def _other_keys(browser: Browser) -> Iterator[Check]:
  """Checks that each key works as the page says, and can be undone."""
  step, row = "app.state.step", "app.state.row"
  for first, second, what in (
    ("n", "m", row),
    ("h", "l", step),
    ("p", "p", "app.found.length"),
    ("d", "d", "app.state.base === null"),
    ("b", "b", "app.state.pinned === null"),
    ("o", "o", "document.querySelectorAll('.pane').length"),
    ("t", "t", "getComputedStyle(document.body.parentNode).backgroundColor"),
    *((str(i + 1), str(i + 1), "app.state.flags") for i in range(7)),
  ):
    browser.value("app.clear(); app.goToStep(22)")
    seen = [browser.value(what)]
    for key in (first, second):
      browser.press(key)
      seen.append(browser.value(what))
    holds = seen[0] != seen[1] and seen[0] == seen[2]
    yield f"{first} and {second}: there and back", holds, str(seen)
  browser.value("app.clear(); app.goToStep(22)")
  before = browser.value(step)
  browser.press("[")
  earlier = browser.value(step)
  browser.press("]")
  holds = earlier <= before == browser.value(step)
  yield "[ and ] follow the prompt", holds, f"{before}, {earlier}"
  browser.press("1")
  browser.press("x")
  browser.press("c")
  flags = browser.value("app.state.flags")
  yield "x clears", flags == 0, str(flags)
  shown = browser.value(
    "(() => { const box = document.getElementById('selected')"
    ".getBoundingClientRect(); const list = document.getElementById('list')"
    ".getBoundingClientRect(); return box.top >= list.top - 1"
    " && box.bottom <= list.bottom + 1; })()"
  )
  yield "after clearing, the chosen group is in sight", shown is True, ""
  browser.value("app.select(app.found[1].group, app.found[1].rows[0])")
  # The theme that the key has stored would win over the system's preference.
  browser.value(
    "delete document.documentElement.dataset.theme;"
    " localStorage.removeItem('traces-theme')"
  )


def _looked_at(browser: Browser) -> Iterator[Check]:
  """Checks widths and themes; takes pictures if requested."""
  for name, width, theme in (
    ("desktop", 1280, "light"),
    ("dark", 1280, "dark"),
    ("phone", 400, "light"),
  ):
    browser.size(width, 860)
    browser.theme(theme)
    browser.value("document.activeElement.blur(); window.scrollTo(0, 0)")
    wide = browser.value("document.documentElement.scrollWidth")
    yield f"{name}: nothing is beside the page", wide <= width, f"{wide} px"
    worst = browser.value(attacks.CONTRAST)
    yield f"{name}: contrast is 4.5 or more", worst >= 4.5, f"{worst:.2f}"
    if _PICTURES.value:
      folder = pathlib.Path(_PICTURES.value)
      folder.mkdir(parents=True, exist_ok=True)
      browser.picture(folder / f"{name}.png")
      browser.value("document.querySelector('main').scrollIntoView()")
      browser.picture(folder / f"{name}_below.png")
  browser.size(1280, 860)
  browser.theme("light")


def _flooded(
  browser: Browser, folder: pathlib.Path, rows: int
) -> Iterator[Check]:
  """Checks a long log: bytes, seconds, and elements in the page at a time."""
  what, run = f"{rows} rows", attacks.long_run(rows)
  for max_bytes in (_PAGE_BYTES, 10 * _PAGE_BYTES):
    seconds, size = _open(browser, folder, [run], max_bytes)
    yield f"{what}: bytes", size <= max_bytes, f"{size / 1e6:.2f} MB"
    yield f"{what}: loaded", seconds < _LOAD_SECONDS, f"{seconds:.2f} s"
    there = browser.value("app.runs[0].rows.length")
    left = browser.value("app.runs[0].leftOut")
    yield f"{what}: some are there", there > 0, f"{there}; left out: {left}"
  yield f"{what}: all are there", there == rows, f"of {size / 1e6:.2f} MB"
  items = browser.value("document.querySelectorAll('.item').length")
  yield f"{what}: only what is seen is drawn", items < 60, f"{items} items"
  for name, code in (
    ("filtered", "app.change({flags: 1})"),
    ("cleared", "app.clear()"),
    ("searched for the first time", "app.change({search: 'needle'})"),
    ("searched again", "app.change({search: 'needle w'})"),
    ("moved", "app.goToStep(3)"),
  ):
    spent = browser.value(
      f"(() => {{ const t = performance.now(); {code};"
      " return performance.now() - t; })()"
    )
    yield f"{what}: {name}", spent < 2000.0, f"{spent:.0f} ms"


def _complaints(browser: Browser) -> Iterator[Check]:
  """Yields checks of the browser's requests and messages."""
  others = [x for x in browser.requests if not x.startswith("file:")]
  yield "nothing was asked of a network", not others, str(others[:3])
  yield "no error was reported", not browser.messages, str(browser.messages[:3])


if __name__ == "__main__":
  flags_lib.run(main)
