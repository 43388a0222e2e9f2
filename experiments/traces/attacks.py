"""Runs that test a page: texts that attack it, plain texts, and many texts."""

from __future__ import annotations

import unicodedata

import numpy as np

from experiments.traces import source
from grpo_jax.training.runtime import traces

_RUNS = "window.attacked=1;alert(1)"
TEXTS = (
  f"<script>{_RUNS}</script>",
  f"</script><script>{_RUNS}</script>",
  f"<img src=x onerror='{_RUNS}'>",
  f"<svg/onload={_RUNS}><iframe srcdoc='<script>parent.{_RUNS}</script>'>",
  f"\"'><b onmouseover={_RUNS}>b</b><a href='javascript:{_RUNS}'>a</a>",
  "<!-- <script> --> <style>*{display:none}</style> <plaintext> ]]>",
  "{{data}} {{script}} ${attacked} \\u003cscript\\u003e &lt;b&gt; &#60;i&#62;",
  "right \u202eto left\u202c, \u2067isolated\u2069, \u200fmark, \u061cmark",
  "שלום עולם 123 مرحبا 456 left again",
  "אבגדהוזחטיכלמנסעפצקרשתאבגדהוזחטיכלמנסעפצקרשת",
  "zero\u200bwidth\u200d \ufeff soft\u00adhyphen \u2028 line \u2029 paragraph",
  "bell\x07 null\x00 escape\x1b[31mred\x1b[0m back\x08 \r return \x85 \x9b",
  "a" + "\u0301" * 60 + " pile " + "\u0e49" * 40 + " tag\U000e0041\U000e0042",
  "half \ud83d of a pair, \U0001f600 whole, nbsp\u00a0, wide\u3000, \u2800",
  "many lines\n" * 30,
  "x" * 900,
)
LONG = "word <b>\u202e " * 120_000  # More than 1 MB.

# Tokens that stand left of the one before them, in the same line.
TURNED = """(() => {
  const boxes = [...document.querySelectorAll(".completion .token[data-at]")]
    .map((x) => [...x.getClientRects()]);
  return boxes.filter((box, i) => i && box.length === 1
    && boxes[i - 1].length === 1 && Math.abs(box[0].top - boxes[i - 1][0].top)
    < 4 && box[0].left < boxes[i - 1][0].left).length;
})()"""

# The same, if the style of the page let texts turn what is round them.
TURNED_OTHERWISE = f"""(() => {{
  const sheet = document.styleSheets[0];
  sheet.insertRule("body * {{ unicode-bidi: normal !important; }}", 0);
  const found = {TURNED};
  sheet.deleteRule(0);
  return found;
}})()"""

# The least contrast of tokens, marks and muted text with what is behind them.
CONTRAST = """(() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d",
    { willReadFrequently: true });
  const rgb = (layers) => {
    canvas.clearRect(0, 0, 1, 1);
    for (const colour of layers) {
      canvas.fillStyle = colour;
      canvas.fillRect(0, 0, 1, 1);
    }
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (x) => x.map((c) => c / 255).map((c) => c <= 0.03928
    ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  let worst = 99;
  const kinds = ".token, .muted, .badge, .number, .alarm-chip b, h3, th, b";
  for (const node of document.querySelectorAll(kinds)) {
    if (!node.offsetWidth || node.closest(".faint")) continue;
    const layers = [];
    for (let x = node; x; x = x.parentElement) {
      layers.unshift(getComputedStyle(x).backgroundColor);
    }
    const pair = [light(rgb(layers)),
      light(rgb([...layers, getComputedStyle(node).color]))].sort();
    worst = Math.min(worst, (pair[1] + 0.05) / (pair[0] + 0.05));
  }
  return worst;
})()"""


def without_hidden(text: str) -> str:
  """Returns the visible rest of a text where the page shows no escapes."""
  kept = "".join(c for c in text if c == "\n" or not _is_hidden(c))
  return without_marks(kept)


def _is_hidden(character: str) -> bool:
  category = unicodedata.category(character)
  is_space = category == "Zs" and character != " "
  return is_space or category[0] == "C" or character in "\u2028\u2029\u2800"


def without_marks(text: str) -> str:
  """Removes the marks on letters, two of which the page shows escaped."""
  return "".join(c for c in text if unicodedata.category(c)[0] != "M")


def _row(text: str, sample: int, rng: np.random.Generator) -> traces.TraceRow:
  """Completion whose text is its tokens, and stands in all other places."""
  tokens = tuple(text[i : i + 6] for i in range(0, len(text), 6))
  size = len(tokens)
  return traces.TraceRow(
    row=sample,
    sample=sample,
    context=0,
    text=text,
    tokens=tokens,
    ids=np.arange(size, dtype=np.int32),
    reward=1.0,
    correct=False,
    terminated=True,
    components={text[:60]: 1.0, "other": 0.0},
    error=text,
    opening=text,
    calls=({"turn": 0, "in": text, "out": text, "blocked": True},),
    values={
      "ratio": np.exp(rng.normal(size=size)).astype(np.float32),
      "observed": np.arange(size) % 5 == 4,
      "turn": np.zeros(size, np.int32),
    },
  )


