#!/bin/bash
# release.sh [SOURCE [OUT]] - makes all files of the release that the tag of the checkout SOURCE names, in OUT (dist/TAG).
# Publishes nothing. Needs what build.sh needs, and build, twine and cyclonedx-bom (`make .venv/.tools`).
set -euo pipefail
cd "$(dirname "$0")/.."
. packaging/settings.sh
source=$(realpath "${1:-.}")
fail() { echo "release.sh: $*" >&2; exit 1; }

version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' "$source/provisioner/__init__.py")
tag=$(git -C "$source" describe --tags --exact-match --match 'v*' 2>/dev/null) || fail "HEAD has no tag: run \`git tag v$version\`"
[ "$tag" = "v$version" ] || fail "the tag $tag differs from the version $version in provisioner/__init__.py"
[ -z "$(git -C "$source" status --porcelain)" ] || fail "uncommitted changes: see \`git status\`"
entries=$(cd "$source" && ls changes.d | grep -v '^README.md$') &&
    fail "changes.d has entries (${entries//$'\n'/, }): run \`towncrier build --version $version\`"
out=$(realpath -m "${2:-dist/$tag}")
[ ! -e "$out" ] || fail "$out exists: remove it first"
mkdir -p "${out%/*}"
made=$(mktemp -d -p "${out%/*}")
trap 'rm -rf "$made"' EXIT
chmod 755 "$made"
awk -v heading="## [$version]" '/^## / { inside = index($0, heading) == 1; next } inside' "$source/CHANGELOG.md" >"$made/CHANGES.md"
grep -q '[^[:space:]]' "$made/CHANGES.md" || fail "CHANGELOG.md has no section \`## [$version]\`, or it is empty"

SOURCE_DATE_EPOCH=$(git -C "$source" log -1 --format=%ct)
export SOURCE_DATE_EPOCH
"$PYTHON" -m build --no-isolation --outdir "$made" "$source" >/dev/null
"$PYTHON" -m twine check --strict "$made"/*.tar.gz "$made"/*.whl
"$PYTHON" -m cyclonedx_py requirements "$source/requirements/all.txt" --pyproject "$source/pyproject.toml" \
    --output-reproducible -o "$made/$NAME-$version.cdx.json"
packaging/build.sh "$source" "$made"
sums=$(cd "$made" && sha256sum -- *)
echo "$sums" | tee "$made/SHA256SUMS"
mv -T "$made" "$out"
