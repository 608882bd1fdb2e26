"""`python -m labkit.mesh --axes fsdp=4,tp=2`, in each process of a cluster: is everybody there, and do they add up?"""

from __future__ import annotations

import argparse
import contextlib
import sys

from labkit.errors import LabError


def main() -> int:
    """Join the other processes, make the mesh, and sum over all devices."""
    parser = argparse.ArgumentParser(prog="python -m labkit.mesh", description=__doc__)
    parser.add_argument("--axes", required=True, help="such as fsdp=4,tp=2")
    parser.add_argument("--timeout", type=float, default=300, help="seconds to wait for the other processes")
    parser.add_argument("--devices", type=int, help="so many simulated CPU devices in this process")
    parser.add_argument("--coordinator", help="host and port of process 0, where JAX cannot find it out")
    parser.add_argument("--processes", type=int, help="how many there are, where JAX cannot find it out")
    parser.add_argument("--process", type=int, help="which one this is, from 0")
    options = parser.parse_args()
    given = (options.coordinator, options.processes, options.process)
    try:
        print(greet(options.axes, given, options.devices, options.timeout), flush=True)
    except LabError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def greet(axes: str, given: tuple[str | None, int | None, int | None], devices: int | None, timeout: float) -> str:
    """One line of this process: who it is, which numbers it holds, and that the sum over all of them is right."""
    from labkit import mesh, runtime

    here = mesh.initialize(*given, timeout=timeout)
    with contextlib.redirect_stdout(sys.stderr):
        runtime.start(devices=devices)
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    made = mesh.make_mesh(axes)
    count = made.size
    over_all = NamedSharding(made, P(made.axis_names))
    numbers = jax.make_array_from_callback((count,), over_all, lambda i: jnp.arange(count)[i])
    total = int(jax.jit(jnp.sum, out_shardings=NamedSharding(made, P()))(numbers))
    if total != count * (count - 1) // 2:
        raise LabError(f"The devices' numbers sum to {total}, not {count * (count - 1) // 2}.")
    held = sorted({index for shard in numbers.addressable_shards for index in range(count)[shard.index[0]]})
    return (
        f"Process {here.index} of {here.count}: mesh {dict(made.shape)} over {count} devices, "
        f"{len(made.local_devices)} of them here, which hold the numbers {held[0]} to {held[-1]}; "
        f"the sum of all is {total}."
    )


if __name__ == "__main__":
    sys.exit(main())
