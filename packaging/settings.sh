# Settings of build.sh and lock.sh.
NAME=gpu-drone-provisioner
HOME_DIR=/opt/$NAME
EXTRAS=all
PYTHONS="3.11 3.12 3.13"  # EL 9: 3.11 and 3.12, Debian 12: 3.11, Ubuntu 24.04: 3.12, Debian 13: 3.13
PYTHON=${PYTHON:-python3}
# Run pip for another version of Python, with wheels that run on EL 8 and everything newer.
pip_for() {
    local version=$1 command=$2
    shift 2
    "$PYTHON" -m pip --disable-pip-version-check -q "$command" --python-version "$version" --only-binary=:all: --no-deps \
        --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux_2_17_x86_64 \
        --platform manylinux2014_x86_64 "$@"
}
