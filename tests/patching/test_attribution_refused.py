"""What attribution refuses, before anything runs."""

import equinox as eqx
import jax
import jax.numpy as jnp
import parts
import pytest
from noted import CLEAN, CORRUPTED, MODEL, Noted

import peex as px


pytestmark = pytest.mark.usefixtures("nothing_runs")


def refused(error, match, model=MODEL, clean=CLEAN, corrupted=CORRUPTED, **kwargs):
    default = {"where": "b", "axes": "pos _", "metric": jnp.sum}
    with pytest.raises(error, match=match):
        px.patching.attribution(model, clean, corrupted, **default | kwargs)


@pytest.mark.parametrize(
    "metric, shown",
    [
        (lambda y: y, r"f32\[3,4\]"),
        (lambda y: {"a": y[0, 0], "b": y[0, 1]}, r"f32\[\], f32\[\]"),
        (lambda y: jnp.argmax(y), r"i32\[\]"),
        (lambda y: y[0, 0].astype(complex), r"c64\[\]"),
    ],
    ids=["array", "several", "integer", "complex"],
)
def test_a_metric_that_is_no_number(metric, shown):
    refused(
        px.PeexError,
        r"^`px.patching.attribution` takes the gradient of the metric, which has to be "
        rf"one floating-point number; this one is {shown}\. Make one of it, as by "
        r"`metric=lambda logits: jnp.mean\(logits\[:, 42\]\)`; for each of several "
        r"examples, call it under `jax.vmap`. `px.patching.sweep` takes any metric.$",
        metric=metric,
    )


def test_a_site_of_integers():
    model = parts.Seq([Noted(), eqx.nn.Lambda(lambda x: x.astype(int)), Noted()])
    refused(
        px.PeexError,
        r"^The site 'parts.1' logs i32\[3,4\], which has no gradient, as "
        r"`px.patching.attribution` needs it\. Choose one of floating-point numbers, "
        r"as the output of an embedding instead of its input; `px.patching.sweep`",
        model,
        where="parts.1",
        metric=lambda y: jnp.sum(y.astype(float)),
    )


def test_shapes_and_names():
    refused(
        px.LogShapeError,
        r"The site 'b' logs f32\[3,4\] in the clean run and f32\[5,4\] in the",
        corrupted=jnp.zeros((5, 4)),
    )
    refused(px.HookShapeError, "has 2 axes.* names 3", axes="layer pos _")
    refused(px.PeexError, "names no axis of the site 'b'", axes="_ _")
    refused(px.HookShapeError, "3 does not divide 4", axes="pos (head=3 _)")
    refused(px.SiteNotFoundError, "matches nothing in the model", where="c")
    two = eqx.nn.Lambda(lambda x: (x, x))
    last = eqx.nn.Lambda(lambda xy: xy[0])
    refused(
        px.PeexError,
        "The value of the site 'parts.1' has 2 arrays",
        parts.Seq([Noted(), two, last]),
        where="parts.1",
    )


def test_arguments():
    refused(TypeError, "`direction='back'` isn't known", direction="back")
    refused(TypeError, "`source='dirty'` isn't known", source="dirty")
    refused(
        TypeError,
        "^`steps=0` is at how many points the gradient is averaged: a positive "
        "integer, or None for that at the base alone.$",
        steps=0,
    )
    refused(
        TypeError,
        "^`path='inputs'` isn't known. Write \"input\", for gradients at inputs "
        'between those of the two runs, or "activation", at values of a site between',
        path="inputs",
    )
    match = (
        r'^`path="input"` goes from the inputs of one run to those of the other, so '
        r"what is put in are the values of that; got {} as `source`. Write "
        r'`path="activation"`, which goes from the values of the base to those of'
    )
    refused(TypeError, match.format("'zero'"), steps=2, source="zero")
    log = px.Log({"b": CLEAN})
    refused(TypeError, match.format("a log"), steps=2, source=log)


def embedded(model, tokens):
    return model(jnp.eye(4)[tokens])


def test_inputs_that_have_nothing_between():
    tokens = jnp.arange(3)
    match = (
        r"^There is nothing between the inputs of the two runs: args\[0\] is i32\[3\] "
        r"in one and i32\[3\] in the other, and only floating-point arrays can be "
        r'interpolated. Write `path="activation"`, or give the model what comes of them'
    )
    kwargs = {"steps": 2, "method": embedded}
    refused(px.PeexError, match, clean=tokens, corrupted=tokens + 1, **kwargs)
    scaled = lambda model, x, factor: factor * model(x)
    refused(
        px.PeexError,
        r"args\[1\] is 2 in one and 3 in the other",
        clean=(CLEAN, 2),
        corrupted=(CORRUPTED, 3),
        steps=2,
        method=scaled,
    )
    refused(
        px.LogShapeError,
        r"^The inputs of the two runs have different structures, so there is nothing "
        r"between them: PyTreeDef\(\(\*, None\)\) and PyTreeDef\(\(\*, \*\)\).",
        clean=(CLEAN, None),
        corrupted=(CORRUPTED, CORRUPTED),
        steps=2,
        method=lambda model, x, mask: model(x),
    )


def test_where_there_is_no_gradient():
    def loop(model, x):
        _, x = jax.lax.while_loop(
            lambda c: c[0] < 3, lambda c: (c[0] + 1, model(c[1])), (0, x)
        )
        return x

    refused(px.SiteLostError, "'b' ran", method=loop)
