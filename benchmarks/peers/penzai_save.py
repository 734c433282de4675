"""Penzai: a `SaveIntermediate` (of its toolshed) behind every layer."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array
from penzai import pz
from penzai.toolshed.save_intermediates import SaveIntermediate

from ..contestants import Call, Contestant, loss_of, Unsupported
from ..models import AbstractChain, attend, BLOCK_KEYS, Case, Transformer, Values


@pz.pytree_dataclass
class PenzaiLayer(pz.nn.Sequential):
    """What is one layer in Equinox, put together from several of Penzai's."""

    sublayers: list[pz.nn.Layer]


@pz.pytree_dataclass
class PenzaiBlock(pz.nn.Layer):
    """A block of the transformer. `layers` are those of `BLOCK_KEYS`."""

    layers: dict[str, pz.nn.Layer]
    heads: int = dataclasses.field(metadata={"pytree_node": False})

    def __call__(self, x: Any, /, **_: Any) -> Any:
        layers = self.layers
        y = layers["norm1"](x)
        parts = (layers[name](y).untag("t", "d") for name in "qkv")
        heads = pz.nx.nmap(lambda q, k, v: attend(q, k, v, self.heads))
        x = x + layers["o"](heads(*parts).tag("t", "d"))
        y = layers["up"](layers["norm2"](x))
        return x + layers["down"](pz.nx.nmap(jax.nn.gelu)(y))


def contestant(case: Case) -> Contestant:
    plain, keys = _model(case)
    axes = ("t", "d")[-case.x.ndim :]
    x = pz.nx.wrap(case.x).tag(*axes)
    saving = (
        pz.select(plain)
        .at_instances_of(PenzaiLayer)
        .apply(lambda layer: pz.nn.Sequential([layer, SaveIntermediate()]))
    )
    # Staged, the variables are made anew in each call, so that they don't outlive it.
    slots, states = pz.unbind_state_vars(saving, freeze=True)

    def logged(slots: Any, states: Any, x: Any) -> tuple[Any, list[Any]]:
        variables = [state.unfreeze_as_copy() for state in states]
        out = pz.bind_variables(slots, variables)(x)
        return out, [variable.value for variable in variables]

    _, variables = pz.unbind_state_vars(saving)

    def eager(x: Any) -> tuple[Any, list[Any]]:
        return saving(x), [variable.value for variable in variables]

    def values(result: Any) -> tuple[Any, Values]:
        out, saved = result
        unwrap = lambda x: x.unwrap(*(("t", "f") if "f" in x.named_axes else axes))
        return unwrap(out), dict(zip(keys, map(unwrap, saved), strict=True))

    step = jax.value_and_grad(lambda plain, x: loss_of(plain(x).unwrap(*axes)))
    return Contestant(
        plain=Call(lambda plain, x: plain(x).unwrap(*axes), (plain, x)),
        logged=Call(logged, (slots, states, x)),
        values=values,
        plain_step=Call(step, (plain, x)),
        eager=Call(eager, (x,)),
        own=True,
    )


def _model(case: Case) -> tuple[Any, list[str]]:
    """The case's model, with frozen parameters, and the keys of its layers in the
    order in which a traversal of the pytree meets them.
    """
    model: Any = case.model
    if isinstance(model, Transformer):
        blocks, keys = [], []
        for i, block in enumerate(model.layers):
            layers = {}
            for name in BLOCK_KEYS:
                axes = {"up": ("d", "f"), "down": ("f", "d")}.get(name, ("d", "d"))
                layers[name] = _layer(f"{i}.{name}", getattr(block, name), *axes)
            blocks.append(PenzaiBlock(layers, block.heads))
            keys += [f"layers.{i}.{name}" for name in sorted(BLOCK_KEYS)]
        return pz.freeze_params(pz.nn.Sequential(blocks)), keys
    if isinstance(model, AbstractChain):
        tanh = pz.nn.Elementwise(jnp.tanh)
        parts = [
            part
            for name in model.names
            for part in (_layer(name, getattr(model, name), "d", "d"), tanh)
        ]
        return pz.freeze_params(pz.nn.Sequential(parts)), list(model.names)
    raise Unsupported("a variable that is set in a jax.lax.scan leaks a tracer")


def _layer(label: str, layer: Any, in_axis: str, out_axis: str) -> PenzaiLayer:
    def parameter(name: str, x: Array, *axes: str) -> Any:
        return pz.Parameter(value=pz.nx.wrap(x).tag(*axes), label=f"{label}.{name}")

    bias = pz.nn.AddBias(parameter("bias", layer.bias, out_axis), ())
    if layer.weight.ndim == 1:
        weights = parameter("weights", layer.weight, out_axis)
        scale = pz.nn.Linear(weights, (), ())
        return PenzaiLayer([pz.nn.Standardize("d", 1e-5), scale, bias])
    weights = parameter("weights", layer.weight, "out", in_axis)
    linear = pz.nn.Linear(weights, (in_axis,), ("out",))
    return PenzaiLayer([linear, pz.nn.RenameAxes("out", out_axis), bias])
