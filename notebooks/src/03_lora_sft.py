# ---
# jupyter:
#   labkit:
#     minutes: {cpu: 8, colab_tpu: 12, cloud_tpu: 20}
#     time_limit_s: 900
# ---

# %% [markdown]
# # 3. LoRA: from specification to simulated Verilog
#
# A base model continues text. It does not answer. A few minutes of supervised fine-tuning change that, and with LoRA
# what is trained is a tenth of its size. You will do it here, and judge it as chips are judged: by simulation.
#
# **After this page you will be able to**
# - choose rank, alpha and targets, and say what they cost in memory on any model of the registry,
# - see which linears really got an adapter, and find a pattern that misses some,
# - say which tokens the loss counts, and why two losses of one model can differ by a factor of thirty,
# - pack samples instead of padding them, and measure what that gains,
# - train, resume, and report pass@1 with its interval.
#
# | | CPU | Colab TPU | Cloud TPU |
# | --- | --- | --- | --- |
# | minutes | 8 | 12 | 20 |
# | model | `tiny-gemma4` | `qwen3-0.6b` | `gemma4-31b` |
#
# **Needs:** `iverilog`. No account, no accelerator and no network for the CPU column.

# %%
# first-cell

# %% [markdown]
# The cells below are the same at each scale. This table is all that differs.

# %%
SCALE = {
    #         model          samples  steps  rows  tokens a row
    "laptop": ("tiny-gemma4", 2_000, 90, 8, 512),
    "colab": ("qwen3-0.6b", 2_000, 150, 8, 1024),
    "slice": ("gemma4-31b", 4_000, 250, 16, 4096),
}
name, samples, steps, batch_size, seq_len = SCALE[here.scale]
name

# %% [markdown]
# ## Before: the base model
#
# The test problems come from families that training has seen, with parameters, names and wordings that it has not.
#
# **Predict:** how many of 64 does the base model solve?

# %%
from labkit import evaluate, models
from labkit.data import verilog

base = models.load(name)
problems = verilog.problems("test_seen", count=64, seed=0)
before = evaluate.evaluate(base.model, base.tokenizer, problems)
print(before)
assert before.pass_at_1 < 0.15

# %% [markdown]
# What goes wrong? The failures say it: a base model writes *some* module, often with a name of its own.

# %%
before.failures

# %% [markdown]
# ## What LoRA adds
#
# A linear of the model computes `x @ W`. LoRA leaves `W` as it is, and adds `(alpha / rank) * (x @ A) @ B`, with two
# thin matrices: `A` is as wide as the input, `B` as the output, and they meet in the middle with only `rank` columns.
# `B` starts as zeros.
#
# **Predict:** by how much do the outputs change when we put untrained adapters on every linear?

# %%
from labkit import lora

model, coverage = lora.inject(base.model, rank=16, alpha=32, targets="all")
inputs = model.get_model_input()
change = abs(model(**inputs)[0] - base.model(**inputs)[0]).max()
print(coverage)
print("largest change of a logit:", change)
assert change == 0 and coverage.parameters < 0.15 * coverage.base_parameters

# %% [markdown]
# The table says which linear got what. Look at the last layer: it is a *global* layer of Gemma 4, where the values are
# the keys. Its projection is called `k_einsum`, and it has no 2 in its shape.

# %%
coverage

# %% [markdown]
# How large are adapters on other models? Move the sliders (the arrow keys work, too).
#
# **Find out:** which rank on Gemma 4 31B takes as much memory in training as the weights of Gemma 3 1B?

# %%
from labkit import widgets

widgets.adapter_size()

# %%
from labkit import exercises

lora_1 = exercises.get("lora_1")
lora_1

# %% [markdown]
# Replace the dots, and run the cell. `lora_1.hint()` and `lora_1.solution()` help.


# %%
def adapter_parameters(embed, kv_heads, head_dim, rank, fused): ...


lora_1.check(adapter_parameters)

# %% [markdown]
# ## Goes wrong on purpose: the published pattern
#
# A published recipe for Gemma 4 31B names its targets with a pattern. It looks complete, and training runs without a
# complaint.
#
# **Predict:** does it reach every layer?

