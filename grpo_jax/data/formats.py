r"""Conversions from rows of a dataset to records.

    formats.conversion("gsm8k")({"question": "1 + 1?", "answer": "#### 2"})
    formats.conversion(fields={"prompt": "q", "answer": "a"})({"q": "1 + 1?"})

A conversion takes a row of a file, with text as `str` or UTF-8 `bytes`, and
returns a record (`sources`). Known datasets have an entry in `FORMATS`; the
layouts of other libraries are in `layouts`; for other rows a mapping names the
fields, or a function of the user's converts them.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

Record = dict[str, Any]
Row = Mapping[str, Any]
Conversion = Callable[[Row], Record]
# Key of `FORMATS` or of `layouts`; or a function that returns the fields of a
# record; or None.
Format = str | Callable[[Row], Any] | None

# Field -> (type, the words of error messages, default; required if `...`).
_FIELDS: dict[str, tuple[type, str, Any]] = {
  "prompt": (str, "a string, or a list of messages", ...),
  "answer": (str, "a string", ""),
  "completion": (str, "a string, or messages", None),
  "extras": (dict, "an object", {}),
}
# Fields that a conversation reads beside its messages.
_OF_CHATS = ("tools", "chat_options")
# Fields that rows of a format must have, and optional fields that are read.
_OF_FORMATS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
  "gsm8k": (("question", "answer"), ()),
  "math": (("problem", "solution"), ("answer", "level", "type", "subject")),
  "pairs": (("chosen", "rejected"), ("prompt", "tools", "chat_options")),
}
# Layouts of other libraries, in `layouts`: fields by which they are known.
_LAYOUTS: dict[str, tuple[str, ...]] = {
  "verl": ("prompt", "reward_model"),
  "open_instruct": ("messages", "ground_truth"),
  "trl": ("messages",),
}
# Fields with messages or schemas, whose objects Arrow fills with nulls.
_NESTED = (
  *("prompt", "completion", "chosen", "rejected", "messages", "tools"),
  *("chat_options", "chat_template_kwargs"),
)
_CALCULATOR = re.compile(r"<<[^>]*>>")
_SHOWN = 30  # Most names of fields in a message.
# Fields of videos in rows of other projects.
_VIDEOS = ("video", "videos")
# Field of `extras` with the name of a domain, before it has a number.
DOMAIN_NAME = "domain_name"


def conversion(
  format: Format = None,
  fields: Mapping[str, Any] | None = None,
  domain_key: str = "",
  images: Sequence[str] = (),
) -> Conversion:
  """Makes the function that converts rows to records.

  Args:
    format: Key of `FORMATS`, name of a layout of `layouts`, or None; or a
      function that takes a row and returns a dictionary with the fields of a
      record.
    fields: Names of the record's fields -> names of the row's, as in
      `mapped_record`; without a format. None and {}: the names are equal.
    domain_key: Field of the row, or of its `extras`, whose text or whole number
      is the name of the prompt's domain. If it is empty, or the row does not
      have the field, the format decides the domain.
    images: Fields of the row with an image, a list of images, or null; they
      must not be used for anything else. The record has all images under
      `pictures`, as `files.value` makes them; a value that is not an image is
      ["bad", reason].

  Raises:
    ValueError: Unknown format; both are given; or a name in `fields` is not a
      field of a record. A conversion raises for a row with a video whose field
      is not named.
  """
  convert = _conversion(format, fields)
  if domain_key:
    convert = functools.partial(_with_domain, convert, domain_key)
  if images:
    convert = functools.partial(_with_images, convert, tuple(images))
  mapped = {**(fields or {})}
  names = {*images, *mapped.pop("extras", {}).values(), *mapped.values()}
  videos = tuple(name for name in _VIDEOS if name not in names)
  return functools.partial(_without_video, convert, videos)


def with_columns(
  convert: Conversion,
  format: Format = None,
  fields: Mapping[str, Any] | None = None,
  more: Sequence[str] = (),
) -> Conversion:
  """A conversion whose records have all other columns of a row as extras.

  `more` are further fields that `convert` reads.
  """
  inputs = {*more, *_VIDEOS}
  if callable(format) or format in _LAYOUTS:

    def laid_out(raw: Row) -> Record:
      record = convert(raw)
      _check_json({k: x for k, x in record["extras"].items() if k != "domain"})
      return record

    return laid_out
  if format is not None:
    required, others = _OF_FORMATS[format]
    inputs |= {*required, *others}
  elif fields:
    mapped = {**fields}
    inputs |= {*mapped.pop("extras", {}).values(), *mapped.values()}
  else:
    inputs |= {*_FIELDS, *_OF_CHATS}

  def converted(raw: Row) -> Record:
    beside = {name: _plain(x) for name, x in raw.items() if name not in inputs}
    row = {
      name: x if name in more else _plain(x)  # An image may be bytes.
      for name, x in raw.items()
      if name in inputs
    }
    is_plain = not (format or fields)
    if is_plain and "answer" in row:
      from grpo_jax.data import conversations

      row["answer"] = conversations.answer_text(row["answer"])
    if is_plain and "prompt" not in row:
      return convert({**row, **beside})
    _check_json({**beside, **{k: row[k] for k in row.keys() & {"extras"}}})
    if not beside:
      return convert(row)
    if is_plain:
      inner = row.get("extras") or {}
      return convert({**row, "extras": {**beside, **inner}})
    record = convert({**beside, **row})  # A message has the names of all.
    beside = {k: x for k, x in beside.items() if k != "domain"}
    return {**record, "extras": {**beside, **record["extras"]}}

  return converted


def without_nulls(
  row: Row, fields: Mapping[str, Any] | None = None
) -> dict[str, Any]:
  """A row without the nulls with which Arrow fills objects of a column.

  Args:
    row: A row of a table; of other fields than messages and schemas, nulls
      stay.
    fields: As in `conversion`.
  """
  names = {*_NESTED, *((fields or {}).get(x, x) for x in _NESTED)}
  dense = {name: _dense(row[name]) for name in names & row.keys()}
  return {**row, **dense}


def _dense(value: Any) -> Any:
  if isinstance(value, Mapping):
    return {name: _dense(x) for name, x in value.items() if x is not None}
  if isinstance(value, list):
    return [_dense(x) for x in value]
  return value


def _check_json(columns: Mapping[str, Any]) -> None:
  """Raises ValueError unless JSON can write these columns."""
  try:
    json.dumps(columns)
  except (TypeError, ValueError) as error:
    raise ValueError(
      f"found the columns {_names(columns)}, of which one is nothing that"
      f" JSON can write ({error}); take it out."
    ) from error


def _names(fields: Iterable[str]) -> str:
  """Lists names for a message; of many names only the first ones."""
  names = sorted(fields)
  more = f" and {len(names) - _SHOWN} more" * (len(names) > _SHOWN)
  return str([f"{name:.60}" for name in names[:_SHOWN]]) + more


def _without_video(
  convert: Conversion, fields: tuple[str, ...], raw: Row
) -> Record:
  """Converts a row; raises if one of these fields has a video."""
  for field in fields:
    if raw.get(field) is not None:
      raise ValueError(
        f"found a video in the field {field!r}; prompts show text and images,"
        " and no videos. Leave the field out, or null; or write frames of it as"
        " images, and name their field in config.data.images."
      )
  return convert(raw)


def _with_images(
  convert: Conversion, fields: tuple[str, ...], raw: Row
) -> Record:
  """Converts a row, and adds the images of these fields in their order."""
  images: list[Any] = []
  for field in fields:
    if field not in raw:
      raise ValueError(
        f"found no field {field!r}; the row has {_names(raw)}. Correct"
        " config.data.images; a row without an image has null there."
      )
    value = raw[field]
    if isinstance(value, np.ndarray) and value.dtype == object:
      value = value.tolist()
    if value is not None:
      images += value if isinstance(value, list | tuple) else [value]
  rest = {name: x for name, x in raw.items() if name not in fields}
  return {**convert(rest), "pictures": tuple(map(_image, images))}


def _image(value: Any) -> list[Any]:
  from grpo_jax.data.images import files

  try:
    return files.value(value)
  except ValueError as error:
    return ["bad", str(error)]


def _with_domain(convert: Conversion, key: str, raw: Row) -> Record:
  """Converts a row, and adds the name of its domain under `DOMAIN_NAME`."""
  inner = raw.get("extras")
  inner = inner if isinstance(inner, Mapping) else {}
  if key not in raw and key not in inner:
    return convert(raw)
  name = _plain(raw[key] if key in raw else inner[key])
  if not isinstance(name, str | int) or isinstance(name, bool) or name == "":
    raise ValueError(
      f"found the domain {name!r:.60} (config.data.domain_key={key!r}); need a"
      " text or a whole number."
    )
  rest = dict(raw)
  if convert is plain_record and key in raw and key not in _FIELDS:
    rest.pop(key)
  if "domain" in inner:  # It need not be a number here.
    rest["extras"] = {k: x for k, x in inner.items() if k != "domain"}
  record = convert(rest)
  extras = {k: x for k, x in record["extras"].items() if k != "domain"}
  return {**record, "extras": {**extras, DOMAIN_NAME: str(name)}}


def has_domain(record: Record) -> bool:
  """Returns True if a record has a domain: a number, or a name."""
  return not {"domain", DOMAIN_NAME}.isdisjoint(record["extras"])


def _conversion(format: Format, fields: Mapping[str, Any] | None) -> Conversion:
  """The conversion of a format, or of fields, without images."""
  if format is not None:
    names = sorted({*FORMATS, *_LAYOUTS})
    if not callable(format) and format not in names:
      raise ValueError(
        f"config.data.format: unknown format {format!r}; known: {names}, an"
        " import path 'package.module:function' of your own, or none for the"
        " fields prompt, answer, completion, extras."
      )
    if fields:
      raise ValueError(
        f"config.data.fields={dict(fields)}: the format {format!r} knows its"
        " fields; leave one of the two empty."
      )
    if callable(format):
      return functools.partial(_own_record, format)
    return FORMATS.get(format) or functools.partial(_laid_out_record, format)
  if not fields:
    return plain_record
  if unknown := fields.keys() - {*_FIELDS, *_OF_CHATS}:
    raise ValueError(
      f"config.data.fields has {sorted(unknown)}; a record has only"
      f" {', '.join(_FIELDS)}. Put what a verifier reads under 'extras', and"
      " name the field of the domain in config.data.domain_key."
    )
  if "prompt" not in fields:
    raise ValueError(
      f"config.data.fields={dict(fields)} lacks 'prompt'; name the field of the"
      " dataset that has the question."
    )
  return functools.partial(mapped_record, dict(fields))


def _own_record(function: Callable[[Row], Any], raw: Row) -> Record:
  """Converts a row by a function of the user's."""
  try:
    row = function({name: _plain(x) for name, x in raw.items()})
  except Exception as error:  # A user's program may raise any exception.
    raise ValueError(
      f"config.data.format: the function raised {type(error).__name__}:"
      f" {error}; the row has {_names(raw)}."
    ) from error
  if not isinstance(row, Mapping):
    raise ValueError(
      f"config.data.format: the function returned {row!r:.60}; need a"
      f" dictionary with {', '.join(map(repr, _FIELDS))}, of which only"
      " 'prompt' must be there."
    )
  return plain_record(row)


