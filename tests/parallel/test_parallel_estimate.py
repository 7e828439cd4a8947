"""FLOPs of a step: by hand, and against what compilers and the traced programs say."""

import dataclasses
import math

import pytest
from compiled_programs import (
    CALLS,
    CASES,
    LLAMA,
    PROGRAMS,
    QWEN3,
    case,
    compiled,
    decode_call,
)
from jax.extend.core import jaxprs_in_params
from tiny import LLAMA as TINY

from hacpo_jax.models import Lora
from hacpo_jax.parallel.estimate import (
    ONE,
    ScoreFlops,
    forward_flops,
    head_flops,
    micro_batch_flops,
    products_flops,
    step_flops,
)
from hacpo_jax.parallel.mesh import MeshSizes
from hacpo_jax.parallel.sizes import GroupWork, StepSizes
from hacpo_jax.training.log_probs import BLOCK

SIZES = StepSizes(
    prompts=3,
    samples=2,
    prompt_tokens=4,
    answer_tokens=5,
    row_tokens=6,
    updates=2,
    update_rows=5,
    micro_batch_tokens=2 * 6 + 4,
    decode_rows=4,
)


def tiny_flops(mesh: MeshSizes = ONE, model=TINY, **changes):
    work = GroupWork(("one",), model, dataclasses.replace(SIZES, **changes))
    return step_flops(work, mesh)


def test_a_tiny_rollout_by_hand():
    """Hidden 16, MLP 24, 2 layers, 2 heads and 1 key head of 8, vocabulary 40.

    A token's weights in a layer: q and o 2 * 16 * 16, k and v 2 * 16 * 8, MLP 3 * 16 * 24: 1920.
    4 answers at once are 2 chunks of 2 prompts, the second half filler.
    """
    flops = tiny_flops().rollout
    # Per layer 2 prompts of 4 tokens; 4 * 4 pairs, 2 heads of 8, two products.
    assert flops.prefill == 2 * 2 * (2 * 8 * 1920 + 2 * 16 * 16 * 4)
    # The answers to a prompt have their first token's logits in common.
    assert flops.prefill_head == 2 * (2 * 2 * 16 * 40)
    # 4 further tokens of 4 answers, each over keys and values of 4 prompt and 4 answer places, and
    # over its own key.
    assert flops.decode == 2 * 4 * 2 * (2 * 4 * 1920 + 4 * (2 * 8 + 1) * 16 * 2)
    assert flops.decode_head == 2 * 4 * (2 * 4 * 16 * 40)


def test_a_decode_attends_to_what_there_is_room_for():
    """100 tokens: 64 over 64 places, the other 35 that follow one over 112."""
    flops = tiny_flops(answer_tokens=100).rollout
    keys = 64 * (4 + 64) + 35 * (4 + 112)
    assert flops.decode == 2 * 2 * (2 * 4 * 99 * 1920 + 4 * (2 * keys + 99) * 16 * 2)
    assert tiny_flops(answer_tokens=1).rollout.decode == 0


