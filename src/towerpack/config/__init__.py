"""Typed configuration from YAML files and `key=value` overrides. Errors name the wrong keys."""

from towerpack._core.extras import require

require("pydantic", extra="apps", needed_for="towerpack.config")

from towerpack.config._config import Config as Config
from towerpack.config._config import Name as Name
from towerpack.config._config import NamesCode as NamesCode
from towerpack.config._config import NetworkName as NetworkName
from towerpack.config._config import PathText as PathText
from towerpack.config._config import Regex as Regex
from towerpack.config._config import key_paths as key_paths
from towerpack.config._load import change as change
from towerpack.config._load import code_in as code_in
from towerpack.config._load import differences as differences
from towerpack.config._load import from_folder as from_folder
from towerpack.config._load import load as load
from towerpack.config._load import read_yaml as read_yaml
from towerpack.config._registry import Registry as Registry
from towerpack.config._text import explained as explained
from towerpack.config._text import to_yaml as to_yaml
