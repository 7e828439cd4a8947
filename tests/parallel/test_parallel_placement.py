"""Who runs where, on cases that can be worked out."""

import dataclasses
import io
import itertools

import pytest
from rich.console import Console
from tiny import LLAMA as TINY

from hacpo_jax.config.mesh import Mesh
from hacpo_jax.errors import UserError
from hacpo_jax.parallel.chips import Chip
from hacpo_jax.parallel.memory import state_bytes
from hacpo_jax.parallel.mesh import MeshSizes, fit
from hacpo_jax.parallel.placement import MEMORY_SHARE, choose_placement
from hacpo_jax.parallel.sizes import GroupWork, StepSizes
from hacpo_jax.parallel.timing import HOST_BANDWIDTH, LAYER_SECONDS, group_seconds

SIZES = StepSizes(
    prompts=24,
    samples=2,
    prompt_tokens=4,
    answer_tokens=5,
    row_tokens=6,
    updates=2,
    update_rows=24,
    micro_batch_tokens=10_000,
    decode_rows=48,
)
# Nothing but the order of layers takes time; nothing but arithmetic does.
ENDLESS = Chip("endless", 1e30, None, 1e30, 1e30)
SLOW = Chip("slow", 1e6, None, 1e30, 1e30)


def group(name: str, layers: int = 2, **changes) -> GroupWork:
    model = dataclasses.replace(TINY, num_layers=layers)
    return GroupWork((name,), model, dataclasses.replace(SIZES, **changes))


def by_rows(_, devices: int) -> MeshSizes:
    return MeshSizes(data=devices)


def ranges(placement) -> list[tuple[int, int]]:
    return [(one.devices.start, one.devices.stop) for one in placement.groups]


def test_two_equal_agents_that_devices_cannot_hurry_run_side_by_side():
    """One prefill and 4 tokens, then 2 updates of 2 passes, of 2 layers each: 18 in a row."""
    found = choose_placement([group("a"), group("b")], 4, ENDLESS, by_rows)
    assert found.mode == "partitioned"
    assert found.seconds == pytest.approx((5 + 4) * 2 * LAYER_SECONDS)
    assert [one.seconds.total for one in found.groups] == [pytest.approx(found.seconds)] * 2
    together = choose_placement([group("a"), group("b")], 4, ENDLESS, by_rows, "colocated")
    assert together.seconds == pytest.approx(2 * found.seconds)
    assert ranges(together) == [(0, 4), (0, 4)]
    assert "otherwise" in found.reason and together.reason == "as set"


def test_two_equal_agents_take_turns_where_halves_are_not_even():
    """On 3 devices one agent would have one: 1 of the work instead of 2 times a third."""
    found = choose_placement([group("a"), group("b")], 3, SLOW, by_rows)
    assert found.mode == "colocated"
    apart = choose_placement([group("a"), group("b")], 3, SLOW, by_rows, "partitioned")
    assert sorted(len(one.devices) for one in apart.groups) == [1, 1]
    assert apart.reason == "as set; 1 of 3 devices left over"
    assert apart.seconds / found.seconds == pytest.approx(3 / 2, rel=1e-3)


def test_a_big_and_a_small_agent_share_by_their_work():
    """6 layers and 2, and next to no vocabulary: 3 devices and 1 finish at the same time."""
    model = dataclasses.replace(TINY, vocab_size=1)
    small, big = (
        dataclasses.replace(
            group("x", n), agents=(name,), model=dataclasses.replace(model, num_layers=n)
        )
        for name, n in (("small", 2), ("big", 6))
    )
    found = choose_placement([small, big], 4, SLOW, by_rows, "partitioned")
    assert [len(one.devices) for one in found.groups] == [1, 3]
    assert ranges(found) == [(3, 4), (0, 3)]  # the large range first
    for phase in ("rollout", "update"):
        times = [getattr(one.seconds, phase) for one in found.groups]
        assert times[0] == pytest.approx(times[1], rel=0.01)


