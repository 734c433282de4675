"""The attributes of a model are those of the wrapper's `model`."""

import copy
import pickle

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from hooked_mlp import MODEL, X

import peex as px


class Sub(eqx.Module):
    conv1: eqx.nn.Linear
    table: dict = eqx.field(static=True)

    @property
    def expensive(self):
        raise RuntimeError("asked for")

    def half(self, x):
        return self.conv1(x)

    @eqx.filter_jit
    def jitted(self, x):
        return self.conv1(x)

    @classmethod
    def made(cls, conv1):
        return cls(conv1, {})

    def init(self, x):
        return self.conv1(x) + 1

    def __call__(self, x):
        return self.half(x)


SUB = Sub(MODEL.linear1, {})
WRAPPED = {
    "forward": (px.ForwardHook(SUB), "ForwardHook", "hooked.model"),
    "backward": (px.BackwardHook(SUB), "BackwardHook", "hooked.model"),
    "nested": (
        px.BackwardHook(px.ForwardHook(SUB)),
        "BackwardHook",
        "hooked.model.model",
    ),
}


RUNS_IT = (
    r"\(...\)`, which runs without hooks, or wrap the model with `method='{}'`, which "
    "runs it with hooks"
)


@pytest.mark.parametrize("name", ["conv1", "table", "expensive"])
@pytest.mark.parametrize("case", WRAPPED)
def test_an_attribute_of_the_model(case, name):
    check_attribute(*WRAPPED[case], name, "`")


@pytest.mark.parametrize("name", ["half", "jitted", "made"])
@pytest.mark.parametrize("case", WRAPPED)
def test_a_method_of_the_model(case, name):
    check_attribute(*WRAPPED[case], name, RUNS_IT.format(name))


def test_a_method_runs_as_the_message_says():
    hooked = px.ForwardHook(SUB)
    assert jnp.array_equal(hooked.model.half(X), SUB.half(X))
    output, log = px.ForwardHook(SUB, method="half")(X)
    assert jnp.array_equal(output, SUB.half(X)) and list(log) == ["conv1"]
    # What the wrapper has itself is its own.
    assert hasattr(px.BackwardHook(SUB).init(X), "log")
    assert jnp.array_equal(px.BackwardHook(SUB).model.init(X), SUB.init(X))


def check_attribute(hooked, kind, path, name, behind):
    match = rf"^'{kind}' object has no attribute '{name}', but its model has: write "
    match += f"`{path}.{name}{behind}$"
    with pytest.raises(AttributeError, match=match) as error:
        getattr(hooked, name)
    assert error.value.name == name and error.value.obj is hooked
    assert not hasattr(hooked, name)
    if name == "conv1":
        assert eval(f"{path}.{name}", {"hooked": hooked}) is SUB.conv1


@pytest.mark.parametrize("case", WRAPPED)
def test_an_attribute_that_nobody_has(case):
    hooked, kind, _ = WRAPPED[case]
    for name in ("conv9", "_conv1", "__conv1__", "_repr_html_"):
        match = f"^'{kind}' object has no attribute '{name}'$"
        with pytest.raises(AttributeError, match=match):
            getattr(hooked, name)


def test_what_looks_for_attributes_goes_on_working():
    hooked = px.ForwardHook(MODEL, px.AddHook(jnp.zeros(4)), where="linear1")
    leaves = jax.tree.leaves(eqx.filter(hooked, eqx.is_array))
    for again in (
        copy.copy(hooked),
        copy.deepcopy(hooked),
        pickle.loads(pickle.dumps(hooked)),
    ):
        for a, b in zip(
            jax.tree.leaves(eqx.filter(again, eqx.is_array)), leaves, strict=True
        ):
            assert jnp.array_equal(a, b)
        assert jnp.array_equal(again(X)[0], hooked(X)[0])
    assert "linear1" in repr(hooked) and not hasattr(
        object.__new__(px.ForwardHook), "a"
    )
