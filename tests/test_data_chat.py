"""Chat templates: the loss mask is what the model has to write, for templates of many habits."""

import json

import numpy as np
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from labkit.data import chat
from labkit.data.examples import Example, Message
from labkit.errors import LabError

ANSWER = "module a(input x);\nendmodule"
THOUGHT = f"<think>\nhm\n</think>\n\n{ANSWER}"

# Each template below has one habit of a published family, in few lines.
MARKED = (  # Transformers' own way to mark what the assistant writes, over Gemma 4's form
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}{{ '<|turn>model\\n' }}"
    "{% generation %}{{ m.content + '<turn|>' }}{% endgeneration %}{{ '\\n' }}"
    "{% else %}{{ '<|turn>' + m.role + '\\n' + m.content + '<turn|>\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|turn>model\\n' }}{% endif %}"
)
FOLDS_SYSTEM = (  # Gemma 3: the system message goes into the first user turn, contents are trimmed, roles alternate
    "{% if messages[0].role == 'system' %}{% set first = messages[0].content + '\\n\\n' %}{% set rest = messages[1:] %}"
    "{% else %}{% set first = '' %}{% set rest = messages %}{% endif %}{{ bos_token }}{% for m in rest %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{{ '<|turn>' + m.role + '\\n' + (first if loop.first else '') + m.content | trim + '<turn|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|turn>assistant\\n' }}{% endif %}"
)
DROPS_SYSTEM = tiny.CHAT_TEMPLATE.replace("in messages %}", "in messages if message['role'] != 'system' %}")
OPENS_CHANNEL = tiny.CHAT_TEMPLATE.replace(  # Gemma 4 31B: the prompt ends with an empty thought channel
    "{{ '<|turn>model\\n' }}", "{{ '<|turn>model\\n<|channel>thought\\n<channel|>' }}"
)
FORGETS = (  # Qwen 3: reasoning of earlier turns is cut, the last turn always has a block of it
    "{% for m in messages %}{% if m.role == 'assistant' and loop.last %}"
    "{{ '<|turn>assistant\\n<think>\\n' + ((m.content.split('</think>')[0].split('<think>')[-1] | trim)"
    " if '</think>' in m.content else '') + '\\n</think>\\n\\n' }}"
    "{{ m.content.split('</think>')[-1] | trim + '<turn|>\\n' }}"
    "{% else %}{{ '<|turn>' + m.role + '\\n' + m.content.split('</think>')[-1] | trim + '<turn|>\\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|turn>assistant\\n' }}"
    "{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}"
    "{% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer")
    tiny.write_tokenizer(path)
    return path


@pytest.fixture(scope="module")
def tokenizer(folder):
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture
def with_template(folder):
    def make(template):
        tokenizer = AutoTokenizer.from_pretrained(folder)
        tokenizer.chat_template = template
        return tokenizer

    return make


def talk(*contents, system=""):
    """A conversation that alternates, starting with the user."""
    messages = [Message(("user", "assistant")[i % 2], c) for i, c in enumerate(contents)]
    return Example("talk", tuple([Message("system", system)] * bool(system) + messages))


def said(sample, tokenizer):
    return tokenizer.decode(sample.tokens[sample.loss_mask])


def test_what_counts_under_each_loss(tokenizer):
    example = talk("Write a module.", THOUGHT, system="Be brief.")
    whole = (
        "<|turn>system\nBe brief.<turn|>\n<|turn>user\nWrite a module.<turn|>\n<|turn>model\n" + THOUGHT + "<turn|>\n"
    )
    for loss, expected in {"answer": f"{ANSWER}<turn|>", "assistant": f"{THOUGHT}<turn|>", "all": whole}.items():
        sample = chat.tokenize(example, tokenizer, loss=loss)
        assert said(sample, tokenizer) == expected
        assert tokenizer.decode(sample.tokens) == "<bos>" + whole and not sample.loss_mask[0]


def test_stripped_reasoning_is_gone_from_the_text(tokenizer):
    for loss in ("answer", "assistant"):
        sample = chat.tokenize(talk("q", THOUGHT), tokenizer, loss=loss, reasoning="strip")
        assert said(sample, tokenizer) == f"{ANSWER}<turn|>" and "think" not in tokenizer.decode(sample.tokens)
    assert chat.strip_reasoning("<think>cut off") == ""
    assert chat.strip_reasoning("<|channel>thought\nhm<channel|>x") == "x"


