"""What a run tells at its start, and what it tells sampler and trainer of the vocabulary."""

import json

import pytest
import tokenizers
from tiny_runs import LLAMA, tiny_config
from tokenizer_zoo import CHATML, byte_level_hf
from transformers import PreTrainedTokenizerFast

from hacpo_jax.errors import UserError
from hacpo_jax.training.console import Console
from hacpo_jax.training.run import Run, prepare


@pytest.fixture
def run(tmp_path) -> Run:
    """One agent with a chat template, one whose tokenizer has holes among its ids."""
    byte_level_hf(template=CHATML).save_pretrained(tmp_path / "chat")
    vocab = {token: 2 * id_ for id_, token in enumerate("What 0123456789+-?[\n")}
    holed = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, []))
    holed.decoder = tokenizers.decoders.Fuse()
    hf = PreTrainedTokenizerFast(tokenizer_object=holed, eos_token="\n")
    hf.save_pretrained(tmp_path / "holed")
    model = LLAMA | {"max_position_embeddings": 128}
    agents = [
        {"name": name, "model": model, "tokenizer": str(tmp_path / name)}
        for name in ("chat", "holed")
    ]
    return prepare(tiny_config(tmp_path / "run", agents=agents))


def test_a_run_tells_the_tokens_that_end_an_answer(run, capsys):
    Console().prepared(run)
    out = capsys.readouterr().out
    chat, holed = run.agents
    assert chat.tokenizer.stop_ids == (1, 3)
    assert "1 <|endoftext|>" in out and "3 <|im_end|>" in out
    (end,) = holed.tokenizer.stop_ids
    assert f"{end} \\n " in out  # an escape, not a line end


def test_sampler_and_trainer_know_the_same_ids(run):
    with run.verifier:
        for group in run.groups:
            vocab = json.loads(group.tokenizer._hf.backend_tokenizer.to_str())["model"]["vocab"]
            specs = [run.sampling_spec(group), run.policy_spec(group)]
            specs.append(run.evaluation_spec(group, "held"))
            for spec in specs:
                known = set(range(spec.num_tokens)) - set(spec.missing_ids)
                assert known == set(vocab.values())
    assert run.sampling_spec(run.groups[1]).missing_ids[:3] == (1, 3, 5)


@pytest.mark.parametrize(
    ("verifier", "told"),
    [
        ({"name": "nowhere:f"}, r"task\.verifier\.name = 'nowhere:f': cannot be used"),
        (
            {"name": [{"name": "format", "pattern": "("}]},
            r"task\.verifier\.name\.0\.pattern = '\(': not a regular expression",
        ),
    ],
)
def test_a_verifier_that_cannot_work_is_told_by_its_key(tmp_path, verifier, told):
    with pytest.raises(UserError, match=told):
        prepare(tiny_config(tmp_path / "run", task={"verifier": verifier}))
