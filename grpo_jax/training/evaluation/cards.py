"""Model cards of exported policies, for the Hugging Face hub.

A card is the README.md of an exported folder: YAML for the hub, and then the
same and more for people. It contains no path of the machine that trained: a
file or a folder appears by its last name.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import pathlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from grpo_jax.training.evaluation import merging
from grpo_jax.training.runtime import commit as commit_lib
from grpo_jax.training.runtime import files, log

README = "README.md"
# Keys of the license in the base's own card.
_LICENSE = ("license", "license_name", "license_link")
# Names on the hub of data sets of TFDS.
_ON_HUB = {"gsm8k": "openai/gsm8k"}
_ON_ARXIV = re.compile(r"(?:arXiv:\s*|\()(?:[^()]*,\s*)?(\d{4}\.\d{5})")
_LOADING = {
  "transformers": """\
from transformers import AutoModelForCausalLM, AutoTokenizer

folder = "."  # Of this file, or its name on the hub.
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
{prompt}
print(tokenizer.decode(model.generate(**ids, max_new_tokens=64)[0]))
""",
  "images": """\
from transformers import AutoModelForImageTextToText, AutoProcessor

folder = "."  # Of this file, or its name on the hub.
processor = AutoProcessor.from_pretrained(folder)
model = AutoModelForImageTextToText.from_pretrained(folder, dtype="auto")
""",
  "peft": """\
from peft import AutoPeftModelForCausalLM

folder = "."  # Of this file, or its name on the hub.
model = AutoPeftModelForCausalLM.from_pretrained(folder, dtype="auto")
""",
  "grpo_jax": """\
import grpo_jax as g

