#!/bin/sh
# make-venv.sh DIR - makes a Python virtual environment at DIR with the host's own Python (3.11 or newer).
#
# Debian and Ubuntu keep what a virtual environment needs in a package of its own, python3-venv: as root (or where sudo
# asks for no password) it is installed, otherwise the one command to run is printed. PYTHON names another interpreter.
set -eu
dir=$1

fail() { echo "$*" >&2; exit 1; }

# Install packages where that is ours to do; else say what to run, and why.
need() {
    why=$1; shift
    command -v apt-get >/dev/null 2>&1 || fail "$why: install it with your system's packages, then run this again"
    if [ "$(id -u)" = 0 ]; then
        as_root='env'
    elif sudo -n true 2>/dev/null; then
        as_root='sudo -n env'
    else
        fail "$why. Run this once, then this again:  sudo apt-get install -y $*"
    fi
    echo "$why: installing $*" >&2
    $as_root apt-get -q update >/dev/null
    $as_root DEBIAN_FRONTEND=noninteractive apt-get -q install -y "$@" >/dev/null
}

find_python() {
    for candidate in ${PYTHON:-} python3 python3.14 python3.13 python3.12 python3.11; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
}

version() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }

python=$(find_python)
if [ -z "$python" ]; then
    need "Python 3.11 or newer is missing" python3 python3-venv
    python=$(find_python)
    [ -n "$python" ] || fail "This system's Python is older than 3.11. With one from elsewhere: make venv PYTHON=/path/to/python3"
fi
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    # An interpreter that is not the distribution's usual one has a package of its own.
    package=python3-venv
    [ "$(version "$python")" = "$(version /usr/bin/python3)" ] || package=python$(version "$python")-venv
    need "$python cannot make virtual environments" "$package"
fi

rm -rf "$dir"
"$python" -m venv "$dir"
