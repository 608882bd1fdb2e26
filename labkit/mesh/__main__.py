"""`python -m labkit.mesh --axes fsdp=4,tp=2`, in each process of a cluster: is everybody there, and do they add up?"""

from __future__ import annotations

import argparse
import sys

from labkit.errors import LabError


def main() -> int:
    """Join the other processes, make the mesh, and sum over all devices."""
    parser = argparse.ArgumentParser(prog="python -m labkit.mesh", description=__doc__)
    parser.add_argument("--axes", required=True, help="such as fsdp=4,tp=2")
    parser.add_argument("--timeout", type=float, default=300, help="seconds to wait for the other processes")
    options = parser.parse_args()
    try:
        print(greet(options.axes, options.timeout), flush=True)
    except LabError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def greet(axes: str, timeout: float) -> str:
    """One line of this process: who it is, and the sum of all devices' numbers as it sees it."""
    from labkit import mesh, runtime

    here = mesh.initialize(timeout=timeout)
    runtime.start()
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
    return (
        f"{here}. {dict(made.shape)} over {count} devices, {len(made.local_devices)} of them here; their sum is right."
    )


if __name__ == "__main__":
    sys.exit(main())
