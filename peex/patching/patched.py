"""A wrapper that puts values in at some places of its sites."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx

from .._hooks.at import At
from .._hooks.from_log import PatchHook
from .._sites.chosen import is_wild
from .._wrappers.forward import ForwardHook


def patched(
    hooked: ForwardHook, values: Mapping[str, Any], masks: Mapping[str, Any]
) -> ForwardHook:
    """The wrapper with these values in the place of its own, where masks say so.

    **Arguments:**

    - `hooked`: with a hook at these sites, whatever it is.
    - `values`: a value for each key.
    - `masks`: for each key the mask (`None` for everywhere).
    """
    # The first pattern that matches is taken, and "cell" matches "cell#1".
    ordered = sorted(masks, key=lambda key: (is_wild(key), -key.count("#")))
    hook = At(PatchHook(values), {key: masks[key] for key in ordered})
    return eqx.tree_at(lambda h: h.hook_fn, hooked, hook)
