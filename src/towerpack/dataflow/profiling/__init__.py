"""Which stage of a pipeline takes the time."""

from ._profile import profile as profile
from ._report import ProfileReport as ProfileReport
from ._report import StageProfile as StageProfile
from ._report import Verdict as Verdict