def test_no_division_of_the_devices_is_faster():
    """All divisions among 3 groups, one of which can be laid out on even numbers only."""
    chip = Chip("uneven", 1e7, None, 1e8, 1e7)
    groups = [
        group("a", 1, answer_tokens=40, decode_rows=8),
        group("b", 4, updates=7, remat=True),
        group("c", 2, snapshot_peers=2, rescores=True, reference_scores=True),
    ]

    def layout(g: int, devices: int) -> MeshSizes | None:
        if g == 1:
            return MeshSizes(fsdp=2, data=devices // 2) if devices % 2 == 0 else None
        return MeshSizes(data=devices)

    def seconds(counts: tuple[int, ...]) -> float:
        meshes = [layout(g, n) for g, n in enumerate(counts)]
        if None in meshes:
            return float("inf")
        times = [group_seconds(w, m, chip) for w, m in zip(groups, meshes, strict=True)]
        answers = max(t.rollout + t.rescore for t in times)
        return answers + max(t.score + t.update for t in times)

    for devices in (5, 8, 11):
        counts = itertools.product(range(1, devices), repeat=3)
        least = min(seconds(c) for c in counts if sum(c) <= devices)
        found = choose_placement(groups, devices, chip, layout, "partitioned")
        assert found.seconds == pytest.approx(least)
        used = [i for one in found.groups for i in one.devices]
        assert len(set(used)) == len(used) and max(used) < devices


def tight(groups: int, *, extra: int = 0) -> Chip:
    """Memory for the state of so many tiny agents and the largest program of one of them."""
    placed = choose_placement([group("a")], 1, SLOW, by_rows).groups[0]
    needed = groups * placed.memory.state.total + placed.memory.transient + extra
    return dataclasses.replace(SLOW, memory=round(needed / MEMORY_SHARE) + 1)


def test_memory_decides_where_turns_would_be_faster():
    groups = [group("a"), group("b")]
    found = choose_placement(groups, 3, tight(2), by_rows)
    assert found.mode == "colocated" and found.device_bytes <= MEMORY_SHARE * tight(2).memory
    found = choose_placement(
        groups, 3, tight(1), lambda g, n: MeshSizes(data=1) if n == 1 else None
    )
    assert found.mode == "partitioned"
    assert found.reason.startswith("colocated cannot be: agent a cannot be laid out on 3 devices")


def test_state_that_does_not_fit_together_is_kept_apart_or_offloaded():
    """Rows do not get fewer with a `data` axis of 1, so that every mesh holds the same."""
    groups, chip = [group("a"), group("b")], tight(1)

    def one_copy(_, devices: int) -> MeshSizes:
        return MeshSizes()

    found = choose_placement(groups, 2, chip, one_copy)
    assert found.mode == "partitioned"
    assert found.reason.startswith("colocated cannot be: agents together (state of a ")
    moved = choose_placement(groups, 2, chip, one_copy, "colocated", offload=True)
    assert moved.device_bytes == found.device_bytes
    state = state_bytes(groups[0])
    there_and_back = state.trained + 2 * state.total
    assert moved.groups[0].seconds.moves == pytest.approx(there_and_back / HOST_BANDWIDTH)
    with pytest.raises(UserError, match=r"agents together .* offload") as caught:
        choose_placement(groups, 2, chip, one_copy, "colocated")
    assert (caught.value.field, caught.value.value) == ("placement", "colocated")


def test_an_agent_that_fits_nowhere_is_named_with_bytes_and_remedies():
    groups = [group("a"), group("large", 40)]
    for setting in ("auto", "colocated", "partitioned"):
        with pytest.raises(UserError) as caught:
            choose_placement(groups, 4, tight(1), by_rows, setting)
        text = str(caught.value)
        assert caught.value.field == "placement" and caught.value.value == setting
        assert "large" in text and "MiB" in text and "slow has room for" in text
        for remedy in ("more devices", "fsdp", "param_dtype=bfloat16", "micro_batch_tokens"):
            assert remedy in text
        assert "training.remat=true" in text
    with pytest.raises(UserError) as caught:
        choose_placement([group("large", 40, remat=True, param_bytes=2)], 1, tight(1), by_rows)
    assert "remat=true" not in str(caught.value) and "bfloat16" not in str(caught.value)


def test_groups_need_a_device_each_and_a_mesh():
    groups = [group("a"), group("b"), group("c")]
    with pytest.raises(UserError, match="3 groups of agents need a device each and there are 2"):
        choose_placement(groups, 2, SLOW, by_rows, "partitioned")
    assert choose_placement(groups, 2, SLOW, by_rows).mode == "colocated"

    def by_two(g: int, devices: int) -> MeshSizes:
        if devices % 2:
            raise UserError("mesh.tensor", 2, f"does not divide {devices} devices")
        return MeshSizes(data=devices // 2, tensor=2)

    with pytest.raises(UserError, match=r"agent a at least 2, .* and there are 5 devices"):
        choose_placement(groups, 5, SLOW, by_two, "partitioned")
    with pytest.raises(UserError, match=r"mesh\.tensor = 2: does not divide 5") as caught:
        choose_placement(groups, 5, SLOW, by_two)
    assert caught.value.field == "placement"
    with pytest.raises(UserError, match="does not divide 5 devices") as caught:
        choose_placement(groups, 5, SLOW, by_two, "colocated")
    assert caught.value.field == "mesh.tensor"
    with pytest.raises(UserError, match=r"agent a: mesh\.tensor"):
        choose_placement(groups, 3, SLOW, by_two, "partitioned")


def test_one_group_has_all_devices():
    found = choose_placement([group("a")], 3, SLOW, by_rows)
    assert (found.mode, ranges(found)) == ("colocated", [(0, 3)])
    assert ranges(choose_placement([group("a")], 3, SLOW, by_rows, "partitioned")) == [(0, 3)]


def test_the_table_has_a_row_for_every_agent():
    """2 updates of 24 answers of 6 tokens to 12 prompts of 4; see the estimate's tests."""
    twins = GroupWork(("left", "right"), TINY, dataclasses.replace(SIZES, rescores=True))
    found = choose_placement([twins, group("other")], 4, tight(9, extra=10**7), by_rows)
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(found.table())
    text = console.export_text()
    for word in ("left", "right", "other", found.mode, "MFLOP", "MiB", "slow"):
        assert word in text
    pairs, head = 12 * 16 + 24 * 60, 24 * 6 * 2 * 16 * 40
    attention = 2 * 2 * pairs * 16 * 2
    layers = 2 * 2 * (12 * 4 + 24 * 6) * 1920 + attention
    update = 2 * (3 * layers + attention / 2 + 4 * head + head / 16) / 1e6
    assert f"{update:.3g} MFLOP" in text


def test_a_mesh_that_no_placement_would_mend_is_told_once():
    """An odd vocabulary, which two devices cannot share; its size and a way out are named."""
    model = dataclasses.replace(TINY, vocab_size=51)

    def halves(g: int, devices: int) -> MeshSizes:
        return fit(Mesh(tensor=2), model, 1, devices, field="mesh of a")

    for setting in ("auto", "colocated"):
        with pytest.raises(UserError) as caught:
            choose_placement([group("a"), group("b")], 4, SLOW, halves, setting)
        assert str(caught.value) == (
            "mesh of a.tensor = 2: must divide the vocabulary, 51: 1, 3, 17, 51 would; or keep it "
            "at 1 and share parameters by fsdp, which divides the hidden size alone"
        )
