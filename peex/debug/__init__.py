"""Where a run went wrong: what made a value that isn't finite; where two models that
should compute the same part; and whether hooks do what they should.

`find_nonfinite` says of a call what is to blame, and hands back a `NonFinite` that
holds `Blame`s. `FiniteLog` watches a training step, `first_nonfinite` and `blame` read
its logs. `compare` hands back a `Comparison`: a `Row` for each two calls, a
`ParameterRow` for each two parameters, and what is `Unmatched`. `selfcheck` checks
hooks on a model; a `SelfCheck` holds each `Check`. How two models are compared
is in `_compare`. What acts at sites in general is in `_hooks`; nothing of it belongs
here.
"""

from .._compare.compare import compare as compare
from .._compare.compared import (
    ParameterRow as ParameterRow,
    Row as Row,
    Unmatched as Unmatched,
)
from .._compare.comparison import Comparison as Comparison
from .blamed import Blame as Blame
from .finite_log import (
    blame as blame,
    FiniteLog as FiniteLog,
    first_nonfinite as first_nonfinite,
)
from .nonfinite import NonFinite as NonFinite
from .search import find_nonfinite as find_nonfinite
from .self_check import selfcheck as selfcheck
from .self_checked import Check as Check, SelfCheck as SelfCheck
