#!/usr/bin/env bash
# A GPU day: everything that a CUDA device can show about mmspec, within 12 minutes, without weights and a network.
# It needs torch, triton, transformers, numpy and pytest; wheels that lie in examples/gpu/wheels are used too (README.md).
#   examples/gpu/day.sh [PART ...] [-o FOLDER] [--device cuda] [--tiny] [--limit SECONDS] [--last RECORD.json]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
paths=$root:$here
if compgen -G "$here/wheels/*.whl" >/dev/null; then
    site=$(mktemp -d)
    trap 'rm -rf "$site"' EXIT
    # Pure wheels are archives of modules: no pip is needed.
    for wheel in "$here"/wheels/*.whl; do
        "${PYTHON:-python3}" -m zipfile -e "$wheel" "$site"
    done
    paths=$paths:$site
fi
PYTHONPATH=$paths${PYTHONPATH:+:$PYTHONPATH} "${PYTHON:-python3}" -m gpu_bench.day "$@"
