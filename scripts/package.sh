#!/usr/bin/env bash
# Builds the sdist and the wheel, and tries the wheel as a stranger would: in an
# empty virtual environment, in a folder that is not this repository.
#
#   scripts/package.sh [FOLDER]
#
# FOLDER gets both files; by default they are removed with everything else.
# PYTHON is the interpreter that has setuptools, and of which the environment is
# made; CONSTRAINTS is for pip. The network is used for packages that pip does
# not have in its cache.
set -euo pipefail
cd "$(dirname "$0")/.."

root=$PWD
python=$(realpath -s "${PYTHON:-.venv/bin/python}")
constraints=${CONSTRAINTS---constraint constraints.txt}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
out=$work/dist
[ $# = 0 ] || out=$(mkdir -p "$1" && cd "$1" && pwd)
export PIP_DISABLE_PIP_VERSION_CHECK=1 JAX_PLATFORMS=cpu
unset PYTHONPATH

said() { printf 'package: %s (at %d s)\n' "$1" "$SECONDS"; }

fail() {
  printf 'package: FAILED: %s\n' "$1" >&2
  exit 1
}

build() { # build KIND FROM TO: KIND is sdist or wheel. Prints the file's name.
  (cd "$2" && "$python" -c "
import sys, setuptools.build_meta as backend
backend.build_$1(sys.argv[1])" "$3") > "$work/$1.log" 2>&1 \
    || { cat "$work/$1.log"; fail "the $1 cannot be built"; }
  # That there are no .pyc files is wanted: pip writes those of its Python.
  if grep -iE 'warning|deprecat' "$work/$1.log" \
    | grep -v 'byte-compiling is disabled'; then
    fail "setuptools warns while it builds the $1"
  fi
}

# What is committed, with changes of files that git knows; nothing is built in
# the working tree, where an old build/ would become part of the wheel.
commit=$(git stash create)
mkdir -p "$work/tree" "$work/again" "$work/direct" "$out"
git archive "${commit:-HEAD}" | tar -xf - -C "$work/tree"
git -C "$work/tree" init --quiet
git -C "$work/tree" fetch --quiet --depth=1 "$root" "$(git rev-parse HEAD)"
git -C "$work/tree" update-ref HEAD FETCH_HEAD
git -C "$work/tree" reset --quiet

build sdist "$work/tree" "$out"
build wheel "$work/tree" "$work/direct"
sdist=$(ls "$out"/grpo_jax-*.tar.gz)
tar -xzf "$sdist" -C "$work/again" --strip-components=1
build wheel "$work/again" "$out"
wheel=$(ls "$out"/grpo_jax-*.whl)
"$python" - "$wheel" "$work"/direct/*.whl << 'PYTHON' || fail "wheels differ"
import sys, zipfile

def content(path):
  with zipfile.ZipFile(path) as file:
    # The date of the RECORD's own line aside, names and checksums are all.
    return {x.filename: x.CRC for x in file.infolist() if "RECORD" not in x.filename}

of_sdist, of_tree = map(content, sys.argv[1:])
if of_sdist != of_tree:
  print("not in both wheels:", sorted({*of_sdist.items()} ^ {*of_tree.items()}))
  sys.exit(1)
for name in "grpo_jax/commit.json", "grpo_jax/configs/recipes/dapo.py":
  if name not in of_sdist:
    sys.exit(f"{name} is missing")
if tops := {x.split("/")[0] for x in of_sdist if ".dist-info/" not in x} - {"grpo_jax"}:
  sys.exit(f"beside grpo_jax there are {tops}")
PYTHON
said "$(basename "$wheel") $(($(stat -c %s "$wheel") / 1024)) KiB,\
 $(basename "$sdist") $(($(stat -c %s "$sdist") / 1024)) KiB"

"$python" -m venv "$work/venv"
# shellcheck disable=SC2086  # Several words.
"$work/venv/bin/python" -m pip install --quiet --no-compile $constraints \
  "$wheel[plot]" > "$work/pip.log" 2>&1 \
  || { cat "$work/pip.log"; fail "pip cannot install the wheel"; }
if grep -E '^(ERROR|DEPRECATION)' "$work/pip.log"; then
  fail "pip is not quiet about the wheel"
fi
"$work/venv/bin/python" -m pip check > "$work/pip.log" \
  || { cat "$work/pip.log"; fail "pip finds what does not go together"; }
said "installed with $("$work/venv/bin/python" --version)"

mkdir "$work/elsewhere"
cd "$work/elsewhere"
PATH=$work/venv/bin:$PATH
few="--config.sft.steps=2 --config.rl.steps=2 --config.required_accuracy=0.0"
# shellcheck disable=SC2086
grpo-train --config=quickstart --workdir=runs/quickstart $few > train.log 2>&1 \
  || { cat train.log; fail "grpo-train"; }
grep -q '"commit"' runs/quickstart/environment.json \
  || fail "the run does not know the commit"
prompt='abcdef='
grpo-sample --workdir=runs/quickstart --prompt="$prompt" > sample.log 2>&1 \
  || { cat sample.log; fail "grpo-sample"; }
said "grpo-train and grpo-sample have run"

# The Python of README.md, with fewer steps.
python - "$root/README.md" > readme.log 2>&1 << 'PYTHON' \
  || { cat readme.log; fail "the example of README.md"; }
import pathlib, re, sys

readme = pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")
(block,) = re.findall(r"(?ms)^```python\n(import .*?)^```$", readme)
# Without reinforcement, whose program of gspo takes longest to compile.
short = block.replace('"rl.steps": 50', '"sft.steps": 2, "phases": ("sft",)')
assert short != block, block
exec(compile(short, "README.md", "exec"), {"__name__": "__main__"})
PYTHON
[ -f runs/gspo/result.json ] || fail "README.md has left no run"
said "README.md has run"

# A missing accelerator is a sentence.
mistake() { # mistake PATTERN COMMAND...
  local pattern=$1 status=0
  shift
  env "${environment[@]}" "$@" > mistake.log 2>&1 || status=$?
  tr '\n' ' ' < mistake.log | grep -qE "$pattern" && [ "$status" = 2 ] \
    && ! grep -q Traceback mistake.log \
    || { cat mistake.log; fail "$* (status $status)"; }
}
for program in "$work"/venv/bin/grpo-*; do
  "$program" --help > help.log || true  # absl leaves with 1.
  grep -q 'flags:' help.log || { cat help.log; fail "$program"; }
done
grpo-config --config=recipes/r1:toy > config.log || { cat config.log; fail "grpo-config"; }
python -c 'import grpo_jax; grpo_jax.config("recipes/dapo", "toy")' || fail "a config"
environment=(JAX_PLATFORMS=tpu)
no_tpu="pip install 'grpo_jax\[tpu\]'.*JAX_PLATFORMS=cpu"
mistake "$no_tpu" grpo-train --config=configs/quickstart.py --workdir=runs/a
mistake "$no_tpu" grpo-evaluate --workdir=runs/quickstart
said "a missing TPU is explained"
