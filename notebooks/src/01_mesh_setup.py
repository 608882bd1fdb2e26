# ---
# jupyter:
#   labkit:
#     minutes: {cpu: 3, colab_tpu: 3, cloud_tpu: 3}
#     time_limit_s: 600
#     devices: 8
# ---

# %% [markdown]
# # 1. Mesh: from a slice of chips to shardings that divide
#
# You have rented a `v5p-8`, and you want to fine-tune a model of 31 billion parameters. **Which mesh?** Most first
# errors on TPUs are made here: a number of heads that does not divide, a silent copy of everything on every chip, an
# axis that runs over the slow links.
#
# **After this page you will be able to**
# - make a mesh, shard arrays over it, and see which device holds what,
# - find the collectives that a sharding causes in the compiled program,
# - plan a mesh for a large model: what divides, what fits, what each axis costs,
# - read and repair the error of four heads on eight devices,
# - join two processes to one mesh.
#
# | | CPU | Colab TPU | Cloud TPU |
# | --- | --- | --- | --- |
# | minutes | 3 | 3 | 3 |
# | devices | 8 simulated | 8 simulated | 8 simulated |
# | models planned | up to 31B | up to 31B | up to 31B |
#
# **Needs:** nothing beyond labkit. The eight devices are simulated everywhere, so that everybody sees the same.

# %%
# first-cell

# %% [markdown]
# ## Eight devices, one array
#
# A **mesh** gives names to the axes of a grid of devices. `fsdp` splits what is stored, and gathers it for use; `tp`
# (tensor parallelism) splits the computation itself.
#
# **Predict:** an array of 8 x 16 numbers is split over `fsdp=4` along its rows and `tp=2` along its columns. Which part
# does device 3 hold?

# %%
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from labkit import mesh as meshes

mesh = meshes.make_mesh({"fsdp": 4, "tp": 2})
x = jax.device_put(jnp.arange(128.0).reshape(8, 16), NamedSharding(mesh, P("fsdp", "tp")))
held = meshes.inspect(x)
print(held.parts[3])
assert held.parts[3].index == ((2, 4), (8, 16)) and held.copies == 1

# %% [markdown]
# Try other ways: what changes if an axis is left out? **Find out:** which choice holds two copies of everything?

# %%
from labkit import widgets

widgets.who_holds_what(x, mesh, axes=("fsdp", "tp"))

# %% [markdown]
# An axis that no dimension uses means *copies*: nobody asked for them, and nobody is told. Resharding is one call, and
# the only cell here that moves data.

# %%
rows = jax.device_put(x, NamedSharding(mesh, P("fsdp", None)))
print(meshes.inspect(rows))
assert meshes.inspect(rows).copies == 2 and bool((rows == x).all())

# %%
from labkit import exercises

mesh_1 = exercises.get("mesh_1")
mesh_1

# %% [markdown]
# Replace the dots, and run the cell. `mesh_1.hint()` and `mesh_1.solution()` help.


# %%
def replicated(tree): ...


mesh_1.check(replicated)

# %% [markdown]
# ## What a sharding makes the chips say to each other
#
# A matmul `x @ w` with `w` split by **columns** needs nothing: each device makes its own columns. Split by **rows**,
# each device has only a part of every sum.
#
# **Predict:** which collective does the compiler put behind the second one?

# %%
from labkit import rehearse

w = jax.ShapeDtypeStruct((16, 32), jnp.float32, sharding=NamedSharding(mesh, P(None, "tp")))
v = jax.ShapeDtypeStruct((32, 16), jnp.float32, sharding=NamedSharding(mesh, P("tp", None)))
a = jax.ShapeDtypeStruct((8, 16), jnp.float32, sharding=NamedSharding(mesh, P("fsdp", None)))
same = NamedSharding(mesh, P("fsdp", None))
column = jax.jit(lambda a, w: a @ w).lower(a, w).compile()
both = jax.jit(lambda a, w, v: jax.nn.relu(a @ w) @ v, out_shardings=same).lower(a, w, v).compile()
for name, program in {"column": column, "column, then row": both}.items():
    print(f"{name}:", *rehearse.collectives(rehearse.parse(program.as_text()), dict(mesh.shape)))
assert "all-reduce" in both.as_text() and "all-reduce" not in column.as_text()

# %% [markdown]
# One all-reduce for two matmuls: that is why every transformer splits the first matrix of a pair by columns and the
# second by rows. And it runs over `tp` only, so `tp` belongs on the fast links.

# %%
mesh_2 = exercises.get("mesh_2")
mesh_2

# %% [markdown]
# Replace the dots:


# %%
def received_bytes(size, ways, kind): ...


mesh_2.check(received_bytes)

# %% [markdown]
# ## The torus
#
# The chips of a slice are wired as a grid, in large slices as a torus whose ends are joined. An axis of the mesh should
# lie along it, so that its neighbours are neighbours.

# %%
from labkit.mesh import figures

where = meshes.topology("v5e-16", axes={"fsdp": 4, "tp": 4})
print(where)
figures.topology_figure(where)

