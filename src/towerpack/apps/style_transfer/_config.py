from pydantic import Field

from towerpack.apps._config import AppConfig, Network, PictureData
from towerpack.config import Name, PathText


class DataConfig(PictureData):
    """Settings for reading photographs without labels."""

    inputter: Name = "folder"
    """folder (train/, val/, test/ in path, or only path), csv (one picture name per line), or
    module:name."""
    train: str | list[str] | None = None
    "Folders or CSV files below path; several are joined."
    size: int = Field(default=256, ge=16)
    "Side in pixels of the squares that are cropped from photographs to train on."
    batch_size: int = Field(default=4, ge=1)


class ModelConfig(Network):
    """Settings of the network, the style image and the perceptual losses."""

    network: Name = "fns"
    "fns, or module:function: from [n, h, w, 3] in -1..1 to [n, h, w, 3] in 0..255."
    style: PathText | None = None
    "Picture whose style is learned."
    style_size: int = Field(default=256, ge=16)
    "Length of its shorter side in pixels after scaling; larger values give larger brush strokes."
    features: PathText = "efficientnet-lite0"
    "Feature network: efficientnet-lite0, or a file with the weights of VGG-19."
    content_layers: list[str] | None = None
    "Layers that compare content; null: the defaults of the feature network."
    style_layers: list[str] | None = None
    "Layers that compare style; null: the defaults of the feature network."
    content_weight: float = Field(default=1.0, ge=0)
    "Weight of the content loss: squared feature differences, relative to squared features."
    style_weight: float = Field(default=1.0, ge=0)
    "Weight of the style loss: squared Gram differences, relative to the style's squares."
    tv_weight: float = Field(default=1.0, ge=0)
    "Weight of total variation: squared differences of neighboring pixels in 0..1."


class StyleConfig(AppConfig):
    """Recipe of style transfer."""

    task: str = "style_transfer"
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