def _laid_out_record(format: str, raw: Row) -> Record:
  """Converts a row in the layout of another library."""
  from grpo_jax.data import layouts

  row = layouts.LAYOUTS[format]({name: _plain(x) for name, x in raw.items()})
  if "chosen" in row:
    fields = {"answer": row["answer"] or "", "extras": row["extras"]}
    return {**pair_record(row), **fields}
  return plain_record(row)


def _advice(raw: Row) -> str:
  """Advice for a row without a prompt: the setting to change, in words."""
  needs = {name: required for name, (required, _) in _OF_FORMATS.items()}
  for format, required in (needs | _LAYOUTS).items():
    is_worked = format != "gsm8k" or "####" in str(raw.get("answer"))
    if {*required} <= raw.keys() and is_worked:
      return f"Set config.data.format={format!r}, which knows these fields."
  return (
    "Name the field of the question in config.data.fields, as {'prompt':"
    " 'question', 'answer': 'answer'}."
  )


def plain_record(raw: Row) -> Record:
  """Checks a row that has the fields of a record."""
  record: Record = {}
  if "prompt" not in raw:
    raise ValueError(
      f"found no field 'prompt'; the row has {_names(raw)}. {_advice(raw)}"
    )
  for field, (kind, description, default) in _FIELDS.items():
    value = _checked_value(raw, field)
    if value is None and default is not ...:
      value = default
    elif not isinstance(value, kind):
      raise ValueError(f"found {field!r} = {value!r:.60}; need {description}.")
    record[field] = value
  if unknown := raw.keys() - {*_FIELDS, *_OF_CHATS}:
    raise ValueError(
      f"found the fields {_names(unknown)}; need only {list(_FIELDS)}. Put"
      " what a verifier reads under 'extras'; or name fields in"
      " config.data.fields. In a layout of another library, name it in"
      " config.data.format."
    )
  if "domain" in (extras := record["extras"]):
    # An array, so that it reaches the loss (weights of the KL by domain).
    domain = extras["domain"]
    if type(domain) is not int or not 0 <= domain <= np.iinfo(np.int32).max:
      raise ValueError(
        f"found the domain {domain!r:.60} in 'extras'; need a number from 0 on,"
        " of at most 31 bits."
      )
    record["extras"] = {**extras, "domain": np.int32(extras["domain"])}
  return record


