"""The primitives out of which sites can be brought, one file for each. A file knows
everything of its primitive, and registers its `Rule`; nothing else names a primitive
that has bodies. To add one, add a file, its import here, and its case to the table of
`tests/twins.py`.
"""

from . import (
    calls as calls,
    cond as cond,
    custom as custom,
    scan as scan,
    shard_map as shard_map,
    solves as solves,
    while_loop as while_loop,
)
