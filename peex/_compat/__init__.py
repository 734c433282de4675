"""All that peex uses of private or changing API, of JAX and of Equinox, and nothing else.

Each use says the versions that it is for, and has a canary in `tests/compat`. No other
folder imports `jax._src`.
"""

from .jax import (
    CustomVJPException as CustomVJPException,
    PassingPrimitive as PassingPrimitive,
    Primitive as Primitive,
    ShapedArray as ShapedArray,
    Trace as Trace,
    VALUE_ERRORS as VALUE_ERRORS,
    abandon as abandon,
    add_tangents as add_tangents,
    as_weak_as as as_weak_as,
    batch_as_is as batch_as_is,
    batchers as batchers,
    call_bwd as call_bwd,
    current_trace as current_trace,
    fresh as fresh,
    hands_on as hands_on,
    holds_no_module as holds_no_module,
    instantiate_zeros as instantiate_zeros,
    is_compiled as is_compiled,
    is_eval_trace as is_eval_trace,
    is_staging_trace as is_staging_trace,
    is_symbolic_zero as is_symbolic_zero,
    is_undefined_primal as is_undefined_primal,
    is_zero as is_zero,
    jvp_as_is as jvp_as_is,
    keep_one as keep_one,
    keep_unused as keep_unused,
    linearize_as_sum as linearize_as_sum,
    linearize_to_nothing as linearize_to_nothing,
    on_recomputation as on_recomputation,
    primitive_jvps as primitive_jvps,
    primitive_transposes as primitive_transposes,
    register_lowering as register_lowering,
    set_current_trace as set_current_trace,
    unbatched as unbatched,
    zero_tangent as zero_tangent,
)
from .jaxprs import (
    eval_jaxpr as eval_jaxpr,
    is_jaxpr as is_jaxpr,
    is_literal as is_literal,
    jit_options as jit_options,
    jit_shardings as jit_shardings,
    open_jaxpr as open_jaxpr,
    part_of_jaxpr as part_of_jaxpr,
    scan_layout as scan_layout,
    sub_jaxprs as sub_jaxprs,
)
from .frames import (
    Frame as Frame,
    current_frames as current_frames,
    frames_of as frames_of,
    function_of as function_of,
    in_callback as in_callback,
    is_abstract as is_abstract,
    is_of_jax as is_of_jax,
    mapping_frame as mapping_frame,
)
from .hijax import (
    LinearMap as LinearMap,
    Root as Root,
    bind_root as bind_root,
    parts_of as parts_of,
)
from .meshes import (
    as_varying as as_varying,
    explicit_sharding as explicit_sharding,
    manual_axes as manual_axes,
    plain_shape as plain_shape,
    split_over as split_over,
    typed_as as typed_as,
    varying as varying,
    varying_array as varying_array,
    with_axis as with_axis,
)
from .equinox import (
    WRAPPER_FIELD_NAMES as WRAPPER_FIELD_NAMES,
    inline_noinline as inline_noinline,
    may_stand_for as may_stand_for,
    noinline_impl as noinline_impl,
    noinline_p as noinline_p,
    saved_states as saved_states,
    stood_for as stood_for,
)
