# Sourced by the scripts beside it: makes sure that .venv holds exactly what the lock file says, and goes to the project's root.
# A missing or damaged .venv is built anew; one made from another lock file is brought up to date.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PIP_DISABLE_PIP_VERSION_CHECK=1

_python() {
    local candidate
    for candidate in "${PYTHON:-}" python3.13 python3.12 python3.11 python3; do
        [ -n "$candidate" ] && command -v "$candidate" >/dev/null || continue
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "kvorum needs Python 3.11 or newer (set PYTHON to its path)" >&2
    return 1
}

_wanted() { cat requirements/dev.txt pyproject.toml client/kvorum/_version.py | sha256sum | cut -d' ' -f1; }

_sound() {
    [ "$(cat .venv/lock.sha256 2>/dev/null)" = "$(_wanted)" ] &&
        .venv/bin/python -c 'import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, ("kvorum", "kvorum_node", "grpc", "lmdb", "pysyncobj", "pytest"))))' 2>/dev/null
}

_install() {
    local python=.venv/bin/python
    if ! "$python" -m pip --version >/dev/null 2>&1; then
        rm -rf .venv
        "$(_python)" -m venv .venv
    fi
    rm -f .venv/lock.sha256
    "$python" -m pip install --quiet --require-hashes -r requirements/dev.txt
    "$python" -m pip install --quiet --no-deps --no-build-isolation --editable .
    _wanted >.venv/lock.sha256
}

_repair() {
    _install && _sound && return
    rm -rf .venv   # damaged in a way that pip did not notice
    _install && _sound
}

if ! _sound; then
    echo "setting up .venv from requirements/dev.txt …" >&2
    exec 9>.venv.lock
    flock 9
    _sound || _repair
    exec 9>&-
fi