# %%
published = ".*q_einsum|.*kv_einsum|.*attn_vec_einsum|.*gate_proj|.*down_proj|.*up_proj"  # arXiv:2605.25645
linears = lora.linears_of("gemma4-31b")
left_out = lora.missed(linears, lora.select(linears, published))
print(len(left_out), "linears without adapter:", ", ".join(x.path for x in left_out[:3]), "...")
assert len(left_out) == 10 and all(x.path.endswith("k_einsum") for x in left_out)

# %% [markdown]
# `kv_einsum` does not match `k_einsum`: all ten global layers, the ones that see the whole text, keep their keys and
# values frozen. Nobody notices, because LoRA without some adapters still learns. `inject` says so aloud, and with
# `strict=True` it refuses:

# %%
from labkit.errors import LabError

try:
    lora.inject(base.model, rank=16, alpha=32, targets=published, strict=True)
except LabError as error:
    refusal = str(error)
print(refusal)
assert "k_einsum" in refusal

# %%
lora_2 = exercises.get("lora_2")
lora_2

# %% [markdown]
# Your pattern:

# %%
pattern = ...
lora_2.check(pattern)

# %% [markdown]
# ## Which tokens count
#
# The model reads specification and answer, but it is only *scored* on what it has to produce: the answer, and the
# marker that ends it. Try the other ways to count.

# %%
examples = verilog.examples(verilog.drafts("train", samples, seed=0))
widgets.token_mask(examples[0], base.tokenizer)

# %%
lora_3 = exercises.get("lora_3")
lora_3

# %% [markdown]
# Replace the dots:


# %%
def answer_mask(tokens, header, end): ...


lora_3.check(answer_mask)

# %% [markdown]
# ## Padding is work, too
#
# The published recipe pads each sample to the longest one. A TPU multiplies padding as fast as it multiplies text.
#
# **Predict:** which share of the work is useful when samples of very different lengths are padded to the maximum?

# %%
from labkit import plots
from labkit.data import pipeline as feeding

ways = {}
for packing in ("pad", "bucket", "pack"):
    feed = feeding.pipeline(examples, base.tokenizer, seq_len=seq_len, batch_size=batch_size, packing=packing)
    ways[packing] = feed.stats
    print(feed.stats)
assert ways["pack"].useful_share > 0.9 > ways["pad"].useful_share

# %% [markdown]
# Packing puts several samples into one row. Three things keep them apart: positions start anew in each sample, the
# attention mask is block-diagonal, and the first token of a sample is nobody's target. A test of labkit shows that a
# packed sample has the loss that it has alone.

# %%
plots.bars(
    f"Packing makes {ways['pack'].useful_share:.0%} of the work useful, padding {ways['pad'].useful_share:.0%}",
    list(ways),
    {"useful": [100 * w.useful_share for w in ways.values()]},
    x="how rows are filled",
    y="useful tokens (% of all)",
)

# %%
lora_4 = exercises.get("lora_4")
lora_4

# %% [markdown]
# Replace the dots:


# %%
def pack(lengths, window): ...


lora_4.check(pack)

# %% [markdown]
# ## Train
#
# A recipe holds everything that decides the result. It goes to and from a TOML file, and is stored with the adapters.

# %%
from labkit import sft

recipe = sft.Recipe(
    rank=16, alpha=32.0, targets="all", learning_rate=4e-3, warmup=10,
    model=name, samples=samples, steps=steps, batch_size=batch_size, seq_len=seq_len, packing="pack", seed=0,
)  # fmt: skip
recipe

# %% [markdown]
# The loss is the mean over *answer tokens*, whatever the packing, the accumulation or the number of devices. Kill this
# cell and run it again: it goes on from its last checkpoint.
#
# **Predict:** where does the loss start? A model that knows nothing of the next token has `ln(1024) = 6.9` nats.

# %%
from labkit.runtime import checkpoint_dir

feed = feeding.pipeline(examples, base.tokenizer, seq_len=seq_len, batch_size=batch_size, packing="pack")
result = sft.train(model, feed, recipe, out=checkpoint_dir("lora-lab"))
print(result)
assert result.last_loss < 0.5 * result.first_loss

# %%
curve = result.curve()
plots.lines(
    f"In {steps} steps the loss on answers falls from {result.first_loss:.2f} to {result.last_loss:.2f}",
    {"training": ([row.step for row in curve], [row.loss for row in curve])},
    x="step",
    y="loss (nats an answer token)",
)

