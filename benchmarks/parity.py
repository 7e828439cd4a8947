"""Our decoder beside transformers' own models: python benchmarks/parity.py [DIR...].

Needs torch. Compares the tiny checkpoints in tests/fixtures, one per family and kind, and every
model directory given, and prints a Markdown table:

- logits of two random sequences, one with pads on the left: the largest difference, float32;
- gradients of their mean negative log-likelihood: the largest difference in any parameter of the
  first layer and outside the layers, as a part of that parameter's largest gradient;
- the greedy continuation of the second sequence by cached decoding, against `generate`: how many
  tokens are equal before the first that is not.

Two more lines for each DIR are about rounding, which differs from one program to the next: how far
this decoder, and beside it transformers in the same precision, is from transformers in a higher
one.
"""

import argparse
import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import torch
from transformers import AutoModelForCausalLM

from hacpo_jax.models import bind, load_model
from hacpo_jax.models.hf_layout import entries
from hacpo_jax.rollout import DecodeSpec, Sampler, answer, answer_keys

FIXTURES = Path(__file__).resolve().parents[1] / "tests" / "fixtures"
LENGTH, PADS = 43, 3
# Models whose config.json and tensors are read as published, by what they are like.
HUB_IDS = {
    "llama": "HuggingFaceTB/SmolLM2-135M-Instruct, meta-llama/Llama-2-7b-hf",
    "llama3-rope": "meta-llama/Llama-3.2-1B-Instruct, meta-llama/Llama-3.1-8B-Instruct",
    "llama-bias": "Llama with attention_bias and mlp_bias",
    "qwen2": "Qwen/Qwen2.5-0.5B-Instruct, Qwen/Qwen2.5-Math-1.5B",
    "qwen2-window": "Qwen2 with use_sliding_window",
    "qwen3": "Qwen/Qwen3-1.7B, Qwen/Qwen3-4B-Base",
    "mistral": "mistralai/Mistral-7B-Instruct-v0.3, mistralai/Mistral-Nemo-Instruct-2407",
    "mistral-window": "mistralai/Mistral-7B-v0.1",
    "ministral": "mistralai/Ministral-8B-Instruct-2410",
    "phi3": "microsoft/Phi-3-mini-4k-instruct, microsoft/phi-4",
    "phi4-mini": "microsoft/Phi-4-mini-instruct, microsoft/Phi-3.5-mini-instruct",
    "phi4-mini-long": "the same, beyond the original context",
}
COLUMNS = (
    "checkpoint",
    "works by config alone",
    "largest logit",
    "logit error",
    "gradient error",
    "greedy tokens equal",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directories", nargs="*", type=Path, metavar="DIR")
    directories = parser.parse_args().directories
    for directory in directories:
        if not (directory / "config.json").is_file():
            parser.error(f"{directory} holds no config.json")
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}", flush=True)
    for name, hub_ids in HUB_IDS.items():
        print_row(f"tiny {name}", hub_ids, *compare(FIXTURES / name, generated=64))
    for directory in directories:
        print_row(f"{directory.name}, float32", "", *compare(directory, generated=200))
        for dtype, exact in ((torch.float32, torch.float64), (torch.bfloat16, torch.float32)):
            title, against = (str(kind).removeprefix("torch.") for kind in (dtype, exact))
            title = f"{directory.name}, {title} against {against}"
            print_row(title, "", *compare_rounding(directory, dtype, exact))


def print_row(*cells: str) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


def compare(directory: Path, *, generated: int) -> list[str]:
    """Largest logit, its error, gradient error and equal greedy tokens, as they are printed."""
    config, params = load_model(directory, str(directory), longest=LENGTH + generated)
    theirs = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    tokens, valid = sequences(config.vocab_size)
    expected, loss = their_logits(theirs, tokens, valid)
    loss.backward()
    (_, logits), gradients = jax.value_and_grad(functools.partial(mean_loss, config), has_aux=True)(
        params, tokens, valid
    )
    flat = {name: parameter.grad.numpy() for name, parameter in theirs.named_parameters()}
    errors = [gradient_error(entry, gradients, flat) for entry in entries(config)]
    prompt = tokens[1, PADS:]
    ours, reference = greedy(config, params, prompt, generated), generate(theirs, prompt, generated)
    equal = int(np.cumprod(ours == reference).sum())
    gap = np.abs(np.asarray(logits) - expected)[valid].max()
    largest = np.abs(expected[valid]).max()
    return [f"{largest:.1f}", f"{gap:.1e}", f"{max(errors):.1e}", f"{equal} of {generated}"]