def test_tokens_are_the_templates_own(tokenizer):
    """One call of Transformers gives the same ids."""
    example = talk("a b", "c d", "e", "f\n", system="s")
    messages = [m.to_dict() for m in example.messages]
    theirs = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True)["input_ids"]
    assert chat.tokenize(example, tokenizer).tokens.tolist() == theirs


def test_turns_last_counts_one_answer(tokenizer):
    example = talk("q", "one", "q", "two")
    assert said(chat.tokenize(example, tokenizer), tokenizer) == "one<turn|>two<turn|>"
    assert said(chat.tokenize(example, tokenizer, turns="last"), tokenizer) == "two<turn|>"


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<"), min_size=1, max_size=30)
conversations = st.lists(st.tuples(texts, texts.filter(str.strip)), min_size=1, max_size=3)


@settings(max_examples=60, deadline=None)
@given(turns=conversations, system=st.sampled_from(["", "Be brief."]))
def test_mask_equals_transformers_own_for_marked_templates(folder, turns, system):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = MARKED
    example = talk(*[t for pair in turns for t in pair], system=system)
    theirs = tokenizer.apply_chat_template(
        [m.to_dict() for m in example.messages], return_dict=True, return_assistant_tokens_mask=True
    )
    ours = chat.tokenize(example, tokenizer, loss="assistant")
    assert ours.tokens.tolist() == theirs["input_ids"]
    assert ours.loss_mask.tolist() == [bool(m) for m in theirs["assistant_masks"]]


def test_template_that_folds_the_system_message_and_trims(with_template):
    tokenizer = with_template(FOLDS_SYSTEM)
    sample = chat.tokenize(talk("q", "\n one \n", "q", "two ", system="Be brief."), tokenizer)
    assert said(sample, tokenizer) == "one<turn|>two<turn|>"
    with pytest.raises(LabError, match=r"refuses 'twice'.*alternate"):
        chat.tokenize(Example("twice", talk("a", "b").messages[:1] * 2 + talk("a", "b").messages[1:]), tokenizer)


def test_template_that_drops_the_system_message_is_an_error(with_template):
    tokenizer = with_template(DROPS_SYSTEM)
    assert said(chat.tokenize(talk("q", "a"), tokenizer), tokenizer) == "a<turn|>"
    with pytest.raises(LabError, match="drops the system message"):
        chat.tokenize(talk("q", "a", system="Be brief."), tokenizer)


def test_answer_follows_the_generation_prompt_that_the_server_sends(with_template):
    tokenizer = with_template(OPENS_CHANNEL)
    example = talk("q", ANSWER)
    prompt = tokenizer.apply_chat_template([example.messages[0].to_dict()], tokenize=False, add_generation_prompt=True)
    rendered = chat.render(example, tokenizer)
    assert rendered.text.startswith(prompt) and prompt.endswith("<channel|>")
    for answer in (ANSWER, f" {ANSWER}\n", "m", "t", "<", "<|channel>thought\nx", "model\n"):
        assert said(chat.tokenize(talk("q", answer), tokenizer, loss="assistant"), tokenizer) == f"{answer}<turn|>"
    with pytest.raises(LabError, match=r"turn 1 .*one_answer_each"):
        chat.tokenize(talk("q", "a", "q", "b"), tokenizer)
    parts = chat.one_answer_each(talk("q", "a", "q", "b"))
    assert [said(chat.tokenize(p, tokenizer, turns="last"), tokenizer) for p in parts] == ["a<turn|>", "b<turn|>"]


def test_template_that_rewrites_earlier_turns(with_template):
    tokenizer = with_template(FORGETS)
    one = talk("q", ANSWER)
    empty = "<think>\n\n</think>\n\n"
    assert said(chat.tokenize(one, tokenizer, loss="assistant"), tokenizer) == f"{empty}{ANSWER}<turn|>"
    assert said(chat.tokenize(one, tokenizer), tokenizer) == f"{ANSWER}<turn|>"
    quiet = {"enable_thinking": False}
    assert said(chat.tokenize(one, tokenizer, loss="assistant", template=quiet), tokenizer) == f"{ANSWER}<turn|>"
    with pytest.raises(LabError, match="generation prompt"):
        chat.tokenize(talk("q", THOUGHT), tokenizer, template=quiet)
    with pytest.raises(LabError, match="differently inside the whole conversation"):
        chat.tokenize(talk("q", THOUGHT, "q", "b"), tokenizer)


