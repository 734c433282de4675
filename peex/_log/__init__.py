"""What a hooked call hands back, what can be done with it, and how it is shown. Nothing
here knows of hooks or wrappers.
"""

from .axes import Axis as Axis, described as described
from .log import Log as Log
from .merge import empty as empty, merge as merge
from .merged import held as held, unheld as unheld
