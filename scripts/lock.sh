#!/usr/bin/env bash
# Resolves requirements-cpu.lock and requirements-cuda.lock from pyproject.toml, for Python 3.11 on Linux x86-64.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=$1
unset UV_PYTHON
for extra in cpu cuda; do
    options=()
    if [ "$extra" = cpu ]; then
        links=${UV_FIND_LINKS:-$("$venv/bin/python" -m pip config get global.find-links 2>/dev/null || true)}
        if [ -n "$links" ]; then export UV_FIND_LINKS=${links// /,}; else options+=(--torch-backend cpu); fi
    fi
    # The output names no index and no folder, so one lock serves every machine.
    "$venv/bin/uv" pip compile --quiet --upgrade -p 3.11 --extra "$extra" --extra dev "${options[@]}" \
        --no-annotate --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" \
        pyproject.toml -o "requirements-$extra.lock"
done
