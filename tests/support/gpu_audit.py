"""Finds the copies between host and GPU of a training step, without a GPU.

TensorFlow's wheel for Linux registers the kernels of GPUs on all machines. `Audit` takes the
function of many steps that a trainer compiles, lowers it as the runtime does, places its operations
on imaginary GPUs by the rules of TensorFlow's placer, and follows tensors between memories. The
placement is an emulation that was never compared with a real GPU. "CPU:1" and "CPU:2" stand for
GPUs 0 and 1, "CPU:0" for the host. What has no device counts as GPU 0's.

    PYTHONPATH=src:tests/support python tests/support/gpu_audit.py [CASE …]

The cases are those of `gpu_cases.CASES`, by default all.
"""

from __future__ import annotations

import functools
import importlib
import json
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2
from tensorflow.python.framework import kernels, op_def_registry
from tensorflow.python.grappler import tf_optimizer
from tensorflow.python.training.saver import export_meta_graph

from towerpack.training.loop.executor import Executor

# Strings and handles of resources are in host memory everywhere.
HOSTED = {tf.string.as_datatype_enum, tf.resource.as_datatype_enum}
FLOW = {
    "Enter",
    "Exit",
    "Switch",
    "Merge",
    "NextIteration",
    "LoopCond",
    "NoOp",
    "Identity",
    "Const",
}
_SILENT = """IdentityN ReadVariableOp AssignVariableOp VarHandleOp Reshape ExpandDims Squeeze Shape
    ShapeN Size Rank StopGradient BroadcastGradientArgs TensorListReserve TensorListGetItem
    TensorListSetItem Stage Unstage"""
SILENT = FLOW | set(_SILENT.split())
# Operations without a deterministic kernel for GPUs. `deterministic=True` makes TensorFlow raise.
RANDOM_ORDER = """AdjustContrastv2 Bincount DenseBincount Dilation2DBackpropFilter Svd
    Dilation2DBackpropInput FakeQuantWithMinMaxVarsGradient MaxPoolGradWithArgmax
    ResizeNearestNeighborGrad SparseTensorDenseMatMul"""
# The package has a function of this name too.
keras_rnn: Any = importlib.import_module("keras.src.backend.tensorflow.rnn")
_op_def = functools.cache(op_def_registry.get)


class Copy(NamedTuple):
    """Copy of a tensor once per step (`depth` 1) or per iteration of an inner loop (2)."""

    way: str
    depth: int
    source: str
    reader: str
    line: str


def graph_of(make_trainer: Callable[[str], Any]) -> Any:
    """Return the function of many steps of a trainer, before any step has run."""
    caught: list[Any] = []

    def compile(self: Executor) -> None:
        caught.append(self._run.get_concrete_function())
        raise InterruptedError

    was, gpu_available = Executor.compile, keras_rnn._is_gpu_available
    Executor.compile, keras_rnn._is_gpu_available = compile, lambda: True
    try:
        with tf.device("CPU:1"), tempfile.TemporaryDirectory() as directory:
            make_trainer(directory).train()
    except InterruptedError:
        return caught[0]
    finally:
        Executor.compile, keras_rnn._is_gpu_available = was, gpu_available
    raise AssertionError("The trainer compiled nothing.")


