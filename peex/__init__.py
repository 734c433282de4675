"""Runtime hooks for Equinox models: wrap a model, and it hands back what its parts
computed (activations) and received (cotangents), or changes them on the way.

- Wrap a model: `ForwardHook`, `BackwardHook`, `value_and_grad` (which returns `Logs`).
  What comes back is a `Log`. `is_hooked` says whether one is wrapped.
- See what there is to hook: `sites` (`Sites`), `report` (`Report`, `ReportDiff`), and
  the calls as a tree in which they can be replaced, or one be taken out, `trace`
  (`CallTree`, `Isolated`).
- Change values: `AddHook`, `ScaleHook`, `ClampHook`, `NoiseHook`; take them away:
  `ZeroHook`, `MeanHook`, `ReplaceHook`, `ProjectHook`; put in those of another run:
  `PatchHook`, and `RotateHook` and `MaskHook`, which are trained (`trainable` says what
  is); put an autoencoder in their way: `SpliceHook`; change whole calls: `AroundCall`,
  `ReplaceCall`. `IdentityHook` changes nothing.
- Say where hooks act: `At` and `AtStep` at some places only, `View` on split axes;
  `Chain` of several. Your own is an `AbstractHook` or any function; if it acts
  differently at each call, step or example, `WithData` of these, or an
  `AbstractIndexedHook`, which is told a `SiteIndex`.
- See what reaches what in a recurrent model: `reach` (`Reach`, `ReachDiff`); learn it
  forward in time: `eligibility` (`Eligibility`).
- Say what is recorded: `MeanLog`, `MeanStdLog` (`MeanStd`), `NormLog`, `MaxAbsLog`,
  `HistogramLog`, `NoneLog`; your own is an `AbstractLog` or any function. `IdentityLog`
  records the value itself.
- Merge what is recorded, over steps, examples, devices and calls: `Moments`
  (`MomentsEntry`), `Sum`, `Max`, `Min`, your own `AbstractAccumulator`; `merge` two
  logs, `accumulate` a stored one; find the examples of the `TopK` (`TopKEntry`).
- Name a value in a model's own code: `probe`. See into a primitive of your own:
  `register_rule`.
- Experiments with two runs: `patching`. Runs that went wrong: `debug`. What a training
  is like as it goes on: `monitoring`.
- Keep state, named by the paths of the model: `StateEntry` marks it, `StateKey` stands
  for it once `export_state` has taken it out; `update_state`, `import_state`.
- Let go of what calls have left in caches: `clear_caches`.
- What goes wrong is a `PeexError`: `SiteNotFoundError`, `SiteNotFiredError`,
  `SiteLostError`, `HookShapeError`, `LogShapeError`, `LogValueError`,
  `LogTooLargeError`, `NotInitialisedError`, `NonFiniteError`, `NotCloseError`.
"""

