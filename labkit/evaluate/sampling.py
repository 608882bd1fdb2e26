"""Text from a model through Tunix's `Sampler`: batched, with a KV cache, and the same whatever the batch."""

from __future__ import annotations

import copy
import dataclasses
import functools
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, UInt32
from tunix.generate.sampler import CacheConfig, Sampler

from labkit.errors import LabError

TURN_ENDS = ("<turn|>", "<end_of_turn>", "<|im_end|>", "<|eot_id|>")
_BUCKET = 64  # prompt lengths are rounded up to a multiple: few shapes, so few compilations
_ROUND = 96  # tokens of an answer in the first round; each further round makes twice as many


@dataclasses.dataclass(frozen=True)
class Completion:
    """What a model wrote: `text` without special tokens, `tokens` the number generated, `stopped` whether it ended."""

    text: str
    tokens: int
    stopped: bool


@dataclasses.dataclass(frozen=True)
class Drawing:
    """How the next token is chosen: greedily at temperature 0; else drawn from the `top_k` likeliest that hold `top_p`.

    `top_k` 0 and `top_p` 1 keep all tokens.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0


class Sampling(TypedDict, total=False):
    """How answers are drawn: keywords of `generate`, with its defaults."""

    max_new_tokens: int
    temperature: float
    top_k: int
    top_p: float
    seed: int
    batch_size: int


def generate(
    model: nnx.Module,
    tokenizer: Any,
    prompts: Sequence[str],
    *,
    max_new_tokens: int = 256,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    batch_size: int = 64,
    progress: Callable[[int], object] = lambda done: None,
) -> list[Completion]:
    """Complete prompts; the order of the results is that of the prompts, and they do not depend on it.

    A prompt's draws depend on `seed` and its place among equal prompts only, so that repeating a prompt gives
    independent samples.

    Args:
        model: a Tunix model.
        tokenizer: its Transformers tokenizer.
        prompts: whole texts, chat template applied; the begin token is added where it is missing.
        max_new_tokens: most tokens to generate for each.
        temperature: 0 is greedy.
        top_k: draw among so many likeliest tokens; 0 is all.
        top_p: draw among the likeliest tokens that hold this share of the probability.
        seed: of the draws.
        batch_size: prompts at a time.
        progress: called with the number of prompts done so far.

    Raises:
        LabError: an empty prompt, or a prompt and answer longer than the model's window.
    """
    if not prompts:
        return []
    adapter = _Adapter(tokenizer)
    starts = [_encode(adapter, prompt, tokenizer, max_new_tokens) for prompt in prompts]
    make = functools.partial(_sampler, model, adapter, Drawing(temperature, top_k, top_p), stop_ids(tokenizer))
    answers = _answers(make, starts, _keys(prompts, seed), max_new_tokens, batch_size, progress)
    texts = tokenizer.batch_decode(answers, skip_special_tokens=True)
    return [Completion(t, len(a), len(a) < max_new_tokens) for t, a in zip(texts, answers, strict=True)]


def _answers(
    make: Callable[[int], _Draw],
    starts: list[list[int]],
    keys: UInt32[Array, "N 2"],
    most: int,
    batch_size: int,
    progress: Callable[[int], object],
) -> list[list[int]]:
    """The tokens of each answer: in rounds, each twice as long as the one before, of those that have not stopped."""
    answers: list[list[int]] = [[] for _ in starts]
    unfinished, done, steps = list(range(len(starts))), 0, _ROUND
    while unfinished and done < most:
        steps = min(steps, most - done)
        for i, ids in _one_round(make, {i: starts[i] + answers[i] for i in unfinished}, keys, steps, batch_size):
            answers[i] += ids
        done, steps = done + steps, 2 * steps
        unfinished = [i for i in unfinished if len(answers[i]) == done]
        progress(len(starts) - len(unfinished))
    progress(len(starts))
    return answers


def _one_round(
    make: Callable[[int], _Draw], texts: dict[int, list[int]], keys: UInt32[Array, "N 2"], steps: int, batch_size: int
) -> Iterator[tuple[int, list[int]]]:
    """At most `steps` further tokens of each text, in batches of one size: pairs of its index and the tokens.

    An answer is made in rounds, so that a batch does not wait for its longest one, and the cache is no longer than
    it must be. What is not finished goes into the next round's batches with what it has.
    """
    size = min(batch_size, 1 << (len(texts) - 1).bit_length())
    bucket = _BUCKET if steps <= _ROUND else 2 * _BUCKET
    for batch in _batches(texts, size, bucket):
        padded = _padded(max(len(texts[i]) for i in batch), bucket)
        rows = [batch[i % len(batch)] for i in range(size)]  # filled up with copies, which take no extra steps
        sampler = make(padded + steps)
        output = sampler(
            [texts[i] for i in rows],
            max_generation_steps=steps,
            max_prompt_length=padded,
            eos_tokens=sampler.stops,
            temperature=sampler.drawing.temperature,
            seed=keys[jnp.asarray(rows)],
        )
        yield from ((i, [int(t) for t in ids]) for i, ids in zip(batch, output.tokens, strict=False))


def stop_ids(tokenizer: Any) -> list[int]:
    """The tokens that end an answer: end of text, and the end of a turn in the chat formats of the tokenizer."""
    known = tokenizer.get_vocab()
    ids = [known[token] for token in TURN_ENDS if token in known]
    if tokenizer.eos_token_id is not None:
        ids.append(tokenizer.eos_token_id)
    if not ids:
        raise LabError("The tokenizer has no token that ends an answer.", hint="Set its eos_token.")
    return sorted(set(ids))


class _Adapter:
    """A Transformers tokenizer as Tunix's `Sampler` wants it; texts that are tokens already stay as they are."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str | list[int]) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False)) if isinstance(text, str) else text

    def decode(self, ids: list[int]) -> str:
        return ""  # `generate` decodes whole batches itself, without the special tokens

    def bos_id(self) -> int | None:
        return self._tokenizer.bos_token_id

    def eos_id(self) -> int:
        return self._tokenizer.eos_token_id

    def pad_id(self) -> int:
        pad = self._tokenizer.pad_token_id
        return self._tokenizer.eos_token_id if pad is None else pad


