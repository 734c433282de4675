"""What a sweep refuses, before anything runs."""

import equinox as eqx
import jax.numpy as jnp
import parts
import pytest
from noted import CLEAN, CORRUPTED, MODEL, Noted

import peex as px


pytestmark = pytest.mark.usefixtures("nothing_runs")


def refused(error, match, model=MODEL, clean=CLEAN, corrupted=CORRUPTED, **kwargs):
    default = {"where": "b", "axes": "pos _", "metric": jnp.sum}
    with pytest.raises(error, match=match):
        px.patching.sweep(model, clean, corrupted, **default | kwargs)


def test_shapes_that_differ():
    refused(
        px.LogShapeError,
        r"The site 'b' logs f32\[3,4\] in the clean run and f32\[5,4\] in the "
        "corrupted one. Give both runs inputs of the same shapes",
        corrupted=jnp.zeros((5, 4)),
    )
    refused(
        px.LogShapeError,
        r"f32\[3,4\] in the clean run and bf16\[3,4\] in",
        corrupted=CORRUPTED.astype(jnp.bfloat16),
    )


def test_a_site_of_one_run_only():
    class Sometimes(eqx.Module):
        a: Noted
        b: Noted

        def __call__(self, x, extra):
            return self.b(self.a(x)) if extra else self.a(x)

    args = (CLEAN, True), (CORRUPTED, False)
    match = (
        r"'b' runs in the {} run only, so nothing of the {} run .*with `where`: 'a'\."
    )
    model = Sometimes(Noted(), Noted())
    refused(
        px.SiteNotFiredError,
        match.format("clean", "corrupted"),
        model,
        *args,
        where=None,
    )
    refused(
        px.SiteNotFiredError,
        match.format("corrupted", "clean"),
        model,
        *args[::-1],
        where=None,
    )


def test_names_that_do_not_fit():
    refused(
        px.HookShapeError,
        r"The log of the site 'b' has 2 axes, of shape \(3, 4\), but 'layer pos _' "
        r"names 3\. Write one name for each axis",
        axes="layer pos _",
    )
    refused(
        px.HookShapeError,
        r"site 'b' has shape \(3, 4\), but 9 does not divide 4",
        axes="_ (head=9 _)",
    )
    refused(
        TypeError, "'pos pos' doesn't name the axes.*'pos' is there", axes="pos pos"
    )


def test_nothing_to_sweep():
    refused(
        px.PeexError,
        r"'_ _' names no axis of the site 'b', so there is nothing to sweep.*"
        r'logs f32\[3,4\]; name the axes to go along, as in "layer pos _"',
        axes="_ _",
    )
    refused(
        px.PeexError,
        r"At the site 'b' there is nothing to sweep: it logs f32\[0,4\], which 'pos _'",
        clean=CLEAN[:0],
        corrupted=CORRUPTED[:0],
    )


def test_axes_by_pattern():
    refused(
        px.PeexError,
        r"`axes` says nothing of the site 'b', which logs f32\[3,4\].*axes=\{'b': ",
        where=["a", "b"],
        axes={"a": "pos _"},
    )
    refused(
        px.SiteNotFoundError,
        "The pattern 'c' of `axes` matches none of the chosen sites. Nearest: 'b'",
        axes={"c": "pos _", "**": "pos _"},
    )


def test_several_arrays():
    model = parts.Two(Noted(), eqx.nn.Lambda(lambda x: (x, x[0])))
    refused(
        px.PeexError,
        r"site 'b' has 2 arrays, f32\[3,4\], f32\[4\], so it isn't known which .*"
        "px.probe",
        model,
        metric=lambda out: out[1],
    )


def test_windows():
    refused(
        px.PeexError,
        r"windows along 'pos' are 4 long, but this axis of the site 'b' is 3\. Choose "
        "from 1 to 3",
        windows={"pos": 4},
    )
    refused(px.PeexError, "windows along 'pos' are 0 long", windows={"pos": 0})
    refused(
        px.PeexError,
        r"slide along the axis 'layer', but no site has .*Nearest: 'pos'.*"
        r'as in "layer pos _", .* `windows=\{\'pos\': 2\}`; windows over layers in a '
        r'list are those of a pattern, as in `windows=\{"layers.\*": 2\}`',
        windows=2,
    )
    over_sites = {"where": ["a", "b"], "windows": {"*": 3}}
    refused(
        px.PeexError,
        r"windows over '\*' are 3 long, but it matches 2 sites: 'a', 'b'\. Choose from",
        **over_sites,
    )
    refused(
        px.PeexError,
        r"The sites 'a' and 'b' are to be patched at once, .*, but log \[3, 4\] and "
        r"\[3, 2\]\. Choose sites of one shape for the pattern",
        parts.Two(Noted(), eqx.nn.Lambda(lambda x: x[:, :2])),
        **over_sites | {"windows": {"*": 2}},
    )


def test_sources():
    refused(
        TypeError,
        r"`source='corrupted'` isn't known. Write one of 'clean', 'zero', 'mean', or "
        'give a `px.Log`.*direction="noising"',
        source="corrupted",
    )
    refused(
        px.LogShapeError,
        "given as `source` has nothing of the site 'b'. Nearest: 'c'",
        source=px.Log({"c": CLEAN}),
    )
    refused(
        px.LogShapeError,
        r"`source` has f32\[4,3\] at the site 'b', but the runs log f32\[3,4\] there",
        source=px.Log({"b": CLEAN.T}),
    )
    refused(
        px.PeexError,
        "is the mean over the axes that are patched whole, but the last, and 'pos _' "
        "has none of these at the site 'b'. Give the runs several examples",
        source="mean",
    )
    whole = parts.Two(Noted(), eqx.nn.Lambda(lambda x: x.astype(int)))
    refused(
        px.PeexError,
        r"the site 'b' logs i32\[3,4\], of which there is no mean",
        whole,
        source="mean",
        axes="_ unit",
    )


def test_other_arguments():
    refused(TypeError, "`direction='forward'` .* \"denoising\"", direction="forward")
    refused(TypeError, "`batch_size=0` is how many places", batch_size=0)
    refused(
        TypeError, "The metric returned 'loss', which isn't", metric=lambda x: "loss"
    )
    refused(TypeError, "The metric returned None, which isn't", metric=lambda x: None)
    refused(px.SiteNotFoundError, "'c'", where="c")
