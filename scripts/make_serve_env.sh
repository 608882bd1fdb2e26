#!/usr/bin/env bash
# Make .venv-serve: vLLM for CPUs, in an environment of its own, since it wants other versions of Transformers, NumPy
# and numba than the course. Returns at once when it is there. About two minutes and 3 GB.
#
# The pinned versions are for Python 3.11 on Linux x86-64; PYTHON names the interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv-serve
pins=constraints/serve-py311.txt
torch=$(cat constraints/torch.txt)
stamp=$venv/.labkit-stamp
python=${PYTHON:-python3.11}

main() {
    if [ "$(cat $stamp 2>/dev/null)" = "$(state)" ]; then return; fi
    supported || { instead >&2; exit 1; }
    echo "making $venv with vLLM for CPUs"
    rm -rf $venv
    "$python" -m venv $venv
    # First a CPU build of torch: what vLLM's wheel asks for (+cpu) is not on every index.
    add_torch || { no_torch >&2; exit 1; }
    # All else exactly as pinned. Its other requirements are left out: torchaudio, torchvision, torchcodec (unused for
    # text; they would bring another torch) and intel-openmp.
    pip install --no-deps --requirement $pins || { instead >&2; exit 1; }
    $venv/bin/python -c 'import vllm' || { instead >&2; exit 1; }
    state >$stamp
}

state() { echo "$(cat $pins constraints/torch.txt scripts/make_serve_env.sh | cksum) $PWD"; }

supported() {
    [ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] &&
        "$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null
}

add_torch() {
    pip install "$torch+cpu" 2>/dev/null && return
    pip install uv && $venv/bin/uv pip install --python $venv/bin/python --torch-backend cpu "$torch"
}

pip() { $venv/bin/python -m pip --disable-pip-version-check --quiet "$@"; }

no_torch() {
    cat <<'MESSAGE'
error: no CPU build of torch could be installed. Install one into .venv-serve as PyTorch's own page says for
  "Linux, Pip, CPU", then run make serve-env again; or serve elsewhere, see below.
MESSAGE
    instead
}

instead() {
    cat <<'MESSAGE'
error: vLLM for CPUs could not be installed here (the pins are for Linux x86-64 with Python 3.11; on Debian 12:
  sudo apt-get install -y python3.11 python3.11-venv; else PYTHON=/path/to/python3.11 make serve-env).
Everything else of the course works without it; only the tests marked vllm are skipped. To serve a converted directory
  on a Mac or a Linux without wheels:  transformers serve DIR     (slow, text only)
  in a container:                      the image vllm/vllm-openai-cpu, with DIR mounted
  on a TPU VM:                         pip install vllm-tpu, then vllm serve DIR
MESSAGE
}

main
