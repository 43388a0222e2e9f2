r"""Trains on TPU VMs, through gcloud and queued resources.

    python -m experiments.launch.tpu_vm run --name=sort --project=my-project \
        --zone=us-central1-a --topology=v5e-16 --spot \
        --workdir=gs://my-bucket/sort --config=configs/quickstart.py \
        -- --config.rl.steps=100

`run` requests the slice unless it is there, sends the commit, starts
experiments.train on every worker, and watches. When a slice is taken away, it
requests another and starts the same command there, which continues from the
workdir. Interrupted and started again, it watches the run that is going on.
`create`, `status`, `logs`, `stop` and `delete` are single steps of this;
--dry_run prints the commands of any of them.

Exit status: that of experiments.train if it is 0 to 3; 2 also after a mistake
in the command line or a command that failed; 3 after --max_restarts restarts,
or if the slice was deleted by another command.
"""

from __future__ import annotations

import itertools
import json
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from absl import flags

from experiments.launch import job, preflight, with_secrets

# Looks that may fail one after another, and that workers may still run after
# another one has failed, before this gives up on them.
_PATIENCE = 10
# States of a queued resource that leave it without VMs for good, and of a VM.
# Source: https://cloud.google.com/tpu/docs/queued-resources and the REST
# reference, read 2026-11.
_ENDED = ("FAILED", "SUSPENDED")
_GONE = ("PREEMPTED", "TERMINATED", "STOPPED", "DELETING", None)
_TAIL = 20  # Lines of the log that are shown at the end.


class _LostError(Exception):
  """The slice is gone; another one has to be requested."""


class _DeletedError(Exception):
  """Error: the request was deleted by another command, so the run ends."""


class _Slices:
  """The queued resource of a run, its VMs, and the commands for them."""

  def __init__(self, values: flags.FlagValues):
    self._values = values
    self.name = values.name
    self._place = [f"--zone={values.zone}", f"--project={values.project}"]
    # Several nodes are numbered (REST reference, MultisliceParams).
    self.nodes = [self.name]
    if values.slices > 1:
      self.nodes = [f"{self.name}-{index}" for index in range(values.slices)]
    # Relative to the home folder, where ssh begins.
    self._run = f"grpo_jax_runs/{self.name}"
    self._worker = f"{self._run}/code/experiments/launch/worker.sh"

  def create(self) -> job.Command:
    values = self._values
    nodes = [f"--node-id={self.name}"]
    if values.slices > 1:
      nodes = [f"--node-count={values.slices}", f"--node-prefix={self.name}"]
    account = values.service_account
    return [
      *self._queued("create"),
      *nodes,
      f"--accelerator-type={job.parse_topology(values.topology).product}",
      f"--runtime-version={job.runtime(values.topology)}",
      *(["--spot"] if values.spot else []),
      *(["--internal-ips"] if values.internal_ip else []),
      *([f"--service-account={account}"] if account else []),
    ]

  def describe(self) -> job.Command:
    return [*self._queued("describe"), "--format=json"]

  def delete(self) -> job.Command:
    return [*self._queued("delete"), "--force", "--quiet"]

  def describe_node(self, node: str) -> job.Command:
    return [*self._vm("describe"), node, *self._place, "--format=value(state)"]

  def send(self, code: job.Code) -> list[job.Command]:
    return [
      [
        *self._vm("scp"),
        str(code.archive),
        f"{node}:",
        "--worker=all",
        *self._place,
        *self._ssh_flags(),
      ]
      for node in self.nodes
    ]

  def start(
    self, code: job.Code, arguments: Sequence[str]
  ) -> list[job.Command]:
    folder = f"{self._run}/code"
    values = self._values
    secrets = []
    if named := job.secrets(values):
      secrets = [f"--secrets={with_secrets.spelled(values.project, named)}"]
    start = ["bash", self._worker, "start", values.extras, *secrets]
    start += arguments
    return self._ssh(
      f"rm -rf {folder} && mkdir -p {folder}"
      f" && tar -xzf {code.archive.name} -C {folder}"
      f" && {shlex.join(start)}"
    )

  def status(self) -> list[job.Command]:
    return self._ssh(
      f"if [ -f {self._worker} ]; then bash {self._worker} status;"
      " else echo grpo_jax worker $(hostname) absent; fi"
    )

  def stop(self) -> list[job.Command]:
    return self._ssh(f"bash {self._worker} stop")

  def logs(self, worker: str, lines: int, follow: bool) -> list[job.Command]:
    tail = f"tail -n {lines}{' -F' if follow else ''} {self._run}/log"
    return self._ssh(tail, worker)

  def _queued(self, verb: str) -> job.Command:
    return [
      "gcloud",
      "compute",
      "tpus",
      "queued-resources",
      verb,
      self.name,
      *self._place,
    ]

  def _vm(self, verb: str) -> job.Command:
    return ["gcloud", "compute", "tpus", "tpu-vm", verb]

  def _ssh(self, command: str, worker: str = "all") -> list[job.Command]:
    return [
      [
        *self._vm("ssh"),
        node,
        f"--worker={worker}",
        *self._place,
        *self._ssh_flags(),
        f"--command={command}",
      ]
      for node in self.nodes
    ]

  def _ssh_flags(self) -> list[str]:
    # Quiet: the question for a passphrase of a new key has no one to answer.
    return [
      *(["--internal-ip"] if self._values.internal_ip else []),
      "--quiet",
    ]