from . import debug as debug, monitoring as monitoring, patching as patching
from ._caches import clear_caches as clear_caches
from ._engine.rules.registered import register_rule as register_rule
from ._errors import (
    HookShapeError as HookShapeError,
    LogShapeError as LogShapeError,
    LogTooLargeError as LogTooLargeError,
    LogValueError as LogValueError,
    NonFiniteError as NonFiniteError,
    NotCloseError as NotCloseError,
    NotInitialisedError as NotInitialisedError,
    PeexError as PeexError,
    SiteLostError as SiteLostError,
    SiteNotFiredError as SiteNotFiredError,
    SiteNotFoundError as SiteNotFoundError,
)
from ._hooks.ablations import (
    ClampHook as ClampHook,
    MeanHook as MeanHook,
    ProjectHook as ProjectHook,
    ReplaceHook as ReplaceHook,
)
from ._hooks.accumulate import accumulate as accumulate
from ._hooks.accumulators import (
    AbstractAccumulator as AbstractAccumulator,
    Max as Max,
    Min as Min,
    Sum as Sum,
)
from ._hooks.at import At as At
from ._hooks.at_step import AtStep as AtStep
from ._hooks.call_hooks import AroundCall as AroundCall, ReplaceCall as ReplaceCall
from ._hooks.chain import Chain as Chain
from ._hooks.from_log import PatchHook as PatchHook, WithData as WithData
from ._hooks.hooks import (
    AbstractHook as AbstractHook,
    AddHook as AddHook,
    IdentityHook as IdentityHook,
    ScaleHook as ScaleHook,
    ZeroHook as ZeroHook,
)
from ._hooks.indexed import (
    AbstractIndexedHook as AbstractIndexedHook,
    SiteIndex as SiteIndex,
)
from ._hooks.interchange import MaskHook as MaskHook, RotateHook as RotateHook
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
from ._hooks.moments import Moments as Moments, MomentsEntry as MomentsEntry
from ._hooks.noise import NoiseHook as NoiseHook
from ._hooks.splice import SpliceHook as SpliceHook
from ._hooks.top_k import TopK as TopK, TopKEntry as TopKEntry
from ._hooks.trainable import trainable as trainable
from ._hooks.view import View as View
from ._instrument.probe import probe as probe
from ._log import Log as Log, merge as merge
from ._reach.diff import ReachDiff as ReachDiff
from ._reach.eligibility import (
    Eligibility as Eligibility,
    eligibility as eligibility,
)
from ._reach.reach import reach as reach
from ._reach.result import Reach as Reach
from ._report.isolate import Isolated as Isolated
from ._report.report import report as report
from ._report.result import Report as Report, ReportDiff as ReportDiff
from ._report.sites import Sites as Sites, sites as sites
from ._report.trace import CallTree as CallTree, trace as trace
from ._state.entries import StateEntry as StateEntry, StateKey as StateKey
from ._state.export import export_state as export_state, import_state as import_state
from ._state.update import update_state as update_state
from ._wrappers.backward import BackwardHook as BackwardHook
from ._wrappers.forward import ForwardHook as ForwardHook
from ._wrappers.hooked_again import is_hooked as is_hooked
from ._wrappers.value_and_grad import Logs as Logs, value_and_grad as value_and_grad


__all__ = [
    "AbstractAccumulator",
    "AbstractHook",
    "AbstractIndexedHook",
    "AbstractLog",
    "AddHook",
    "AroundCall",
    "At",
    "AtStep",
    "BackwardHook",
    "CallTree",
    "Chain",
    "ClampHook",
    "Eligibility",
    "ForwardHook",
    "HistogramLog",
    "HookShapeError",
    "IdentityHook",
    "IdentityLog",
    "Isolated",
    "Log",
    "LogShapeError",
    "LogTooLargeError",
    "LogValueError",
    "Logs",
    "MaskHook",
    "Max",
    "MaxAbsLog",
    "MeanHook",
    "MeanLog",
    "MeanStd",
    "MeanStdLog",
    "Min",
    "Moments",
    "MomentsEntry",
    "NoiseHook",
    "NonFiniteError",
    "NoneLog",
    "NormLog",
    "NotCloseError",
    "NotInitialisedError",
    "PatchHook",
    "PeexError",
    "ProjectHook",
    "Reach",
    "ReachDiff",
    "ReplaceCall",
    "ReplaceHook",
    "Report",
    "ReportDiff",
    "RotateHook",
    "ScaleHook",
    "SiteIndex",
    "SiteLostError",
    "SiteNotFiredError",
    "SiteNotFoundError",
    "Sites",
    "SpliceHook",
    "StateEntry",
    "StateKey",
    "Sum",
    "TopK",
    "TopKEntry",
    "View",
    "WithData",
    "ZeroHook",
    "accumulate",
    "clear_caches",
    "debug",
    "eligibility",
    "export_state",
    "import_state",
    "is_hooked",
    "merge",
    "patching",
    "probe",
    "reach",
    "register_rule",
    "report",
    "sites",
    "trace",
    "trainable",
    "update_state",
    "value_and_grad",
]