# %%
lora_5 = exercises.get("lora_5")
lora_5

# %% [markdown]
# Replace the dots. This one takes the longest, and it is what makes long samples fit on a chip.


# %%
def chunked_loss(hidden, embedding, targets, mask, chunk): ...


lora_5.check(chunked_loss)

# %% [markdown]
# ## After: the same 64 problems
#
# **Predict:** the loss is low. How many modules *work*?

# %%
after = evaluate.evaluate(model, base.tokenizer, problems)
print("before:", before)
print("after: ", after)
assert after.interval[0] > before.interval[1]

# %%
plots.bars(
    f"After fine-tuning {after.pass_at_1:.0%} of the modules work, before {before.pass_at_1:.0%}",
    [f"{len(problems)} held-out problems"],
    {"before": [100 * before.pass_at_1], "after": [100 * after.pass_at_1]},
    x="greedy, one answer each; bars show the 95 % interval",
    y="pass@1 (%)",
    intervals={
        "before": [tuple(100 * v for v in before.interval)],
        "after": [tuple(100 * v for v in after.interval)],
    },
)

# %% [markdown]
# The two intervals do not touch: 64 problems are enough to say that it helped. They are *not* enough to say which of
# two good recipes is better. `labkit run` uses over 400.
#
# Be fair to the base. It has seen modules with a comment above them, so we put the specification into a comment.
#
# **Predict:** how much of what "LoRA taught it" could the base do all along?

# %%
as_comment = evaluate.evaluate(base.model, base.tokenizer, problems, prompt=evaluate.controls.few_shot([]))
print("the base, asked by a comment:", as_comment)
assert as_comment.interval[0] > before.interval[1]

# %% [markdown]
# LoRA draws out what is there: it teaches the form of question and answer, and sharpens what the base knows. It does
# not teach a two-million-parameter model a new trade in five minutes.

# %% [markdown]
# ## One model, three losses
#
# A published comparison of the same recipe on TPU and on GPU reports a final loss of 0.072 on one side and 2.258 on the
# other, beside a token accuracy of 96.1 %. Were these two models so different? We take *one* set of weights and count
# different tokens.
#
# **Predict:** which way of counting gives the largest loss?

# %%
from labkit.data.examples import Example

thinking = [
    Example.of(draft.spec, f"<think>\nThe module is {draft.top}.\n</think>\n{draft.reference}", id=str(i))
    for i, draft in enumerate(verilog.drafts("train", 100, seed=0))
]
scores = {}
for counted, options in {
    "answer, reasoning stripped": {"loss": "answer", "reasoning": "strip"},
    "answer and reasoning": {"loss": "assistant"},
    "everything": {"loss": "all"},
}.items():
    feed = feeding.pipeline(thinking, base.tokenizer, seq_len=seq_len, batch_size=8, epochs=1, **options)
    scores[counted] = sft.score(model, feed)
    print(f"{counted:27}", scores[counted])
assert scores["everything"].loss > 3 * scores["answer, reasoning stripped"].loss

# %% [markdown]
# The same weights. The specification is prose that nobody trained the model to write, so counting it drowns the answer.
# A loss without the rule for what was counted says nothing. But the rule alone does not explain the published pair:
# with 96.1 % of the tokens right, a mean of 2.258 nats would need 58 nats on every wrong token. A *sum* over the 8
# parts of an accumulated batch fits better: 2.258 / 8 = 0.28.
#
# What else differed between those two runs? `compare` lists every difference between two recipes.

# %%
tpu, gpu = sft.published("gemma4-31b-tpu"), sft.published("gemma4-31b-gpu")
sft.compare(tpu, gpu)

# %% [markdown]
# ## Keep it
#
# `merge` adds the product of A and B to the weights. The merged model needs no LoRA code and runs as fast as the base.

# %%
merged = lora.merge(model)
again = evaluate.evaluate(merged, base.tokenizer, problems[:8])
assert again.pass_at_1 == evaluate.evaluate(model, base.tokenizer, problems[:8]).pass_at_1
again

# %% [markdown]
# **What you have now:** an adapter of a few hundred kilobytes, a loss that you can explain, and a pass rate with its
# interval. On a TPU the same cells train the models of the table at the top.
