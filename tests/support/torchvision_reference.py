"""Reference values of torchvision for Mask R-CNN, and the inputs that they belong to.

`python tests/support/torchvision_reference.py` writes `tests/data/torchvision.npz`. It needs
PyTorch and torchvision; the file is of 2.15.0 and 0.29.2 on a CPU. Tests import the inputs and read
the file.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

FILE = Path(__file__).parents[1] / "data" / "torchvision.npz"
CLASSES = 3
SIZES = [(128, 160), (100, 120)]  # of two images in one batch of 128 x 160
RATIOS = (0.5, 1.0, 2.0)
OPTIONS: dict[str, Any] = {  # torchvision's name, number
    "rpn_pre_nms_top_n_train": 300,
    "rpn_pre_nms_top_n_test": 200,
    "rpn_post_nms_top_n_train": 100,
    "rpn_post_nms_top_n_test": 60,
    "rpn_batch_size_per_image": 100_000,  # all, so that nothing is drawn
    "box_batch_size_per_image": 100_000,
    "box_detections_per_img": 20,
    "box_score_thresh": 0.2,
}


def draw(name: str, *shape: int) -> np.ndarray:
    return np.random.default_rng(zlib.crc32(name.encode())).normal(size=shape).astype(np.float32)


def boxes(name: str, number: int, height: int, width: int) -> np.ndarray:
    """Boxes of all sizes within an image, some narrow ones and some that touch its edge."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    size = np.exp(rng.uniform(np.log(2), np.log([width, height]), [number, 2]))
    start = rng.uniform(size=[number, 2]) * ([width, height] - size)
    start[::3, 0] = width - size[::3, 0]
    return np.concatenate([start, start + size], axis=1).astype(np.float32)


