"""Rows in the layouts of other libraries, as rows with the fields of a record.

| layout          | fields                                                     |
|-----------------|------------------------------------------------------------|
| `trl`           | `prompt` and perhaps `completion`; or `messages`; or       |
|                 | `chosen` and `rejected`; `tools`, `chat_template_kwargs`;  |
|                 | the answer is `answer`, `solution` or `ground_truth`       |
| `verl`          | `prompt`, `reward_model` with `ground_truth`               |
| `open_instruct` | `messages`, `ground_truth`, `dataset`                      |

All other fields of a row, such as `data_source` and `extra_info` of verl, are
extras of its record, which reward functions read.

Source: TRL 1.16.0, "Dataset formats and types"; verl 0.9.1, "Prepare Data for
Post-Training"; open-instruct, `dataset_transformation.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from grpo_jax.data import conversations

Row = dict[str, Any]


def trl(raw: Mapping[str, Any]) -> Row:
  """Reads a row of TRL: a prompt, a demonstration or a pair.

  The answer stays among the extras under its own name, by which a reward
  function of TRL asks for it; what is called `answer` is text there.

  Raises:
    ValueError: `answer` is neither a text nor a number.
  """
  rest = {**raw}
  row: Row = {}
  if "prompt" not in rest and "chosen" not in rest:
    messages = _pop("trl", rest, "messages")
    row["prompt"], row["completion"] = conversations.split(messages)
  for name in ("prompt", "completion", "chosen", "rejected", "tools"):
    if (value := rest.pop(name, None)) is not None:
      row[name] = value
  row["chat_options"] = rest.pop("chat_template_kwargs", None)
  answer = rest.pop("answer", None)
  if answer is None:
    others = (rest.get(name) for name in ("solution", "ground_truth"))
    answer = next((x for x in others if type(x) in (str, int, float)), None)
  row["answer"] = None if answer is None else _truth("answer", answer)
  return {**row, "extras": rest}


def verl(raw: Mapping[str, Any]) -> Row:
  """Reads a row of verl, whose answer is in `reward_model`."""
  rest = {**raw}
  prompt = _pop("verl", rest, "prompt")
  model = _pop("verl", rest, "reward_model")
  if not isinstance(model, Mapping) or "ground_truth" not in model:
    raise ValueError(
      f"found 'reward_model' = {model!r:.60}; need an object with"
      " 'ground_truth' (config.data.format='verl')."
    )
  truth = _truth("reward_model.ground_truth", model["ground_truth"])
  return {"prompt": prompt, "answer": truth, "extras": rest}


def open_instruct(raw: Mapping[str, Any]) -> Row:
  """Reads a row of open-instruct, whose last reply is the completion."""
  rest = {**raw}
  messages = _pop("open_instruct", rest, "messages")
  truth = _pop("open_instruct", rest, "ground_truth")
  completion = None
  if isinstance(messages, list) and len(messages) > 1:
    last = messages[-1]
    if isinstance(last, Mapping) and last.get("role") == "assistant":
      messages, completion = messages[:-1], last
  if isinstance(name := rest.get("dataset"), list) and len(name) == 1:
    rest["dataset"] = name[0]
  return {
    "prompt": messages,
    "completion": completion,
    "tools": rest.pop("tools", None),
    "answer": _truth("ground_truth", truth),
    "extras": rest,
  }


def _pop(layout: str, rest: Row, name: str) -> Any:
  if rest.get(name) is None:
    raise ValueError(
      f"found the fields {sorted(rest)!r:.200}; need {name!r}"
      f" (config.data.format={layout!r}). Leave the format empty, and name the"
      " fields in config.data.fields."
    )
  return rest.pop(name)


def _truth(name: str, value: Any) -> str:
  """An answer as text; of a list, its only entry."""
  if isinstance(value, list) and len(value) == 1:
    value = value[0]
  if isinstance(value, bool) or not isinstance(value, str | int | float):
    raise ValueError(
      f"found {name!r} = {value!r:.60}; need a text or a number. For other"
      " answers, name a function of your own in config.data.format, which puts"
      " what its reward reads under 'extras'."
    )
  return conversations.answer_text(value)


LAYOUTS: dict[str, Callable[[Mapping[str, Any]], Row]] = {
  "trl": trl,
  "verl": verl,
  "open_instruct": open_instruct,
}
