r"""Trains on GKE, through XPK.

    python -m experiments.launch.xpk run --name=sort --cluster=my-cluster \
        --project=my-project --zone=us-central1-a \
        --topology=v5e-16 --workdir=gs://my-bucket/sort \
        --config=configs/quickstart.py -- --config.rl.steps=100

`create` makes a cluster with a node pool for each slice, and `delete` deletes
it; `run` puts the commit into an image and submits a job to the cluster;
`status`, `logs` and `stop` concern that job. GKE starts the job again after a
preemption, up to --max_restarts times, and it continues from the workdir.
--dry_run prints the commands.

Exit status: 0, or 2 after a mistake or a command that failed. `status` shows
the exit status of the program.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence

from absl import flags

from experiments.launch import job, preflight

# XPK puts the code into an image made of this one. The default is too old.
_IMAGE = "python:3.12"
# How long a run may take to save after SIGTERM.
_GRACE_S = 300
# Workers whose logs kubectl shows at once; its own limit is 5.
_MAX_LOGS = 256


def _place(values: flags.FlagValues) -> list[str]:
  return [
    f"--cluster={values.cluster}",
    f"--project={values.project}",
    f"--zone={values.zone}",
  ]


def _create(
  values: flags.FlagValues, _: Sequence[str]
) -> Iterator[job.Command]:
  capacity = "--on-demand"
  if values.spot:
    capacity = "--spot"
  elif values.reservation:
    capacity = f"--reservation={values.reservation}"
  yield [
    *("xpk", "cluster", "create", *_place(values)),
    f"--tpu-type={job.parse_topology(values.topology).product}",
    f"--num-slices={values.slices}",
    capacity,
  ]


def _run(
  values: flags.FlagValues, arguments: Sequence[str]
) -> Iterator[job.Command]:
  code = preflight.code_of(values, arguments)
  train = shlex.join(preflight.command("python", values, arguments))
  # One line, because XPK pastes it into YAML. XPK restarts after 42: nothing
  # was trained. `exec`, so that the SIGTERM that XPK passes on reaches Python.
  inside = (
    "python -m pip install --quiet --constraint constraints.txt"
    f" --editable '.[{values.extras}]' || exit 42;"
    f" exec {train}"
  )
  yield from code.unpack()
  yield [
    *("xpk", "workload", "create", f"--workload={values.name}"),
    *_place(values),
    f"--tpu-type={job.parse_topology(values.topology).product}",
    f"--num-slices={values.slices}",
    f"--base-docker-image={_IMAGE}",
    f"--script-dir={code.folder}",
    # XPK restarts after 42 and from 127 on, not after 0, 1 and 2. And after 75:
    # another worker was lost.
    f"--max-restarts={values.max_restarts}",
    "--restart-on-exit-codes=75",
    f"--termination-grace-period-seconds={_GRACE_S}",
    f"--command={inside}",
  ]
  if values.wait:
    # Ends with 0 if the job has completed, with 125 if it has failed (xpk
    # 1.16.0, core/workload.py).
    yield [
      *("xpk", "workload", "list", *_place(values)),
      f"--wait-for-job-completion={values.name}",
    ]


def _status(
  values: flags.FlagValues, _: Sequence[str]
) -> Iterator[job.Command]:
  job_filter = f"--filter-by-job={values.name}"
  yield ["xpk", "workload", "list", *_place(values), job_filter]


def _logs(values: flags.FlagValues, _: Sequence[str]) -> Iterator[job.Command]:
  # The cluster's credentials are in kubectl's config since `create` or `run`.
  yield [
    *("kubectl", "logs"),
    f"--selector=xpk.google.com/workload={values.name}",
    "--prefix",
    f"--tail={values.lines}",
    f"--max-log-requests={_MAX_LOGS}",
    *(["--follow"] if values.follow else []),
  ]


def _stop(values: flags.FlagValues, _: Sequence[str]) -> Iterator[job.Command]:
  workload = f"--workload={values.name}"
  yield ["xpk", "workload", "delete", workload, *_place(values), "--force"]


def _delete(
  values: flags.FlagValues, _: Sequence[str]
) -> Iterator[job.Command]:
  yield ["xpk", "cluster", "delete", *_place(values), "--force"]


def main(argv: Sequence[str]) -> int:
  """Runs the action that the command line names."""
  values = flags.FlagValues()
  job.define(values)
  flags.DEFINE_string(
    "zone", None, "Zone, such as us-central1-a.", flag_values=values
  )
  flags.DEFINE_string("cluster", None, "Of GKE.", flag_values=values)
  flags.DEFINE_string(
    "reservation",
    None,
    "Reservation to make the cluster from; by default on demand.",
    flag_values=values,
  )
  for name, default, text, least in (
    ("slices", 1, "Slices of --topology.", 1),
    ("max_restarts", 20, "Restarts before giving up.", 0),
    ("lines", 100, "Of the log.", 1),
  ):
    flags.DEFINE_integer(name, default, text, least, flag_values=values)
  place = ("cluster", "project", "zone")
  needed = ("name", *place, "topology", "workdir", "config")
  return job.run(
    argv,
    values,
    {
      "create": (_create, (*place, "topology")),
      "run": (_run, needed),
      "status": (_status, ("name", *place)),
      "logs": (_logs, ("name",)),
      "stop": (_stop, ("name", *place)),
      "delete": (_delete, place),
    },
    __doc__,
  )


if __name__ == "__main__":
  sys.exit(main(sys.argv))