class _Draw(Sampler):
    """Tunix's `Sampler` with a random stream for each row, and compiled once for all models of a shape.

    Tunix draws a whole batch from one key. Here `seed` holds a key a row, and a draw is an argmax of the filtered
    logits plus Gumbel noise (Gumbel 1954), which Tunix's greedy path then takes.

    Tunix compiles its methods anew for every sampler. Here the compiled functions belong to the module, and take as
    their static argument a `_Shape`: another sampler that would do the same finds them compiled.
    """

    def __init__(self, model: nnx.Module, adapter: _Adapter, sizes: CacheConfig, drawing: Drawing, stops: list[int]):
        super().__init__(model, adapter, sizes)
        self.drawing, self.stops = drawing, stops
        self.eos_ids = jnp.array(stops)
        shape = _Shape(self, (self._transformer_graphdef, sizes, drawing, adapter.pad_id(), tuple(stops)))
        self._compiled_prefill_fn = functools.partial(_prefill, shape)
        self._compiled_decode_fn = functools.partial(_decode, shape)

    def _sample(self, logits: Any, eos: Any, cache: Any, sampler_state: Any) -> Any:
        if self.drawing.temperature > 0:
            places = sampler_state.positions[:, sampler_state.decoding_step]  # padding does not count in them
            logits = _perturbed(logits[:, -1], sampler_state.seed, places, self.drawing)[:, None]
        return super()._sample(logits, eos, cache, sampler_state)


class _Shape:
    """A sampler without its weights, equal to any other that computes the same."""

    def __init__(self, sampler: _Draw, key: tuple[Any, ...]) -> None:
        self.sampler = copy.copy(sampler)
        self.sampler._transformer_state, self.sampler._flattened_transformer_state = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype),
            (sampler._transformer_state, sampler._flattened_transformer_state),
        )
        self.key = key

    def __hash__(self) -> int:
        return hash(self.key[1:])  # a graph with Tunix's configuration in it has no hash, but is comparable

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Shape) and self.key == other.key