def test_template_whose_prompt_has_nothing_to_do_with_its_turns(with_template):
    tokenizer = with_template(tiny.CHAT_TEMPLATE.replace("{{ '<|turn>model\\n' }}", "{{ 'Answer:' }}"))
    with pytest.raises(LabError, match="generation prompt for 'talk'"):
        chat.tokenize(talk("q", "a"), tokenizer)


def test_long_and_unanswered_samples_are_left_out_and_named(tokenizer):
    examples = [
        Example.of("q", "fine", id="fine"),
        Example.of("q", "<think>only thought</think>", id="thought"),
        Example.of("q", "word " * 50, id="long"),
        Example("open", (Message("user", "q"),)),
    ]
    samples, report = chat.tokenize_all(examples, tokenizer, max_len=40)
    assert [s.id for s in samples] == ["fine"] and report.kept == 1 and report.samples == 4
    assert report.too_long == ("long",) and sorted(report.unanswered) == ["open", "thought"]
    alone = chat.tokenize(examples[0], tokenizer)
    assert report.tokens == len(alone) and report.loss_tokens == alone.loss_mask.sum()
    assert report.longest == len(chat.tokenize(examples[2], tokenizer))
    assert chat.tokenize_all(examples, tokenizer, max_len=report.longest)[1].kept == 2
    with pytest.raises(LabError, match=r"No sample is left of 4: 2 are longer than 3 tokens"):
        chat.tokenize_all(examples, tokenizer, max_len=3)


def test_many_equal_one_by_one_in_order(tokenizer):
    examples = [Example.of(f"q{i}", f"a{i} é\n", id=str(i)) for i in range(600)]
    samples, _ = chat.tokenize_all(examples, tokenizer)
    assert [s.id for s in samples] == [e.id for e in examples]
    for i in (0, 511, 512, 599):
        alone = chat.tokenize(examples[i], tokenizer)
        np.testing.assert_array_equal(samples[i].tokens, alone.tokens)
        np.testing.assert_array_equal(samples[i].loss_mask, alone.loss_mask)


def test_errors_that_a_user_can_make(tokenizer, with_template):
    example = talk("q", "a")
    with pytest.raises(LabError, match="does not end with an answer"):
        chat.tokenize(talk("q", " \n"), tokenizer)
    with pytest.raises(LabError, match="does not end with an answer"):
        chat.tokenize(talk("q", "<think>all</think>"), tokenizer, reasoning="strip")
    for options in ({"loss": "answers"}, {"reasoning": "drop"}, {"turns": "first"}):
        with pytest.raises(LabError, match="not a choice"):
            chat.tokenize(example, tokenizer, **options)
        with pytest.raises(LabError, match="not a choice"):
            chat.tokenize_all([example], tokenizer, **options)
    with pytest.raises(LabError, match="no chat template"):
        chat.tokenize(example, with_template(None))


@given(texts.filter(str.strip), texts)
@settings(max_examples=40, deadline=None)
def test_mask_view_joins_to_the_whole_text(tokenizer, answer, prompt):
    example = talk(prompt, f"<think>a</think>\n{answer}")
    view = chat.mask_view(example, tokenizer)
    assert "".join(view.pieces) == chat.render(example, tokenizer).text
    for loss, counted in view.counted.items():
        assert counted == tuple(chat.tokenize(example, tokenizer, loss=loss).loss_mask.tolist())
    assert chat.MaskView.from_json(json.dumps(view.to_dict())) == view


def test_offsets_that_were_trimmed_do_not_leak_the_prompt(folder, tmp_path):
    """RoBERTa's habit: white space is cut off offsets, so the line end before an answer seems to lie inside it."""
    from tokenizers import processors

    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    example = talk("q", "one two\n three")
    assert said(chat.tokenize(example, tokenizer), tokenizer) == "one two\n three<turn|>"