def _checked_value(raw: Row, field: str) -> Any:
  """The value of a field; messages, and a prompt with tools, are checked."""
  value = raw.get(field)
  if field == "prompt":
    more = [raw.get(name) for name in _OF_CHATS]
    if isinstance(value, list) or any(x is not None for x in more):
      from grpo_jax.data import conversations

      return conversations.prompt(value, *more)
  elif field == "completion" and isinstance(value, list | Mapping):
    from grpo_jax.data import conversations

    return conversations.completion(value, field)
  return value


def mapped_record(fields: Mapping[str, Any], raw: Row) -> Record:
  """Takes the fields of a record from fields of other names.

  Args:
    fields: `prompt`, `answer`, `completion`, `tools` and `chat_options` -> a
      name in `raw`; `extras` -> a mapping of such names. An answer that is a
      number becomes text.
    raw: A row; further fields are ignored.

  Raises:
    ValueError: A field is missing (the message lists those that exist), or has
      another type than the record's field.
  """

  from grpo_jax.data import conversations

  def value_of(name: str) -> Any:
    if name not in raw:
      raise ValueError(
        f"found no field {name!r}; the dataset has {_names(raw)}. Correct"
        " config.data.fields."
      )
    return _plain(raw[name])

  record: Record = {
    field: value_of(name) for field, name in fields.items() if field != "extras"
  }
  record["answer"] = conversations.answer_text(record.get("answer", ""))
  extras = {
    name: value_of(column) for name, column in fields.get("extras", {}).items()
  }
  return plain_record({**record, "extras": extras})


