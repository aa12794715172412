#!/usr/bin/env bash
# A folder (out/peers unless told) and names of peers (all unless told) in; a virtual environment for each out.
#   benchmarks/peers.sh                       every peer
#   benchmarks/peers.sh out/peers joeynmt     one of them
# torch comes first and everything after it is held to the same one, so that what differs is the toolkit alone.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
folder=${1:-$here/out/peers}
shift || true
[ $# -gt 0 ] || set -- joeynmt opennmt eole

environment() { # a name, then what pip installs beside torch, all under the constraint
    local bin=$folder/$1/bin
    shift
    [ -x "$bin/python" ] || "${PYTHON:-python3}" -m venv "$(dirname "$bin")"
    "$bin/python" -m pip install --quiet --upgrade pip
    "$bin/python" -m pip install --quiet -c "$folder/constraints.txt" torch==2.13.0 numpy
    "$bin/python" -m pip install --quiet -c "$folder/constraints.txt" "$@"
}

mkdir -p "$folder"
echo 'torch==2.13.0' >"$folder/constraints.txt"
for peer in "$@"; do
    echo "$peer: installing into $folder/$peer" >&2
    case $peer in
    joeynmt) # asks for an older torch and for torchtext; it needs neither
        environment joeynmt 'sentencepiece<0.2' 'numpy<2.4' 'setuptools<81' pyyaml subword-nmt sacremoses sacrebleu \
            matplotlib seaborn pandas packaging tensorboard datasets importlib-metadata pillow protobuf
        "$folder/joeynmt/bin/python" -m pip install --quiet --no-deps joeynmt==2.3.0
        ;;
    opennmt) # asks for torch < 2.3
        environment opennmt 'setuptools<81' configargparse pyyaml six sacrebleu rapidfuzz tensorboard flask \
            waitress pyonmttok ctranslate2 pyahocorasick fasttext-wheel spacy regex
        "$folder/opennmt/bin/python" -m pip install --quiet --no-deps OpenNMT-py==3.5.1
        ;;
    eole) # imports aiohttp without asking for it; torchcodec breaks where there is no ffmpeg, and text needs none
        environment eole eole==0.6.4 aiohttp
        "$folder/eole/bin/python" -m pip uninstall --quiet --yes torchcodec
        ;;
    *)
        echo "$peer: not a peer known here; choose among joeynmt, opennmt, eole" >&2
        exit 2
        ;;
    esac
done
