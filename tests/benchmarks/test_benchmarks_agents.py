"""The benchmark of agents, in small."""

import agents
import pytest
from peer_scripts import work
from random_run import random_config

TINY = work.Shape(1, 8, 1, 1, 8, 8, 300)


@pytest.mark.parametrize("apart", [False, True])
def test_agents_of_one_group_and_of_two(monkeypatch, tmp_path, apart, caplog):
    monkeypatch.setattr(work, "STEP", work.Batch(2, 2, 4, 3))
    run = agents.prepare(random_config(tmp_path, TINY, work.STEP, agents=2, apart=apart))
    try:
        assert len(run.groups) == 1 + apart and len(run.agents) == 2
        found = agents.timed(run, 1)
    finally:
        run.verifier.close()
    # 2 agents with 2 answers to each of 2 prompts, all learned from by both.
    assert found["learned"] == 16
    phases = found["rollout"] + found["share"] + found["update"]
    assert 0 < phases < found["step"]
    assert not caplog.records  # no warning stands between the rows of the table


def test_a_line_of_the_table():
    alone = {"rollout": 2.0, "share": 0.5, "update": 1.0, "learned": 32, "step": 4.0}
    two = {"rollout": 3.0, "share": 1.0, "update": 5.0, "learned": 128, "step": 10.0}
    two |= {"compiling": 12.0, "programs": 7}
    expected = "| 2 | 3.00 | 1.50 | 128 | 5.00 | 5.00 | 12.0 | 7 | 10.00 | 10% |"
    assert agents.line("2", two, alone) == expected
    assert agents.HEAD.splitlines()[0].count("|") == expected.count("|")
