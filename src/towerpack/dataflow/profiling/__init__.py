"""Profiler of pipelines: the time of each stage, the bottleneck, and advice."""

from ._profile import ProfileReport as ProfileReport
from ._profile import StageProfile as StageProfile
from ._profile import Verdict as Verdict
from ._profile import profile as profile
