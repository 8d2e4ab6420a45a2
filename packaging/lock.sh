#!/bin/bash
# lock.sh - writes packaging/requirements.txt: the wheels of the packages, of the versions in constraints.txt, with their hashes.
#
# Needs uv and the package index. Run it after a change of pyproject.toml or constraints.txt.
set -euo pipefail
cd "$(dirname "$0")/.."
. packaging/settings.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
uv pip compile -q pyproject.toml $(printf -- '--extra %s ' $EXTRAS) -c constraints.txt --universal --python-version "${PYTHONS%% *}" \
    --generate-hashes --no-emit-index-url --no-annotate --no-header --only-binary :all: -o "$work/all.txt"
# Of a hundred files of a release, the packages install at most three.
for version in $PYTHONS; do
    pip_for "$version" download -r "$work/all.txt" -d "$work/wheels"
done
sha256sum "$work"/wheels/*.whl | cut -d' ' -f1 >"$work/used"
{
    echo "# Made by packaging/lock.sh; do not edit. Python $PYTHONS."
    sed -z 's/ \\\n */ /g' "$work/all.txt" | awk -v used="$work/used" '
        BEGIN { while ((getline hash < used) > 0) wanted["--hash=sha256:" hash] = 1 }
        { line = ""; hashes = 0
          for (i = 1; i <= NF; i++) if ($i !~ /^--hash/ || $i in wanted) { line = line $i " "; hashes += $i ~ /^--hash/ }
          if (hashes) { sub(/ $/, "", line); print line } }'
} >packaging/requirements.txt
