"""Slots and waiting prompts: every job in one slot once, whatever ends when."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hacpo_jax.rollout import Schedule
from hacpo_jax.rollout.schedule import NONE


@st.composite
def cases(draw):
    """Jobs of up to 3 processes, each with as many parts of the slots as any other."""
    processes, parts_each, slots_each = (draw(st.integers(1, 3)) for _ in range(3))
    counts = [draw(st.integers(0, 20)) for _ in range(processes)]
    starts = np.cumsum([0, *counts])
    queues = [list(range(a, a + n)) for a, n in zip(starts, counts, strict=False)]
    owners = np.repeat(np.arange(processes), parts_each)
    return queues, owners, len(owners) * slots_each, draw(st.integers(1, slots_each))


@settings(max_examples=200)
@given(case=cases(), data=st.data())
def test_every_job_is_in_one_slot_of_its_process_once(case, data):
    queues, owners, slots, per_part = case
    schedule = Schedule(queues, owners, slots)
    size, entered, left = slots // len(owners), [], sum(map(len, queues))
    first = True
    while schedule.unfinished:
        while first or schedule.may_enter:
            before = schedule.jobs.copy()
            entering = schedule.enter(size if first else per_part)
            first = False
            rows = len(entering.jobs) // len(owners)
            for place in np.flatnonzero(entering.jobs != NONE):
                part, job = place // rows, entering.jobs[place]
                slot = part * size + entering.slots[place]
                assert before[slot] == NONE
                assert schedule.jobs[slot] == job
                assert job in queues[owners[part]]
                entered.append(int(job))
            # Fillers name a slot that is not there.
            assert (entering.slots[entering.jobs == NONE] == slots).all()
            assert (schedule.jobs != NONE).sum() == (before != NONE).sum() + (
                entering.jobs != NONE
            ).sum()
        occupied = schedule.jobs != NONE
        assert occupied.any()  # or it would wait for ever
        assert schedule.waiting == left - len(entered)
        # One at least ends, else the segment would have gone on.
        ends = data.draw(st.sets(st.sampled_from(np.flatnonzero(occupied).tolist()), min_size=1))
        running = occupied.copy()
        running[list(ends)] = False
        schedule.release(running)
        np.testing.assert_array_equal(schedule.jobs != NONE, running)
    assert sorted(entered) == list(range(left))
    for queue in queues:  # in order within a process
        assert [job for job in entered if job in queue] == sorted(queue)


def test_prompts_wait_for_an_eighth_of_the_slots():
    schedule = Schedule([range(40)], np.zeros(1, int), 24)
    assert schedule.enter(24).jobs.tolist() == list(range(24))
    assert not schedule.may_enter and schedule.enough == 3
    running = np.ones(24, bool)
    running[[20, 5]] = False
    schedule.release(running)
    assert schedule.can_enter == 2 and not schedule.may_enter
    running[0] = False
    schedule.release(running)
    assert schedule.may_enter
    entering = schedule.enter(3)
    assert entering.jobs.tolist() == [24, 25, 26] and entering.slots.tolist() == [0, 5, 20]
    assert not schedule.may_enter


def test_the_last_that_wait_enter_at_once():
    schedule = Schedule([range(25)], np.zeros(1, int), 24)
    schedule.enter(24)
    running = np.ones(24, bool)
    running[7] = False
    schedule.release(running)
    assert schedule.may_enter
    entering = schedule.enter(3)
    assert entering.jobs.tolist() == [24, NONE, NONE]
    assert entering.slots.tolist() == [7, 24, 24]


def test_processes_have_slots_of_their_own():
    """The first has nothing left to answer, and its slots stay empty."""
    schedule = Schedule([[0, 2], [1, 3, 5, 7]], np.array([0, 0, 1, 1]), 4)
    assert schedule.enter(1).jobs.tolist() == [0, 2, 1, 3]
    schedule.release(np.array([False, False, True, True]))
    assert schedule.waiting == 2 and not schedule.may_enter
    schedule.release(np.array([False, False, True, False]))
    entering = schedule.enter(1)
    assert entering.jobs.tolist() == [NONE, NONE, NONE, 5]
    assert entering.slots.tolist() == [4, 4, 4, 0]