def _state(slices: _Slices) -> tuple[str | None, str]:
  """State of the queued resource, or None, and its message."""
  try:
    text = job.capture(slices.describe())
  except job.CommandError as error:
    if "NOT_FOUND" in error.stderr:
      return None, ""
    raise
  found = json.loads(text).get("state", {})
  data = [value for key, value in found.items() if key.endswith("Data")]
  messages = [
    value["error"]["message"]
    for value in data
    if "message" in value.get("error", {})
  ]
  return found.get("state", "STATE_UNSPECIFIED"), "; ".join(messages)


class _Supervisor:
  """Keeps a run going until it has ended."""

  def __init__(
    self,
    values: flags.FlagValues,
    slices: _Slices,
    code: job.Code,
    arguments: Sequence[str],
  ):
    self._slices = slices
    self._code = code
    self._arguments = arguments
    self._max_restarts = values.max_restarts
    self._poll_s = values.poll_s
    self._said = ""

  def run(self) -> int:
    """Returns the exit status of the program, or GAVE_UP."""
    # Mistakes show here, and are not tried again.
    if _state(self._slices)[0] is None:
      job.execute([self._slices.create()])
    lost = False
    for restart in range(self._max_restarts + 1):
      if restart:
        job.say(f"restart {restart} of {self._max_restarts}")
      try:
        if lost:
          self._replace()
          lost = False
        status = self._attempt()
      except _LostError as error:
        job.say(f"lost the slice: {error}")
        lost = True
        continue
      except _DeletedError:
        job.say(f"{self._slices.name} was deleted by somebody; leaving it so")
        return job.GAVE_UP
      except job.CommandError as error:
        job.say(f"failed: {error}")
        time.sleep(self._poll_s)
        continue
      job.say(f"experiments.train ended with exit status {status}")
      self._show_log()
      if status in (0, 1, 2, 3):
        return status
    job.say(
      f"gave up after {self._max_restarts} restarts; the slice may still be"
      " there, and cost: see the actions status and delete"
    )
    return job.GAVE_UP

  def _replace(self) -> None:
    if _state(self._slices)[0] is not None:
      job.execute([self._slices.delete()])
    job.execute([self._slices.create()])

  def _attempt(self) -> int:
    """Starts the program unless it is running, and waits for its end."""
    states = self._first_states()
    if all(state == "running" for state in states):
      job.say("the run is going on; its code and arguments stay what they were")
    else:
      if "running" in states:
        job.say("only some workers are running; stopping them first")
        job.execute(self._slices.stop())
      job.say(f"sending commit {self._code.commit}")
      job.execute(self._code.pack())
      job.execute(self._slices.send(self._code))
      job.execute(self._slices.start(self._code, self._arguments))
    return self._watch()

  def _wait_until_active(self) -> None:
    while self._look() != "ACTIVE":
      time.sleep(self._poll_s)

  def _look(self) -> str:
    """State of the queued resource; raises if it will not become active."""
    state, message = self._patiently(lambda: _state(self._slices))
    if state is None:
      raise _DeletedError
    self._report(f"{self._slices.name} is {state}")
    if state in _ENDED:
      raise _LostError(f"{state} {message}".rstrip())
    return state

  def _patiently(
    self, ask: Callable[[], Any], meanwhile: Callable[[], None] = lambda: None
  ) -> Any:
    """Result of an action; fails after `_PATIENCE` failures in a row."""
    for look in itertools.count(1):
      try:
        return ask()
      except job.CommandError as error:
        if look == _PATIENCE:
          raise
        self._report(f"no answer: {error}")
      meanwhile()
      time.sleep(self._poll_s)

  def _watch(self) -> int:
    """Waits until every worker has ended; returns the status of all."""
    since_failure = since_answer = 0
    while True:
      if self._look() != "ACTIVE":  # On its way to an end.
        time.sleep(self._poll_s)
        continue
      states = self._worker_states()
      since_answer += 1
      if states is None:
        self._check_nodes()
        if since_answer > _PATIENCE:
          raise _LostError("a worker does not answer")
      else:
        since_answer = 0
        self._report(f"workers: {_counts(states)}")
        if "running" not in states:
          return _overall(states)
        if any(state not in ("running", "exited 0") for state in states):
          # The others usually follow, when they miss it.
          since_failure += 1
          if since_failure > _PATIENCE:
            job.say("stopping the workers that are left")
            job.execute(self._slices.stop())
            return _overall([state for state in states if state != "running"])
      time.sleep(self._poll_s)

  def _first_states(self) -> list[str]:
    """Returns the state of each worker; asks until all of them answer.

    A program that may be running must not lose its code.
    """

    def look_again() -> None:
      self._check_nodes()
      self._wait_until_active()

    self._wait_until_active()
    return self._patiently(self._ask_workers, look_again)

  def _worker_states(self) -> list[str] | None:
    """Returns the state of each worker, or None if one did not answer."""
    try:
      return self._ask_workers()
    except job.CommandError as error:
      self._report(f"no answer: {error}")
      return None

  def _ask_workers(self) -> list[str]:
    text = "".join(map(job.capture, self._slices.status()))
    lines = [line.split() for line in text.splitlines()]
    return [
      " ".join(words[3:])
      for words in lines
      if words[:2] == ["grpo_jax", "worker"]
    ]

  def _check_nodes(self) -> None:
    """Raises if a VM is gone; the queued resource may say so later."""
    for node in self._slices.nodes:
      try:
        state = job.capture(self._slices.describe_node(node)).strip()
      except job.CommandError as error:
        if "NOT_FOUND" not in error.stderr:
          continue
        state = None
      if state in _GONE:
        raise _LostError(f"{node} is {state or 'gone'}")

  def _show_log(self) -> None:
    try:
      job.execute(self._slices.logs("0", _TAIL, follow=False)[:1])
    except job.CommandError as error:
      job.say(f"no log: {error}")

  def _report(self, message: str) -> None:
    """Prints changes."""
    if message != self._said:
      job.say(message)
    self._said = message


