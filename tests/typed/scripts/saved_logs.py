"""What a log is made into."""

import json
import pathlib
import tempfile
from typing import assert_type

import equinox as eqx
import jax
import jax.numpy as jnp

import peex as px


model = eqx.nn.MLP(2, 1, 8, 1, key=jax.random.key(0))
_, log = px.ForwardHook(model)(jnp.ones(2))
path = pathlib.Path(tempfile.mkdtemp()) / "log.safetensors"
log.save(path)
again = assert_type(px.Log.load(str(path)), px.Log)
print(json.dumps(again.to_dict()), (again - log).map(jnp.max))
print(log.to_dataframe().key, log.to_dataframe(("step", "batch")))
log.plot("layers.0")[0].set_title("first")
