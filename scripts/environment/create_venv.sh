#!/usr/bin/env bash
# Makes .venv, or brings it up to date: the packages of scripts/requirements/lock.txt and this project, editable.
#
# usage: scripts/environment/create_venv.sh          PYTHON=/path/to/python3 chooses the interpreter
#
# An existing .venv with a working interpreter is kept and only updated.  The stamp file is written last, so
# an interrupted run is repeated by the next `make`.  What is missing is named in one line.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source scripts/environment/apt.sh

venv=.venv
lock=scripts/requirements/lock.txt
stamp=$venv/.installed

fail() {
    echo "error: $*" >&2
    exit 1
}

is_supported() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1
}

find_python() {
    local candidate
    if [[ -n "${PYTHON:-}" ]]; then
        is_supported "$PYTHON" || fail "PYTHON=$PYTHON is not a Python of version 3.10 or newer"
        echo "$PYTHON"
        return
    fi
    for candidate in python3 python3.13 python3.12 python3.11 python3.10; do
        if is_supported "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    fail "Python 3.10 or newer is needed, and no python3 on the PATH is; install it, or name it with PYTHON=..."
}

# Debian's python3 comes without ensurepip; the package python3.X-venv brings it.
make_venv() {
    local python=$1 version package
    rm -rf "$venv"
    if ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
        version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        package="python$version-venv"
        apt_install "$package" || apt_install python3-venv ||
            fail "$python cannot make virtual environments; install them with: apt-get install $package"
    fi
    "$python" -m venv "$venv" || fail "$python -m venv $venv failed; is there space, and may you write here?"
}

if ! is_supported "$venv/bin/python" || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    python=$(find_python)
    echo "Making $venv with $("$python" --version)"
    make_venv "$python"
fi

echo "Installing the pinned packages; the first time this takes some minutes, Spark alone is 400 MB"
pip=("$venv/bin/python" -m pip --disable-pip-version-check --no-input)
# pyspark is built from source here.  Without isolation the build uses the pinned setuptools.
"${pip[@]}" install --quiet "$(grep '^setuptools==' "$lock")"
"${pip[@]}" install --quiet --no-build-isolation --use-pep517 --requirement "$lock"
"${pip[@]}" install --quiet --no-build-isolation --no-deps --editable .
"${pip[@]}" check
touch "$stamp"
