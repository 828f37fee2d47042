#!/usr/bin/env bash
# Makes or updates a virtual environment with everything Forerun needs: scripts/install.sh VENV cpu|cuda
#
# uv installs, inside the environment, because it can leave out the three packages that pyproject.toml excludes.
# The CPU build of torch is not on PyPI. Where pip is configured with a folder of wheels (find-links) that holds one,
# uv gets that folder; elsewhere uv's --torch-backend knows the index.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=$1
extra=$2
python=${PYTHON:-python3}
uv_version=0.13.9

case $extra in
    cpu | cuda) ;;
    *) echo "error: FORERUN_EXTRA is '$extra'; it must be cpu or cuda" >&2; exit 2 ;;
esac
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "error: $("$python" -V 2>&1) is too old; set PYTHON to an interpreter of version 3.11 or later" >&2
    exit 2
fi

# UV_PYTHON would beat -p and change another interpreter.
unset UV_PYTHON
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check "uv==$uv_version"

wheel_folders() {
    local links
    links=${PIP_FIND_LINKS:-$("$venv/bin/python" -m pip config get global.find-links 2>/dev/null || true)}
    for folder in $links; do
        if compgen -G "$folder/torch-*.whl" >/dev/null; then echo "$folder"; fi
    done | paste -sd, -
}

options=()
if [ "$extra" = cpu ]; then
    folders=${UV_FIND_LINKS:-$(wheel_folders)}
    if [ -n "$folders" ]; then export UV_FIND_LINKS=$folders; else options+=(--torch-backend cpu); fi
fi

# Compiled now, once; else the five processes of the first start would each compile the engine for themselves.
options+=(--compile-bytecode)
version=$("$venv/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
if [ "$version" = 3.11 ]; then
    "$venv/bin/uv" pip sync --quiet -p "$venv/bin/python" "${options[@]}" "requirements-$extra.lock"
    "$venv/bin/uv" pip install --quiet -p "$venv/bin/python" --no-deps -e .
else
    echo "note: the lock file is for Python 3.11; resolving afresh for $version"
    "$venv/bin/uv" pip install --quiet -p "$venv/bin/python" "${options[@]}" -e ".[$extra,dev]"
fi
echo "Forerun is installed in $venv ($extra, Python $version)"