def _plain(value: Any) -> Any:
  """A value without NumPy and bytes, for a verifier in another process."""
  if isinstance(value, np.ndarray):
    return _plain(value.tolist())
  if isinstance(value, np.generic):
    return value.item()
  if isinstance(value, bytes):
    return value.decode()
  if isinstance(value, Mapping):
    return {str(name): _plain(x) for name, x in value.items()}
  if isinstance(value, (list, tuple)):
    return [_plain(x) for x in value]
  return value


def _need(who: str, raw: Row, *fields: str) -> None:
  """Raises ValueError unless a row has these fields."""
  if not {*fields} <= raw.keys():
    *some, last = map(repr, fields)
    raise ValueError(
      f"{who}: found the fields {_names(raw)}; need {', '.join(some)} and"
      f" {last}."
    )


def _text(who: str, raw: Row, field: str) -> str:
  value = raw[field]
  if isinstance(value, bytes):
    value = value.decode()
  if not isinstance(value, str):
    raise ValueError(f"{who}: found {field!r} = {value!r:.60}; need a string.")
  return value


def gsm8k_record(raw: Row) -> Record:
  """Converts a GSM8K question with its worked solution.

  The solution ends in `#### 1,234`. Thousands separators of the answer and
  calculator annotations of the reasoning, `<<2*3=6>>`, are removed.

  Args:
    raw: `question` and `answer` as text or UTF-8 bytes.

  Returns:
    A record whose completion is the reasoning alone, for `teacher`.

  Raises:
    ValueError: A field is missing or not text, or there is no `####` line.

  Source: Cobbe et al., "Training Verifiers to Solve Math Word Problems",
  arXiv:2110.14168.
  """
  _need("gsm8k_record", raw, "question", "answer")
  question = _text("gsm8k_record", raw, "question")
  solution = _text("gsm8k_record", raw, "answer")
  reasoning, separator, answer = solution.rpartition("####")
  if not separator:
    raise ValueError(
      f"gsm8k_record: the solution {solution[-60:]!r} has no '####' before"
      " its final answer."
    )
  return {
    "prompt": question.strip(),
    "answer": answer.strip().replace(",", ""),
    "completion": _CALCULATOR.sub("", reasoning).strip(),
    "extras": {},
  }


# The subjects of MATH; the number of a domain is the index in this list.
MATH_TYPES = (
  *("Algebra", "Counting & Probability", "Geometry", "Intermediate Algebra"),
  *("Number Theory", "Prealgebra", "Precalculus"),
)
_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_BARE = re.compile(r"\\[A-Za-z]+|[^\s$\\{}]+")