class Audit:
    """Operations of a function: where they run, how deep in loops, and what is copied."""

    def __init__(self, concrete: Any) -> None:
        self._lines = _lines_of(concrete.graph)
        self.nodes = _flattened(concrete.graph)
        self._inputs = {name: [_edge(i) for i in n.input] for name, n in self.nodes.items()}
        self._outputs = {n: _ports(x, _op_def(x.op).output_arg) for n, x in self.nodes.items()}
        self._depth, self._rare = self._depths(), self._rarely_run()
        self._given = {
            inner.op.name: _place(outer.device) if _on_gpu(outer) else "CPU"
            for outer, inner in concrete.graph.captures
        }
        self.device = self._placed()

    def copies(self) -> Iterator[Copy]:
        """Iterate over the copies in what a finite step runs. Readers on a device share one."""
        found: dict[tuple[str, str, int, str], list[tuple[str, str]]] = defaultdict(list)
        for name, node in self.nodes.items():
            data = [edge for edge in self._inputs[name] if edge[1] >= 0]
            arguments = _ports(node, _op_def(node.op).input_arg)
            for (source, port), (argument, dtype) in zip(data, arguments, strict=True):
                there = self._hosted(source, *self._outputs[source][port])
                here = self._hosted(name, argument, dtype)
                apart = self.device[source] != self.device[name] and not (there and here)
                rare = name in self._rare or source in self._rare
                if (there != here or apart) and dtype not in HOSTED and not rare:
                    way = "h2d" if there else "d2h" if here else "d2d"
                    found[way, source, port, self.device[name]].append((name, argument))
        for (way, source, _, _), readers in found.items():
            depth = max(self._depth[source], min(self._depth[name] for name, _ in readers))
            reader = ", ".join(dict.fromkeys(f"{self.nodes[n].op}.{a}" for n, a in readers))
            lines = self._line(source), self._line(readers[0][0])
            line = next((line for line in lines if line != "?"), "?")
            yield Copy(way, depth, self.nodes[source].op, reader, line)

    def without_kernel(self) -> set[str]:
        """Return the operations in steps that have no kernel for GPUs."""
        names = [n for n in self.nodes if self._depth[n] and "GPU" not in self.device[n]]
        texts = {
            n
            for n in names
            if {dtype for _, dtype in self._outputs[n]} == {tf.string.as_datatype_enum}
        }
        return {self.nodes[n].op for n in names if n not in texts and not self._kernel(n)}

    def launches(self) -> int:
        """Return about how many kernels one step launches on GPUs, inner loops left out."""
        return sum(
            self._depth[name] == 1
            and name not in self._rare
            and "GPU" in self.device[name]
            and node.op not in SILENT
            and not (self._outputs[name] and self._all_hosted(name))
            for name, node in self.nodes.items()
        )

    def _all_hosted(self, name: str) -> bool:
        return all(self._hosted(name, *port) for port in self._outputs[name])

    def report(self) -> dict[str, Any]:
        """Return the waits of the host per step and per iteration of an inner loop, and more."""
        waits = [
            (c.depth, f"{c.line} {c.source} -> {c.reader}") for c in self.copies() if c.way == "d2h"
        ]
        return {
            "step": sorted(text for depth, text in waits if depth == 1),
            "iteration": sorted(text for depth, text in waits if depth > 1),
            "without_kernel": sorted(self.without_kernel()),
            "random_order": sorted(
                {node.op for node in self.nodes.values()} & set(RANDOM_ORDER.split())
            ),
            "launches": self.launches(),
        }

    def _depths(self) -> dict[str, int]:
        depth: dict[str, int] = {}
        before: dict[str, int] | None = None
        while before != depth:
            before = dict(depth)
            for name, node in self.nodes.items():
                into = [depth[i] for i, _ in self._inputs[name] if i in depth]
                into = into[:1] if node.op == "Merge" else into  # The way back adds nothing.
                depth[name] = max(into, default=0) + (node.op == "Enter") - (node.op == "Exit")
        return depth

    def _rarely_run(self) -> set[str]:
        """Return what only the false branch of a condition runs: errors, and skipped steps."""
        rare: set[str] = set()
        before = -1
        while before != len(rare):
            before = len(rare)
            for name, node in self.nodes.items():
                dead = [i in rare or (p == 0 and self._branches(i)) for i, p in self._inputs[name]]
                if (all if node.op == "Merge" else any)(dead) and dead:
                    rare.add(name)
        return rare

    def _branches(self, name: str) -> bool:
        is_switch = self.nodes[name].op == "Switch"
        return is_switch and self.nodes[self._inputs[name][1][0]].op != "LoopCond"

    def _placed(self) -> dict[str, str]:
        parent = {name: name for name in self.nodes}

        def root(name: str) -> str:
            while parent[name] != name:
                parent[name] = name = parent[parent[name]]
            return name

        readers, groups = defaultdict(list), defaultdict(list)
        for name, node in self.nodes.items():
            for source, port in self._inputs[name]:
                if port >= 0:
                    readers[source].append(name)
                    if self._outputs[source][port][1] == tf.resource.as_datatype_enum:
                        parent[root(name)] = root(source)
            for other in (c.decode().removeprefix("loc:@") for c in node.attr["_class"].list.s):
                if other in parent:
                    parent[root(name)] = root(other)
        for name in self.nodes:
            groups[root(name)].append(name)
        device: dict[str, str] = {}
        for names in groups.values():
            held = {self._given.get(n, "CPU") for n in names if self._is_input(n)}
            asked = {_place(d) for n in names if (d := self.nodes[n].device)}
            can = all(self._kernel(n) for n in names if not self._is_input(n))
            where = sorted(held or asked or {"GPU:0"})[0] if can else "CPU"
            # A variable on a GPU and an operation on it without a kernel there conflict.
            place = where if can or held <= {"CPU"} else "CONFLICT"
            device.update(dict.fromkeys(names, place))
        for name, node in self.nodes.items():  # The placer's heuristics for constants and shapes.
            data = [i for i, port in self._inputs[name] if port >= 0]
            if not node.device and "GPU" in device[name] and not self._is_input(name):
                at = {device[reader] for reader in readers[name]}
                if not data and len(self._outputs[name]) == 1 and len(at) == 1:
                    device[name] = at.pop()
                elif node.op in ("Shape", "Size", "Rank") and device[data[0]] == "CPU":
                    device[name] = "CPU"
        return device

    def _is_input(self, name: str) -> bool:
        return self.nodes[name].op == "Placeholder"

    def _kernel(self, name: str) -> Any:
        attributes = self.nodes[name].attr.items()
        types = [
            (n, tuple(a.list.type) or (a.type,)) for n, a in attributes if a.type or a.list.type
        ]
        return _kernel_of(self.nodes[name].op, tuple(sorted(types)))

    def _hosted(self, name: str, argument: str, dtype: int) -> bool:
        on_host = "GPU" not in self.device[name] or dtype in HOSTED
        return on_host or argument in self._kernel(name).host_memory_arg

    def _line(self, name: str) -> str:
        parts = name.split("/")
        names = ("/".join(parts[i:]) for i in range(len(parts)))
        return next((line for n in names if (line := self._lines.get(n))), "?")


