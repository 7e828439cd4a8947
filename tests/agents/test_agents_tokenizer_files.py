"""Tokenizers from each kind of file alone, and what is said where a file does not suffice."""

import base64
import importlib.util
import json
import random
import re
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import example, given, settings
from tokenizer_zoo import PIECES, STORY, TEXTS

from hacpo_jax.agents.token_bytes import byte_alphabet
from hacpo_jax.agents.tokenizer import Tokenizer
from hacpo_jax.errors import UserError

LLAMA_2 = {
    "tokenizer_class": "LlamaTokenizer",
    "add_bos_token": True,
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
}


def directory(path: Path, files: dict[str, str], **configs: dict) -> Path:
    """A directory with text files, and `config` and `tokenizer_config` as JSON."""
    path.mkdir(exist_ok=True)
    for name, text in files.items():
        (path / name).write_text(text, encoding="utf-8")
    for name, config in configs.items():
        (path / f"{name}.json").write_text(json.dumps(config))
    return path


@pytest.fixture(scope="module")
def sentencepiece_file(tmp_path_factory) -> Path:
    """BPE with byte fallback and an untouched text, as those of Llama 2 and Mistral are."""
    # Words in all sorts of company, so that a piece comes about in several ways.
    rng, words = random.Random(0), STORY.split()
    lines = [(" " * rng.randint(1, 3)).join(rng.sample(words, 8)) for _ in range(300)]
    prefix = tmp_path_factory.mktemp("sentencepiece") / "tokenizer"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_prefix=str(prefix),
        vocab_size=400,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        split_digits=True,
        allow_whitespace_only_pieces=True,
        character_coverage=1.0,
        minloglevel=2,
    )
    return prefix.with_suffix(".model")


def sentencepiece_directory(path: Path, file: Path, **configs: dict) -> Path:
    directory(path, {}, **configs)
    (path / "tokenizer.model").write_bytes(file.read_bytes())
    return path


@pytest.mark.parametrize("family", ["llama", "mistral"])
@pytest.mark.parametrize("configured", [True, False])
def test_sentencepiece_alone_gives_the_ids_that_it_gives_itself(
    tmp_path, sentencepiece_file, family, configured
):
    """transformers' own class for these files merges in another order."""
    configs = {"tokenizer_config": LLAMA_2} if configured else {}
    path = sentencepiece_directory(
        tmp_path / "m", sentencepiece_file, config={"model_type": family}, **configs
    )
    tokenizer = Tokenizer.load(str(path))
    reference = sentencepiece.SentencePieceProcessor(model_file=str(sentencepiece_file))
    bos = [1] if configured else []

    @given(text=TEXTS)
    @example(text="  the cat   was  the  little house")
    @example(text=" é 수학은 😀\r\n  the")
    @example(text=STORY)
    @settings(max_examples=40, deadline=None)
    def equal(text):
        for mark in ("<s>", "</s>", "<unk>"):  # control tokens to one, text to the other
            text = text.replace(mark, "")
        assert tokenizer.encode_prompt(text) == bos + reference.encode(text)

    equal()
    assert (tokenizer.size, tokenizer.stop_ids) == (reference.vocab_size(), (2,))


@given(text=TEXTS)
@example(text="  the cat ")
@example(text="".join(PIECES))
@settings(max_examples=40, deadline=None)
def test_a_continuation_of_sentencepiece_is_given_back(loaded_sentencepiece, text):
    """No space is put before it, nor is one doubled that is there."""
    (ids,) = loaded_sentencepiece.encode_texts([text])
    assert loaded_sentencepiece.decode(ids) == text
    raw = text.encode()
    again, spans = loaded_sentencepiece.encode_with_spans(text)
    assert again == ids
    for id_, (start, end) in zip(ids, spans, strict=True):
        assert loaded_sentencepiece.decode([id_]) == raw[start:end].decode(errors="replace")
    assert [a for a, _ in spans] + [len(raw)] == [0] + [b for _, b in spans]


@pytest.fixture(scope="module")
def loaded_sentencepiece(tmp_path_factory, sentencepiece_file) -> Tokenizer:
    path = tmp_path_factory.mktemp("spm") / "m"
    return Tokenizer.load(str(sentencepiece_directory(path, sentencepiece_file)))


def test_a_missing_bos_is_told(tmp_path, sentencepiece_file, caplog):
    """The file alone does not say whether a document starts with one."""
    path = sentencepiece_directory(tmp_path / "m", sentencepiece_file)
    Tokenizer.load(str(path), field="agents.0.tokenizer")
    assert "agents.0.tokenizer: prompts do not start with <s>" in caplog.text
    caplog.clear()
    for adds in (True, False):
        (path / "tokenizer_config.json").write_text(json.dumps(LLAMA_2 | {"add_bos_token": adds}))
        ids = Tokenizer.load(str(path)).encode_prompt("the")
        assert ids.count(1) == adds == (ids[0] == 1)
    assert caplog.text == ""


