# ---
# jupyter:
#   labkit:
#     minutes: {cpu: 2, colab_tpu: 3, cloud_tpu: 3}
#     time_limit_s: 300
# ---

# %% [markdown]
# # 0. Start here
#
# A language model reads an English specification and writes Verilog, the language in which chips are described. Whether
# it did well is not a matter of taste: we **simulate** what it wrote. In this course you fine-tune, compress, convert
# and serve such a model on Google TPUs, and after every step you simulate again.
#
# **After this page you will be able to**
# - say what this machine can run, and what it lacks for which lab,
# - read a name such as `v5p-8`: how many chips, how much memory,
# - run the whole loop once: specification → model → Verilog → simulation → verdict.
#
# | | CPU | Colab TPU | Cloud TPU |
# | --- | --- | --- | --- |
# | minutes | 2 | 3 | 3 |
# | model in this notebook | `tiny-gemma4` | `tiny-gemma4` | `tiny-gemma4` |
#
# **Needs:** `iverilog` (the first cell says so if it is missing). No account, no accelerator, no network.

# %%
# first-cell

# %% [markdown]
# ## What is this machine?
#
# `labkit doctor` on the command line gives the same answer. Every gap comes with the one command that closes it.

# %%
from labkit import doctor

report = doctor.examine()
report

# %% [markdown]
# ## Chip, slice, host
#
# A **chip** is one TPU processor with its own memory (HBM). A **slice** is a set of chips that are wired to each other
# as a grid; it is what you rent, and your program sees all of it. A **host** is the computer that drives some of the
# chips. A slice's name says which generation it is and how large.
#
# **Predict before you run the next cell:** how many chips has a `v5p-8`, and how many a `v6e-8`?

# %%
from labkit import hardware

slices = [hardware.slice(name) for name in ("v5p-8", "v6e-8", "v5e-16")]
for s in slices:
    print(s)
assert [s.chips for s in slices] == [4, 8, 16]

# %% [markdown]
# The 8 in `v5p-8` counts *TensorCores*, two on each chip: four chips. In `v6e-8` it counts chips. Mix them up, and
# a bill is wrong by a factor of two.
#
# A wrong name is an error that helps. This one goes wrong on purpose:

# %%
from labkit.errors import LabError

try:
    hardware.slice("v5p-7")
except LabError as error:
    print(error)
    caught = error
assert "v5p-8" in str(caught)

# %% [markdown]
# Does a large model fit on one chip? Its weights alone, in bfloat16, take two bytes a parameter.
#
# **Predict:** on which of these chips do the weights of Gemma 4 31B fit?

# %%
from labkit import models, plots

spec = models.get("gemma4-31b")
names = ["v5e", "v6e", "v4", "v5p"]
gib = [hardware.chip(name).hbm_bytes / 2**30 for name in names]
weights = 2 * spec.parameters / 2**30
assert [size > weights for size in gib] == [False, False, False, True]
plots.bars(
    f"Of four TPU chips, only v5p holds the {weights:.0f} GiB of Gemma 4 31B",
    names, {"headroom": gib}, x="chip", y="HBM (GiB a chip)", limit=weights,
)  # fmt: skip

# %% [markdown]
# And there nothing is left for anything else. So a model of this size is cut over a slice: how, is the mesh lab. What
# fits and what does not is *compiled*, not guessed, in the rehearsal lab, on a machine without a TPU, like this one.

# %% [markdown]
# ## The loop, once
#
# The problems of this course are made by a generator: each has a specification, a reference module and a testbench.
# Here is one that no model here was trained on.

# %%
from labkit.data import verilog

problem = verilog.problems("test_seen", count=40, seed=0)[0]
print(problem.spec)

# %% [markdown]
# `tiny-gemma4` is a base model: 1.9 million parameters in the architecture of Gemma 4, trained to continue Verilog
# text. It has never been shown a question and its answer.
#
# **Predict:** will it write the module that is asked for?

# %%
from labkit import evaluate

base = models.load("tiny-gemma4")
chat = [{"role": "user", "content": problem.spec}]
prompt = base.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
text = evaluate.generate(base.model, base.tokenizer, [prompt], max_new_tokens=160)[0].text
print(text[:600] or "(nothing: it stops at once)")

# %% [markdown]
# Now we take the module out of the text, if there is one, and the judge compiles it with Icarus Verilog and runs the
# testbench in a sandbox. For comparison, it also judges the reference.

# %%
verdict = evaluate.judge(evaluate.extract_module(text, problem.top), problem)
reference = evaluate.judge(problem.reference, problem)
print("the base model:", verdict)
print("the reference: ", reference)
assert not verdict.passed and reference.passed

# %% [markdown]
# The base fails, and the reference passes: so it is the model, not the judge. What would you do if you were paid for
# every pass? Print the words that the judge looks for, perhaps. **Predict:** does this module get through?

# %%
cheat = f"""
module {problem.top}();
  initial begin $display("Mismatches: 0 in 100 samples"); $display("PASS"); $finish; end
endmodule
"""
faked = evaluate.judge(cheat, problem)
print(faked)
assert not faked.passed

# %% [markdown]
# It does not: a pass is believed only from a line that holds a random word of this run, which the candidate cannot
# know.
#
# ## What the model learns from
#
# To teach the base to answer, we show it questions with answers. It reads all of the text, but only the marked tokens
# are *scored*: the answer and the marker that ends it. Switch to another mask and see what would count then.

# %%
from labkit import widgets

example = verilog.examples(verilog.drafts("train", 1, seed=0))[0]
widgets.token_mask(example, base.tokenizer)

# %% [markdown]
# ## Your turn
#
# Every lab has exercises. `check` tells you what is probably wrong, `hint()` helps, `solution()` shows the code that
# the tests run. Nothing is remembered between cells: run them in any order.

# %%
from labkit import exercises

start_1 = exercises.get("start_1")
start_1

# %% [markdown]
# Put a number in place of the dots.

# %%
start_1.check(...)

# %% [markdown]
# ## Where to go
#
# - `03_lora_sft`: teach the base to follow a specification, in minutes on this machine. Start there.
#
# All of it is also a command: `labkit run` does the loop before and after fine-tuning and writes a report.
