"""Images: transforms that are drawn once and apply to image, mask, coordinates and boxes.

augmentors = [ResizeShortestEdge(256), RandomCrop(224), Flip(horiz=True)]
ds = AugmentImageComponent(ds, augmentors)
"""

from ._augmentor import Augmentor as Augmentor
from ._augmentor import AugmentorList as AugmentorList
from ._augmentor import CompositeAugmentor as CompositeAugmentor
from ._augmentor import ImageAugmentor as ImageAugmentor
from ._augmentor import PhotometricAugmentor as PhotometricAugmentor
from ._decode import decode_image as decode_image
from ._decode import encode_jpeg as encode_jpeg
from ._headers import ImageHeader as ImageHeader
from ._headers import image_header as image_header
from ._transform import GeometricTransform as GeometricTransform
from ._transform import NoOpTransform as NoOpTransform
from ._transform import PhotometricTransform as PhotometricTransform
from ._transform import Transform as Transform
from ._transform import TransformFactory as TransformFactory
from ._transform import TransformList as TransformList
