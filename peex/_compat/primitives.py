"""The primitives that have bodies. As `_compat/jax.py`: some aren't exported by JAX."""

from typing import Any

from jax._src.custom_batching import custom_vmap_p as custom_vmap_p
from jax._src.hijax import call_hi_primitive_p as call_hi_primitive_p
from jax._src.lax.eval_jaxpr import eval_jaxpr_p as eval_jaxpr_p
from jax._src.shard_map import shard_map_p as shard_map_p
from jax.extend.core import primitives


call_p: Any = primitives.call_p
closed_call_p: Any = primitives.closed_call_p
cond_p: Any = primitives.cond_p
custom_jvp_call_p: Any = primitives.custom_jvp_call_p
custom_vjp_call_p: Any = primitives.custom_vjp_call_p
jit_p: Any = primitives.jit_p
linear_solve_p: Any = primitives.linear_solve_p
remat_p: Any = primitives.remat_p
scan_p: Any = primitives.scan_p
while_p: Any = primitives.while_p