@functools.partial(jax.jit, static_argnames=("shape", "echo"), donate_argnames="state")
def _prefill(shape: _Shape, params: Any, state: Any, images: Any = None, echo: bool = False) -> Any:
    return shape.sampler._prefill_fn(params, state, images, echo)


@functools.partial(jax.jit, static_argnames="shape", donate_argnames="state")
def _decode(shape: _Shape, params: Any, state: Any) -> Any:
    return shape.sampler._decode_fn(params, state)


def _perturbed(
    logits: Float[Array, "B V"], keys: UInt32[Array, "B 2"], places: Int[Array, " B"], drawing: Drawing
) -> Float[Array, "B V"]:
    """Logits whose argmax is a draw: one key for each row and each place in its text."""
    scaled = logits.astype(jnp.float32) / drawing.temperature
    if drawing.top_k or drawing.top_p < 1.0:
        kept = min(drawing.top_k or scaled.shape[-1], scaled.shape[-1])
        best = jax.lax.top_k(scaled, kept)[0]
        before = jnp.cumsum(jax.nn.softmax(best), axis=-1) - jax.nn.softmax(best)
        least = jnp.min(jnp.where(before < drawing.top_p, best, jnp.inf), axis=-1, keepdims=True)
        scaled = jnp.where(scaled >= least, scaled, -jnp.inf)
    return scaled + jax.vmap(lambda k, p: jax.random.gumbel(jax.random.fold_in(k, p), scaled.shape[-1:]))(keys, places)


def _sampler(model: nnx.Module, adapter: _Adapter, drawing: Drawing, stops: list[int], cache_size: int) -> _Draw:
    """A sampler with a cache of that many positions; the sizes beside are used by models without their own cache."""
    config: Any = model.config
    sizes = CacheConfig(cache_size, config.num_layers, config.num_kv_heads, config.head_dim)
    return _Draw(model, adapter, sizes, drawing, stops)


def _keys(prompts: Sequence[str], seed: int) -> UInt32[Array, "N 2"]:
    """A key for each prompt: of the seed, the prompt's text, and how many equal prompts came before."""
    seen: dict[str, int] = {}
    counts = []
    for prompt in prompts:
        seen[prompt] = seen.get(prompt, -1) + 1
        counts.append((zlib.crc32(prompt.encode()), seen[prompt]))
    words = jnp.asarray(np.array(counts, dtype=np.uint32))
    root = jax.random.PRNGKey(seed)
    return jax.vmap(lambda w: jax.random.fold_in(jax.random.fold_in(root, w[0]), w[1]))(words)


def _encode(adapter: _Adapter, prompt: str, tokenizer: Any, max_new_tokens: int) -> list[int]:
    """The prompt's tokens, the begin token among them, once it is sure that they and the answer fit."""
    if not prompt:
        raise LabError("A prompt is empty.", hint="Give at least one character.")
    ids, begin = adapter.encode(prompt), adapter.bos_id()
    ids = [begin, *ids] if begin is not None and ids[:1] != [begin] else ids
    window = tokenizer.model_max_length or 0
    if 0 < window < len(ids) + max_new_tokens:
        raise LabError(
            f"A prompt of {len(ids)} tokens and an answer of {max_new_tokens} do not fit the window of {window}: "
            f"{prompt[:60]!r}.",
            hint="Lower max_new_tokens, or shorten the prompt.",
        )
    return ids


def _padded(length: int, multiple: int) -> int:
    return -(-length // multiple) * multiple


def _batches(texts: dict[int, list[int]], size: int, bucket: int) -> Iterator[list[int]]:
    """Indices by length, in batches that share few padded lengths; the order of the texts has no say."""
    order = sorted(texts, key=lambda i: (len(texts[i]), texts[i], i))
    largest = _padded(len(texts[order[-1]]), bucket)
    waiting: list[int] = []
    for padded in sorted({_padded(len(ids), bucket) for ids in texts.values()}):
        waiting += [i for i in order if _padded(len(texts[i]), bucket) == padded]
        if len(waiting) >= size or padded == largest:  # a few short texts are not worth a compilation
            yield from (waiting[i : i + size] for i in range(0, len(waiting), size))
            waiting = []
