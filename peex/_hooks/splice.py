"""A module put into the way of a value, such as a sparse autoencoder."""

from typing import Any

import jax
from jaxtyping import Array, PyTree

from .._errors import HookShapeError
from .._instrument.probe import probe
from .callables import refuse_class
from .hooks import AbstractHook


class SpliceHook(AbstractHook):
    """Replaces a value by what an autoencoder makes of it: `x -> decode(edit(z))` with
    `z = encode(x)`; with `error`, `x -> decode(edit(z)) + stop_gradient(x -
    decode(encode(x)))`, which is `x` itself where nothing is edited. So sparse
    autoencoders are run in the place of what they were trained on ([Cunningham et al.,
    2023](https://arxiv.org/abs/2309.08600)), and with their error as a constant, so
    that gradients go through the features ([Marks et al.,
    2024](https://arxiv.org/abs/2403.19647)).

    `z`, before it is edited, is a value of the site: of one at `"layers"` it is logged
    as `"layers/latents"` (by the `log_fn` of the wrapper; of a dict, by the pattern
    that matches), and hooks of a wrapper around this one can be put there, backward
    ones too.

    !!! Example

        ```python
        import equinox as eqx
        import jax
        import jax.numpy as jnp
        import peex as px

        class SAE(eqx.Module):
            up: eqx.nn.Linear
            down: eqx.nn.Linear

            def encode(self, x):
                return jax.nn.relu(self.up(x))

            def decode(self, z):
                return self.down(z)

        keys = jax.random.split(jax.random.key(0), 3)
        model = eqx.nn.MLP(2, 1, 4, depth=2, key=keys[0])
        sae = SAE(eqx.nn.Linear(4, 16, key=keys[1]), eqx.nn.Linear(16, 4, key=keys[2]))
        spliced = px.ForwardHook(model, px.SpliceHook(sae), where="layers.1")
        out, log = spliced(jnp.ones(2))
        log["layers.1/latents"]  # shape (16,)
        ```
    """

    module: Any
    error: bool
    edit: Any

    def __init__(
        self,
        module: Any,
        *,
        error: bool = False,
        edit: Any = None,
    ):
        """**Arguments:**

        - `module`: has methods `encode` and `decode`. They are called with the value as
            it is at the site, which is one array: one example, where the model maps
            over them. The module's arrays are leaves of the wrapper.
        - `error`: whether what the autoencoder gets wrong of `x` is added.
        - `edit`: a function of the latents to ones like them.

        The result is cast to the dtype of the value.

        **Raises:**

        `TypeError` for a module without these methods; when it is called,
        [`peex.HookShapeError`][] if the site has several arrays.
        """
        refuse_class("The module of a SpliceHook", module)
        for name in ("encode", "decode"):
            if not callable(getattr(module, name, None)):
                raise TypeError(
                    f"The module of a SpliceHook, a {type(module).__name__}, has no "
                    f"method {name!r}. Give one with `encode(x)` and `decode(z)`, as a "
                    "small `equinox.Module` around yours that has both."
                )
        if edit is not None and not callable(edit):
            raise TypeError(
                f"The `edit` of a SpliceHook is a function of the latents; got "
                f"{edit!r}. Write `edit=lambda z: z.at[3].set(0.0)`."
            )
        self.module = module
        self.error = error
        self.edit = edit

    def __call__(self, value: PyTree[Array]) -> PyTree[Array]:
        if not isinstance(value, jax.Array):
            raise HookShapeError(
                f"its value is a {type(value).__name__}, and an autoencoder is of one "
                "array. Choose a site that has one, or write a hook that takes the "
                "value apart."
            )
        encode, decode = self.module.encode, self.module.decode
        latents = encode(value)
        edited = probe(latents, "latents")
        if self.edit is not None:
            edited = self.edit(edited)
        new = decode(edited)
        if self.error:
            plain = decode(latents)
            lost = value.astype(plain.dtype) - plain
            new = new + jax.lax.stop_gradient(lost)
        return new.astype(value.dtype)
