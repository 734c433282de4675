"""Two processes on one machine run the same hooked step: the same logs come out."""

import os
import socket
import subprocess
import sys
import textwrap

import pytest


WORKER = textwrap.dedent(
    """
    import pathlib
    import sys

    import equinox as eqx
    import jax
    import jax.numpy as jnp
    import numpy as np
    import peex as px
    from jax.experimental.multihost_utils import process_allgather
    from jax.sharding import NamedSharding, PartitionSpec as P

    port, rank = sys.argv[1], int(sys.argv[2])
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=rank)
    assert jax.process_count() == 2
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((jax.device_count(),), ("x",), axis_types=auto)
    sharding = NamedSharding(mesh, P("x"))
    model = eqx.nn.MLP(3, 2, 8, depth=2, key=jax.random.key(0))
    everything = np.asarray(jax.random.normal(jax.random.key(1), (8, 3)))
    xs = jax.make_array_from_callback((8, 3), sharding, lambda i: everything[i])

    def loss(model, xs):
        return jnp.mean(jnp.sin(jax.vmap(model)(xs)))

    step = eqx.filter_jit(px.value_and_grad(loss, forward=px.IdentityLog()))
    (value, logs), grads = step(model, xs)
    # The same on one process, with plain arrays.
    (expected, one), one_grads = step(model, jnp.asarray(everything))
    np.testing.assert_allclose(value.addressable_data(0), expected, 1e-6, 1e-6)
    for log, other in ((logs.forward, one.forward), (logs.backward, one.backward)):
        for key in other:
            mine = log[key]
            assert mine.shape == other[key].shape
            for shard in mine.addressable_shards:
                wanted = np.asarray(other[key])[shard.index]
                np.testing.assert_allclose(shard.data, wanted, 1e-6, 1e-6)
        first = log["layers.0"]
        assert not first.is_fully_addressable  # its other half is with the other one
        try:
            log.save("x")
            raise AssertionError("saved a half")
        except px.LogValueError as error:
            assert "another process holds a part of it. Gather it" in str(error)
        # What the message says to write.
        whole = process_allgather(log, tiled=True)
        np.testing.assert_allclose(whole["layers.0"], other["layers.0"], 1e-6, 1e-6)
        assert whole.to_dict()["axes"]["layers.0"][0]["size"] == 8

    # What a monitor keeps is the same for both, and for one alone.
    stats = px.monitoring.Stats("mean", "rms", "std", "max", "zeros")
    monitor = px.monitoring.Monitor(loss, forward=stats, where="layers.0")
    state = monitor.init(model, everything)
    step = eqx.filter_jit(lambda model, state, xs: monitor(model, state, xs)[0][1])
    mine, _ = monitor.read(step(model, state, xs))
    wanted, _ = monitor.read(step(model, state, jnp.asarray(everything)))
    assert list(mine) == list(wanted) and len(mine) == 5
    np.testing.assert_allclose(list(mine.values()), list(wanted.values()), 1e-5, 1e-6)
    path = pathlib.Path(sys.argv[3])
    px.monitoring.JSONL(path / f"{rank}.jsonl")(1, mine)
    print("done", rank)
    """
)


def test_two_processes(tmp_path):
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    flag = "--xla_force_host_platform_device_count=2"
    env = {**os.environ, "XLA_FLAGS": flag, "JAX_PLATFORMS": "cpu"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(worker), str(port), str(rank), str(tmp_path)],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outs = [p.communicate(timeout=120)[0] for p in processes]
    except subprocess.TimeoutExpired:
        for p in processes:
            p.kill()
        pytest.fail("the processes didn't finish: " + processes[0].communicate()[0])
    for rank, (process, out) in enumerate(zip(processes, outs, strict=True)):
        assert process.returncode == 0, out
        assert f"done {rank}" in out
    # Only the first one writes.
    assert [path.name for path in tmp_path.glob("*.jsonl")] == ["0.jsonl"]
