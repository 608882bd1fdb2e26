#!/usr/bin/env bash
# Make .venv, or bring it up to date; return at once when nothing that decides its content has changed.
#
#   scripts/make_env.sh          the environment, with torch only where a CPU build of it is on offer
#   scripts/make_env.sh torch    the environment, and a CPU build of torch from PyTorch's own index
#
# PYTHON=python3.13 chooses the interpreter. The default is python3.12, else 3.11.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv
python=$venv/bin/python
stamp=$venv/.labkit-stamp
torch=$(cat constraints/torch.txt)
pins=$(mktemp)
trap 'rm -f "$pins"' EXIT

main() {
    if [ "${1:-}" != torch ] && [ "$(cat $stamp 2>/dev/null)" = "$(state)" ]; then return; fi
    make_venv
    install_labkit
    if ! has torch; then add_torch "${1:-}"; fi
    if has torch; then
        echo "installing the other side of the parity tests (Transformers and PEFT on torch)"
        pin
        pip install --editable '.[parity]'
    fi
    state >$stamp
}

# What decides the environment's content: files, place, interpreter asked for, and whether torch is there.
state() {
    echo "$(cat pyproject.toml constraints/*.txt scripts/make_env.sh | cksum) ${PYTHON:-} $PWD" \
        "$(ls -d $venv/lib/python*/site-packages/torch 2>/dev/null || true)"
}

make_venv() {
    if is_right; then return; fi
    chosen=$(find_python)
    echo "making $venv with Python $(version "$chosen")"
    "$chosen" -m venv --clear $venv
}

# Working, made here (a venv cannot be moved), and of the version that was asked for.
is_right() {
    works $python && grep -qsF "$PWD/$venv" $venv/bin/activate &&
        { [ -z "${PYTHON:-}" ] || [ "$(version "$PYTHON")" = "$(version $python)" ]; }
}

install_labkit() {
    echo "installing labkit and what it needs (a few minutes the first time)"
    pin
    pip install --editable '.[dev,tpu]'
}

add_torch() {
    if [ "$(uname -s)" = Darwin ]; then
        pip install "$torch" # the only build for macOS is one for CPUs
    elif pip install "$torch+cpu" 2>/dev/null; then
        echo "added a CPU build of torch"
    elif [ "$1" = torch ]; then
        pip install uv
        $venv/bin/uv pip install --python $python --torch-backend cpu "$torch"
    else
        echo "torch is left out: only a CUDA build of several GB is on offer here. Nothing but the parity tests needs it."
        echo "A CPU build is added by: make torch"
    fi
}

# A name on PATH may be a shim that fails when it is called, so each is tried.
find_python() {
    for name in ${PYTHON:-python3.12 python3.11 python3 python}; do
        if works "$name" && { [ -n "${PYTHON:-}" ] || is_tested "$name"; }; then
            echo "$name"
            return
        fi
    done
    cat >&2 <<MESSAGE
error: ${PYTHON:-python3.12 or python3.11} was not found, or cannot make virtual environments. Install it with one of
  Debian, Ubuntu:  sudo apt-get install -y python3 python3-venv
  macOS:           brew install python@3.12
  conda:           conda env create -f environment.yml && conda activate labkit
MESSAGE
    return 1
}

works() { "$1" -c 'import sys, ensurepip, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; }
is_tested() { case $(version "$1") in 3.11 | 3.12) ;; *) return 1 ;; esac; }
version() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])'; }
has() { $python -c "import importlib.metadata as m; m.version('$1')" 2>/dev/null; }
pip() { "$python" -m pip --disable-pip-version-check --quiet "$1" --constraint "$pins" "${@:2}"; }

# The tested versions, and any torch that is there already: it stays, whichever it is.
pin() {
    local file
    file=constraints/py$(version $python | tr -d .).txt
    if [ -f "$file" ]; then cat "$file"; else echo "# no tested versions for this Python"; fi >"$pins"
    if has torch; then $python -c "import importlib.metadata as m; print('torch==' + m.version('torch'))" >>"$pins"; fi
}

main "$@"