def run() -> source.Run:
  """A run in which every text attacks the page, everywhere."""
  rng = np.random.default_rng(0)
  groups = [
    traces.Group(
      *(step, text, "train", step, step, text, (text,)),
      # Without numbers the same text goes another way.
      (
        _row(text, 0, rng),
        traces.TraceRow(
          1, 1, 0, text, (), np.zeros(0, np.int32), None, None, False, {}
        ),
      ),
      images=({"name": text},),
    )
    for step, text in enumerate((*TEXTS, LONG), start=1)
  ]
  metrics = [
    {"step": group.step, "phase": group.phase, TEXTS[2]: 0.5 * group.step}
    for group in groups
    if group.prompt is not LONG
  ]
  alarms = tuple(
    source.Alarm(step, text, text) for step, text in enumerate(TEXTS, start=1)
  )
  return source.Run(
    TEXTS[1], TEXTS[7], tuple(metrics), alarms, TEXTS, tuple(groups)
  )


def plain_run(name: str, seed: int) -> source.Run:
  """A run of sums that looks like a real one."""
  rng = np.random.default_rng(seed)
  groups = []
  for step in range(2, 42, 2):
    for number in range(3):
      record = int(rng.integers(0, 6))
      rows = tuple(_sum(record, i, step, rng) for i in range(6))
      split = "eval" if number == 2 else "train"
      groups.append(
        traces.Group(
          *(step, "rl", split, 3 * step + number, record),
          f"{record} + 7 =",
          (("worst", "best", "random")[number],),
          rows,
        )
      )
  metrics = tuple(
    {
      **{"step": step, "phase": "rl", "reward/mean": step / 60 + 0.1 * noise},
      **{"accuracy": step / 70, "entropy/mean": 2.0 / step},
    }
    for step, noise in enumerate(rng.random(42).tolist(), start=1)
  )
  alarms = (source.Alarm(30, "entropy_collapsed", "It hardly varies."),)
  return source.Run(name, "grpo", metrics, alarms, (), tuple(groups))


def _sum(
  record: int, sample: int, step: int, rng: np.random.Generator
) -> traces.TraceRow:
  """Sum with its steps, which an environment interrupts."""
  right = bool(rng.random() < 0.2 + step / 60)
  answer = record + 7 + (0 if right else int(rng.integers(1, 5)))
  words = f"take {record} and the 7 , tool says {record + 7} \n so {answer} ."
  tokens = tuple(word + " " for word in words.split(" "))
  size = len(tokens)
  log_ratio = rng.normal(size=size) * 0.15
  observed = np.zeros(size, bool)
  observed[6:9] = sample % 2 == 0
  scored = rng.random() > 0.05
  return traces.TraceRow(
    row=sample,
    sample=sample,
    context=0,
    text="".join(tokens),
    tokens=tokens,
    ids=rng.integers(0, 999, size).astype(np.int32),
    reward=float(right or sample == 5) if scored else None,
    correct=right if scored else None,
    terminated=bool(rng.random() > 0.1),
    components={"sum": float(right), "brevity": -float(rng.random())},
    error="" if scored else "ValueError: no number",
    calls=({"turn": 0, "in": words[:12], "out": "ok", "blocked": sample == 4},)
    * (sample % 2 == 0),
    values={
      "ratio": np.exp(log_ratio).astype(np.float32),
      "advantage": np.full(size, rng.normal(), np.float32),
      "entropy": rng.exponential(size=size).astype(np.float32),
      "sampler_logp": -rng.exponential(size=size).astype(np.float32),
      "clipped": (np.abs(log_ratio) > 0.2) & ~observed,
      "trained": ~observed,
      "observed": observed,
      "turn": np.cumsum(observed).astype(np.int32),
    },
  )


def long_run(rows: int) -> source.Run:
  """Very many completions, of a hundred tokens each."""
  rng = np.random.default_rng(0)
  words = [f" w{i}" for i in range(400)] + [" needle"]
  groups = []
  for start in range(0, rows, 8):
    step = start // 64 + 1
    found = tuple(
      _random_row(i, rng, words) for i in range(min(8, rows - start))
    )
    groups.append(
      traces.Group(
        *(step, "rl", "train", start // 8, start // 8 % 500),
        f"prompt {start // 8 % 500}",
        ("random",),
        found,
      )
    )
  metrics = tuple(
    {"step": i, "phase": "rl", "reward/mean": float(rng.random())}
    for i in range(1, groups[-1].step + 1)
  )
  return source.Run("long", "grpo", metrics, (), (), tuple(groups))


def _random_row(
  sample: int, rng: np.random.Generator, words: list[str]
) -> traces.TraceRow:
  ids = rng.zipf(1.3, 100) % len(words)
  tokens = tuple(words[i] for i in ids)
  right = bool(rng.random() < 0.5)
  values = rng.normal(size=(5, 100)).astype(np.float32)
  names = ("ratio", "entropy", "advantage", "old_logp", "sampler_logp")
  return traces.TraceRow(
    *(sample, sample, 0, "".join(tokens), tokens, ids.astype(np.int32)),
    *(float(right), right, True),
    {"sum": float(right)},
    values=dict(zip(names, values, strict=True)),
  )
