"""Prompts as documents: exactly one BOS, the chat template and its options."""

import pytest
from tokenizer_zoo import (
    CHATML,
    CHATML_WITH_BOS,
    EXACT,
    THINKING,
    USER_ONLY,
    byte_level_hf,
    exact,
    refuse,
)

from hacpo_jax.agents.builtin_tokenizers import byte_tokenizer
from hacpo_jax.agents.tokenizer import Tokenizer


@pytest.mark.parametrize("template", [None, CHATML, CHATML_WITH_BOS])
@pytest.mark.parametrize("text", ["hello", "<s>hello", "", "a <|endoftext|> b"])
def test_exactly_one_bos(template, text):
    """Template text encoded again; a raw string: exactly one BOS where the tokenizer has one."""
    tokenizer = Tokenizer(byte_level_hf(adds_bos=True, template=template))
    ids = tokenizer.encode_prompt(text)
    assert ids[0] == tokenizer.bos_id
    # The user's own spelling inside a chat message is not at the start and is not ours to count.
    assert ids[1:].count(tokenizer.bos_id) == (template is not None and text.startswith("<s>"))


def test_no_bos_where_the_tokenizer_adds_none():
    assert byte_tokenizer().encode_prompt("hi") == [ord("h"), ord("i")]
    tokenizer = Tokenizer(byte_level_hf())
    assert tokenizer.bos_id not in tokenizer.encode_prompt("hi")
    assert tokenizer.encode_prompt("<s>hi") == [0, *tokenizer.encode_prompt("hi")]


def test_chat_prompt_is_the_rendered_template():
    tokenizer = Tokenizer(byte_level_hf(adds_bos=True, template=CHATML))
    assert tokenizer.is_chat
    expected = "<s><|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\n1+1?<|im_end|>\n"
    prompt = tokenizer.encode_prompt("1+1?", system="be brief")
    assert tokenizer.decode(prompt) == expected + "<|im_start|>assistant\n"
    start, end = (tokenizer._hf.convert_tokens_to_ids(f"<|im_{x}|>") for x in ("start", "end"))
    assert prompt.count(start) == 3 and prompt.count(end) == 2
    plain = Tokenizer(byte_level_hf(adds_bos=True, template=CHATML), chat=False)
    assert not plain.is_chat and plain.decode(plain.encode_prompt("1+1?")) == "<s>1+1?"


def test_chat_prompt_does_not_change_with_the_date():
    template = "{{ date_string or strftime_now('%d %b %Y') }} {{ messages[0].content }}"
    tokenizer = Tokenizer(byte_level_hf(template=template))
    assert tokenizer.decode(tokenizer.encode_prompt("hi")) == "26 Jul 2024 hi"


def test_options_reach_the_chat_template():
    """Qwen3 does not think where an empty thought is put before its answer."""
    hf = byte_level_hf(template=THINKING, adds_bos=True)

    def prompt(**options) -> str:
        tokenizer = Tokenizer(hf, chat_options=options)
        return tokenizer.decode(tokenizer.encode_prompt("1+1?", system="be brief"))

    thinking = prompt()
    assert thinking.endswith("<|im_start|>assistant\n")
    assert prompt(enable_thinking=True) == thinking
    assert prompt(enable_thinking=False) == thinking + "<think>\n\n</think>\n\n"
    assert prompt(enable_thinking=False).count("<s>") == 1


def test_an_option_may_set_the_date_that_is_otherwise_fixed():
    hf = byte_level_hf(template="{{ date_string }} {{ messages[0].content }}")
    tokenizer = Tokenizer(hf, chat_options={"date_string": "1 Jan 2026"})
    assert tokenizer.decode(tokenizer.encode_prompt("hi")) == "1 Jan 2026 hi"


@pytest.mark.parametrize(
    ("template", "name", "words"),
    [
        (THINKING, "enable_thinkin", "never mentions it; did you mean 'enable_thinking'?"),
        (THINKING, "enable", "never mentions it"),
        (CHATML, "enable_thinking", "never mentions it"),
        (THINKING, "messages", "given it by itself"),
        (THINKING, "add_generation_prompt", "given it by itself"),
        (THINKING, "tokenize", "given it by itself"),
        (None, "enable_thinking", "needs a chat template"),
    ],
)
def test_options_that_the_template_does_not_have_are_refused_by_name(template, name, words):
    hf = byte_level_hf(template=template)
    make = lambda: Tokenizer(hf, chat_options={name: False}, field="tok")  # noqa: E731
    refuse(f"tok.chat_options.{name}", words, make)


def test_options_need_the_template_in_use():
    hf = byte_level_hf(template=THINKING)
    make = lambda: Tokenizer(hf, chat=False, chat_options={"enable_thinking": False})  # noqa: E731
    refuse("tokenizer.chat_options.enable_thinking", "none is in use", make)


def test_a_template_that_an_option_breaks_is_told_in_one_line():
    template = "{{ messages[0].content }}{{ 1 + extra }}"
    tokenizer = Tokenizer(byte_level_hf(template=template), chat_options={"extra": "x"})
    refuse("prompt", "the chat template refuses it", lambda: tokenizer.encode_prompt("a"))


def test_smollm2_chat_prompt_equals_transformers():
    """The template's text, encoded once: as HF does in one go."""
    hf = byte_level_hf(template=CHATML)
    tokenizer = exact("smollm2-135m") if "smollm2-135m" in EXACT else Tokenizer(hf)
    messages = [{"role": "user", "content": "What is 2+2?"}]
    expected = tokenizer._hf.apply_chat_template(messages, add_generation_prompt=True)
    assert tokenizer.encode_prompt("What is 2+2?") == expected["input_ids"]


def test_a_system_message_needs_a_place():
    refuse("system", "needs a chat template", lambda: exact("bytes").encode_prompt("a", system="b"))
    strict = Tokenizer(byte_level_hf(template=USER_ONLY))
    assert strict.decode(strict.encode_prompt("a")) == "[INST] a [/INST]"
    refuse("system", "no system", lambda: strict.encode_prompt("a", system="b"))
    deaf = Tokenizer(byte_level_hf(template="[INST] {{ messages[-1].content }} [/INST]"))
    refuse("system", "leaves it out", lambda: deaf.encode_prompt("a", system="b"))
