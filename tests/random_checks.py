"""What must hold of every random program. All in double precision."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_programs import BATCHES, build, CUSTOM, EFFECTS, INNER, STEPS, uses
from random_twins import names, sites, twin

import peex as px


TOLERANCE = 1e-10


def same(found, expected, what):
    """Equal to `TOLERANCE` of the largest value."""
    found, expected = jax.tree.leaves(found), jax.tree.leaves(expected)
    assert len(found) == len(expected), what
    size = max((float(np.max(np.abs(x))) for x in expected), default=0.0)
    for x, y in zip(found, expected, strict=True):
        x, y = np.asarray(x), np.asarray(y)
        assert (x.shape, x.dtype) == (y.shape, y.dtype), what
        np.testing.assert_allclose(x, y, 0, TOLERANCE * max(1.0, size), err_msg=what)


def run_twin(model, x, fed):
    """The output, the log and the counts."""
    out, found = twin(model, x, iter(fed))
    named = list(zip(names(sites(model)), found, strict=True))
    log = {k: v for k, (v, _) in named}
    return out, log, {k: n for k, (_, n) in named if n is not None}


def nothing_fed(model):
    return [jnp.zeros((*s.steps, *s.batch, 4)) for s in sites(model)]


class Expected:
    """The output, log and gradients of a model, by its twin; with the values of sites
    replaced by those of a `patch`, if there is one.
    """

    def __init__(self, model, x, gradients=False, patch=None):
        self.keys = names(sites(model))
        fed = nothing_fed(model)
        if patch is not None:
            patches = (patch[k] for k in self.keys)
            fed = [
                jnp.concatenate([p, jnp.ones_like(f[..., :1])], -1)
                for p, f in zip(patches, fed, strict=True)
            ]

        def run(model_fed, x):
            model, fed = model_fed
            found = run_twin(model, x, fed)
            return loss_of(found[0]), found

        if gradients:
            run = eqx.filter_grad(run, has_aux=True)
        grads, found = eqx.filter_jit(run)((model, fed), x)
        self.out, log, counts = found
        # In order: JAX sorts dicts.
        self.log = {k: log[k] for k in self.keys}
        self.counts = {k: counts[k] for k in self.keys if k in counts}
        if gradients:
            # Without a patch, those of the model itself: see `loses_rules`.
            plain = eqx.filter_grad(lambda model, x: loss_of(model(x)))
            own = grads[0] if patch is not None else eqx.filter_jit(plain)(model, x)
            self.params = params_of(own)
            cotangents = zip(self.keys, grads[1], strict=True)
            self.cotangents = {k: c[..., :3] for k, c in cotangents}


def loss_of(out):
    return jnp.sum(jnp.sin(out) * jnp.arange(1.0, 4.0))


def params_of(model):
    return eqx.filter(model, eqx.is_array)


def check_forward(expected, result, what):
    out, log = result
    assert list(log) == expected.keys, what
    assert list(log.counts) == list(expected.counts), what
    same(out, expected.out, f"output, {what}")
    for key in log:
        same(log[key], expected.log[key], f"{key}, {what}")
    for key, count in expected.counts.items():
        same(log.counts[key], count, f"count of {key}, {what}")


def effects(model, x):
    """How often the code around effects runs while JAX traces the model."""
    EFFECTS.clear()
    jax.make_jaxpr(lambda x: model(x))(x)
    return len(EFFECTS)


def check_logs(plan, seed=0):
    """Logs, counts, outputs and gradients are those of the twin."""
    with jax.enable_x64(True):
        model, x = build(plan, seed)
        expected = Expected(model, x, gradients=not uses(plan, "while"))
        forward = px.ForwardHook(model)
        check_forward(expected, forward(x), "eager")
        if uses(plan, "effect") and not uses(plan, "jit"):  # which keeps what it traced
            assert effects(forward, x) == effects(model, x)
        if uses(plan, "while"):
            check_forward(expected, eqx.filter_jit(forward)(x), "jit")
            check_no_cotangents(model, x)
            return
        cotangents = not uses(plan, *CUSTOM)
        together = seed % 2 == 1
        if not (cotangents and together):
            grads, result = gradients(forward, x)
            check_forward(expected, result, "gradient")
            same(params_of(grads.model), expected.params, "parameters, forward")
        if not cotangents:
            if not loses_rules(plan):
                check_no_cotangents(model, x)
            return
        hooked = px.BackwardHook(forward if together else model).init(x)
        assert list(hooked.log) == expected.keys
        grads, result = gradients(hooked, x)
        if together:
            check_forward(expected, result, "both")
            params = grads.model.model
        else:
            same(result, expected.out, "output, backward")
            params = grads.model
        same(params_of(params), expected.params, "parameters, backward")
        for key, cotangent in expected.cotangents.items():
            same(grads.log[key], cotangent, f"cotangent of {key}")


@eqx.filter_jit
def gradients(hooked, x):
    def loss(hooked, x):
        result = hooked(x)
        return loss_of(result[0] if type(result) is tuple else result), result

    return eqx.filter_grad(loss, has_aux=True)(hooked, x)


def check_sums(plan, seed=0):
    """What is merged where it is, of all calls of a site, is the sum of what is stacked
    (which is zero where a branch isn't taken).
    """
    if uses(plan, "while"):  # of which the twin knows the last iteration only
        return
    with jax.enable_x64(True):
        model, x = build(plan, seed)
        cotangents = not uses(plan, *CUSTOM)
        expected = Expected(model, x, gradients=cotangents)
        out, log = px.ForwardHook(model, None, px.Sum())(x)
        same(out, expected.out, "output")
        check_summed(log, expected.log, "forward")
        if cotangents:
            hooked = px.BackwardHook(model, None, px.Sum()).init(x)
            grads, _ = gradients(hooked, x)
            same(params_of(grads.model), expected.params, "parameters")
            check_summed(grads.log, expected.cotangents, "backward")


def check_summed(log, stacked, what):
    totals = {}
    for key, value in stacked.items():
        total = np.sum(np.reshape(value, (-1, value.shape[-1])), 0)
        key = key.split("#")[0]
        totals[key] = totals.get(key, 0) + total
    assert set(log) == set(totals), what
    assert log.counts == {}
    for key, total in totals.items():
        same(log[key], total, f"sum of {key}, {what}")


def check_no_cotangents(model, x):
    with pytest.raises(px.SiteLostError):
        px.BackwardHook(model).init(x)


def loses_rules(plan):
    """JAX 0.10 loses a `custom_jvp` rule in a scan that is linearized: the function is
    differentiated, with or without peex, if there is a further derivative.
    """
    inside = uses(plan, "custom_jvp") and uses(plan, *INNER) and uses(plan, *STEPS)
    return inside and jax.__version_info__ < (0, 12)


def check_outside(plan, seed=0):
    """What is around the wrapper changes nothing: `jit`, `vmap`, another wrapper."""
    with jax.enable_x64(True):
        model, x = build(plan, seed)
        hooked = px.ForwardHook(model)
        eager = hooked(x)
        check_forward(Expected(model, x), eager, "eager")
        jitted = eqx.filter_jit(hooked)(x)
        assert jax.tree.structure(jitted) == jax.tree.structure(eager)
        same(jitted, eager, "jit")
        xs = jnp.stack([x, 0.5 - x, 0.3 * x])
        batched = eqx.filter_vmap(hooked)(xs)
        for i in range(len(xs)):
            one = jax.tree.map(lambda a, i=i: a[i], batched)
            check_forward(Expected(model, xs[i]), one, f"vmap, example {i}")
        first, second = halves(eager[1])
        if first:
            check_order(model, x, eager, first, second)


def halves(log):
    keys = list(dict.fromkeys(k.split("#")[0] for k in log))
    return keys[: len(keys) // 2], keys[len(keys) // 2 :]


def check_order(model, x, eager, first, second):
    """Two wrappers of different sites log the same in either order, and together what
    one alone does."""
    found = []
    for outer, inner in ((first, second), (second, first)):
        hooked = px.ForwardHook(px.ForwardHook(model, where=inner), where=outer)
        (out, inner_log), outer_log = hooked(x)
        same(out, eager[0], "output of two wrappers")
        assert not set(inner_log) & set(outer_log)
        found.append({**inner_log, **outer_log})
        counts = {**inner_log.counts, **outer_log.counts}
        assert counts.keys() == eager[1].counts.keys()
        same(counts, eager[1].counts, "counts of two wrappers")
    for log in found:
        assert log.keys() == set(eager[1])
        same(log, dict(eager[1]), "log of two wrappers")


def check_patch(plan, seed=0):
    """Patching with a model's own log changes nothing; with another, it is the twin
    whose values are replaced. (An inner derivative takes a patch as constant: it may
    even be zero for the whole batch, and what follows has no batch axis any more.)"""
    if uses(plan, "while", *CUSTOM) or (uses(plan, *INNER) and uses(plan, *BATCHES)):
        return
    with jax.enable_x64(True):
        model, x = build(plan, seed)
        out, log = px.ForwardHook(model)(x)
        same, same_log = px.ForwardHook(model, px.PatchHook(log))(x)
        if not uses(plan, *INNER):
            np.testing.assert_array_equal(same, out)
            jax.tree.map(np.testing.assert_array_equal, same_log, log)
        rng = np.random.default_rng(seed)
        patch = {k: jnp.asarray(rng.normal(size=v.shape)) for k, v in log.items()}
        result = px.ForwardHook(model, px.PatchHook(px.Log(patch)))(x)
        check_forward(Expected(model, x, patch=patch), result, "patched")


def check_derivatives(plan, seed=0):
    """A forward log is differentiable as any output: in forward mode, and as part of a
    loss."""
    with jax.enable_x64(True):
        model, x = build(plan, seed)
        fed = nothing_fed(model)

        def hooked(model, x):
            out, log = px.ForwardHook(model)(x)
            return out, dict(log)

        def expected(model, x):
            return run_twin(model, x, fed)[:2]

        if not uses(plan, "custom_vjp"):
            found, wanted = (
                eqx.filter_jit(
                    lambda m, x, f=f: jax.jvp(lambda x: f(m, x), (x,), (x,))
                )(model, x)
                for f in (hooked, expected)
            )
            same(found, wanted, "forward mode")
        if not uses(plan, "while"):
            found, wanted = (
                eqx.filter_jit(eqx.filter_grad(lambda m, x, f=f: loss_of_all(f(m, x))))(
                    model, x
                )
                for f in (hooked, expected)
            )
            same(params_of(found), params_of(wanted), "activations in a loss")


def loss_of_all(out_log):
    leaves = jax.tree.leaves(out_log)
    return sum(jnp.sum(jnp.sin(x)) * (i + 1) for i, x in enumerate(leaves))
