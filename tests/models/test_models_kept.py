"""What a gradient keeps of every layer: the stacks that its loop over layers hands on."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import LLAMA, random_params

from hacpo_jax.models import Answers, ModelConfig, bind

# Sizes that tell axes apart: 5 layers, hidden 16, inner 24, 2 prompts of 3 tokens with 4 answers
# of 7 in one row are 34 tokens.
MODEL = dataclasses.replace(LLAMA, num_layers=5)
TOKENS = 2 * 3 + 4 * 7
ANSWERS = Answers(
    prompts=np.ones((1, 2, 3), np.int32),
    prompt_lengths=np.full((1, 2), 3),
    responses=np.ones((1, 4, 7), np.int32),
    response_lengths=np.full((1, 4), 7),
    prompt_of=np.array([[0, 0, 1, 1]]),
)  # type: ignore[arg-type]


def of_answers(model):
    return model.before_answers(ANSWERS, dtype=jnp.float32)[0]


def of_rows(model):
    """As many tokens in whole rows."""
    places = np.broadcast_to(np.arange(17), (2, 17))
    return model(places, places, places >= 0, dtype=jnp.float32)


def kept(states, config: ModelConfig) -> list[tuple[int, ...]]:
    """Shapes, for one layer, of what is computed for the backward pass."""
    params = random_params(config, 0)

    def loss(params):
        return states(bind(config, params)).sum()

    jaxpr = jax.make_jaxpr(jax.grad(loss))(params).jaxpr
    forward = next(e for e in jaxpr.eqns if e.primitive.name == "scan")
    stacks = forward.outvars[forward.params["num_carry"] :]
    assert all(stack.aval.shape[0] == config.num_layers for stack in stacks)
    return [stack.aval.shape[1:] for stack in stacks]


@pytest.mark.parametrize("states", [of_answers, of_rows])
def test_layers_keep_two_arrays_as_wide_as_the_mlp_and_no_weights_of_attention(states):
    shapes = kept(states, MODEL)
    wide = [shape for shape in shapes if shape[-1] == MODEL.intermediate_size]
    assert len(wide) == 2
    # The residual stream before each norm; queries after their rotation and what attention gives.
    narrow = [shape for shape in shapes if shape[-1] == MODEL.hidden_size]
    assert len(narrow) == 2
    numbers = sum(map(np.prod, shapes))
    queries, keys = 16, 8
    assert numbers <= TOKENS * 2 * (24 + 16 + queries + keys) + 6 * 2 * keys


def test_with_remat_layers_keep_their_input():
    def states(model):
        return model.before_answers(ANSWERS, dtype=jnp.float32, remat=True)[0]

    assert kept(states, MODEL) == [(1, TOKENS, MODEL.hidden_size)]
