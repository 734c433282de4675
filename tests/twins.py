"""The table of models with hand-written twins: the oracles of the engine's tests."""

import jax
import jax.numpy as jnp
import jax.random as jr
from parts import Pair
from twin_case import Case, key as _key, linear
from twin_loops import (
    batched_branch_twin,
    batched_scan_twin,
    batched_while_twin,
    BatchedBranch,
    BatchedScan,
    BatchedWhile,
    Branch,
    branch_twin,
    Composite,
    composite_twin,
    deep_branch_twin,
    DeepBranch,
    Mapped,
    mapped_twin,
    Nested,
    nested_twin,
    Recurrent,
    recurrent_twin,
    Stack,
    stack_twin,
    Switch,
    switch_twin,
    While,
    while_twin,
)
from twin_models import (
    Checkpointed,
    checkpointed_twin,
    Force,
    force_twin,
    Grid,
    grid_twin,
    MLP,
    mlp_twin,
    one_by_one_twin,
    OneByOne,
    Repeated,
    repeated_twin,
    tied_twin,
    Tokens,
    tokens_twin,
)


def _branch(seed: int) -> Branch:
    return Branch(linear(3, 3, seed), linear(3, 3, seed + 1), linear(3, 3, seed + 2))


def cases() -> list[Case]:
    x3 = jr.normal(_key(100), (3,))
    tokens = jr.normal(_key(101), (5, 3))
    tied = linear(3, 3, 3)
    save_dots = jax.checkpoint_policies.dots_saveable
    mlp = MLP(3, 4, 3, key=_key(0))
    while_ = While(linear(3, 3, 50), linear(3, 1, 51))
    return [
        Case("mlp", mlp, x3, mlp_twin),
        Case("tokens", Tokens(linear(3, 4, 1), 0), tokens, tokens_twin),
        Case("tokens_out_axis", Tokens(linear(3, 4, 1), 1), tokens, tokens_twin),
        Case("grid", Grid(linear(3, 2, 2)), jr.normal(_key(102), (3, 4, 5)), grid_twin),
        Case("recurrent", Recurrent(linear(3, 3, 4), False), tokens, recurrent_twin),
        Case("reverse", Recurrent(linear(3, 3, 4), True), tokens, recurrent_twin),
        Case("unrolled", Recurrent(linear(3, 3, 4), False, 2), tokens, recurrent_twin),
        Case("stack", Stack(4, 5), tokens, stack_twin),
        Case("mapped", Mapped(linear(3, 4, 6), linear(4, 4, 7)), tokens, mapped_twin),
        Case(
            "batched_scan",
            BatchedScan(linear(3, 3, 8)),
            jr.normal(_key(103), (2, 5, 3)),
            batched_scan_twin,
        ),
        Case("branch_yes", _branch(9), jnp.abs(x3), branch_twin),
        Case("branch_no", _branch(9), -jnp.abs(x3), branch_twin),
        *(
            Case(f"deep_branch_{i}", DeepBranch(linear(3, 3, 60)), x, deep_branch_twin)
            for i, x in enumerate(jnp.array([[1, 1, 1], [1, -1, 1], [-1, 1, 1.0]]))
        ),
        Case(
            "switch",
            Switch([linear(3, 2, s) for s in (12, 13, 14)]),
            jnp.array([0.5, 1.0, -1.0]),
            switch_twin,
        ),
        Case("batched_branch", BatchedBranch(_branch(15)), tokens, batched_branch_twin),
        Case(
            "checkpointed",
            Checkpointed(mlp, linear(3, 2, 18), None),
            x3,
            checkpointed_twin,
        ),
        Case(
            "checkpoint_policy",
            Checkpointed(mlp, linear(3, 2, 18), save_dots),
            x3,
            checkpointed_twin,
        ),
        Case("repeated", Repeated(linear(3, 3, 19), False), x3, repeated_twin),
        Case("repeated_jit", Repeated(linear(3, 3, 19), True), x3, repeated_twin),
        Case(
            "one_by_one",
            OneByOne([linear(3, 3, s) for s in (20, 21, 22)]),
            x3,
            one_by_one_twin,
        ),
        Case("tied", Pair(tied, tied), x3, tied_twin),
        *(
            Case(
                f"force_{how.replace(' ', '_')}",
                Force(mlp, linear(3, 2, 23), how),
                x3,
                force_twin,
            )
            for how in ("grad", "jitted grad", "checkpointed grad", "jvp", "linearize")
        ),
        Case("composite", Composite(4, 24, _branch(25)), tokens, composite_twin),
        Case("nested", Nested(linear(3, 3, 28), _branch(29)), x3, nested_twin),
        Case("while", while_, jnp.array([0.1, -0.2, 0.3]), while_twin, False),
        Case("batched_while", BatchedWhile(while_), tokens, batched_while_twin, False),
    ]