def math_record(raw: Row) -> Record:
  r"""Converts a problem of MATH with its solution.

  The answer is the content of the solution's last box. `level` ("Level 3", or
  3) and `type` ("Algebra"; `subject` in MATH-500) become extras. The index of
  the type in `MATH_TYPES` is also the domain.

  Args:
    raw: `problem` and `solution`; `answer`, if the solution has no box;
      `level`, `type` or `subject`, if all rows have them.

  Returns:
    A record whose completion is the solution, with its box.

  Raises:
    ValueError: A field is missing or not text, there is no answer, or the type
      is unknown.

  Source: Hendrycks et al., "Measuring Mathematical Problem Solving With the
  MATH Dataset", arXiv:2103.03874.
  """
  _need("math_record", raw, "problem", "solution")
  solution = _text("math_record", raw, "solution").strip()
  answer = gold_box(solution)
  if answer is None and "answer" in raw:
    answer = _text("math_record", raw, "answer")
  if answer is None:
    raise ValueError(
      f"math_record: the solution {solution[-60:]!r} has no '\\boxed{{…}}', and"
      " there is no field 'answer'."
    )
  extras: dict[str, Any] = {}
  if "level" in raw:
    extras["level"] = _level(raw["level"])
  if field := next((name for name in ("type", "subject") if name in raw), ""):
    extras["type"] = _text("math_record", raw, field)
    if extras["type"] not in MATH_TYPES:
      raise ValueError(
        f"math_record: found {field!r} = {extras['type']!r:.60}; known are"
        f" {', '.join(MATH_TYPES)}. Take the field out, or use"
        " config.data.fields."
      )
    extras["domain"] = np.int32(MATH_TYPES.index(extras["type"]))
  return {
    "prompt": _text("math_record", raw, "problem").strip(),
    "answer": answer.strip(),
    "completion": solution,
    "extras": extras,
  }


def _level(value: Any) -> int:
  """Reads 3 from "Level 3" or 3; 0 from "Level ?", which two problems have."""
  if isinstance(value, bytes):
    value = value.decode()
  digits = re.fullmatch(r"(?:Level )?([0-9?])", str(value))
  if digits is None:
    raise ValueError(
      f"math_record: found 'level' = {value!r:.60}; need 'Level 3', or 3."
    )
  return 0 if digits[1] == "?" else int(digits[1])


def gold_box(text: str) -> str | None:
  r"""The content of the last box of a solution, or None.

  Solutions also have `\fbox{2}` and `\boxed A`, which are boxes here, but not
  in a completion (`rewards/answers.py`). A box that is not closed is ignored.
  """
  for box in reversed(list(_BOX.finditer(text))):
    start = box.end()
    if not text.startswith("{", start):
      if bare := _BARE.match(text, start):
        return bare.group()
      continue
    depth = 0
    for token in _BRACE.finditer(text, start):
      depth += {"{": 1, "}": -1}.get(token.group(), 0)
      if not depth:
        return text[start + 1 : token.start()]
  return None


def pair_record(raw: Row) -> Record:
  """Converts a prompt with a preferred and a rejected completion.

  Args:
    raw: `prompt`, `chosen` and `rejected`, each a text or a chat: a list of
      {"role": …, "content": …}. A chat `chosen` or `rejected` ends with a
      message of the assistant, and may begin with the prompt. Without
      `prompt`, the prompt is what both chats begin with. `tools` and
      `chat_options` are those of the chat. Further fields are ignored.

  Returns:
    A record with the chosen completion, and `rejected`.

  Raises:
    ValueError: A field is missing, or is neither a text nor such a chat; the
      chats have no prompt; or both completions are equal.
  """
  from grpo_jax.data import conversations

  if not {"chosen", "rejected"} <= raw.keys():
    raise ValueError(
      f"pair_record: found the fields {_names(raw)}; need 'prompt', 'chosen'"
      " and 'rejected'."
    )
  try:
    chosen, rejected, prompt = conversations.of_pair(
      raw["chosen"], raw["rejected"], raw.get("prompt")
    )
    prompt = conversations.prompt(prompt, *map(raw.get, _OF_CHATS))
    chosen = conversations.completion(chosen, "chosen")
    rejected = conversations.completion(rejected, "rejected")
  except ValueError as error:
    raise ValueError(f"pair_record: {error}") from error
  if chosen == rejected:
    raise ValueError(
      f"pair_record: 'chosen' and 'rejected' are the same text {chosen!r:.60};"
      " nothing is preferred. Take the row out."
    )
  return {
    "prompt": prompt,
    "answer": "",
    "completion": chosen,
    "rejected": rejected,
    "extras": {},
  }


# Rows of a known dataset -> records; shared by TFDS and JSON lines.
FORMATS: dict[str, Conversion] = {
  "gsm8k": gsm8k_record,
  "math": math_record,
  "pairs": pair_record,
}
