#!/usr/bin/env bash
# Reports whether the package works with the newest versions of everything it
# depends on, ignoring constraints.txt. It only reports: a release elsewhere
# must not turn this repository red, so the exit status is always 0. Where no
# package that it needs to run has a newer version, `make test` is the report.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 0

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
make=(make --no-print-directory)
newest=("${make[@]}" "VENV=$work/venv" CONSTRAINTS=)
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

names() { # What `pip install grpo_jax` asks for, without versions.
  .venv/bin/python -c '
import importlib.metadata, re
for line in importlib.metadata.requires("grpo_jax"):
  if "extra ==" not in line:
    print(re.match(r"[\w-]+", line)[0])' | sort -u
}

resolve() { # resolve PACKAGE...: adds what pip would install to newer.txt.
  .venv/bin/python -m pip install --dry-run --upgrade "$@" > "$work/pip.txt" \
    && sed -n 's/^Would install //p' "$work/pip.txt" >> "$work/newer.txt"
}

something_is_newer() {
  "${make[@]}" .venv/with-test .venv/with-plot > /dev/null \
    && resolve $(names) \
    && resolve jax jaxlib && [ ! -s "$work/newer.txt" ] && return 1
  return 0
}

versions() { # Of what is installed, where constraints.txt says otherwise.
  comm -13 <(sort constraints.txt) \
    <("$work/venv/bin/python" -m pip freeze --all --exclude-editable | sort) \
    | grep -v '^pip==' || echo "none"
}

if ! something_is_newer 2> "$work/warnings.txt"; then
  echo "newest: PASS (nothing that it needs to run is newer than in" \
    "constraints.txt, with which make test has run)"
  exit 0
fi
echo "newest: newer than in constraints.txt:" \
  "$(cat "$work/newer.txt" 2> /dev/null || cat "$work/warnings.txt")"
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
