"""`px.sites`: what a model has to hook, without running it."""

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import peex as px


def linear(*args, seed=0, **kwargs):
    return eqx.nn.Linear(*args, key=jax.random.key(seed), **kwargs)


class Embed(eqx.Module):
    """Not callable: a hook can be put around its methods only."""

    weight: jax.Array

    def lookup(self, token):
        return self.weight[token]

    def attend(self, x):
        return self.weight @ x


class Model(eqx.Module):
    embed: Embed
    layers: dict[str, list[eqx.nn.Linear]]
    activation: object
    extra: eqx.nn.Dropout = eqx.field(static=True)

    def __call__(self, token):
        x = self.embed.lookup(token)
        for layer in self.layers["all"]:
            x = self.activation(layer(x))
        return self.embed.attend(x)

    @property
    def width(self):
        return 3


def model():
    layers = {"all": [linear(3, 3), linear(3, 3, use_bias=False)]}
    return Model(Embed(jnp.ones((5, 3))), layers, jax.nn.gelu, eqx.nn.Dropout(0.1))


@pytest.mark.parametrize("where", ["extra", "ex*"])
def test_a_module_in_a_static_field_is_named(where):
    with pytest.raises(
        px.SiteNotFoundError, match="the module 'extra', but this is in a"
    ):
        px.ForwardHook(model(), where=where)


def test_places():
    sites = px.sites(model())
    assert list(sites) == [
        ".",
        "embed",
        "layers.all.0",
        "layers.all.1",
        "activation",
        "extra",
    ]
    found = {k: (i.class_name, i.chosen, i.parameter_count) for k, i in sites.items()}
    assert found == {
        ".": ("Model", "where", 15 + 12 + 9),
        "embed": ("Embed", "method", 15),
        "layers.all.0": ("Linear", "default", 12),
        "layers.all.1": ("Linear", "default", 9),
        "activation": ("function", "where", 0),
        "extra": ("Dropout", "never", 0),
    }
    assert sites["embed"].methods == ("attend", "lookup")
    assert sites["."].methods == ()
    assert sites["layers.all.0"].parameter_bytes == 48


def test_what_chooses_them_is_true():
    tree = model()
    sites = px.sites(tree)
    by = lambda how: {k for k, i in sites.items() if i.chosen == how}
    default = {c.key(".") for c, _, _ in px.ForwardHook(tree).plan.chosen}
    assert by("default") == default
    for key in by("where") | by("default"):
        px.ForwardHook(tree, where=key)
    for key in by("method"):
        px.ForwardHook(tree, where=f"{key}:{sites[key].methods[0]}")
        with pytest.raises(px.SiteNotFoundError):
            px.ForwardHook(tree, where=key)
    for key in by("never"):
        with pytest.raises(px.SiteNotFoundError):
            px.ForwardHook(tree, where=key)


def test_stored_twice():
    class Tied(eqx.Module):
        embed: eqx.nn.Embedding
        body: eqx.nn.MLP
        head: eqx.nn.Linear

        def __call__(self, token):
            return self.head(self.body(self.embed(token)))

    head = linear(3, 5)
    embed = eqx.nn.Embedding(weight=head.weight)
    tied = Tied(embed, eqx.nn.MLP(3, 3, 4, 1, key=jax.random.key(0)), head)
    sites = px.sites(tied)
    assert sites["embed"].shared_with == ("head",)
    assert sites["head"].shared_with == ("embed",)
    assert sites["body"].shared_with == sites["."].shared_with == ()
    # Once in the whole; and wherever it is.
    assert sites["."].parameter_count == 15 + 5 + 16 + 15
    assert (sites["embed"].parameter_count, sites["head"].parameter_count) == (15, 20)
    shared = [p for p in sites.parameters if len(p.uses) > 1]
    assert [p.uses for p in shared] == [("embed.weight", "head.weight")]
    shown = str(sites)
    assert "* shared, counted once: embed.weight = head.weight" in shown
    assert "20*" in shown and "51 parameters, 204 B" in shown


def test_a_transposed_array_is_a_new_one():
    pair = (linear(3, 5, use_bias=False), linear(5, 3, use_bias=False))
    get = lambda pair: pair[0].weight.T
    for tied in (
        eqx.nn.Shared(pair, lambda pair: pair[1].weight, get),
        eqx.filter_eval_shape(
            lambda: eqx.nn.Shared(pair, lambda pair: pair[1].weight, get)
        ),
    ):
        sites = px.sites(tied)
        assert sites["pytree.0"].parameter_count == 15
        assert sites["pytree.1"].parameter_count == 0
        assert len(sites.parameters) == 1


def test_a_layer_at_two_places():
    layer = linear(3, 3)
    sites = px.sites(eqx.nn.Sequential([layer, eqx.nn.Lambda(jnp.tanh), layer]))
    assert sites["layers.0"].shared_with == ("layers.2",)
    assert sites["."].parameter_count == 12


def test_shapes_only():
    make = lambda key: eqx.nn.Linear(100_000, 100_000, key=key)
    sites = px.sites(eqx.filter_eval_shape(make, jax.random.key(0)))
    assert sites["."].parameter_count == 100_000**2 + 100_000
    assert "10.0G" in str(sites) and "40.0 GB" in str(sites)


def test_dict():
    found = px.sites(model()).to_dict()
    assert json.loads(json.dumps(found)) == found
    assert found["sites"][1] == {
        "key": "embed",
        "class": "Embed",
        "chosen": "method",
        "methods": ["attend", "lookup"],
        "parameters": 15,
        "parameter_bytes": 60,
        "shared_with": [],
    }
    assert len(found["parameters"]) == 4


def test_shown():
    sites = px.sites(model())
    assert repr(sites) == "<Sites: 6 places, 2 chosen by default>"
    assert "a method named" in str(sites) and "never: static field" in str(sites)
    assert "<td" in sites._repr_html_()
