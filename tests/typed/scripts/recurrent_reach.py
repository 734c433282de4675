"""What reaches what in a recurrent model, and learning it forward in time."""

import equinox as eqx
import jax
import jax.numpy as jnp

import peex as px


cell = eqx.nn.GRUCell(3, 4, key=jax.random.key(0))
x, h = jnp.ones(3), jnp.zeros(4)
reach = px.reach(cell, x, h, state="hidden")
for key, reached in reach.parameters.items():
    print(
        key, reached.reason, reached.by, [link.how for link in reached.states.values()]
    )
print(reach["weight_hh"].states["hidden"].through, reach.counts["direct"], reach)
print(reach.matrix().shape, reach.groups[0].states, reach.eventually(), len(reach))
print(reach.diff(px.reach(cell, x, h)), reach.by_reason("unused"), reach.excluded)
nothing = px.reach(cell, x, h, state=(), method=lambda cell, x, h: cell(x, h))
print(px.reach(cell, x, h, new_state=lambda out: out).to_mermaid(), nothing.temporal)

e = px.eligibility(cell, x, h, where="**.bias", diagonal=True)
h, e = e.advance(cell, x, h)
print(e.bytes, e["bias"].shape, e.gradient(h - 1).bias, e)
