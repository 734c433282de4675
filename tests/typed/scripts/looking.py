"""What there is to hook."""

import equinox as eqx
import jax
import jax.numpy as jnp

import peex as px


model = eqx.nn.MLP(2, 1, 8, 1, key=jax.random.key(0))
sites = px.sites(model)
print(len(sites), list(sites), "layers.0" in sites, sites)
report = px.report(model, jax.ShapeDtypeStruct((2,), jnp.float32))
print(report["layers.0"].log_bytes, report.flops, report.log_bytes, report)
for site in report:
    print(site, report[site].log)
print(report.diff(px.report(model, jnp.ones(2))))
try:
    px.ForwardHook(model, where="layer")
except px.SiteNotFoundError as error:
    print(error)
hooked = px.ForwardHook(model, max_bytes=10)
try:
    hooked(jnp.ones(2))
except px.PeexError as error:
    print(error)
px.clear_caches()
