r"""Trains on TPU VMs, through SkyPilot's managed jobs.

    python -m experiments.launch.skypilot run --name=sort \
        --topology=v5e-16 --spot --workdir=gs://my-bucket/sort \
        --config=configs/quickstart.py -- --config.rl.steps=100

`run` submits the commit as a managed job. SkyPilot finds a slice, runs the
program on all of its workers, and deletes the slice at the end. If the slice is
taken away, it finds another one, where the program continues from the workdir.
`status`, `logs` and `stop` concern that job. --dry_run prints the task and the
commands.

Exit status: 0, or 2 after a mistake or a command that failed. `status` shows
the exit status of the program.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator, Sequence

from absl import flags

from experiments.launch import job, preflight

# Scalars are JSON, which is YAML too.
_TASK = """\
name: {name}
workdir: {folder}
resources:
  infra: {infra}
  accelerators: {accelerator}
  accelerator_args:
    runtime_version: {runtime}
  use_spot: {spot}
  job_recovery:
    # Of the program; a slice that is lost is replaced in any case. There is no
    # bound on this, so that nothing is listed that a mistake may cause.
    recover_on_exit_codes: [143]
# Like `run`, on every worker. The images of TPU VMs have an older Python than
# grpo_jax needs; uv brings one.
setup: |
  set -e
  python3 -m pip install --quiet uv
  python3 -m uv venv --quiet --allow-existing --python=3.12 ~/grpo_jax_venv
  python3 -m uv pip install --quiet --python="$HOME/grpo_jax_venv/bin/python" \\
    --constraint=constraints.txt --editable='.[{extras}]'
run: |
  exec {command}
"""


def _run(
  values: flags.FlagValues, arguments: Sequence[str]
) -> Iterator[job.Command]:
  code = preflight.code_of(values, arguments)
  python = "~/grpo_jax_venv/bin/python"
  task = _TASK.format(
    name=json.dumps(values.name),
    folder=json.dumps(str(code.folder)),
    infra=json.dumps(values.infra),
    accelerator=json.dumps(
      f"tpu-{job.parse_topology(values.topology).product}"
    ),
    runtime=json.dumps(job.runtime(values.topology)),
    spot=json.dumps(values.spot),
    extras=values.extras,
    # The shell knows what ~ is where it is not quoted.
    command=shlex.join(preflight.command(python, values, arguments)).replace(
      shlex.quote(python), python
    ),
  )
  path = code.folder.with_name(f"{values.name}.yaml")
  yield from code.unpack()
  if values.dry_run:
    print(f"cat > {path} <<'EOF'\n{task}EOF")
  else:
    path.write_text(task, encoding="utf-8")
  yield ["sky", "jobs", "launch", "--yes", "--detach-run", str(path)]
  if values.wait:
    # Ends with the status of the job (sky.exceptions.JobExitCode).
    yield ["sky", "jobs", "logs", f"--name={values.name}", "--follow"]


def _logs(values: flags.FlagValues, _: Sequence[str]) -> Iterator[job.Command]:
  follow = "--follow" if values.follow else "--no-follow"
  yield ["sky", "jobs", "logs", f"--name={values.name}", follow]


def _stop(values: flags.FlagValues, _: Sequence[str]) -> Iterator[job.Command]:
  yield ["sky", "jobs", "cancel", "--yes", f"--name={values.name}"]


def main(argv: Sequence[str]) -> int:
  """Runs the action that the command line names."""
  values = flags.FlagValues()
  job.define(values)
  flags.DEFINE_string(
    "infra",
    "gcp",
    "Where to look: gcp, gcp/REGION or gcp/REGION/ZONE.",
    flag_values=values,
  )
  return job.run(
    argv,
    values,
    {
      "run": (_run, ("name", "topology", "workdir", "config")),
      "status": (lambda *_: [["sky", "jobs", "queue"]], ()),
      "logs": (_logs, ("name",)),
      "stop": (_stop, ("name",)),
    },
    __doc__,
  )


if __name__ == "__main__":
  sys.exit(main(sys.argv))
