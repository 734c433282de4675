"""The log of another run as a side of a comparison: a mapping, or a file."""

import os
from collections.abc import Mapping
from typing import Any

import jax.tree_util as jtu
import numpy as np

from .._log import Log
from .._sites.keys import input_key, split_call
from .._sites.places import places
from .._wrappers.value_and_grad import Logs
from .entries import arrays_at, entries_of
from .sides import AbstractSide, Arrays, Backward, Given, Replayed, Visit


def is_log(x: Any) -> bool:
    if isinstance(x, Mapping):
        return not places(dict(x), "__call__")  # a dict of modules is a model
    return isinstance(x, Logs | str | os.PathLike)


def as_logs(x: Any) -> Logs:
    """What was given as a log, with that of the backward pass if there is one."""
    if isinstance(x, Logs):
        return x
    if isinstance(x, str | os.PathLike):
        x = Log.load(x)
    return Logs(Log(), x if isinstance(x, Log) else Log(x))


class LogSide(AbstractSide):
    """A log. It can't be run.

    - `logged`: what it has of the backward pass.

    **Arguments:**

    - `logs`: of both passes.
    - `like`: the log of the model. Where a mapping has an array of the same key and
        shape, its axes are the same.
    """

    def __init__(self, logs: Logs, like: Log):
        backward = _with_axes(logs.backward, like)
        log = _with_axes(logs.forward, like)
        keys = [key for key in log if not _is_inside_of_call(key)]
        sites = {split_call(key)[0] for key in keys}
        self.parameters = {}
        self.visits = []
        cotangents: dict[Visit, Arrays] = {}
        for entry in entries_of(log, keys):
            site, number = split_call(entry.key)
            given = input_key(site, number or 0)
            visit = Visit(
                site or ".",
                number or 0,
                entry.steps,
                "",
                not any(
                    s.startswith(f"{site}.") or site in ("", ".")
                    for s in sites - {site}
                ),
                arrays_at(log[entry.key], entry.index),
                arrays_at(log[given], entry.index) if given in log else None,
                site,
            )
            self.visits.append(visit)
            if entry.key in backward:
                cotangents[visit] = arrays_at(backward[entry.key], entry.index)
        self.logged = Backward(cotangents, {})
        whole = [visit for visit in self.visits if visit.key == "."]
        self.outputs = whole[0].outputs if len(whole) == 1 else []
        given = whole[0].inputs if len(whole) == 1 else None
        self.args = None if given is None else [x for x in given if x is not None]

    def replay(self, given: Mapping[Visit, Given]) -> Mapping[Visit, Replayed] | None:
        del given
        return None

    def backward(self, weights: Arrays) -> Backward:
        """That which was logged, whatever it was of."""
        del weights
        return self.logged


def _is_inside_of_call(key: str) -> bool:
    """Whether a key is that of arguments, or of a value inside of a module."""
    return split_call(key)[0].endswith(":in") or "/" in key


def _with_axes(log: Log, like: Log) -> Log:
    shapes = lambda entry: [np.shape(x) for x in jtu.tree_leaves(entry)]
    axes = {
        key: like.axes[key]
        for key in log
        if key in like.axes and shapes(log[key]) == shapes(like[key])
    }
    return Log(dict(log), log.counts, axes | log.axes)
