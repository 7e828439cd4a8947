"""Bytes on one device: by hand, and against what compiled programs hold."""

import dataclasses

import pytest
from compiled_programs import CASES, PROGRAMS, compiled, compiled_update_on
from tiny import LLAMA as TINY

from hacpo_jax.models import Lora
from hacpo_jax.parallel.estimate import micro_batch_flops
from hacpo_jax.parallel.memory import group_bytes, parameter_count
from hacpo_jax.parallel.mesh import MeshSizes
from hacpo_jax.parallel.sizes import GroupWork, StepSizes

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
    keeps_reference=True,
    param_bytes=2,
    compute_bytes=2,
)
# Per layer q and o 2 * 256, k and v 2 * 128, MLP 3 * 384, norms 2 * 16; two tables 40 * 16, a norm.
PARAMETERS = 2 * (512 + 256 + 1152 + 32) + 2 * 640 + 16


def tiny_bytes(*axes: int, agents: int = 1, model=TINY, **changes):
    names = tuple("abcd"[:agents])
    work = GroupWork(names, model, dataclasses.replace(SIZES, **changes))
    return group_bytes(work, MeshSizes(*axes))


def test_state_by_hand():
    state = tiny_bytes(agents=3).state
    assert state.trained == 3 * 2 * PARAMETERS
    assert state.reference == state.trained
    assert state.optimizer == 3 * (8 * PARAMETERS + 16)
    assert state.base == 0
    assert tiny_bytes(keeps_reference=False).state.reference == 0


def test_agents_with_adapters_share_one_base():
    """Rank 3 on q and v: 2 layers of 3 * (16 + 16) + 3 * (16 + 8) numbers."""
    model = dataclasses.replace(TINY, lora=Lora(3, 6.0, ("q", "v")))
    state = tiny_bytes(agents=2, model=model).state
    assert state.base == 2 * PARAMETERS
    assert state.trained == state.reference == 2 * 2 * 336
    assert state.optimizer == 2 * (8 * 336 + 16)


