"""Networks in Tensorpack's layers, whose outputs the networks in `examples/` must reproduce.

Both sides get the same weights, made from names and shapes, so only a few outputs are stored. Write
`tensorpack_outputs.json` again in an environment with tensorpack==0.11, tensorflow==2.21.0 and
tf-keras==2.21.0:

    TF_USE_LEGACY_KERAS=1 python tests/support/tensorpack_networks.py [FOLDER]

With FOLDER, Tensorpack also saves each network's weights there, as `NAME.npz`.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

STORED = Path(__file__).with_name("tensorpack_outputs.json")
# Name, filters (see `inception_bn`), pooling.
INCEPTION = """
3a 64 64 64 64 96 32 avg
3b 64 64 96 64 96 64 avg
3c 0 128 160 64 96 0 max
4a 224 64 96 96 128 128 avg
4b 192 96 128 96 128 128 avg
4c 160 128 160 128 160 128 avg
4d 96 128 192 160 192 128 avg
4e 0 128 192 192 256 0 max
5a 352 192 320 160 224 128 avg
5b 352 192 320 192 224 128 max
"""


def seeded(name: str, shape: Sequence[int]) -> np.ndarray:
    """Random values of a variable of Tensorpack, which keep activations near 1."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    if name.endswith(("/gamma", "variance/EMA")):
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)
    inputs = math.prod(shape[:2]) if name.endswith("dconv/W") else math.prod(shape[:-1])
    deviation = 0.1 if len(shape) == 1 else (2 / inputs) ** 0.5
    if name.endswith(("/fc1/W", "/fc2/W")):
        deviation /= 100  # Gates must not saturate: rounding errors would grow.
    return rng.standard_normal(shape, np.float32) * np.float32(deviation)


def images(name: str) -> np.ndarray:
    """Two images; both sides of FlowNet's must be multiples of 64."""
    size = (2, 64, 128 if name.startswith("flownet") else 96, 3)
    return np.random.default_rng(0).normal(size=size).astype(np.float32)


