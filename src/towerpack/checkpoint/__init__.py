"""Checkpoints on disk: written atomically, verified before use, readable without a framework.

A checkpoint is a directory with one safetensors file per group of tensors, `state.json` (values
that `encode_state` accepts) and `manifest.json` (sizes, checksums, versions). `_layout` shows the
directories, `_codec` and `_manifest` describe the files.

    with CheckpointStore(run / "checkpoints", keep=3) as store:
        store.save(100, {"model": arrays, "optimizer": slots}, state)   # returns at once
    checkpoint = load_checkpoint(run)                                   # the newest valid one
    weights = checkpoint.model["conv0/kernel"]
"""

from towerpack._core.extras import require

require("safetensors", extra="tf", needed_for="towerpack.checkpoint")

from towerpack.checkpoint._codec import decode_state as decode_state
from towerpack.checkpoint._codec import encode_state as encode_state
from towerpack.checkpoint._compare import compare_names as compare_names
from towerpack.checkpoint._find_and_read import AVERAGED as AVERAGED
from towerpack.checkpoint._find_and_read import Checkpoint as Checkpoint
from towerpack.checkpoint._find_and_read import list_abandoned as list_abandoned
from towerpack.checkpoint._find_and_read import list_checkpoints as list_checkpoints
from towerpack.checkpoint._find_and_read import load_checkpoint as load_checkpoint
from towerpack.checkpoint._manifest import CheckpointRow as CheckpointRow
from towerpack.checkpoint._manifest import FileRecord as FileRecord
from towerpack.checkpoint._manifest import Manifest as Manifest
from towerpack.checkpoint._store import CheckpointStore as CheckpointStore
from towerpack.checkpoint._weights import read_weights as read_weights
from towerpack.checkpoint.tensors import Tensors as Tensors
from towerpack.checkpoint.torch_file import read_torch_file as read_torch_file
