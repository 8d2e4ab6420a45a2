#!/bin/bash
# lock.sh [OPTION...] - writes requirements/*.txt: versions of all packages, with the hashes of their files;
# and constraints.txt, the versions alone, for `pip install -c` beside packages of your own.
# Needs uv and the package index. Run it after a change of dependencies in pyproject.toml: what is locked stays, where it can.
# To move on: packaging/lock.sh --upgrade, or --upgrade-package NAME; then `make dev` and `make test`.
set -euo pipefail
cd "$(dirname "$0")/.."
. packaging/settings.sh
lock() {
    local out=requirements/$1.txt
    shift
    uv pip compile -q --universal --python-version "${PYTHONS%% *}" --generate-hashes --no-emit-index-url --no-annotate \
        --no-header "$@" -o "$out"
    sed -i -e '1i # Made by packaging/lock.sh; do not edit.' -e '/^# Made by/d' "$out"
}
# dev.txt has all that the tests run with; the others take its versions.
lock dev pyproject.toml --extra all --group dev "$@"
lock all pyproject.toml --extra all -c requirements/dev.txt
lock runtime pyproject.toml -c requirements/dev.txt
lock tools --group release --group mutants -c requirements/dev.txt "$@"
# What a build in the environment itself needs (pip --no-build-isolation).
printf '%s\n' editables "$(sed -n 's/^requires = \[\(.*\)\]/\1/p' pyproject.toml | tr -d '" ' | tr , '\n')" |
    lock build - -c requirements/dev.txt "$@"
sed -n 's/^\([^ #]*==[^\\]*[^\\ ]\) *\\*$/\1/p' requirements/dev.txt requirements/build.txt | sort -u |
    sed '1i # Made by packaging/lock.sh; do not edit.' >constraints.txt
