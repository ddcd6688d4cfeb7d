"""Measures a training step: peak, books by kind, times, and the source line behind each.

In goes a running training loop; out comes a `Profile`.
"""

from legroom.capture import STATE, Kind, Phase
from legroom.meter._build import Surroundings, build_profile
from legroom.meter._callable import profile
from legroom.meter._costs import OperationTime
from legroom.meter._devices import (
    Device,
    device_names,
    modelled_host_speed,
    modelled_times,
    parse_device,
    roofline_ms,
)
from legroom.meter._observe import Port, RunNote
from legroom.meter._operation_times import OperationTimes
from legroom.meter._peak import PeakGauge, PeakReading
from legroom.meter._profile import (
    SCHEMA,
    Finding,
    Keep,
    Limit,
    LineUse,
    ModuleUse,
    Moment,
    OperationUse,
    PhaseSpan,
    Profile,
    TensorUse,
)
from legroom.meter._recorder import Recorder
from legroom.meter._scopes import Tag, open_scope
from legroom.meter._scripted import ScriptProfile, profile_script
from legroom.meter._session import ProfilingSession, SessionOptions
from legroom.meter._tier_speed import TierSpeed, tier_speed
from legroom.meter._time_cache import TimeCache, surroundings_of

__all__ = [
    "SCHEMA",
    "STATE",
    "Device",
    "Finding",
    "Keep",
    "Kind",
    "Limit",
    "LineUse",
    "ModuleUse",
    "Moment",
    "OperationTime",
    "OperationTimes",
    "OperationUse",
    "PeakGauge",
    "PeakReading",
    "Phase",
    "PhaseSpan",
    "Port",
    "Profile",
    "ProfilingSession",
    "Recorder",
    "RunNote",
    "ScriptProfile",
    "SessionOptions",
    "Surroundings",
    "Tag",
    "TensorUse",
    "TierSpeed",
    "TimeCache",
    "build_profile",
    "device_names",
    "modelled_host_speed",
    "modelled_times",
    "open_scope",
    "parse_device",
    "profile",
    "profile_script",
    "roofline_ms",
    "surroundings_of",
    "tier_speed",
]
