"""Image decoding and augmentation. One random transform applies to image, mask, points and boxes.

augmentors = [ResizeShortestEdge(256), RandomCrop(224), Flip(horiz=True)]
ds = AugmentImageComponent(ds, augmentors)
"""

from towerpack._core.old_arguments import accept as _accept

from ._albumentations import Albumentations as Albumentations
from ._augmentor import Augmentor as Augmentor
from ._augmentor import AugmentorList as AugmentorList
from ._augmentor import CompositeAugmentor as CompositeAugmentor
from ._augmentor import Identity as Identity
from ._augmentor import ImageAugmentor as ImageAugmentor
from ._augmentor import MapImage as MapImage
from ._augmentor import PhotometricAugmentor as PhotometricAugmentor
from ._augmentor import RandomApplyAug as RandomApplyAug
from ._augmentor import RandomChooseAug as RandomChooseAug
from ._augmentor import RandomOrderAug as RandomOrderAug
from ._batch_mode import BatchAugment as BatchAugment
from ._color import Brightness as Brightness
from ._color import BrightnessScale as BrightnessScale
from ._color import Clip as Clip
from ._color import ColorSpace as ColorSpace
from ._color import Contrast as Contrast
from ._color import Gamma as Gamma
from ._color import Grayscale as Grayscale
from ._color import Hue as Hue
from ._color import Lighting as Lighting
from ._color import MeanVarianceNormalize as MeanVarianceNormalize
from ._color import MinMaxNormalize as MinMaxNormalize
from ._color import Saturation as Saturation
from ._color import ToFloat32 as ToFloat32
from ._color import ToUint8 as ToUint8
from ._crop import BackgroundFiller as BackgroundFiller
from ._crop import CenterCrop as CenterCrop
from ._crop import CenterPaste as CenterPaste
from ._crop import ConstantBackgroundFiller as ConstantBackgroundFiller
from ._crop import CropTransform as CropTransform
from ._crop import GoogleNetRandomCropAndResize as GoogleNetRandomCropAndResize
from ._crop import PasteTransform as PasteTransform
from ._crop import RandomCrop as RandomCrop
from ._crop import RandomCropRandomShape as RandomCropRandomShape
from ._crop import RandomPaste as RandomPaste
from ._decode import DecodeRandomCrop as DecodeRandomCrop
from ._decode import decode_image as decode_image
from ._decode import encode_jpeg as encode_jpeg
from ._geometry import Flip as Flip
from ._geometry import FlipTransform as FlipTransform
from ._geometry import RandomResize as RandomResize
from ._geometry import Resize as Resize
from ._geometry import ResizeShortestEdge as ResizeShortestEdge
from ._geometry import ResizeTransform as ResizeTransform
from ._geometry import Transpose as Transpose
from ._geometry import TransposeTransform as TransposeTransform
from ._grid import image_grid as image_grid
from ._mixing import BatchMix as BatchMix
from ._mixing import CutMix as CutMix
from ._mixing import MixUp as MixUp
from ._mixing import Mosaic as Mosaic
from ._mixing import MosaicLayout as MosaicLayout
from ._noise import GaussianBlur as GaussianBlur
from ._noise import GaussianNoise as GaussianNoise
from ._noise import JpegNoise as JpegNoise
from ._noise import RandomCutout as RandomCutout
from ._noise import RandomErasing as RandomErasing
from ._noise import SaltPepperNoise as SaltPepperNoise
from ._policies import RandAugment as RandAugment
from ._stages import AugmentImageComponent as AugmentImageComponent
from ._stages import AugmentImageComponents as AugmentImageComponents
from ._stages import AugmentImageCoordinates as AugmentImageCoordinates
from ._transform import GeometricTransform as GeometricTransform
from ._transform import NoOpTransform as NoOpTransform
from ._transform import PhotometricTransform as PhotometricTransform
from ._transform import Transform as Transform
from ._transform import TransformFactory as TransformFactory
from ._transform import TransformList as TransformList
from ._transform import clip_boxes as clip_boxes
from ._warp import Affine as Affine
from ._warp import DeformTransform as DeformTransform
from ._warp import GaussianDeform as GaussianDeform
from ._warp import Rotation as Rotation
from ._warp import RotationAndCropValid as RotationAndCropValid
from ._warp import Shift as Shift
from ._warp import WarpAffineTransform as WarpAffineTransform
from .headers import ImageHeader as ImageHeader
from .headers import image_header as image_header

_accept(*list(globals().values()))
