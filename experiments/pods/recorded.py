r"""Compares the costs of training steps with the recorded ones.

    python -m experiments.pods.recorded                     # all programs
    python -m experiments.pods.recorded --programs=quickstart,ppo
    python -m experiments.pods.recorded --record            # all, anew
    python -m experiments.pods.recorded --record --programs=pod
    python -m experiments.pods.recorded --programs=quickstart --text=runs/before

`CASES` has the programs. benchmarks/costs.json has the record: operations of
matrix products, bytes of memory that are read and written, bytes that each kind
of collective sends, the memory of a device and the number of instructions.
Nothing is run and nothing is timed, so equal code gives equal numbers, however
busy a machine is. Loops count as often as they run (`costs.py`).

A number may differ by `MARGIN` from the record. One that has grown by more is a
regression, unless --record accepts it. One that has fallen by more is refused
as well: if the record did not follow, the next change could undo the gain
unseen. Exit status: 0, or 1 if a program differs.

If a program is `exported`, the record also has the text of `jax.export`, as its
SHA-256 and as counts of operations. So any change of the computation is seen,
even one that costs nothing. Names of functions and of arguments are left out of
the text. --text writes the text, to be compared with that of another commit.

Other compilers make other programs. With versions of jax or libtpu other than
those of the record, or on another kind of CPU, the text is not compared,
numbers may differ by `OTHER_MARGIN`, and the output says so.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import importlib.metadata
import json
import pathlib
import platform
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from absl import flags

from experiments.pods import chips, costs, steps
from experiments.pods import flags as pod_flags
from grpo_jax.cli import flags as flags_lib
from grpo_jax.settings import config as config_lib
from grpo_jax.settings import overrides

MARGIN = 0.05
OTHER_MARGIN = 0.25  # With other versions of the compiler.
PATH = pathlib.Path(__file__).resolve().parents[2] / "benchmarks/costs.json"
_SHOWN = 12  # Operations of a text whose counts differ.

# Sizes of the model that is compiled for TPUs: large enough that a shard of a
# kernel is no small change (costs._SMALL).
WIDTH, LAYERS, MLP, PROMPT, NEW = 256, 2, 1024, 32, 64
# As in tests/conftest.py: a third of the time, and what is counted is not
# changed by the first two. A jaxlib that lacks an option refuses it.
_CPU_OPTIONS: dict[str, Any] = {
  "xla_backend_optimization_level": 0,
  "xla_llvm_disable_expensive_passes": True,
}
if importlib.metadata.version("jaxlib").startswith("0.10."):
  _CPU_OPTIONS |= {
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
  }


@dataclasses.dataclass(frozen=True)
class Case:
  """Program whose costs are recorded.

  Attributes:
    what: Description in words.
    config: File of a config and its argument; "" means `pod_config`.
    topology: Topology of the TPUs that it is compiled for; "" means one CPU.
    num_slices: Number of slices of that topology; `data` connects them.
    exported: Whether its text is recorded too.
  """

  what: str
  config: str = ""
  topology: str = ""
  num_slices: int = 1
  exported: bool = False


CASES = {
  "quickstart": Case(
    "configs/quickstart.py on a CPU",
    "configs/quickstart.py:grpo",
    exported=True,
  ),
  "ppo": Case(
    "configs/ppo_add.py, with a critic, on a CPU", "configs/ppo_add.py:ppo"
  ),
  "pod": Case("a small model on 4 chips of v5e", topology="v5e:2x2"),
  "slices": Case(
    "a small model on 2 slices of 4 chips of v5e",
    topology="v5e:2x2",
    num_slices=2,
  ),
}

_RECORD = flags.DEFINE_bool("record", False, "Write what is found.")
_PROGRAMS = flags.DEFINE_list("programs", list(CASES), "Which of them.")
_TEXT = flags.DEFINE_string("text", "", "Folder for the texts of jax.export.")


def pod_config(
  num_slices: int = 1, algorithm: str = "grpo", **phase: Any
) -> config_lib.RunConfig:
  """Config of a small model on slices of four chips, with a reference.

  Args:
    num_slices: Number of slices; each has the same number of prompts.
    algorithm: Algorithm with a KL term.
    **phase: Settings of `config.rl`.
  """
  config = config_lib.default_config(algorithm)
  config.phases = ("rl",)
  config.data.max_prompt_len = PROMPT
  config.sampling.max_new_tokens = NEW
  config.model.width = WIDTH
  config.model.num_layers = LAYERS
  config.model.mlp_width = MLP
  config.model.num_heads = 4
  config.model.num_kv_heads = 2
  config.model.dtype = "bfloat16"
  config.model.remat = "full"
  config.mesh.fsdp = 2
  config.mesh.tensor = 2
  config.rl.num_prompts = 8 * num_slices
  config.rl.group_size = 4
  config.rl.micro_batch_size = 16 * num_slices
  config.rl.num_lengths = 1
  config.algorithm.kl_coef = 0.1
  config.rl.update(phase)
  return config_lib.resolve(config)


def versions(case: Case) -> dict[str, str]:
  """Versions of the compiler; of a CPU, its kind as well."""
  if case.topology:
    libtpu = importlib.metadata.version("libtpu")
    return {"jax": jax.__version__, "libtpu": libtpu}
  return {"jax": jax.__version__, "machine": platform.machine()}


def numbers(compiled: steps.Compiled) -> dict[str, int]:
  """Name -> cost of a compiled step on a device.

  The costs are operations, also by phase; bytes; instructions; for each kind of
  collective its number of runs and the bytes that a device sends; and the bytes
  that leave it for another slice.
  """
  analysis = steps.analyze(compiled)
  found: dict[str, float] = {
    "flops": sum(of.flops for of in analysis.phases.values()),
    "bytes accessed": sum(of.bytes for of in analysis.phases.values()),
    "peak memory": steps.hbm(compiled)["total"],
    "instructions": analysis.instructions,
  }
  for name, of in analysis.phases.items():
    if of.flops:
      found[f"flops of {name}"] = of.flops
  for kind in costs.COLLECTIVES:
    sent = [one for one in analysis.collectives if one.kind == kind]
    if sent:
      found[f"{kind}, times"] = sum(one.count for one in sent)
      found[f"{kind}, bytes"] = sum(one.sent for one in sent)
  if away := sum(
    one.count * one.bytes for one in analysis.transfers if one.between_slices
  ):
    found["bytes between slices"] = away
  return {name: round(value) for name, value in found.items()}


def normalised(text: str) -> str:
  """StableHLO without the names that do not affect the computation.

  These are locations, names of arguments and results, and those of functions,
  which are numbered in the order of their appearance.
  """
  lines = [line for line in text.splitlines() if not line.startswith("#loc")]
  text = re.sub(
    r' ?loc\((?:[^()"]|"[^"]*"|\([^()]*\))*\)', "", "\n".join(lines)
  )
  text = re.sub(r'jax\.(?:result_info|arg_info) = "[^"]*"', "", text)
  names: dict[str, str] = {}

  def numbered(match: re.Match) -> str:
    return names.setdefault(match[0], f"@f{len(names)}")

  return re.sub(r"@[\w.$-]+", numbered, text) + "\n"


def of_text(text: str) -> dict[str, Any]:
  """Record of a normalised text: SHA-256 and counts of operations."""
  found = collections.Counter(
    re.findall(r"\b(?:stablehlo|chlo|func)\.[a-z_0-9]+", text)
  )
  return {
    "sha256": hashlib.sha256(text.encode()).hexdigest(),
    "operations": dict(sorted(found.items())),
  }


def measure(name: str, text_folder: pathlib.Path | None = None) -> dict:
  """Compiles a program of `CASES`; returns its record.

  Args:
    name: Name of the program.
    text_folder: Folder to which its exported text is written too.
  """
  case = CASES[name]
  if case.topology:
    of = chips.parse(case.topology)
    devices = chips.devices(of, case.num_slices)
  else:
    devices = jax.devices("cpu")[:1]
  if case.config:
    path, _, argument = case.config.partition(":")
    given = overrides.load(path, argument)
    given.allow_unpublished = True
    config = config_lib.resolve(given)
  else:
    config = pod_config(case.num_slices)
  with steps.described(config, devices) as step:
    options = None if case.topology else _CPU_OPTIONS
    found = of_compiled(name, steps.compile_described(step, options))
    if case.exported:
      exported = step.program.exported(*step.arguments)
      text = normalised(exported.mlir_module())
      found["exported"] = of_text(text)
      if text_folder is not None:
        text_folder.mkdir(parents=True, exist_ok=True)
        (text_folder / f"{name}.mlir").write_text(text, encoding="utf-8")
  return found


def of_compiled(name: str, compiled: steps.Compiled) -> dict[str, Any]:
  """Record of a compiled program, without its text."""
  case = CASES[name]
  return {
    "what": case.what,
    "versions": versions(case),
    "costs": numbers(compiled),
  }


def differences(name: str, recorded: Mapping, measured: Mapping) -> list[str]:
  """Sentences about the costs that differ by more than the margin.

  Args:
    name: Name of the program.
    recorded, measured: Records as `measure` returns them.
  """
  same = recorded["versions"] == measured["versions"]
  margin = MARGIN if same else OTHER_MARGIN
  before, after = dict(recorded["costs"]), dict(measured["costs"])
  found = []
  if "exported" in recorded or "exported" in measured:
    old, new = recorded.get("exported", {}), measured.get("exported", {})
    if same and old.get("sha256") != new.get("sha256"):
      found.append(_other_text(name, old, new))
    before["operations of the text"] = sum(old.get("operations", {}).values())
    after["operations of the text"] = sum(new.get("operations", {}).values())
  for what in dict.fromkeys([*before, *after]):
    old, new = before.get(what, 0), after.get(what, 0)
    if abs(new - old) > margin * old:
      found.append(_other_number(name, what, old, new, margin))
  return found


def _other_number(name, what, old, new, margin) -> str:
  change = f"{new / old - 1:+.1%}" if old else "there was none"
  text = (
    f"{name}: {what}: {'grew' if new > old else 'fell'} from {old:,} to"
    f" {new:,} ({change}; {margin:.0%} are allowed)"
  )
  if new > old:
    return text + "."
  return text + ": record it, so that it cannot grow back unseen."


def _other_text(name: str, old: Mapping, new: Mapping) -> str:
  """Sentence about an exported text that has changed, by operations."""
  before, after = old.get("operations", {}), new.get("operations", {})
  changed = [
    f"{operation} {before.get(operation, 0)} -> {after.get(operation, 0)}"
    for operation in sorted({*before, *after})
    if before.get(operation, 0) != after.get(operation, 0)
  ]
  if len(changed) > _SHOWN:
    changed[_SHOWN:] = [f"and {len(changed) - _SHOWN} more"]
  if not changed:
    changed = ["the same operations, of other shapes, numbers or order"]
  return f"{name}: another program is exported: {', '.join(changed)}."


def compare(recorded: Mapping, measured: Mapping) -> tuple[str, bool]:
  """Lines to print about all measured programs, and whether all of them agree.

  Args:
    recorded: Program -> its record.
    measured: Program -> its new measurement.
  """
  lines, wrong = [], []
  for name, found in measured.items():
    if name not in recorded:
      lines.append(f"{name}: nothing is recorded of it.")
      wrong.append(name)
      continue
    known = recorded[name]
    if known["versions"] != found["versions"]:
      lines.append(
        f"{name}: was recorded with {_spelled(known['versions'])}, and here is"
        f" {_spelled(found['versions'])}: numbers may differ by"
        f" {OTHER_MARGIN:.0%} in the place of {MARGIN:.0%}, and texts are not"
        " compared."
      )
    different = differences(name, known, found)
    if different:
      lines += different
      wrong.append(name)
    else:
      lines.append(f"{name}: as recorded.")
  if wrong:
    lines.append(
      "If the change is meant, record it and say in the commit what it is for:"
      " python -m experiments.pods.recorded --record"
      f" --programs={','.join(wrong)}"
    )
  return "\n".join(lines), not wrong


def _spelled(of: Mapping[str, str]) -> str:
  return ", ".join(f"{name} {version}" for name, version in of.items())


def read() -> dict[str, Any]:
  """Reads the records: program -> its record."""
  return json.loads(PATH.read_text(encoding="utf-8")) if PATH.exists() else {}


def main(argv: Sequence[str]) -> int:
  """Compiles, and compares or records; 1 if a program differs."""
  del argv
  # As in `report.main`: libtpu is a compiler, and what is compiled for devices
  # elsewhere is never read. Of a cached program memory is not known in full.
  jax.config.update("jax_platforms", "cpu")
  jax.config.update("jax_enable_compilation_cache", False)
  folder = pathlib.Path(_TEXT.value) if _TEXT.value else None
  names = pod_flags.chosen(_PROGRAMS, CASES)
  measured = {name: measure(name, folder) for name in names}
  recorded = read()
  text, agree = compare(recorded, measured)
  if not _RECORD.value:
    print(text)
    return 0 if agree else 1
  for name, found in measured.items():
    before = recorded.get(name, found)
    print("\n".join(differences(name, before, found)) or f"{name}: as before.")
  both = recorded | measured
  kept = {name: both[name] for name in CASES if name in both}
  PATH.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
  print(f"{PATH}: has {', '.join(measured)}.")
  return 0


if __name__ == "__main__":
  flags_lib.run(main, needs_config=False)
