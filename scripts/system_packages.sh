#!/usr/bin/env bash
# See to it that programs outside Python are there: `scripts/system_packages.sh iverilog chromium`.
# apt is used where this user may; else it stops with the command for this kind of system.
set -euo pipefail

main() {
    local missing=()
    for program in "$@"; do
        if ! is_there "$program"; then missing+=("$program"); fi
    done
    if [ ${#missing[@]} -eq 0 ]; then return; fi
    if apt_works; then
        echo "installing ${missing[*]} with apt"
        apt_install "${missing[@]}" && return
        echo "error: apt could not install ${missing[*]}." >&2
    fi
    how_to "${missing[@]}" >&2
    return 1
}

is_there() {
    case $1 in
    chromium) command -v chromium || command -v chromium-browser || command -v google-chrome ;;
    *) command -v "$1" ;;
    esac >/dev/null
}

as_root() { if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo -n "$@"; fi; }

apt_works() { command -v apt-get >/dev/null && as_root true 2>/dev/null; }

# A fresh machine's package lists may be missing or old: they are fetched only if a first try fails.
apt_install() {
    local install=(env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@")
    as_root "${install[@]}" >/dev/null 2>&1 && return
    as_root apt-get update -qq && as_root "${install[@]}" >/dev/null
}

how_to() {
    echo "error: $* is missing. Install it with"
    echo "  Debian, Ubuntu:  sudo apt-get update && sudo apt-get install -y $*"
    for program in "$@"; do
        case $program in
        iverilog)
            echo "  macOS:           brew install icarus-verilog"
            echo "  conda:           conda install -y -c conda-forge iverilog"
            ;;
        chromium)
            echo "  macOS:           brew install --cask chromium"
            echo "  conda:           choreo_get_chrome    (conda-forge has no Chromium; kaleido fetches one)"
            ;;
        esac
    done
}

main "$@"
