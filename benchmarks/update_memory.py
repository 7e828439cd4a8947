"""What a compiled update holds besides its arguments: python benchmarks/update_memory.py.

For a vocabulary of 151,936, 8 answers of 4,096 tokens and a hidden size of 2,048, and for halves
of tokens and of vocabulary, it prints the temporaries of the two programs of an update as the
compilers plan them (`memory_analysis`), next to one float32 array of logits, `[B, T, V]`. Nothing
runs, and no TPU is needed.

The model has the layers of Qwen3-1.7B, but two of them: layers have a gradient of their own beside
the sum of gradients, and two tell what one more costs without hiding the rest. Answers are taken
one at a time (`training.micro_batch_tokens=4096`), layers are recomputed, parameters are float32.
On CPU activations are float32 and attention is plain, and holds the weights of all pairs of tokens
of one answer; on the TPU they are bfloat16 and splash attention holds none.
"""

import argparse
import dataclasses
import os
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp

from hacpo_jax.config import Algorithm, OptimizerConfig
from hacpo_jax.errors import UserError
from hacpo_jax.models import Answers, AttentionKind, ModelConfig, abstract_params, trained_axes
from hacpo_jax.parallel.layout import Layout
from hacpo_jax.parallel.mesh import MeshSizes, make_mesh
from hacpo_jax.parallel.topology import topology_devices
from hacpo_jax.training.cuts import longest_loads
from hacpo_jax.training.objective import make_objective
from hacpo_jax.training.scoring import Cut, PolicySpec
from hacpo_jax.training.update import (
    Found,
    MiniBatch,
    UpdateSpec,
    accumulate,
    apply,
    init_state,
    state_axes,
)

GIB = 2**30
QWEN3 = ModelConfig(
    model_type="qwen3",
    vocab_size=151_936,
    hidden_size=2048,
    intermediate_size=6144,
    num_layers=2,
    num_heads=16,
    num_kv_heads=8,
    head_dim=128,
    max_position_embeddings=8192,
    qk_norm=True,
)
PROMPT = 128
OPTIMIZER = OptimizerConfig()


@dataclasses.dataclass(frozen=True)
class Size:
    """An update.

    Args:
      model: shape of the model.
      answers: B, each to a prompt of its own.
      width: T, prompt aside.
      tokens: `training.micro_batch_tokens`.
    """

    model: ModelConfig
    answers: int
    width: int
    tokens: int

    @property
    def logits(self) -> int:
        """Bytes of one float32 array of all logits."""
        return 4 * self.answers * self.width * self.model.vocab_size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--topology", default="v5p:1x1x1", help="besides the CPU")
    options = parser.parse_args()
    try:
        topology_devices(options.topology)
    except UserError as error:
        parser.error(str(error))
    whole = Size(QWEN3, 8, 4096, 4096)
    few = dataclasses.replace(QWEN3, vocab_size=151_936 // 2)
    print("| device | B | T | V | gradient | step | of [B, T, V] |\n|---|---|---|---|---|---|---|")
    for name in ("cpu:1", options.topology):
        for size in (
            whole,
            dataclasses.replace(whole, answers=4),
            dataclasses.replace(whole, width=2048),
            dataclasses.replace(whole, model=few),
        ):
            found = [each / GIB for each in temporaries(name, size)]
            share = max(found) * GIB / size.logits
            cells = f"{size.answers} | {size.width:,} | {size.model.vocab_size:,}"
            made = f"{found[0]:.2f} GiB | {found[1]:.2f} GiB | 1/{1 / share:.1f}"
            print(f"| {name} | {cells} | {made} |", flush=True)


def temporaries(topology: str, size: Size) -> tuple[int, int]:
    """Bytes that the gradient of one micro-batch makes, and those of the step after the last."""
    device = topology_devices(topology)[0]
    layout = Layout(make_mesh(MeshSizes(), [device]))
    cpu = device.platform == "cpu"
    spec = _spec(size.model, jnp.float32 if cpu else jnp.bfloat16, "xla" if cpu else "splash")
    state = jax.eval_shape(lambda p: init_state(p, OPTIMIZER, 10), _stacked(size.model))
    state = layout.abstract(state, state_axes(size.model, OPTIMIZER), lead=("agents",))
    batch, cut = (_on_rows(layout, tree) for tree in _shapes(size))
    log_probs = batch.old_log_probs
    found = Found(
        layout.abstract(_stacked(size.model), trained_axes(size.model), lead=("agents",)),
        log_probs,
        log_probs,
    )
    rest = (jax.ShapeDtypeStruct((1,), jnp.int32), jax.ShapeDtypeStruct((), jnp.int32))
    with layout.use():
        one = accumulate.lower(found, state.params, batch, cut, *rest, spec=spec)
        step = apply.lower(state, found, batch, *rest, spec=spec)
        return tuple(each.compile().memory_analysis().temp_size_in_bytes for each in (one, step))


def _spec(model: ModelConfig, dtype: Any, attention: AttentionKind) -> UpdateSpec:
    policy = PolicySpec(
        model, 1.0, model.vocab_size, jnp.dtype(dtype), remat=True, attention=attention
    )
    objective = make_objective(Algorithm(name="grpo"), 1)
    return UpdateSpec(policy, objective, OPTIMIZER, 10, 0.04, 0.0, 0.0)


def _stacked(model: ModelConfig) -> Any:
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((1, *x.shape), jnp.float32), abstract_params(model)
    )


def _shapes(size: Size) -> tuple[MiniBatch, Cut]:
    """One row of answers, and one of its micro-batches."""
    load, *_ = longest_loads(size.answers, 1, 1, PROMPT, size.width, size.tokens)

    def array(*shape: int, dtype: Any = jnp.int32) -> Any:
        return jax.ShapeDtypeStruct((1, 1, *shape), dtype)

    count, width = size.answers, size.width
    answers = Answers(
        array(count, PROMPT), array(count), array(count, width), array(count), array(count)
    )
    number, per_token = (array(*shape, dtype=jnp.float32) for shape in ((count,), (count, width)))
    batch = MiniBatch(answers, array(count), number, number, per_token, per_token, number)
    cut = Cut(array(load.answers), array(load.prompts), array(load.answers), load.width)
    return batch, cut


def _on_rows(layout: Layout, tree: Any) -> Any:
    return layout.abstract(tree, jax.tree.map(lambda _: ("agents", "rows"), tree))


if __name__ == "__main__":
    main()