def test_a_mesh_divides_state_and_cache():
    """The key head is one, so that what has it is not divided by `tensor`; agents are."""
    norms = 5 * 16
    whole, halved = 2 * 256 + norms, PARAMETERS - 2 * 256 - norms
    assert parameter_count(TINY, MeshSizes(tensor=2)) == halved // 2 + whole
    assert parameter_count(TINY, MeshSizes(fsdp=4)) == PARAMETERS // 4
    assert parameter_count(TINY, MeshSizes(fsdp=4, tensor=2)) == (halved // 2 + whole) // 4
    assert parameter_count(TINY, MeshSizes(fsdp=4), gathered=True) == PARAMETERS
    assert parameter_count(TINY, MeshSizes(data=4)) == PARAMETERS
    assert tiny_bytes(2, 1, 1, 1, agents=4).state == tiny_bytes(agents=2).state
    whole, part = tiny_bytes().rollout, tiny_bytes(1, 2, 1, 1).rollout
    assert part.prompt_cache * 2 == whole.prompt_cache
    assert tiny_bytes(1, 1, 1, 2).rollout.generated_cache == whole.generated_cache
    two_heads = dataclasses.replace(TINY, num_kv_heads=2)
    whole, part = (tiny_bytes(1, 1, 1, t, model=two_heads).rollout for t in (1, 2))
    assert part.generated_cache * 2 == whole.generated_cache


def test_cache_by_hand():
    """2 prompts with 2 answers each at once; 2 layers, keys and values, 1 head of 8, 2 bytes."""
    rollout = tiny_bytes().rollout
    assert rollout.prompt_cache == 2 * 4 * 2 * 2 * 8 * 2
    assert rollout.generated_cache == 4 * 4 * 2 * 2 * 8 * 2
    assert rollout.layer_cache * 2 == rollout.generated_cache
    # Of 512 tokens the last is not cached. While the cache grows to twice its width, what was half
    # of the values is held beside all of them and the keys.
    assert tiny_bytes().rollout.working < tiny_bytes(answer_tokens=513).rollout.working
    grown = tiny_bytes(answer_tokens=513).rollout
    assert grown.generated_cache == 4 * 512 * 2 * 2 * 8 * 2
    assert grown.working == grown.generated_cache // 4
    # Copies in bfloat16, or gathered; the key head is not divided.
    assert rollout.weights == 0 and tiny_bytes(param_bytes=4).rollout.weights == 2 * PARAMETERS
    assert tiny_bytes(1, 1, 4, 1).rollout.weights == 2 * PARAMETERS


def test_an_update_by_hand():
    """A prompt of 4 tokens and 2 answers of 6; 3 micro-batches of 5 answers to 3 prompts."""
    update = tiny_bytes(remat=True).update
    # Both tables' gradients are added to the sums as they come.
    assert update.accumulator == 4 * PARAMETERS and update.gradient == 2 * (PARAMETERS - 1280)
    assert update.batch == 4 * (5 * (5 * 6 + 6) + 3 * 5) + 4 * (2 * 2 + 1)
    stream = 16 * 16 * 2
    assert update.activations == (2 + 2) * stream and update.weights == 0
    # Of a token in a layer twice what goes into norms, queries, output of attention, keys, values
    # and two of the MLP, all in two bytes; keys and values of the prompt's 4 tokens once more.
    layer = 16 * 2 * (16 + 16 + 16 + 16 + 8 + 8 + 24 + 24) + 4 * 2 * 8 * 2
    head = 12 * (4 * 40 + 16) * 4
    assert update.working == head
    kept = tiny_bytes(param_bytes=4).update
    assert kept.activations == 2 * layer + 2 * stream and kept.working == head
    assert kept.weights == 2 * PARAMETERS  # bfloat16 copies for the backward pass
    flash = tiny_bytes(attention="splash").update
    # 4 bytes for each of 2 heads and token of the prompt and of each answer with its prompt, and
    # copies of queries, keys, values and output of the latter.
    rows = 2 * (4 + 2 * 10) * 4 + 2 * 10 * 2 * (16 + 8 + 8 + 16)
    assert flash.activations == 2 * (layer + rows) + 2 * stream


def test_an_update_computes_scores_of_a_layer_again():
    """2 answers of 60 tokens: scores of 2 heads, of 4 * 4 and 2 * 60 * 64 pairs in 6 bytes."""
    sizes = {"row_tokens": 60, "micro_batch_tokens": 2 * 60 + 4}
    scores, layer = 2 * (4 * 4 + 2 * 60 * 64) * 6, 124 * 256 + 128
    assert tiny_bytes(**sizes).update.working == scores
    assert tiny_bytes(**sizes, remat=True).update.working == scores + layer
    assert tiny_bytes(**sizes, attention="splash", remat=True).update.working > layer


def test_the_peak_is_the_state_with_the_neediest_program():
    found = tiny_bytes()
    assert found.largest == "update"
    assert found.peak == found.state.total + found.update.total
    assert tiny_bytes(decode_rows=400, prompts=200).largest == "rollout"
    scoring = tiny_bytes(rescores=True, reference_scores=True, prompts=200)
    # All answers to be scored lie there: 400 of 2 * 5 + 2 numbers of 4 bytes, 200 prompts of 4 + 1,
    # and the places of 2 answers to a prompt.
    assert scoring.score.answers == 4 * (400 * 12 + 200 * 5 + 5)
    assert tiny_bytes().score.total == 0


def held(program: str, name: str):
    return CASES[name], group_bytes(CASES[name].work), compiled(program, name).memory_analysis()


@pytest.mark.parametrize(("program", "name"), PROGRAMS)
def test_arguments_are_counted_to_the_byte(program, name):
    one, found, measured = held(program, name)
    sizes, params = one.work.sizes, found.state.trained + found.state.base
    if program == "update":
        # Its loss does not ask for old log-probs, and a cut knows its answers' prompts.
        unread = 4 * one.agents * sizes.update_rows * (sizes.row_tokens + 1)
        given = found.update.accumulator + found.update.batch - unread
        expected = params + given + 4 * (one.agents + 1)
    elif program == "score":
        # What lies behind an answer's end is scored too; a cut knows its answers' prompts.
        unread = 2 * 4 * one.agents * sizes.prompts * sizes.samples
        expected = params + found.score.answers - unread
    elif program == "prefill":
        # Two words a key; ids, lengths and flags of the prompts, which agents share.
        keys = 8 * one.agents * sizes.prompts * sizes.samples
        expected = params + keys + sizes.prompts * (4 * sizes.prompt_tokens + 4 + 1)
    else:
        # Of each answer a key, its newest token and whether it has stopped; of each prompt its
        # length and how far the answers are; and 3 numbers.
        answers = one.agents * sizes.prompts * sizes.samples * (8 + 4 + 1)
        cache = found.rollout.prompt_cache + found.rollout.generated_cache
        expected = params + cache + answers + sizes.prompts * (4 + 4) + 3 * 4
    assert measured.argument_size_in_bytes == expected


@pytest.mark.parametrize(("program", "name"), PROGRAMS)
def test_temporaries_are_estimated_within_a_half(program, name):
    """Of what XLA plans on a CPU, which in a decode may hold cache and head once more."""
    one, found, measured = held(program, name)
    rollout = found.rollout
    least = most = rollout.total - rollout.generated_cache - rollout.layer_cache
    if program == "update":
        least = most = made(found.update)
    elif program == "score":
        least = most = found.score.total - found.score.answers
    else:
        head = 4 * one.model.vocab_size * one.model.hidden_size
        most += found.rollout.prompt_cache + found.rollout.generated_cache + head
    assert least / 1.5 < measured.temp_size_in_bytes < 1.5 * most


def made(update) -> int:
    """What the gradient of a micro-batch makes, sums and batch aside, which it is given."""
    return update.total - update.batch - update.accumulator


def test_each_device_of_a_mesh_has_its_share():
    """The compiled update of 2 by 4 fake devices, of which 2 key heads are not divided by 4.

    XLA counts the body of a loop once: one of 3 layers and of 3 blocks.
    """
    one, mesh = CASES["qwen3"], MeshSizes(fsdp=2, tensor=4)
    program, found = compiled_update_on(one, mesh), group_bytes(one.work, mesh)
    measured = program.memory_analysis()
    unread = 4 * 8 * (one.work.sizes.row_tokens + 1)
    given = found.update.accumulator + found.update.batch - unread
    assert measured.argument_size_in_bytes == found.state.trained + given + 4 * 2
    assert 1 / 1.5 < measured.temp_size_in_bytes / made(found.update) < 1.5
    (load, *_) = one.work.sizes.update_loads(mesh.rows)  # the first is of the largest
    flops = micro_batch_flops(one.model, one.work.sizes, load, mesh).total / 3
    assert 0.99 < program.cost_analysis()["flops"] / flops < 1.06