def qwen_files() -> dict[str, str]:
    """Bytes, and "the" and " the" by three merges."""
    tokens = [*byte_alphabet(), "th", "the", "Ġthe"]
    return {
        "vocab.json": json.dumps({token: id_ for id_, token in enumerate(tokens)}),
        "merges.txt": "#version: 0.2\nt h\nth e\nĠ the\n",
    }


def test_a_vocabulary_and_its_merges(tmp_path):
    path = directory(tmp_path / "m", qwen_files(), config={"model_type": "qwen3"})
    tokenizer = Tokenizer.load(str(path))
    assert tokenizer.encode_texts(["the the"]) == [[257, 258]]
    # One more: the end token, which the files do not list and the family has next.
    assert (tokenizer.size, tokenizer.stop_ids) == (260, (259,))
    assert tokenizer.encode_with_spans("é the") == (
        [list(byte_alphabet().values()).index(b) for b in "é".encode()] + [258],
        [(0, 1), (1, 2), (2, 6)],
    )


def test_control_tokens_beside_a_vocabulary_keep_their_ids(tmp_path):
    added = {"259": "<|endoftext|>", "260": "<|im_start|>", "261": "<|im_end|>"}
    tokenizer_config = {
        "tokenizer_class": "Qwen2Tokenizer",
        "eos_token": "<|im_end|>",
        "added_tokens_decoder": {
            id_: {"content": text, "special": True} for id_, text in added.items()
        },
    }
    path = directory(tmp_path / "m", qwen_files(), tokenizer_config=tokenizer_config)
    tokenizer = Tokenizer.load(str(path))
    assert (tokenizer.eos_id, tokenizer.stop_ids, tokenizer.size) == (261, (259, 261), 262)
    assert tokenizer.encode_prompt("<|im_start|>the") == [260, 257]


def tiktoken_file() -> str:
    """As the `tokenizer.model` of Llama 3: bytes, "th", "the" with their ranks."""
    tokens = [*(bytes([b]) for b in range(256)), b"th", b"the"]
    return "".join(f"{base64.b64encode(t).decode()} {i}\n" for i, t in enumerate(tokens))


def test_tiktokens_format_does_not_tell_control_tokens(tmp_path):
    """transformers would give `<|eot_id|>` the next free id, which is another token's."""
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|eot_id|>"}
    path = directory(tmp_path / "m", {"tokenizer.model": tiktoken_file()}, tokenizer_config=config)
    refuse(path, "is tiktoken's and has no control tokens; put the model's tokenizer.json there")
    added = {str(i): {"content": f"<|{i}|>", "special": True} for i in range(258, 268)}
    added["267"]["content"] = "<|eot_id|>"
    directory(path, {}, tokenizer_config=config | {"added_tokens_decoder": added})
    if importlib.util.find_spec("tiktoken") is None:  # reads the file, and is no requirement
        refuse(path, "pip install tiktoken")
        return
    tokenizer = Tokenizer.load(str(path))
    assert (tokenizer.eos_id, tokenizer.stop_ids, tokenizer.size) == (267, (267,), 268)
    assert tokenizer.encode_texts(["then é"]) == [[257, ord("n"), ord(" "), 0xC3, 0xA9]]


def refuse(path: Path, words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)) as caught:
        Tokenizer.load(str(path), field="agents.1.tokenizer")
    assert str(caught.value).startswith("agents.1.tokenizer = ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"tekken.json": "{}"}, "tekken.json is not read; put the model's tokenizer.json there"),
        ({"qwen.tiktoken": "IQ== 0\n"}, "qwen.tiktoken is not read"),
        ({"vocab.json": "{}"}, "belong together; put the model's merges.txt there"),
        ({"merges.txt": ""}, "belong together; put the model's vocab.json there"),
        (qwen_files(), "do not say how text is cut into words"),
        ({"config.json": "{}"}, "has no tokenizer; put one of tokenizer.json"),
        ({"tokenizer.model": "neither", "tokenizer_config.json": "[]"}, "must hold a JSON object"),
        ({"tokenizer.model": "neither", "tokenizer_config.json": "{"}, "not readable as JSON"),
        ({"tokenizer.model": "neither"}, "cannot be loaded: "),
    ],
)
def test_what_does_not_suffice_is_refused_with_a_way_out(tmp_path, files, words):
    refuse(directory(tmp_path / "m", files), words)