def digest(shapes: Mapping[str, Sequence[int]]) -> str:
    """Hash of the names and shapes of all variables."""
    lines = [f"{name} {[int(n) for n in shapes[name]]}" for name in sorted(shapes)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def record(shapes: Mapping[str, Sequence[int]], output: np.ndarray) -> dict[str, Any]:
    """What is stored: the variables, and outputs from both images with their scale."""
    shown = [f"{number:.6g}" for number in output.reshape(2, -1)[:, 3::97].ravel()[:40]]
    return {
        "variables": len(shapes),
        "digest": digest(shapes),
        "scale": round(float(np.abs(output).max()), 3),
        "output": [float(number) for number in shown],
    }


def resnet(x: Any, mode: str, depth: int) -> Any:
    import tensorflow.compat.v1 as tf
    from tensorpack import models as m

    def norm(y: Any, name: str | None = None) -> Any:
        return m.BatchNorm("bn", y)

    counts = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3)}[depth]
    preact = mode == "preact"
    end = tf.identity if preact else norm
    if mode == "caffe":
        x = tf.pad(x, [[0, 0], [3, 2], [3, 2], [0, 0]])
        x = m.Conv2D("conv0", x, 64, 7, strides=2, padding="VALID", activation=m.BNReLU)
    else:
        x = m.Conv2D("conv0", x, 64, 7, strides=2, activation=m.BNReLU)
    x = m.MaxPooling("pool0", x, 3, strides=2, padding="SAME")
    for group, count in enumerate(counts):
        width = 64 << group
        for block in range(count):
            stride = 2 if group and not block else 1
            with tf.variable_scope(f"group{group}/block{block}"):
                y = m.BNReLU("preact", x) if preact and block else x
                if depth == 18:
                    y = m.Conv2D("conv1", y, width, 3, strides=stride, activation=m.BNReLU)
                    y = m.Conv2D("conv2", y, width, 3, activation=end)
                    out = width
                else:
                    inner, split = (2 * width, 32) if mode == "resnext" else (width, 1)
                    one, three = (stride, 1) if mode == "caffe" else (1, stride)
                    y = m.Conv2D("conv1", y, inner, 1, strides=one, activation=m.BNReLU)
                    y = m.Conv2D(
                        "conv2", y, inner, 3, strides=three, split=split, activation=m.BNReLU
                    )
                    out = 4 * width
                    y = m.Conv2D("conv3", y, out, 1, activation=end)
                if mode == "se":
                    gate = m.GlobalAvgPooling("gap", y)
                    gate = m.FullyConnected("fc1", gate, width // 4, activation=tf.nn.relu)
                    gate = m.FullyConnected("fc2", gate, out, activation=tf.nn.sigmoid)
                    y *= tf.reshape(gate, [-1, 1, 1, out])
                if x.shape[3] != out:
                    x = m.Conv2D("convshortcut", x, out, 1, strides=stride, activation=end)
                x = x + y if preact else tf.nn.relu(x + y)
        if preact:
            with tf.variable_scope(f"group{group}"):
                x = m.BNReLU("bnlast", x)
    return m.FullyConnected("linear", m.GlobalAvgPooling("gap", x), 1000)


def vgg16(x: Any) -> Any:
    import tensorflow.compat.v1 as tf
    from tensorpack import models as m

    for stage, (count, width) in enumerate([(2, 64), (2, 128), (3, 256), (3, 512), (3, 512)], 1):
        for i in range(1, count + 1):
            x = tf.nn.relu(m.Conv2D(f"conv{stage}_{i}", x, width, 3))
        x = m.MaxPooling(f"pool{stage}", x, 2)
    for name in ("fc6", "fc7"):
        x = m.Dropout(tf.nn.relu(m.FullyConnected(name, x, 4096)), rate=0.5)
    return m.FullyConnected("fc8", x, 1000)


def alexnet(x: Any) -> Any:
    import tensorflow.compat.v1 as tf
    from tensorpack import models as m

    def pooled(x: Any, name: str) -> Any:
        x = tf.nn.lrn(x, 2, bias=1.0, alpha=2e-5, beta=0.75)
        return m.MaxPooling(name, x, 3, strides=2, padding="VALID")

    relu = {"activation": tf.nn.relu}
    x = tf.pad(x, [[0, 0], [2, 2], [2, 2], [0, 0]])
    x = pooled(m.Conv2D("conv1", x, 96, 11, strides=4, padding="VALID", **relu), "pool1")
    x = pooled(m.Conv2D("conv2", x, 256, 5, split=2, **relu), "pool2")
    x = m.Conv2D("conv3", x, 384, 3, **relu)
    x = m.Conv2D("conv4", x, 384, 3, split=2, **relu)
    x = m.Conv2D("conv5", x, 256, 3, split=2, **relu)
    x = m.MaxPooling("pool3", x, 3, strides=2, padding="VALID")
    x = m.FullyConnected("fc7", m.FullyConnected("fc6", x, 4096, **relu), 4096, **relu)
    return m.FullyConnected("fc8", x, 1000)


def inception_bn(x: Any) -> Any:
    import tensorflow.compat.v1 as tf
    from tensorpack import models as m

    def conv(name: str, x: Any, filters: int, size: int = 1, strides: int = 1) -> Any:
        options = {"strides": strides, "activation": m.BNReLU, "use_bias": False}
        return m.Conv2D(name, x, filters, size, **options)

    def pool(kind: Any, x: Any, strides: int) -> Any:
        return kind("pool", x, 3, strides=strides, padding="SAME")

    x = m.MaxPooling("pool0", conv("conv0", x / 128, 64, 7, 2), 3, strides=2, padding="SAME")
    x = conv("conv2", conv("conv1", x, 64), 192, 3)
    x = m.MaxPooling("pool2", x, 3, strides=2, padding="SAME")
    for line in INCEPTION.strip().splitlines():
        name, *numbers, kind = line.split()
        n1, n3r, n3, n33r, n33, proj = map(int, numbers)
        step = 1 if n1 else 2
        with tf.variable_scope(f"incep{name}"):
            parts = [conv("conv1x1", x, n1)] if n1 else []
            parts.append(conv("conv3x3", conv("conv3x3r", x, n3r), n3, 3, step))
            deep = conv("conv233a", conv("conv233r", x, n33r), n33, 3)
            parts.append(conv("conv233b", deep, n33, 3, step))
            y = pool(m.AvgPooling if kind == "avg" else m.MaxPooling, x, step)
            parts.append(conv("poolproj", y, proj) if proj else y)
            x = tf.concat(parts, 3)
    return m.FullyConnected("linear", m.GlobalAvgPooling("gap", x), 1000)


def shufflenet(x: Any, first: int, widths: Iterable[int], groups: int | None) -> Any:
    import tensorflow.compat.v1 as tf
    from tensorpack import models as m

    def conv(name: str, x: Any, filters: int, split: int = 1, **options: Any) -> Any:
        return m.Conv2D(name, x, filters, 1, split=split, use_bias=False, **options)

    def deep(name: str, x: Any, stride: int) -> Any:
        with tf.variable_scope(name):
            kernel = tf.get_variable("W", [3, 3, int(x.shape[3]), 1])
        y = tf.nn.depthwise_conv2d(x, kernel, [1, stride, stride, 1], "SAME")
        return m.BatchNorm(name + "_bn", y)

    def shuffled(x: Any, groups: int) -> Any:
        height, width, channels = map(int, x.shape[1:])
        x = tf.reshape(x, [-1, height, width, channels // groups, groups])
        return tf.reshape(tf.transpose(x, [0, 1, 2, 4, 3]), [-1, height, width, channels])

    def unit(x: Any, filters: int, stride: int) -> Any:
        channels = int(x.shape[3])
        if groups:
            y = conv("conv1", x, filters // 4, groups if channels > 24 else 1, activation=m.BNReLU)
            y = deep("dconv", shuffled(y, groups), stride)
            y = conv("conv2", y, filters - (channels if stride == 2 else 0), groups)
            y = m.BatchNorm("conv2_bn", y)
            if stride == 1:
                return tf.nn.relu(x + y)
            x = m.AvgPooling("avgpool", x, 3, strides=2, padding="SAME")
            return tf.concat([x, tf.nn.relu(y)], 3)
        x, y = tf.split(x, 2, 3) if stride == 1 else (x, x)
        kept = int(x.shape[3])
        y = deep("dconv", conv("conv1", y, filters // 2, activation=m.BNReLU), stride)
        y = conv("conv2", y, filters - kept, activation=m.BNReLU)
        if stride == 2:
            x = conv("shortcut_conv", deep("shortcut_dconv", x, 2), kept, activation=m.BNReLU)
        return shuffled(tf.concat([x, y], 3), 2)

    x = m.Conv2D("conv1", x, first, 3, strides=2, use_bias=False, activation=m.BNReLU)
    x = m.MaxPooling("pool1", x, 3, strides=2, padding="SAME")
    for stage, (width, count) in enumerate(zip(widths, (4, 8, 4), strict=True), 2):
        for i in range(count):
            with tf.variable_scope(f"stage{stage}/block{i}"):
                x = unit(x, width, 1 if i else 2)
    if not groups:
        x = m.Conv2D("conv5", x, 1024, 1, use_bias=False, activation=m.BNReLU)
    return m.FullyConnected("linear", m.GlobalAvgPooling("gap", x), 1000)


def flownet(x: Any, is_correlated: bool) -> Any:
    """FlowNet2-S or -C; the two images are one pair. Gives the flow, once for each image."""
    import tensorflow.compat.v1 as tf

    def conv(name: str, x: Any, filters: int, size: int = 3, stride: int = 2) -> Any:
        x = tf.pad(x, [[0, 0], *[[size // 2] * 2] * 2, [0, 0]])
        act = None if name.startswith("predict") else lambda y: tf.nn.leaky_relu(y, 0.1)
        return tf.layers.conv2d(x, filters, size, stride, activation=act, name=name)

    def up(name: str, x: Any, filters: int, **options: Any) -> Any:
        return tf.layers.conv2d_transpose(x, filters, 4, 2, "same", name=name, **options)

    x = (x - tf.reduce_mean(x, [0, 1, 2], keepdims=True)) / 255
    if not is_correlated:
        x = tf.reshape(tf.transpose(x, [1, 2, 0, 3]), [1, 64, 128, 6])
    two = conv("conv2", conv("conv1", x, 64, 7), 128, 5)
    three = conv("conv3", two, 256, 5)
    if is_correlated:
        a, b = three[:1], tf.pad(three[1:], [[0, 0], [20, 20], [20, 20], [0, 0]])
        height, width = int(a.shape[1]), int(a.shape[2])
        costs = [
            tf.reduce_mean(a * b[:, i : i + height, j : j + width], 3)
            for i in range(0, 41, 2)
            for j in range(0, 41, 2)
        ]
        redirected = conv("conv_redir", a, 32, 1, 1)
        three = tf.concat([redirected, tf.nn.leaky_relu(tf.stack(costs, 3), 0.1)], 3)
        two = two[:1]
    skips = [two, conv("conv3_1", three, 256, stride=1)]
    for level, filters in ((4, 512), (5, 512), (6, 1024)):
        x = conv(f"conv{level}", skips[-1], filters)
        skips.append(conv(f"conv{level}_1", x, filters, stride=1))
    x = skips.pop()
    for level, filters in ((5, 512), (4, 256), (3, 128), (2, 64)):
        flow = conv(f"predict_flow{level + 1}", x, 2, stride=1)
        flow = up(f"upsampled_flow{level + 1}_to_{level}", flow, 2, use_bias=is_correlated)
        x = tf.nn.leaky_relu(up(f"deconv{level}", x, filters), 0.1)
        x = tf.concat([skips.pop(), x, flow], 3)
    flow = conv("predict_flow2", x, 2, stride=1) * 20
    flow = tf.image.resize_bilinear(flow, [64, 128], align_corners=True)
    return tf.tile(flow, [2, 1, 1, 1])


NETWORKS = {
    "resnet18": lambda x: resnet(x, "v1.5", 18),
    "resnet50": lambda x: resnet(x, "v1.5", 50),
    "caffe_resnet50": lambda x: resnet(x, "caffe", 50),
    "preact_resnet18": lambda x: resnet(x, "preact", 18),
    "preact_resnet50": lambda x: resnet(x, "preact", 50),
    "se_resnet50": lambda x: resnet(x, "se", 50),
    "resnext50": lambda x: resnet(x, "resnext", 50),
    "vgg16": vgg16,
    "alexnet": alexnet,
    "inception_bn": inception_bn,
    "shufflenet_v1_half": lambda x: shufflenet(x, 16, (192, 384, 768), 8),
    "shufflenet_v1": lambda x: shufflenet(x, 24, (384, 768, 1536), 8),
    "shufflenet_v2_half": lambda x: shufflenet(x, 24, (48, 96, 192), None),
    "shufflenet_v2": lambda x: shufflenet(x, 24, (116, 232, 464), None),
    "flownet2_s": lambda x: flownet(x, False),
    "flownet2_c": lambda x: flownet(x, True),
}


def run(name: str, folder: Path | None) -> dict[str, Any]:
    """Build a network with Tensorpack, set its weights, and compute its outputs."""
    import tensorflow.compat.v1 as tf
    from tensorpack.models import Conv2D
    from tensorpack.tfutils.argscope import argscope
    from tensorpack.tfutils.tower import TowerContext
    from tensorpack.tfutils.varmanip import save_chkpt_vars

    has_bias = name in ("vgg16", "alexnet")
    with tf.Graph().as_default(), tf.Session() as session:
        with TowerContext("", is_training=False), argscope(Conv2D, use_bias=has_bias):
            output = NETWORKS[name](tf.constant(images(name)))
        shapes = {}
        for variable in tf.global_variables():
            shapes[variable.op.name] = variable.shape.as_list()
            variable.load(seeded(variable.op.name, shapes[variable.op.name]), session)
        if folder:
            save_chkpt_vars(
                {n: seeded(n, shape) for n, shape in shapes.items()}, str(folder / f"{name}.npz")
            )
        return record(shapes, session.run(output))


if __name__ == "__main__":
    import tensorflow.compat.v1

    tensorflow.compat.v1.disable_v2_behavior()
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    records = {name: run(name, target) for name in NETWORKS}
    lines = [f'"{name}": {json.dumps(values)}' for name, values in records.items()]
    STORED.write_text("{\n" + ",\n".join(lines) + "\n}\n")
