"""Runtime hooks for Equinox models: wrap a model, and it hands back what its parts
computed (activations) and received (cotangents), or changes them on the way.

- Wrap a model: `ForwardHook`, `BackwardHook`, `value_and_grad` (which returns `Logs`).
  What comes back is a `Log`.
- See what there is to hook: `sites` (`Sites`), `report` (`Report`, `ReportDiff`).
- Change values: `AddHook`, `ScaleHook`, `ZeroHook`, `Chain` of several, `PatchHook`
  with values of another run, `AtStep` for some steps only; your own is an
  `AbstractHook` or any function, or, if it acts differently at each call, step or
  example, an `AbstractIndexedHook`, which is told a `SiteIndex`. `IdentityHook` changes
  nothing.
- Say what is recorded: `MeanLog`, `MeanStdLog` (`MeanStd`), `NormLog`, `MaxAbsLog`,
  `HistogramLog`, `NoneLog`; your own is an `AbstractLog` or any function. `IdentityLog`
  records the value itself.
- Name a value in a model's own code: `probe`. See into a primitive of your own:
  `register_rule`.
- Experiments with two runs: `patching`.
- Let go of what calls have left in caches: `clear_caches`.
- What goes wrong is a `PeexError`: `SiteNotFoundError`, `SiteNotFiredError`,
  `SiteLostError`, `HookShapeError`, `LogShapeError`, `LogValueError`,
  `LogTooLargeError`, `NotInitialisedError`.
"""

from . import patching as patching
from ._caches import clear_caches as clear_caches
from ._engine.rules.registered import register_rule as register_rule
from ._errors import (
    HookShapeError as HookShapeError,
    LogShapeError as LogShapeError,
    LogTooLargeError as LogTooLargeError,
    LogValueError as LogValueError,
    NotInitialisedError as NotInitialisedError,
    PeexError as PeexError,
    SiteLostError as SiteLostError,
    SiteNotFiredError as SiteNotFiredError,
    SiteNotFoundError as SiteNotFoundError,
)
from ._hooks.hooks import (
    AbstractHook as AbstractHook,
    AddHook as AddHook,
    Chain as Chain,
    IdentityHook as IdentityHook,
    ScaleHook as ScaleHook,
    ZeroHook as ZeroHook,
)
from ._hooks.indexed import (
    AbstractIndexedHook as AbstractIndexedHook,
    SiteIndex as SiteIndex,
)
from ._hooks.log_fns import (
    AbstractLog as AbstractLog,
    HistogramLog as HistogramLog,
    IdentityLog as IdentityLog,
    MaxAbsLog as MaxAbsLog,
    MeanLog as MeanLog,
    MeanStd as MeanStd,
    MeanStdLog as MeanStdLog,
    NoneLog as NoneLog,
    NormLog as NormLog,
)
from ._hooks.step_hooks import AtStep as AtStep, PatchHook as PatchHook
from ._instrument.probe import probe as probe
from ._log import Log as Log
from ._report.report import report as report
from ._report.result import Report as Report, ReportDiff as ReportDiff
from ._report.sites import Sites as Sites, sites as sites
from ._wrappers.backward import BackwardHook as BackwardHook
from ._wrappers.forward import ForwardHook as ForwardHook
from ._wrappers.value_and_grad import Logs as Logs, value_and_grad as value_and_grad


__all__ = [
    "AbstractHook",
    "AbstractIndexedHook",
    "AbstractLog",
    "AddHook",
    "AtStep",
    "BackwardHook",
    "Chain",
    "ForwardHook",
    "HistogramLog",
    "HookShapeError",
    "IdentityHook",
    "IdentityLog",
    "Log",
    "LogShapeError",
    "LogTooLargeError",
    "LogValueError",
    "Logs",
    "MaxAbsLog",
    "MeanLog",
    "MeanStd",
    "MeanStdLog",
    "NoneLog",
    "NormLog",
    "NotInitialisedError",
    "PatchHook",
    "PeexError",
    "Report",
    "ReportDiff",
    "ScaleHook",
    "SiteIndex",
    "SiteLostError",
    "SiteNotFiredError",
    "SiteNotFoundError",
    "Sites",
    "ZeroHook",
    "clear_caches",
    "patching",
    "probe",
    "register_rule",
    "report",
    "sites",
    "value_and_grad",
]
