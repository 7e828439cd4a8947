"""Plans against hand arithmetic, against JAX's own figures, and with what a device may exchange."""

import math

import jax
import pytest
from plan_cases import LAYERS, VOCAB, small_run, whole_parameters

from hacpo_jax.parallel.hlo import parse
from hacpo_jax.parallel.plan import plan, prepare_plan, resident_beside, residents
from hacpo_jax.parallel.plan_shapes import GroupShapes
from hacpo_jax.parallel.topology import topology_devices

HIDDEN, INNER = 32, 80
QUERIES, KEYS = 4 * 8, 2 * 8
# The llama of the cases: matrices that are divided by fsdp and tensor, and norms by fsdp alone.
LAYER_MATRICES = HIDDEN * (2 * QUERIES + 2 * KEYS + 3 * INNER)
PARAMETERS = LAYERS * (LAYER_MATRICES + 2 * HIDDEN) + VOCAB * HIDDEN + HIDDEN


def lowered(programs, name):
    shapes = GroupShapes(programs, programs.groups[0])
    job = {job.name: job for job in shapes.jobs()}[name]
    with shapes.layout.use():
        return job.lower().compile()


@pytest.mark.parametrize(("fsdp", "tensor"), [(8, 1), (4, 2)])
def test_state_is_what_shards_add_up_to(tmp_path, fsdp, tensor):
    config = small_run(
        tmp_path, f"mesh.tensor={tensor}", algorithm={"name": "gspo", "kl_coef": 0.1}
    )
    programs = prepare_plan(config, jax.devices())
    norms = (2 * LAYERS + 1) * HIDDEN // fsdp
    matrices = (LAYERS * LAYER_MATRICES + VOCAB * HIDDEN) // (fsdp * tensor)
    kept = residents(programs, programs.groups[0])
    assert kept.params == kept.reference == 4 * (norms + matrices)
    counters = 4 * 4  # two of the optimizer's, and updates made and left out
    assert kept.optimizer == 2 * kept.params + counters
    assert kept.base == 0


def test_adapters_keep_one_base_for_all(tmp_path):
    words = [f"agents.{i}.lora={{rank: 2, targets: [q]}}" for i in (0, 1)]
    config = small_run(tmp_path, *words)
    programs = prepare_plan(config, jax.devices()[:1])
    kept = residents(programs, programs.groups[0])
    assert kept.base == 4 * PARAMETERS
    assert kept.params == 4 * LAYERS * 2 * (HIDDEN + QUERIES)