def test_a_tiny_update_by_hand():
    """2 updates of 5 answers, 2 to a prompt, are 2 * 3 micro-batches of a prompt of 4 tokens and
    2 answers of 6, the last with 1 answer only: 16 and 10 tokens.

    Prompts see 4 * 4 pairs, an answer 6 * 10. The entropy is one product more for each logit.
    """
    layers, attention, head = _tiny_sums(answers=5)
    flops = tiny_flops().updates
    assert flops.forward == 2 * (layers + attention)
    assert flops.backward == 2 * 2 * (layers + attention)
    assert flops.recompute == 2 * attention // 2  # its weights
    assert flops.head_forward == 2 * head * 17 // 16
    assert flops.head_backward == 2 * 3 * head
    assert flops.total == 2 * (3 * layers + 7 * attention // 2 + 4 * head + head // 16)
    # The product out of the MLP, 24 to 16, is what no gradient needs.
    again = tiny_flops(remat=True).updates.recompute
    assert again == 2 * (layers + attention - 2 * 2 * _TOKENS * 24 * 16)


_TOKENS = 3 * 4 + 5 * 6


def _tiny_sums(answers: int) -> tuple[int, int, int]:
    """Of one update: products with weights, attention and head."""
    assert answers == 5
    pairs = 3 * 4 * 4 + 5 * 6 * 10
    return 2 * 2 * _TOKENS * 1920, 2 * 2 * pairs * 16 * 2, 2 * 5 * 6 * 16 * 40


def test_a_tiny_update_of_adapters_by_hand():
    """Rank 3 on q (16 to 16) and down (24 to 16); nothing else has a gradient by its weights."""
    model = dataclasses.replace(TINY, lora=Lora(3, 6.0, ("q", "down")))
    adapters = 2 * 2 * _TOKENS * 3 * ((16 + 16) + (24 + 16))
    layers, attention, head = _tiny_sums(answers=5)
    flops = tiny_flops(model=model, remat=True).updates
    assert flops.forward == 2 * (layers + adapters + attention)
    assert flops.backward == 2 * (layers + 2 * adapters + 2 * attention)
    assert flops.recompute == flops.forward - 2 * 2 * 2 * _TOKENS * (24 * 16 + 3 * 16)
    assert flops.head_backward == 2 * 2 * head
    # Without remat: into the rank from 16 of q and 24 of down.
    kept = tiny_flops(model=model).updates
    assert kept.recompute == 2 * (2 * 2 * _TOKENS * 3 * (16 + 24) + attention // 2)


def test_tiny_scoring_by_hand():
    """6 own answers are 3 micro-batches of a prompt and 2 answers of 5 tokens; two peers' ones are
    12 to the same prompts, in the width of updates: 6 micro-batches, 2 to a prompt."""
    assert tiny_flops().scores == {} and tiny_flops().scoring == 0
    flops = tiny_flops(rescores=True, reference_scores=True, snapshot_peers=2)
    own = 2 * (2 * 14 * 1920 + 2 * (16 + 2 * 5 * 9) * 16 * 2) + 2 * 10 * 16 * 40
    peers = 2 * (2 * 16 * 1920 + 2 * (16 + 2 * 6 * 10) * 16 * 2) + 2 * 12 * 16 * 40
    assert {name: score.total for name, score in flops.scores.items()} == {
        "rescore": 3 * own,
        "reference": 3 * own,
        "snapshot": 6 * peers,
    }
    assert flops.scoring == 6 * own + 6 * peers
    assert flops.total == flops.rollout.total + flops.scoring + flops.updates.total


def test_flash_kernels_skip_later_tokens_and_compute_weights_again():
    plain, flash = tiny_flops(), tiny_flops(attention="cudnn")
    splash = tiny_flops(attention="splash")
    pair = 2 * 2 * 16 * 2 * 2  # 2 updates of 2 layers, two products of 2 heads of 8
    # Later tokens are skipped, but each answer's row has its prompt in it.
    every, few = 3 * 16 + 5 * 60, 3 * 10 + 5 * 55
    assert plain.updates.forward - flash.updates.forward == pair * (every - few)
    assert plain.updates.backward - flash.updates.backward == pair * (2 * every - few * 5 / 2)
    assert splash.updates.backward - flash.updates.backward == pair * few
    assert plain.rollout.decode == flash.rollout.decode


def test_a_mesh_divides_rows_and_heads():
    """5 answers in 3 rows are 2 in the fullest; the single key head stays whole over `tensor`."""
    roomy = {"micro_batch_tokens": 1000}
    part = tiny_flops(MeshSizes(data=3), **roomy).updates
    tokens, pairs = 4 + 2 * 6, 16 + 2 * 60  # of the same prompt
    assert part.forward == 2 * (2 * 2 * tokens * 1920 + 2 * 2 * pairs * 16 * 2)
    part = tiny_flops(MeshSizes(fsdp=2, tensor=2), **roomy).updates
    # 3 answers to 2 prompts; q and o 2 * 16 * 8, k and v 2 * 16 * 8 as before, MLP 3 * 16 * 12.
    tokens, pairs = 2 * 4 + 3 * 6, 2 * 16 + 3 * 60
    layers, attention = 2 * 2 * tokens * (256 + 256 + 576), 2 * 2 * pairs * 8 * 2
    assert part.forward == 2 * (layers + attention)
    assert part.head_forward == 2 * (2 * 18 * 16 * 20) * 17 // 16


def counted_once(program: str, name: str) -> float:
    """The estimate as XLA counts: the body of a loop once, however often it runs.

    Loops go over layers, blocks of the vocabulary, and in a decode tokens. Where all of the
    vocabulary is one block its loop is gone, and the backward pass takes the logits of the forward
    one.
    """
    one = CASES[name]
    sizes, model = one.work.sizes, one.model
    flops = step_flops(one.work)
    layers, blocks = model.num_layers, math.ceil(model.vocab_size / BLOCK)
    if program == "prefill":
        found = flops.rollout.prefill / layers + flops.rollout.prefill_head
    elif program == "decode":
        answers, steps = sizes.chunk_prompts * sizes.samples, sizes.answer_tokens - 1
        attended = answers * (2 * (sizes.prompt_tokens + steps) + 1)  # the ring at its widest
        layer = products_flops(model, answers, attended).total / layers
        found = layer + flops.rollout.decode_head / steps
    elif program == "score":
        ((_, answers, width),) = sizes.scored
        (score,) = {  # all micro-batches are alike
            ScoreFlops(forward_flops(model, load).total, head_flops(model, load.answer_tokens))
            for load in sizes.score_loads(answers, width, 1)
        }
        found = score.layers / layers + score.head / blocks
    else:
        (load, *others) = sizes.update_loads(1)
        assert {load, *others} == {load}
        update = micro_batch_flops(model, sizes, load)
        of_layers = update.forward + update.recompute + update.backward
        head = update.head_backward + (update.head_forward if blocks > 1 else 0)
        found = of_layers / layers + head / blocks
    return found * one.agents


@pytest.mark.parametrize(("program", "name"), PROGRAMS)
def test_compilers_count_the_same_and_a_little_more(program, name):
    """Per element work (norms, rotations, softmax, sampling, AdamW) is XLA's surplus: up to 6%."""
    flops = compiled(program, name).cost_analysis()["flops"]
    assert 1 < flops / counted_once(program, name) < 1.06


NORMED = {size for model in (QWEN3, LLAMA) for size in (model.hidden_size, model.head_dim)}


def is_norm(equation) -> bool:
    """Whether a product is of each row with a row of its own, which norms' gradients take."""
    (contracted, _), (batch, _) = equation.params["dimension_numbers"]
    shapes = [operand.aval.shape for operand in equation.invars]
    alone = all(len(shape) == len(contracted) + len(batch) for shape in shapes)
    return alone and {shapes[0][axis] for axis in contracted} <= NORMED


def traced_flops(jaxpr, tokens: int) -> int:
    """FLOPs of all products in a traced program but those of norms; loops of unknown length run
    `tokens` times."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            if is_norm(equation):
                continue
            (contracted, _), _ = equation.params["dimension_numbers"]
            depth = math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
            total += 2 * depth * math.prod(equation.outvars[0].aval.shape)
            continue
        times = equation.params.get("length", 1)
        if equation.primitive.name == "while":
            times = tokens
        total += times * sum(traced_flops(j, tokens) for j in jaxprs_in_params(equation.params))
    return total


@pytest.mark.parametrize("model", [QWEN3, LLAMA], ids=["qwen3", "llama"])
def test_loops_run_as_often_as_the_traced_programs(model):
    """What XLA counts once is counted here as often as it runs: exactly the estimate."""
    one = case(model, agents=2)
    sizes, flops = one.work.sizes, step_flops(one.work)
    rollout = flops.rollout

    def found(call, tokens: int = 0) -> int:
        function, arguments, options = call
        return traced_flops(function.trace(*arguments, **options).jaxpr.jaxpr, tokens)

    assert found(CALLS["prefill"](one)) == 2 * (rollout.prefill + rollout.prefill_head)
    # 95 tokens follow the first: 48 until the first ring is full, and 47 in the next.
    decoded = found(decode_call(one, 48), 48) + found(decode_call(one, 96), 47)
    assert decoded == 2 * (rollout.decode + rollout.decode_head)
    score = flops.scoring // len(sizes.score_loads(32, 96, 1))
    assert found(CALLS["score"](one)) == 2 * score
    update = flops.updates.total // len(sizes.update_loads(1))
    assert found(CALLS["update"](one)) == 2 * update
