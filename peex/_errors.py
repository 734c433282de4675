"""The exceptions that peex raises.

All derive from [`peex.PeexError`][]. Nothing else lives here: messages are written
where the error is found, because only there the site, the values and the code to write
instead are known.
"""


class PeexError(Exception):
    """Base class of every error that peex raises on purpose."""


class SiteNotFoundError(PeexError):
    """A pattern, class or function given as `where` (or as a key of a dict of hooks)
    matches nothing in the model, or one given to `log.select` nothing in the log.
    Raised when the wrapper is built; the message lists the nearest keys.
    """


class SiteNotFiredError(PeexError):
    """A site was asked for by an explicit `where`, but it didn't run in this call."""


class SiteLostError(PeexError):
    """A site ran in a place out of which its value can't be brought.

    **Attributes:**

    - `key`, `why`: of the site, and the reason; `None` where it is more than one site.
    """

    key: str | None = None
    why: str | None = None


class HookShapeError(PeexError):
    """A `hook_fn` changed the tree structure, a shape or a dtype of the value."""


class LogValueError(PeexError):
    """A `log_fn` returned something that isn't a pytree of arrays; or a log can't be
    made into a file or plain numbers.
    """


class NotInitialisedError(PeexError):
    """A logging `BackwardHook` was called before `BackwardHook.init`."""


class LogShapeError(PeexError):
    """A log doesn't fit what it is used for: a backward log, or the source of a patch,
    the call; two logs that are compared, each other. Or its entries aren't of one
    shape, to be stacked, or aren't numbers, or can't be drawn.
    """


class LogTooLargeError(PeexError):
    """The log of a call would take more than the `max_bytes` of its `ForwardHook`."""


class NonFiniteError(PeexError, FloatingPointError):
    """A search found something that isn't finite in a value or a gradient; raised by
    `raise_if_found` alone. The message is what the search prints.
    """


class NotCloseError(PeexError, AssertionError):
    """Two models that were compared aren't close: raised by `assert_close`, whose
    message is what the comparison prints, and where they were given different inputs.
    """
