#!/bin/sh
# From data to a served model that answers: train, evaluate, predict, tune, export, serve, ask.
#
#   sh examples/quickstart.sh          # a minute and a half on two cores; again: it goes on
#
# It needs `pip install "towerpack[all]"` and no download.
set -eu

out=${1:-runs/quickstart}
epochs=${EPOCHS:-15}
trials=${TRIALS:-8}

echo "== train"
towerpack train digits --run-dir "$out/digits" epochs="$epochs"

echo "== evaluate: each test digit once"
towerpack eval "$out/digits"

echo "== predict pictures in a folder"
python - "$out/pictures" <<'PYTHON'
import sys
from pathlib import Path

from towerpack.apps import write_picture
from towerpack.dataflow import datasets

digits = datasets.Digits("test", shuffle=False)
for i in range(12):
    name = f"{i:02d}-a-{digits.labels[i]}.png"
    write_picture(Path(sys.argv[1]) / name, (digits.images[i] * 15.9).astype("uint8"))
PYTHON
towerpack infer "$out/digits" "$out/pictures"

echo "== search for better settings, on validation data"
towerpack tune digits epochs=2 --trials "$trials" --out "$out/tune"

echo "== export, compared with the model"
towerpack export "$out/digits"

echo "== serve, and ask"
towerpack serve "$out/digits" --port 0 > "$out/serve.txt" &
server=$!
trap 'kill $server' EXIT
for _ in $(seq 120); do
    grep -q http "$out/serve.txt" && break
    kill -0 $server
    sleep 1
done
url=$(sed 's/.*\(http[^ ]*\)\/ .*/\1/' "$out/serve.txt")
towerpack client "$url" "$out"/pictures/*.png