def compare_rounding(directory: Path, dtype: torch.dtype, exact: torch.dtype) -> list[str]:
    """Both in `dtype` against transformers in `exact`; mean errors stand beside the largest."""
    ours_dtype = jnp.dtype(str(dtype).removeprefix("torch."))
    config, params = load_model(directory, str(directory), dtype=ours_dtype)
    tokens, valid = sequences(config.vocab_size)
    wanted, theirs = (
        their_logits(AutoModelForCausalLM.from_pretrained(directory, dtype=kind), tokens, valid)[0]
        for kind in (exact, dtype)
    )
    ours = np.asarray(mean_loss(config, params, tokens, valid, dtype=ours_dtype)[1])
    gaps = [np.abs(x.astype(np.float64) - wanted)[valid] for x in (ours, theirs)]
    text = "{:.1e}, mean {:.1e} (transformers' own: {:.1e}, mean {:.1e})"
    error = text.format(*(value for gap in gaps for value in (gap.max(), gap.mean())))
    return [f"{np.abs(wanted[valid]).max():.1f}", error, "", ""]


def sequences(vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Random tokens `[2, T]`, and where they are not padding."""
    tokens = np.random.default_rng(0).integers(3, vocab_size, (2, LENGTH))
    valid = np.ones((2, LENGTH), bool)
    valid[1, :PADS] = False
    return tokens, valid


def positions_of(valid: np.ndarray) -> np.ndarray:
    return np.maximum(np.cumsum(valid, axis=-1) - 1, 0)


def their_logits(model, tokens: np.ndarray, valid: np.ndarray) -> tuple[np.ndarray, torch.Tensor]:
    """Logits `[2, T, V]`, and the mean negative log-likelihood of the next tokens in nats."""
    ids, mask = torch.tensor(tokens), torch.tensor(valid)
    positions = torch.tensor(positions_of(valid))
    logits = model(ids, attention_mask=mask.long(), position_ids=positions).logits.double()
    both = mask[:, 1:] & mask[:, :-1]
    loss = torch.nn.functional.cross_entropy(logits[:, :-1][both], ids[:, 1:][both])
    return logits.detach().numpy(), loss


def mean_loss(config, params, tokens, valid, *, dtype=jnp.float32):
    """As `their_logits`, the loss first."""
    model = bind(config, params)
    hidden = model(jnp.asarray(tokens), positions_of(valid), jnp.asarray(valid), dtype=dtype)
    table = model.unembedding().astype(dtype)
    logits = jnp.einsum("bth,vh->btv", hidden, table, preferred_element_type=jnp.float32)
    log_probs = jax.nn.log_softmax(logits)[:, :-1]
    chosen = jnp.take_along_axis(log_probs, tokens[:, 1:, None], axis=-1)[..., 0]
    both = valid[:, 1:] & valid[:, :-1]
    return -jnp.sum(chosen * both) / jnp.sum(both), logits


def gradient_error(entry, ours: dict, theirs: dict[str, np.ndarray]) -> float:
    array = np.asarray(functools.reduce(dict.__getitem__, entry.path, ours))
    got = entry.to_hf(array[0] if entry.stacked else array)
    wanted = theirs[entry.names[0]][entry.rows]
    return float(np.abs(got - wanted).max() / np.abs(wanted).max())


def greedy(config, params, prompt: np.ndarray, count: int) -> np.ndarray:
    """The likeliest continuation by cached decoding, past any end token."""
    spec = DecodeSpec(config, Sampler(0.0), count, (), config.vocab_size, jnp.dtype("float32"))
    stacked = jax.tree.map(lambda x: x[None], params)
    keys = answer_keys(0, [0], 0, [0], 1)
    return answer(stacked, [prompt.tolist()], keys, spec, max_rows=1).tokens[0, 0, 0]


@torch.no_grad()
def generate(model, prompt: np.ndarray, count: int) -> np.ndarray:
    """The same by transformers."""
    model.generation_config.eos_token_id = None
    ids = torch.tensor(prompt)[None]
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False
    )
    return out[0, len(prompt) :].numpy()


if __name__ == "__main__":
    main()
