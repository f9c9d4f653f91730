"""Description, then plan, then engine: what may import what."""

from __future__ import annotations

import ast
from pathlib import Path

import towerpack.dataflow.parallel

PARALLEL = Path(towerpack.dataflow.parallel.__file__).parent
# Stages, and what compiles their plans for workers.
ASK_FLOWS = {"_prefetch", "_compile_for_workers", "_sequential_source", "_unpicklable"}
FLOWS = ("_flow", "_compile", "stage_context", "stages")


def test_the_engine_asks_no_flow() -> None:
    importing = {
        path.stem
        for path in PARALLEL.glob("_[a-z]*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[2:3]
        if (node.module or "").split(".")[2] in FLOWS
    }
    assert importing == ASK_FLOWS
