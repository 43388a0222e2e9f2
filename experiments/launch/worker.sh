#!/usr/bin/env bash
# What one TPU VM does for a run. experiments/launch/tpu_vm.py calls it over ssh.
#
#   worker.sh start EXTRAS [--secrets=...] ARGUMENT...
#                                       installs, then trains, in the background
#   worker.sh status                    one line that says how far it is
#   worker.sh stop                      SIGTERM, on which the run saves
#
# This file is RUN/code/experiments/launch/worker.sh. Beside RUN/code are venv/,
# log, pid (of the process group) and exit (the status, once there is one).
set -euo pipefail

run=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
# How long a run may take to save after SIGTERM.
patience_s=300

alive() {
  [[ -f $run/pid ]] || return 1
  local line
  line=/proc/$(< "$run/pid")/cmdline
  for _ in 1 2 3 4 5; do
    # A process of another name has been given the number since.
    grep -qs worker.sh "$line" && return 0
    # The line is empty for a moment while one program takes the place of
    # another (setsid, nohup, bash), and for good after the end of a process.
    grep -qs . "$line" && return 1
    [[ -e $line ]] || return 1
    sleep 0.05
  done
  return 1
}

# The images of TPU VMs have an older Python than grpo_jax needs; uv brings one.
install() {
  python3 -m pip install --quiet uv &&
    python3 -m uv venv --quiet --allow-existing --python=3.12 "$run/venv" &&
    python3 -m uv pip install --quiet --python="$run/venv/bin/python" \
      --constraint=constraints.txt --editable=".[$1]"
}

# 69 (EX_UNAVAILABLE): nothing was trained, and another attempt may succeed.
work() {
  local status=0 child='' stopped=''
  # To Python alone: the processes that score its rewards are needed until it
  # has saved.
  trap 'stopped=1; [[ -z $child ]] || kill -TERM "$child" || true' TERM
  cd "$run/code"
  if ! install "$1"; then
    status=69
  elif [[ -n $stopped ]]; then
    status=143
  else
    local python=$run/venv/bin/python command=()
    # Values of secrets come from the Secret Manager, here and at no other place.
    if [[ ${2-} == --secrets=* ]]; then
      command=("$python" -m experiments.launch.with_secrets "${2#--secrets=}")
      set -- "$1" "${@:3}"
    fi
    "${command[@]}" "$python" -m experiments.train "${@:2}" &
    child=$!
    wait "$child" || status=$?
    # A signal ends `wait` before the child has ended.
    while kill -0 "$child" 2> /dev/null; do
      status=0
      wait "$child" || status=$?
    done
  fi
  echo "$status" > "$run/exit.new"
  mv "$run/exit.new" "$run/exit"
}

status() {
  local state=absent
  if alive; then
    state=running
  elif [[ -f $run/exit ]]; then
    state="exited $(< "$run/exit")"
  elif [[ -f $run/pid ]]; then
    state=lost # Without a status: killed, or the VM was restarted.
  fi
  echo "grpo_jax worker $(hostname) $state"
}

start() {
  if ! alive; then
    rm -f "$run/exit"
    echo "=== $(date -u +%FT%TZ) $(hostname): experiments.train ${*:2}" \
      >> "$run/log"
    # A session of its own, so that the end of ssh is not the end of the run.
    setsid nohup bash "${BASH_SOURCE[0]}" work "$@" \
      >> "$run/log" 2>&1 < /dev/null &
    echo "$!" > "$run/pid"
  fi
  status
}

stop() {
  local waited=0
  if alive; then
    kill -TERM "$(< "$run/pid")"
    while alive && ((waited++ < patience_s)); do sleep 1; done
    if alive; then
      kill -KILL -- "-$(< "$run/pid")"
      echo 137 > "$run/exit"
    fi
  fi
  status
}

case ${1-} in
  start | status | stop | work) "$@" ;;
  *)
    echo "worker.sh: received '${1-}'; needed is start, status or stop." >&2
    exit 2
    ;;
esac