def maps(channels: int = 2) -> list[np.ndarray]:
    """Feature maps of strides 4 to 32 of two images of 384 x 512 pixels."""
    return [draw(f"map{s}", 2, 384 // s, 512 // s, channels) for s in (4, 8, 16, 32)]


def weights(shapes: Mapping[str, Sequence[int]]) -> dict[str, np.ndarray]:
    """Random weights by torchvision's names, with activations of a moderate size."""
    arrays = {}
    for name, shape in shapes.items():
        value = draw(name, *shape)
        if len(shape) > 1:
            value *= np.sqrt(1.5 / np.prod(shape[1:])).astype(np.float32)
            value *= 6 if "cls_score" in name or "mask_fcn_logits" in name else 1
        elif "running_var" in name:
            value = 0.5 + abs(value)
        elif len(shape) == 1 and name.endswith("weight"):
            value = (0.3 if "bn3" in name else 0.8) + 0.1 * value
        else:
            value *= 0.1
        arrays[name] = value
    return arrays


def image() -> np.ndarray:
    """Two normalized images; the second one is smaller, and padded with zeros."""
    pixels = draw("image", 2, 8, 10, 3).repeat(16, 1).repeat(16, 2)
    pixels = pixels + 0.3 * draw("noise", *pixels.shape)
    for picture, (height, width) in zip(pixels, SIZES, strict=True):
        picture[height:] = picture[:, width:] = 0
    return pixels


TRUE_BOXES = np.array(
    [[[10, 12, 70, 60], [64, 20, 150, 110], [30.5, 70, 60, 101]], [[5, 8, 60, 90], *[[0] * 4] * 2]],
    np.float32,
)
TRUE_CLASSES = np.array([[0, 2, 1], [1, -1, -1]], np.int32)


def ellipses(side: int = 112) -> np.ndarray:
    """Masks of the objects within their boxes: ellipses, uint8 [2, 3, side, side]."""
    y, x = (np.mgrid[:side, :side] + 0.5) / side * 2 - 1
    return np.tile(np.uint8(255) * (x**2 + y**2 < 1), [2, 3, 1, 1])


def image_masks(true_boxes: np.ndarray, height: int, width: int) -> np.ndarray:
    """The same ellipses in whole images."""
    y, x = np.mgrid[:height, :width] + 0.5
    rows = []
    for x1, y1, x2, y2 in true_boxes:
        u, v = (2 * x - x1 - x2) / (x2 - x1), (2 * y - y1 - y2) / (y2 - y1)
        rows.append(u**2 + v**2 < 1)
    return np.stack(rows).astype(np.uint8)


def labels(name: str, number: int, most: int = CLASSES) -> np.ndarray:
    """Class numbers from 0, -1 for background, -2 for boxes that do not count."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    return rng.integers(-2, most, [2, number])


def write() -> None:
    import torch
    from torch import Tensor
    from torchvision.models import detection
    from torchvision.models.detection import _utils, roi_heads
    from torchvision.models.detection.image_list import ImageList
    from torchvision.ops import MultiScaleRoIAlign

    def tensor(value: np.ndarray, *, channels_last: bool = False) -> Tensor:
        value = np.moveaxis(value, -1, 1) if channels_last else value
        return torch.from_numpy(np.ascontiguousarray(value)).requires_grad_(value.dtype == "f4")

    values: dict[str, Any] = {}

    def keep(name: str, value: Tensor) -> None:
        values[name] = value.detach().numpy()

    def keep_gradients(name: str, cost: Tensor, **inputs: Tensor) -> None:
        keep(name, cost)
        gradients = torch.autograd.grad(cost, list(inputs.values()), retain_graph=True)
        for key, gradient in zip(inputs, gradients, strict=True):
            keep(f"{name}/{key}", gradient)

    # RoIAlign
    levels = [tensor(x, channels_last=True) for x in maps()]
    rois = [tensor(boxes(f"roi{i}", 20, 384, 512)) for i in range(2)]
    pooled = MultiScaleRoIAlign(["0", "1", "2", "3"], 7, 2)(
        {str(i): x for i, x in enumerate(levels)}, rois, [(384, 512)] * 2
    )
    pooled = pooled.reshape(2, 20, 2, 7, 7).permute(0, 1, 3, 4, 2)
    keep("roi_align", pooled)
    cost = (pooled * tensor(draw("roi_align", *pooled.shape))).sum()
    for i, gradient in enumerate(torch.autograd.grad(cost, levels)):
        keep(f"roi_align/{i}", gradient.permute(0, 2, 3, 1)[:, ::3, ::3])

    # Box coding
    for name, scale in (("rpn", (1.0, 1.0, 1.0, 1.0)), ("box", (10.0, 10.0, 5.0, 5.0))):
        coder = _utils.BoxCoder(scale)
        one, two = tensor(boxes("a", 8, 90, 120)), tensor(boxes("b", 8, 90, 120))
        keep(f"encode/{name}", coder.encode_single(one, two))
        keep(f"decode/{name}", coder.decode_single(tensor(draw("c", 8, 4)) * 9, two))

    # Losses of given targets
    model = detection.maskrcnn_resnet50_fpn(
        weights=None, weights_backbone=None, num_classes=1 + CLASSES, **OPTIONS
    )
    ids = labels("anchors", 40, 1)
    logits, offsets = tensor(draw("logits", 2, 40)), tensor(draw("offsets", 2, 40, 4))
    goals = torch.from_numpy(draw("goals", 2, 40, 4))
    known = torch.tensor(np.select([ids >= 0, ids == -1], [1.0, 0.0], -1.0))
    first, second = model.rpn.compute_loss(
        logits.reshape(-1, 1), offsets.reshape(-1, 4), list(known), list(goals)
    )
    keep_gradients("rpn_class", first, logits=logits)
    keep_gradients("rpn_box", second, offsets=offsets)

    ids = labels("boxes", 30)
    logits = tensor(draw("classes", 2, 30, 1 + CLASSES))
    offsets = tensor(draw("moves", 2, 30, 1 + CLASSES, 4))
    counts = torch.from_numpy(ids >= -1)
    first, second = roi_heads.fastrcnn_loss(
        logits[counts],
        offsets[counts].reshape(-1, 4 * (1 + CLASSES)),
        [torch.from_numpy(ids + 1)[counts]],
        [torch.from_numpy(draw("places", 2, 30, 4))[counts]],
    )
    keep_gradients("box_class", first, logits=logits)
    keep_gradients("box", second, offsets=offsets)

    # The network
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    model.load_state_dict({n: torch.from_numpy(v) for n, v in weights(shapes).items()})
    values["names"] = np.array([f"{n} {' '.join(map(str, s))}" for n, s in shapes.items()])
    images = ImageList(torch.from_numpy(np.moveaxis(image(), -1, 1).copy()), SIZES)
    model.eval()
    with torch.no_grad():
        features = model.backbone(images.tensors)
        proposals, _ = model.rpn(images, features)
        found, _ = model.roi_heads(features, proposals, SIZES)
    keep("anchors", model.rpn.anchor_generator(images, list(features.values()))[0][::7])
    for i, result in enumerate(found):
        print(f"image {i}: {len(proposals[i])} proposals, scores {result['scores']}")
        keep(f"detect{i}/proposals", proposals[i])
        for name in ("boxes", "scores", "labels"):
            keep(f"detect{i}/{name}", result[name])
        keep(f"detect{i}/masks", result["masks"][:4, 0])

    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.eval()  # frozen, as with pretrained weights
    targets = []
    for i, own in enumerate(TRUE_CLASSES):
        real = TRUE_BOXES[i][own >= 0]
        masks = torch.from_numpy(image_masks(real, 128, 160))
        ids = torch.from_numpy(own[own >= 0].astype(np.int64) + 1)
        targets.append({"boxes": torch.from_numpy(real), "labels": ids, "masks": masks})
    features = model.backbone(images.tensors)
    # Both images are of the whole size here.
    images.image_sizes = [SIZES[0]] * 2
    proposals, losses = model.rpn(images, features, targets)
    _, more = model.roi_heads(features, proposals, images.image_sizes, targets)
    losses.update(more)
    names = ["loss_objectness", "loss_rpn_box_reg", "loss_classifier", "loss_box_reg", "loss_mask"]
    keep("losses", torch.stack([losses[name] for name in names]))
    parameters = {
        "backbone.body.layer2.0.conv1.weight": model.backbone.body.layer2[0].conv1.weight,
        "backbone.fpn.inner_blocks.1.0.weight": model.backbone.fpn.inner_blocks[1][0].weight,
        "rpn.head.cls_logits.weight": model.rpn.head.cls_logits.weight,
        "roi_heads.box_head.fc7.bias": model.roi_heads.box_head.fc7.bias,
    }
    cost = sum(losses[name] for name in names[:4])
    for name, gradient in zip(
        parameters, torch.autograd.grad(cost, [*parameters.values()]), strict=True
    ):
        keep(f"gradient/{name}", gradient.flatten()[::97])
    print({name: loss.item() for name, loss in losses.items()})
    FILE.parent.mkdir(exist_ok=True)
    np.savez_compressed(FILE, **values)
    print(f"{FILE}: {FILE.stat().st_size:,} bytes")


if __name__ == "__main__":
    write()