def _flattened(graph: Any) -> dict[str, Any]:
    """Return the nodes that the runtime makes and needs, without calls, loops as switches."""
    meta = export_meta_graph(graph_def=graph.as_graph_def(), graph=graph)
    fetch = [t.name for t in graph.outputs] + [op.name for op in graph.control_outputs]
    meta.collection_def["train_op"].node_list.value.extend(fetch)
    config = config_pb2.ConfigProto()
    options, rewriter = config.graph_options.rewrite_options, rewriter_config_pb2.RewriterConfig
    options.min_graph_nodes, options.meta_optimizer_iterations = -1, rewriter.ONE
    options.function_optimization = rewriter.AGGRESSIVE
    options.optimizers.extend(["function", "constfold", "dependency"])
    everything = {n.name: n for n in tf_optimizer.OptimizeGraph(config, meta).node}
    needed: dict[str, Any] = {}
    todo = [name.split(":")[0] for name in fetch]
    while todo:
        if (name := todo.pop()) in everything and name not in needed:
            needed[name] = everything[name]
            todo += [_edge(i)[0] for i in needed[name].input]
    return needed


@functools.cache
def _kernel_of(op: str, attributes: tuple[tuple[str, tuple[int, ...]], ...]) -> Any:
    """Return the kernel of a GPU for an operation of these dtypes, or None."""
    types = dict(attributes)
    known = kernels.get_registered_kernels_for_op(op).kernel
    fitting = [
        k
        for k in known
        if k.device_type in ("GPU", "DEFAULT")
        and not k.label
        and all(set(types.get(c.name, ())) <= set(c.allowed_values.list.type) for c in k.constraint)
    ]
    return max(fitting, key=lambda k: (k.device_type == "GPU", k.priority), default=None)


def _ports(node: Any, arguments: Any) -> list[tuple[str, int]]:
    """Return the argument's name and the dtype of each input or output."""
    found, attr = [], node.attr
    for a in arguments:
        types = [a.type or attr[a.type_attr].type] * (attr[a.number_attr].i if a.number_attr else 1)
        types = attr[a.type_list_attr].list.type if a.type_list_attr else types
        found += [(a.name, dtype) for dtype in types]
    return found


def _place(device: str) -> str:
    number = int(re.search(r"CPU:(\d+)", device)[1]) if "CPU" in device else 1
    return f"GPU:{number - 1}" if number else "CPU"


def _on_gpu(tensor: Any) -> bool:
    """Return whether a captured tensor is a variable on a GPU, where TensorFlow puts no int32."""
    types = getattr(getattr(tensor, "_handle_data", None), "shape_and_type", None)
    attributes = (("dtype", (types[0].dtype,)),) if types else ()
    return tensor.dtype == tf.resource and bool(not types or _kernel_of("VarHandleOp", attributes))


def _edge(text: str) -> tuple[str, int]:
    name, _, port = text.removeprefix("^").partition(":")
    return name, -1 if text.startswith("^") else int(port or 0)


def _lines_of(graph: Any) -> dict[str, str]:
    """Return the line of the project's code that made each operation, also in inner functions."""
    found: dict[str, str] = {}
    seen: set[str] = set()
    todo = [graph]
    while todo:
        graph = todo.pop()
        for op in graph.get_operations():
            frames = [
                f for f in op.traceback or () if re.search(r"/(towerpack|examples)/", f.filename)
            ]
            if frames:
                file = re.sub(r".*/(towerpack|examples)/", "", frames[-1].filename)
                found.setdefault(op.name, f"{file}:{frames[-1].lineno}")
        new = {n: g for n, f in graph._functions.items() if (g := getattr(f, "graph", None))}
        todo += [g for n, g in new.items() if n not in seen]
        seen |= new.keys()
    return found


def three_devices() -> None:
    """Make the logical devices that stand for a host and two GPUs. Call before anything else."""
    device = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(device, [tf.config.LogicalDeviceConfiguration()] * 3)


if __name__ == "__main__":
    three_devices()
    from gpu_cases import CASES

    for name in sys.argv[1:] or CASES:
        audit = Audit(graph_of(CASES[name]))
        print(json.dumps({"case": name, **audit.report()}), flush=True)
