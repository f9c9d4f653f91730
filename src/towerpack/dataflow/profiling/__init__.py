"""Which stage of a pipeline takes the time."""

from ._profile import ProfileReport as ProfileReport
from ._profile import StageProfile as StageProfile
from ._profile import Verdict as Verdict
from ._profile import profile as profile
