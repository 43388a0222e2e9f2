#!/usr/bin/env bash
# Reports whether the package works with the newest versions of everything it
# depends on, ignoring constraints.txt. It only reports: a release elsewhere
# must not turn this repository red, so the exit status is always 0.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 0

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
newest=(make --no-print-directory "VENV=$work/venv" CONSTRAINTS=)
# macOS has no `timeout`; there, a check that hangs is seen by a person.
command -v timeout > /dev/null || timeout() { shift; "$@"; }

verdict=PASS
check() { # check NAME COMMAND...: 15 minutes, and the end of what it printed.
  local name=$1 start=$SECONDS result=pass
  shift
  timeout 900 "$@" > "$work/log" 2>&1 < /dev/null || result=FAIL verdict=FAIL
  tail -n "$([ "$result" = pass ] && echo 3 || echo 40)" "$work/log" \
    | sed 's/^/    /'
  echo "newest: $name: $result ($((SECONDS - start)) s)"
  [ "$result" = pass ]
}

versions() { # Of what is installed, where constraints.txt says otherwise.
  comm -13 <(sort constraints.txt) \
    <("$work/venv/bin/python" -m pip freeze --all --exclude-editable | sort) \
    | grep -v '^pip==' || echo "none"
}

if check install "${newest[@]}" "$work/venv/with-test" "$work/venv/with-plot"
then
  # gymnax keeps jax below 0.12; the rest of the package is to work with the
  # newest. pip warns of the conflict and installs.
  check "newest jax" "$work/venv/bin/python" -m pip install --quiet --upgrade \
    jax jaxlib
  echo "newest: versions that differ from constraints.txt:"
  versions | sed 's/^/    /'
  check tests "${newest[@]}" test ARGS=tests/ops
  few="--config.sft.steps=2 --config.rl.steps=2"
  check training "${newest[@]}" quickstart WORKDIR="$work/run" \
    ARGS="$few --config.required_accuracy=0.0"
fi
echo "newest: $verdict (a report; it fails nothing)"
exit 0