run = g.load("FOLDER")  # Of this file.
print(run.sample(run.prompts(4), n=2, temperature=1.0))
""",
}

# Code that puts a prompt to the model, as in training.
_IN_CHAT = """\
ids = tokenizer.apply_chat_template(
  [%s{"role": "user", "content": "What is 27 + 58?"}],
  add_generation_prompt=True,
  return_dict=True,
  return_tensors="pt","""
_IN_TEXT = """\
template = %s
prompt = template.replace("{prompt}", "What is 27 + 58?")
ids = tokenizer(prompt, return_tensors="pt")"""


def card(
  workdir: files.Path,
  *,
  step: int | None,
  base: pathlib.Path | None = None,
  library: str = "transformers",
) -> str:
  """The card of a policy, the text of README.md.

  Args:
    workdir: Folder of the run, or of merged runs.
    step: Step of the checkpoint that is exported; None for merged runs.
    base: Folder of the checkpoint that training began with; its license is read
      from its README.md, if it has one.
    library: Library that loads the exported folder: "transformers", "peft", or
      "grpo_jax" for a folder that opens like a run.
  """
  values = log.read_json(workdir / log.CONFIG, dict)
  result = _json(workdir / log.RESULT) or {}
  merged = _json(workdir / merging.MERGE)
  step = None if merged else step
  if result.get("step") != step:  # The figures are of another policy.
    result = {}
  model, name = values.get("model", {}), _algorithm(values)
  paper = _paper(name)
  license_of = _license(base)
  head = _front_matter(values, paper, license_of, library, result, merged)
  rows = {
    "Base": _base(model),
    "License of the base": license_of.get("license_name")
    or license_of.get("license")
    or "unknown: the folder of the base names none",
    "Algorithm": f"`{name}`, {_summary(name)}",
    "Paper": f"[arXiv:{paper}](https://arxiv.org/abs/{paper})"
    if paper
    else "see the algorithm's file",
    "Data": _data(values),
    "Rewards": ", ".join(
      f"`{x}`" for x in values.get("rewards", {}).get("functions", ())
    ),
    "Steps": _steps(values, step),
    "Seed": str(values.get("seed", "")),
    "SHA-256 of the config": f"`{log.config_hash(values)}`",
    **_versions(workdir),
  }
  if merged:
    rows |= {
      "Merged from": ", ".join(
        f"`{pathlib.PurePath(run['workdir']).name}` (step {run['step']},"
        f" coefficient {run['coefficient']:g})"
        for run in merged["runs"]
      )
    }
  text = [head, f"# {_title(model, name)}\n"]
  text.append(
    "A policy that was trained with reinforcement learning by `grpo_jax`.\n"
  )
  text.append(_table(("what", "value"), rows.items()))
  if figures := _figures(result):
    text.append(
      f"\nHeld-out means over {result['num_prompts']} prompts, before and after"
      " training:\n"
    )
    text.append(_table(("metric", "before", "after"), figures))
  data = values.get("data", {})
  loader = library
  if library == "transformers" and data.get("images"):
    loader = "images"
  template = data.get("template", "{prompt}")
  loading = _LOADING[loader].replace("{prompt}", _prompting(data, template))
  text.append(f"\n## How to load it\n\n```python\n{loading}```\n")
  if template == "chat":
    text.append(
      "In training a prompt was the user's message of the tokenizer's chat"
      " template.\n"
    )
  else:
    quote = json.dumps(template, ensure_ascii=False)
    text.append(f"In training a prompt was put to the model as `{quote}`.\n")
  return "\n".join(text)


def _prompting(data: Mapping[str, Any], template: str) -> str:
  """The code that makes token ids of a prompt."""
  if template != "chat":
    return _IN_TEXT % json.dumps(template, ensure_ascii=False)
  options = data.get("chat_options") or {}
  system = data.get("system")
  first = json.dumps({"role": "system", "content": system}) if system else ""
  chat = _IN_CHAT % (first and f"{first}, ")
  lines = [f"  {name}={value!r}," for name, value in options.items()]
  return "\n".join([chat, *lines, ")"])


def _json(path: files.Path) -> Any:
  return log.read_json(path, dict) if path.exists() else None


def _algorithm(values: Mapping[str, Any]) -> str:
  return str(values.get("algorithm", {}).get("name", "unknown"))


def _module_doc(algorithm: str) -> str:
  """Docstring of the file of an algorithm; empty if there is none."""
  module = f"grpo_jax.algorithms.{algorithm}"
  if ":" in algorithm:
    module = algorithm.partition(":")[0]
  try:
    return importlib.import_module(module).__doc__ or ""
  except ImportError:  # The algorithm's package is not installed.
    return ""


def _summary(algorithm: str) -> str:
  """The first sentence of an algorithm's file, without its arXiv number."""
  first = _module_doc(algorithm).strip().partition("\n\n")[0]
  text = re.sub(r"\s*\([^()]*\d{4}\.\d{5}\)", "", " ".join(first.split()))
  return text.rstrip(".") or "of a package of its own"


def _paper(algorithm: str) -> str:
  """The arXiv number of an algorithm's paper; empty if its file has none."""
  match = _ON_ARXIV.search(_module_doc(algorithm))
  return match[1] if match else ""


def _license(base: pathlib.Path | None) -> dict[str, str]:
  """The license fields in the card of the base."""
  path = base and base / README
  if path is None or not path.is_file():
    return {}
  text = path.read_text(encoding="utf-8", errors="replace")
  front = re.match(r"---\n(.*?)\n---", text, re.DOTALL)
  fields = {}
  for line in (front[1] if front else "").splitlines():
    key, colon, value = line.partition(":")
    if colon and key in _LICENSE and value.strip():
      fields[key] = value.strip().strip("\"'")
  return fields


def _is_on_hub(checkpoint: str) -> bool:
  """Says if it is a name, owner/name, and not a folder here."""
  match = re.fullmatch(r"[\w.-]+/[\w.-]+", checkpoint)
  return bool(match) and not pathlib.Path(checkpoint).expanduser().is_dir()


def _base(model: Mapping[str, Any]) -> str:
  checkpoint = model.get("checkpoint", "")
  if not checkpoint:
    return "none: trained from scratch"
  if not _is_on_hub(checkpoint):
    return f"a local checkpoint, `{pathlib.PurePath(checkpoint).name}`"
  revision = f" at `{model['revision']}`" if model.get("revision") else ""
  return f"[{checkpoint}](https://huggingface.co/{checkpoint}){revision}"


def _title(model: Mapping[str, Any], algorithm: str) -> str:
  name = pathlib.PurePath(model.get("checkpoint", "") or "policy").name
  return f"{name}, trained with {algorithm.rpartition(':')[2]}"


def _data(values: Mapping[str, Any]) -> str:
  data = values.get("data", {})
  parts = data.get("mixture") or data.get("datasets")
  if isinstance(parts, Mapping) and parts:
    return f"{data.get('source')} of " + ", ".join(map(_source, parts.values()))
  if parts:
    return f"{data.get('source')} of " + ", ".join(map(_source, parts))
  return _source(data)


def _source(data: Any) -> str:
  """A source of prompts; a file appears by its name without its folder."""
  if not isinstance(data, Mapping):
    return f"`{data}`"
  path = data.get("train_path") or ""
  name = pathlib.PurePath(path).name if path else data.get("name", "")
  return f"`{name}` ({data.get('source', 'task')})"


def _data_on_hub(data: Mapping[str, Any]) -> str:
  """The name of the data on the hub; empty if they are not from there."""
  name, source = data.get("name", ""), data.get("source")
  if source == "datasets" and not data.get("train_path"):
    return re.split("[:@]", name)[0]
  return _ON_HUB.get(name, "") if source == "tfds" else ""


def _steps(values: Mapping[str, Any], step: int | None) -> str:
  phases = ", ".join(
    f"{name} {values.get(name, {}).get('steps', '?')}"
    for name in values.get("phases", ())
  )
  current = "of the merged runs, see below" if step is None else str(step)
  return f"{current} (planned: {phases})"


def _versions(workdir: files.Path) -> dict[str, str]:
  """The versions of grpo_jax that trained the policy and write the card."""
  path = workdir / log.ENVIRONMENT
  starts = log.read_json(path, list) if path.exists() else []
  versions = {}
  if starts:
    last = starts[-1]
    versions["Trained by"] = _version(
      last.get("packages", {}).get("grpo_jax"), last.get("git")
    )
  return versions | {
    "Written by": _version(
      importlib.metadata.version("grpo_jax"), commit_lib.git()
    )
  }


def _version(version: str | None, git: Mapping[str, Any] | None) -> str:
  commit = "unknown"
  if git:
    commit = f"`{git['commit']}`" + (" with changes" if git["dirty"] else "")
  return f"grpo_jax {version or 'unknown'}, commit {commit}"


def _figures(result: Mapping[str, Any]) -> list[tuple[str, str, str]]:
  """Held-out means before and after training."""
  before, after = result.get("before") or {}, result.get("after") or {}
  return [
    (f"`{name}`", _number(before.get(name)), _number(after[name]))
    for name in sorted(after)
  ]


def _number(value: float | None) -> str:
  return "" if value is None else f"{value:.4g}"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
  lines = [head, ("---",) * len(head), *rows]
  return "".join(
    "| " + " | ".join(x.replace("|", "\\|") for x in line) + " |\n"
    for line in lines
    if len(line) > 2 or line[1]
  )


def _front_matter(
  values: Mapping[str, Any],
  paper: str,
  license_of: Mapping[str, str],
  library: str,
  result: Mapping[str, Any],
  merged: Any,
) -> str:
  """The YAML for the hub; texts are JSON, which is YAML too."""
  model, data = values.get("model", {}), values.get("data", {})
  checkpoint, name = model.get("checkpoint", ""), _algorithm(values)
  lines = [f"{key}: {json.dumps(x)}" for key, x in license_of.items()]
  if checkpoint and _is_on_hub(checkpoint):
    relation = "adapter" if library == "peft" else "finetune"
    if merged:
      relation = "merge"
    lines += [
      f"base_model: {json.dumps(checkpoint)}",
      f"base_model_relation: {relation}",
    ]
  task = "image-text-to-text" if data.get("images") else "text-generation"
  lines += [f"library_name: {library}", f"pipeline_tag: {task}", "tags:"]
  tags = ["grpo_jax", "reinforcement-learning", name.rpartition(":")[2]]
  if paper:
    tags.append(f"arxiv:{paper}")
  lines += [f"- {json.dumps(tag)}" for tag in tags]
  if on_hub := _data_on_hub(data):
    lines += ["datasets:", f"- {on_hub}"]
  accuracy = (result.get("after") or {}).get("eval/accuracy")
  if accuracy is not None:
    path = data.get("eval_path") or data.get("train_path") or ""
    source = pathlib.PurePath(path).name if path else data.get("name", "")
    label = json.dumps(source or "held-out")
    dataset = json.dumps(on_hub) if on_hub else label
    lines += [
      "model-index:",
      f"- name: {json.dumps(_title(model, name))}",
      "  results:",
      f"  - task: {{type: {task}}}",
      f"    dataset: {{name: {label}, type: {dataset}}}",
      "    metrics:",
      "    - {type: accuracy, name: held-out accuracy,"
      f" value: {accuracy:.6f}}}",
    ]
  return "\n".join(["---", *lines, "---", ""])