def _counts(states: Sequence[str]) -> str:
  return ", ".join(
    f"{states.count(state)} {state}" for state in sorted({*states})
  )


def _overall(states: Sequence[str]) -> int:
  """Exit status for all workers together."""
  codes = [
    int(state.split()[1]) if state.startswith("exited") else 137
    for state in states
  ]
  # A mistake is the same everywhere. Where a worker was stopped, the others
  # may fail in any way, so that a 1 beside it says nothing.
  for decisive in (2, 143, 137, 1):
    if decisive in codes:
      return decisive
  return max(codes)


def _create(values: flags.FlagValues, arguments: Sequence[str]) -> int:
  del arguments
  job.execute([_Slices(values).create()], values.dry_run)
  return 0


def _run(values: flags.FlagValues, arguments: Sequence[str]) -> int:
  several = job.several_workers(values.topology, values.slices)
  if several or values.spot:
    job.check_shared(values.workdir)
  elif not values.workdir.startswith(("/", "gs://")):
    raise ValueError(
      f"--workdir={values.workdir}: needed is gs://BUCKET/PATH, or a path on"
      " the VM from its root."
    )
  job.runtime(values.topology)
  notes = preflight.check(values, arguments)
  slices, code = _Slices(values), job.Code(values.allow_dirty)
  preflight.say(notes)
  preflight.store(values)
  train = job.train_arguments(values, arguments)
  if not values.dry_run:
    return _Supervisor(values, slices, code, train).run()
  every = f"Every {values.poll_s:g} s"
  steps = [
    ("The slice, unless it is there:", [slices.create()]),
    (f"{every}, until its state is ACTIVE:", [slices.describe()]),
    (
      "The code and the start, unless all workers are running:",
      [
        *slices.status(),
        *code.pack(),
        *slices.send(code),
        *slices.start(code, train),
      ],
    ),
    (
      f"{every}, until no worker is running:",
      [
        slices.describe(),
        *slices.status(),
      ],
    ),
    (
      "If a worker does not answer:",
      [slices.describe_node(node) for node in slices.nodes],
    ),
    ("If workers go on long after one has failed:", slices.stop()),
    ("If the slice is lost, and then all from the top:", [slices.delete()]),
    ("At the end:", slices.logs("0", _TAIL, follow=False)[:1]),
  ]
  for step, commands in steps:
    print(f"# {step}")
    job.execute(commands, dry_run=True)
  return 0