# %% [markdown]
# ## The 31B on a `v5p-8`
#
# **Predict:** four chips with 95 GiB each; the weights take 57 GiB in bfloat16. Would you split the weights over the
# chips (`fsdp=4`), the computation (`tp=4`), or neither?

# %%
plan = meshes.plan("gemma4-31b", "v5p-8", seq=4096, batch=8)
print(plan)
print(*plan.reasons, sep="\n")
assert plan.fits and plan.axes["dp"] == 4

# %% [markdown]
# Neither. With LoRA the frozen weights fit on *one* v5p chip, so each chip holds all of them and only the gradients of
# the small adapters travel. Splitting what fits costs a hundred times the traffic. The published run used `tp=4` here.
#
# Elsewhere they do not fit, and the planner splits what it has to:

# %%
others = [meshes.plan("gemma4-31b", name, seq=2048, batch=16) for name in ("v6e-8", "v5e-16", "v5e-4")]
print(*others, sep="\n")
assert [found.fits for found in others] == [True, True, False]

# %% [markdown]
# Move the sliders. **Find out:** which is the smallest slice of v5e on which all weights of the 31B can be trained?

# %%
widgets.mesh_explorer(model="gemma4-31b", slice_name="v5p-8", seq=4096)

# %%
mesh_3 = exercises.get("mesh_3")
mesh_3

# %% [markdown]
# Replace the dots:

# %%
axes = ...
mesh_3.check(axes)

# %% [markdown]
# ## Goes wrong on purpose: four heads on eight devices
#
# A `v6e-8` has eight chips. Tensor parallelism over all of them is refused. A paper explains that "32 and 16 heads do
# not divide by 8".
#
# **Predict:** do they?

# %%
from labkit.errors import LabError

try:
    meshes.plan("gemma4-31b", "v6e-8", seq=4096, batch=8, axes={"tp": 8})
except LabError as error:
    refusal = str(error)
print(refusal)
assert "k_einsum" in refusal and 32 % 8 == 0 and 16 % 8 == 0

# %% [markdown]
# They do divide: 32 / 8 = 4 and 16 / 8 = 2. What does not are the **4** KV heads of the ten global layers. Those arrays
# are small, so one way out is to leave them whole, *visibly*:

# %%
repaired = meshes.plan("gemma4-31b", "v6e-8", seq=4096, batch=8, axes={"tp": 8}, on_indivisible="replicate")
print(*repaired.replicated, sep="\n")
assert repaired.possible and repaired.replicated

# %%
mesh_4 = exercises.get("mesh_4")
mesh_4

# %% [markdown]
# Replace the dots:

# %%
spec = ...
mesh_4.check(spec)

# %% [markdown]
# ## What the slow network costs
#
# Two slices are joined by the data centre network, whose share of each chip is tens of times less than its links. An
# axis across it pays for every byte.
#
# **Predict:** the same 32 chips, as one slice or as two: how do the collectives compare when weights are gathered over
# all of them?

# %%
one, two = (
    meshes.plan("gemma4-31b", name, seq=4096, batch=32, axes={"dp": 1, "fsdp": 32, "tp": 1})
    for name in ("v5e-32", "2xv5e-16")
)
best = meshes.plan("gemma4-31b", "2xv5e-16", seq=4096, batch=32)
for found in (one, two, best):
    print(found)
assert two.seconds > one.seconds > 0 and best.seconds < two.seconds

# %% [markdown]
# Keep what must be gathered inside a slice, and put across the slow network only what is small: with LoRA, the
# gradients of the adapters.

# %%
from labkit import plots

plots.bars(
    f"Across two slices, the right mesh moves in {best.seconds:.2f} s what the wrong one moves in {two.seconds:.2f} s",
    ["one slice, fsdp=32", "two slices, fsdp=32", "two slices, planned"],
    {"collectives": [p.seconds for p in (one, two, best)]},
    x="32 v5e chips, LoRA on Gemma 4 31B, 32 x 4,096 tokens",
    y="seconds a step",
)

# %%
mesh_5 = exercises.get("mesh_5")
mesh_5

# %% [markdown]
# Your number:

# %%
mesh_5.check(...)

# %% [markdown]
# ## Two processes, one mesh
#
# A slice has several hosts, and each runs the same program. `labkit.mesh.initialize()` joins them: on Cloud TPU, GKE
# and Slurm without arguments. Here two processes of four simulated devices do it over the loopback.

# %%
said = meshes.run_processes(2, devices=4, axes="fsdp=4,tp=2")
print(*said, sep="\n")
assert len(said) == 2 and all(each.joined for each in said)

# %% [markdown]
# Each holds half of the array, and neither ever sees the other half. If one does not come, the others say *which*:

# %%
(alone,) = meshes.run_processes(2, absent={1}, timeout=5)
print(alone)
assert not alone.joined and "Process 1" in alone.text

# %% [markdown]
# **What you have now:** a mesh that divides, a plan with its reasons, and a way to ask who holds what. `labkit plan`
# answers the same on the command line, `labkit cluster` writes the files that start it on a real slice. Whether the
# *compiler* agrees that it fits is the rehearsal lab.
