"""Settings of a recipe of style transfer."""

from __future__ import annotations

from pydantic import Field

from towerpack.apps._config import AppConfig, Network, PictureData
from towerpack.config import Name, PathText


class DataConfig(PictureData):
    """Photographs to train on; they need no labels."""

    inputter: Name = "folder"
    "folder (train/, val/, test/ in path, or path alone), csv (a name of a picture a line), or "
    "module:name."
    train: str | list[str] | None = None
    "Folders or CSV files below path; several are joined."
    size: int = Field(default=256, ge=16)
    "Side of the squares that are cut out of photographs to train on."
    batch_size: int = Field(default=4, ge=1)
    "Pictures in a batch."


class ModelConfig(Network):
    """The network, the style, and what is compared."""

    network: Name = "fns"
    "fns, or module:function: from [n, h, w, 3] in -1..1 to [n, h, w, 3] in 0..255."
    style: PathText | None = None
    "The picture whose style is learnt."
    style_size: int = Field(default=256, ge=16)
    "What its shorter side is scaled to: larger, and brush strokes are larger."
    features: PathText = "efficientnet-lite0"
    "What sees content and style: efficientnet-lite0, or a file with the weights of VGG-19."
    content_layers: list[str] | None = None
    "Where contents are compared; null for the usual ones of the feature network."
    style_layers: list[str] | None = None
    "Where styles are compared; null for the usual ones."
    content_weight: float = Field(default=1.0, ge=0)
    "Of the squared differences of features, as a share of the features' squares."
    style_weight: float = Field(default=1.0, ge=0)
    "Of the squared differences of Gram matrices, as a share of the style's squares."
    tv_weight: float = Field(default=1.0, ge=0)
    "Of the squared differences of neighbouring pixels, from 0 to 1."


class StyleConfig(AppConfig):
    """A recipe of style transfer."""

    task: str = "style_transfer"
    "The application."
    data: DataConfig = DataConfig()
    "Photographs."
    model: ModelConfig = ModelConfig()
    "The network, the style, and what is compared."