def _status(values: flags.FlagValues, arguments: Sequence[str]) -> int:
  del arguments
  slices = _Slices(values)
  if values.dry_run:
    job.execute([slices.describe(), *slices.status()], dry_run=True)
    return 0
  state, message = _state(slices)
  job.say(f"{slices.name} is {state or 'not there'} {message}".rstrip())
  if state == "ACTIVE":
    job.execute(slices.status())
  return 0


def _logs(values: flags.FlagValues, arguments: Sequence[str]) -> int:
  del arguments
  commands = _Slices(values).logs(values.worker, values.lines, values.follow)
  if values.follow and len(commands) > 1:
    raise ValueError(
      f"--follow reads one slice, and there are {len(commands)}; leave it out."
    )
  job.execute(commands, values.dry_run)
  return 0


def _stop(values: flags.FlagValues, arguments: Sequence[str]) -> int:
  del arguments
  job.execute(_Slices(values).stop(), values.dry_run)
  return 0


def _delete(values: flags.FlagValues, arguments: Sequence[str]) -> int:
  del arguments
  job.execute([_Slices(values).delete()], values.dry_run)
  return 0


def main(argv: Sequence[str]) -> int:
  """Runs the action that the command line names."""
  values = flags.FlagValues()
  job.define(values)
  job.define_place(values)
  job.define_logs(values)
  flags.DEFINE_bool(
    "internal_ip",
    False,
    "VMs without external addresses; start this in their network.",
    flag_values=values,
  )
  flags.DEFINE_string(
    "service_account",
    None,
    "Account of the VMs, which may read and write the bucket.",
    flag_values=values,
  )
  flags.DEFINE_float(
    "poll_s", 60.0, "Seconds between looks.", 0.0, flag_values=values
  )
  flags.DEFINE_string(
    "worker", "0", "Of a slice, whose log is shown.", flag_values=values
  )
  place = ("name", "project", "zone")
  return job.run(
    argv,
    values,
    {
      "create": (_create, (*place, "topology")),
      "run": (_run, (*place, "topology", "workdir", "config")),
      "status": (_status, place),
      "logs": (_logs, place),
      "stop": (_stop, place),
      "delete": (_delete, place),
    },
    __doc__,
  )


if __name__ == "__main__":
  sys.exit(main(sys.argv))