def test_a_decode_holds_what_its_shapes_say(tmp_path):
    config = small_run(tmp_path, "agents.0.mesh.tensor=2")
    found = plan(config, jax.devices(), only=[("small", "decode")])
    (one,) = found.programs
    compiled = lowered(prepare_plan(config, jax.devices()), "decode")
    analysis = compiled.memory_analysis()
    assert one.bytes is not None
    assert one.bytes.temporaries == analysis.temp_size_in_bytes
    assert one.bytes.arguments == analysis.argument_size_in_bytes
    # 16 rows are 4 prompts with 4 answers each, one prompt to each of 4 parts along fsdp. Weights
    # are gathered along those; a position of the cache has a key and a value of one head of 8.
    norms, matrices = (2 * LAYERS + 1) * HIDDEN, LAYERS * LAYER_MATRICES + VOCAB * HIDDEN
    weights, position = 4 * (norms + matrices // 2), 4 * 2 * LAYERS * 8
    ring, rows = 4 * 7 * position, 4 * (4 + 1) + 4  # newest token, stopped or not, and how far
    held = 8 * position + 4 + 4 * 8 + ring + rows + 3 * 4  # prompt, its length, keys of two words
    assert one.bytes.arguments == weights + held
    drawn = 4 * (64 * (4 + 4) + 4 + 1)  # ids and log-probs, how many, whether stopped
    told = 4 + 4 * 4 + 4  # steps, and of all 4 slots how far and whether it runs
    assert abs(one.bytes.outputs - (ring + rows + drawn + told)) <= 128  # and pointers to each
    assert one.bytes.reused == ring + rows
    # Everything of both agents lies there.
    assert one.needed == found.resident + one.bytes.peak


def test_prompts_are_read_beside_a_ring(tmp_path):
    config = small_run(tmp_path, "agents.0.mesh.tensor=2")
    programs = prepare_plan(config, jax.devices())
    kept = residents(programs, programs.groups[0])
    shapes = GroupShapes(programs, programs.groups[0])
    beside = {job.name: job.beside for job in shapes.jobs()}
    ring = 4 * 7 * 4 * 2 * LAYERS * 8
    assert beside["gather"] == beside["update"] == 0
    assert beside["prefill"] == kept.params + ring
    assert beside["decode"] == kept.params


def test_flops_of_an_update_are_those_of_its_products(tmp_path):
    config = small_run(tmp_path, "training.remat=false")
    devices = jax.devices()[:1]
    found = plan(config, devices, only=[("small", "update")])
    rows, prompt, answer = 8 * 4, 8, 8
    tokens = 8 * prompt + rows * answer
    forward = 2 * tokens * LAYERS * LAYER_MATRICES
    # Scores and values of all pairs of tokens, masked or not.
    pairs = 8 * prompt * prompt + rows * answer * (prompt + answer)
    forward += 2 * 2 * pairs * QUERIES * LAYERS
    # The last block of the vocabulary overlaps the one before it.
    head = 2 * rows * answer * HIDDEN * 3 * 8192
    # Backward: twice the products, and the head's logits once more. And the entropy.
    assert found.programs[0].flops == pytest.approx(
        3 * forward + 4 * head + head / HIDDEN, rel=0.01
    )


@pytest.mark.parametrize(("topology", "tensor"), [("cpu:8", 1), ("cpu:8", 2), ("v5e:2x4", 2)])
def test_an_update_gathers_no_parameter_whole(tmp_path, topology, tensor):
    config = small_run(tmp_path, f"mesh.tensor={tensor}")
    programs = prepare_plan(config, topology_devices(topology))
    collectives = parse(lowered(programs, "update").as_text()).collectives()
    whole = whole_parameters(programs.groups[0].model, tensor)
    for one in collectives:
        for shape in one.whole:
            axes = tuple(sorted(n for n in shape.dims if n > 1))
            assert axes not in whole, one
    gathered = [shape for one in collectives if one.kind == "all-gather" for shape in one.whole]
    layer = HIDDEN * INNER // tensor
    assert max(shape.elements for shape in gathered if VOCAB not in shape.dims) >= layer


def test_a_decode_gathers_weights_once_and_not_in_every_step(tmp_path):
    config = small_run(tmp_path, "sampling.max_new_tokens=8")
    names = [("small", name) for name in ("gather", "prefill", "decode")]
    found = plan(config, topology_devices("v5e:2x2"), only=names).programs
    table = VOCAB * HIDDEN
    gathered = {
        one.program: [
            each.times
            for each in one.collectives
            if each.kind == "all-gather" and any(math.prod(s.dims) >= table for s in each.whole)
        ]
        for one in found
    }
    assert gathered == {"gather": [1], "prefill": [], "decode": []}


def test_a_decode_holds_its_cache_once(tmp_path):
    twin = "agents.1.model=${agents.0.model}"
    model = {"num_heads": 2, "head_dim": 128, "max_position_embeddings": 32768}
    words = [f"agents.0.model.{key}={value}" for key, value in model.items()]
    config = small_run(tmp_path, twin, *words, "sampling.max_new_tokens=16385")
    group = "small+large"
    (one,) = plan(config, topology_devices("v5e:2x2"), only=[(group, "decode")]).programs
    # Keys and values of 2 agents, of one prompt a device with 4 answers and 2 heads, in bfloat16.
    # Less would lie in the memory beside the cores.
    cache = 2 * 2 * LAYERS * 4 * 2 * 16384 * 128 * 2
    assert one.bytes is not None
    assert cache < one.bytes.arguments
    assert one.bytes.reused >= cache
    assert one.bytes.temporaries < 0.5 * cache


def test_groups_with_devices_of_their_own_hold_nothing_of_each_other(tmp_path):
    config = small_run(tmp_path, "placement=partitioned", "mesh.tensor=2")
    devices = topology_devices("v5e:2x4")  # in two processes
    programs = prepare_plan(config, devices)
    sizes = [layout.mesh.size for layout in programs.layouts]
    assert sum(sizes) <= 8
    assert [layout.processes for layout in programs.layouts] == [2, 2]
    found = plan(config, devices, only=[("small", "decode"), ("large", "decode")])
    for one in found.programs:
        kept = found.residents[one.agents]
        assert one.beside == kept.optimizer + kept.params  # beside gathered ones
    assert found.resident == max(kept.total for kept in found.residents.values())


def test_what_lies_in_host_memory_takes_no_room(tmp_path):
    programs = prepare_plan(small_run(tmp_path, "mesh.offload=true"), jax.devices())
    shapes = GroupShapes(programs, programs.groups[0])
    kept = residents(programs, programs.groups[0])
    beside = {job.name: resident_beside(shapes, job) for job in shapes.jobs()}
    while_decoding = kept.optimizer + kept.params
    for name in ("prefill", "evaluate_prefill"):
        assert beside.pop(name) > while_decoding  # a ring lies there already
    assert beside == {
        "gather": kept.optimizer,
        "decode": while_decoding,
        "evaluate": while_decoding,
        "update": kept.optimizer,
        "optimizer": 0,
    }
