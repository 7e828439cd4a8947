"""Ratios and the table of the comparison with others, from made-up figures."""

import argparse
import json
import subprocess
import sys

import peers
import pytest
from peer_scripts import work

# One layer of width 4, 2 query heads and 1 key head of 2, MLP of 6, 10 ids.
SHAPE = work.Shape(1, 4, 2, 1, 2, 6, 10)


def times(*seconds, others=0.0):
    return [{"seconds": s, "own": 2 * s, "others": others} for s in seconds]


def test_products_of_a_shape():
    # q and o 4 x 4, k and v 4 x 2, the MLP's three 4 x 6, the head 10 x 4.
    assert SHAPE.products == 2 * 16 + 2 * 8 + 3 * 24 + 40
    # 3 rows of 5 tokens; each token attends to 5, two products of 2 heads of 2.
    assert SHAPE.forward_flops(3, 5) == 3 * 5 * (2 * 160 + 5 * 4 * 2 * 2)
    # Prompts of 2 and answers of 3: 4 tokens pass the layer, with 1 + 2 + 3 + 4 pairs, and 3 are
    # drawn.
    assert SHAPE.decode_flops(3, 2, 3) == 3 * (2 * 4 * 120 + 10 * 2 * 8 + 2 * 3 * 40)


def test_step_is_a_draw_and_four_forward_passes():
    # Reference, forward, and a backward pass of twice that.
    batch = work.Batch(3, 1, 2, 3)
    expected = SHAPE.decode_flops(3, 2, 3) + 4 * SHAPE.forward_flops(3, 5)
    assert work.step_flops(SHAPE, batch) == expected


def test_repetitions_that_others_disturb_are_made_again():
    given = work.Arguments("decode", SHAPE, times=2, attempts=4)
    quiet, loud = times(1.0)[0], times(3.0, others=0.5)[0]
    assert not given.enough([quiet, loud])
    assert given.enough([quiet, loud, quiet])
    assert given.enough([loud] * 4)
    assert given.best([loud, quiet, quiet]) == [quiet, quiet]
    assert given.best([loud, quiet]) == [quiet, loud]


def test_watch_counts_what_others_had(monkeypatch):
    # 2 cores: in 4 seconds all processes had 5 seconds, this one 3, of the 2 others' three ticks
    # do not count.
    busy, own, clock = iter([10.0, 15.0]), iter([1.0, 4.0]), iter([0.0, 4.0])
    monkeypatch.setattr(work, "busy_seconds", lambda: next(busy))
    monkeypatch.setattr(work, "own_seconds", lambda: next(own))
    monkeypatch.setattr(work.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(work.os, "cpu_count", lambda: 2)
    with work.Watch() as watch:
        pass
    tick = 1 / work.os.sysconf("SC_CLK_TCK")
    assert watch.found() == {
        "seconds": 4.0,
        "own": 3.0,
        "others": pytest.approx((2 - 3 * tick) / 8),
    }


def test_family_has_children():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert {work.os.getpid(), child.pid} <= set(work.family())
        assert work.peak_mib() > 0
    finally:
        child.communicate(b"\n")


def test_decode_lines():
    # 63 steps: ours 0.63 s, Tunix 1.26 s, TRL 1.89 s; the products of a step 5 ms.
    found = {
        "ours": [{"whole": times(0.73), "first": times(0.1)}],
        "tunix": [{"whole": times(1.46), "first": times(0.2)}],
        "trl": [{"whole": times(2.19), "first": times(0.3)}],
        "dots": [{"products": times(0.005)}],
    }
    loop, whole = peers.decode_lines(peers.Measure("seconds"), SHAPE, found)
    assert loop.cells == (
        "3,200 tokens/s",  # 32 rows x 63 tokens in 0.63 s
        "2.00x, goal ≥ 1.4x",
        "3.00x, goal ≥ 2.5x",
        "50%, goal ≥ 65%",
    )
    assert whole.cells == ("0.73 s", "2.00x", "3.00x", "")


def test_rounds_are_compared_with_their_neighbours():
    measure = peers.Measure("own")
    ours = [{"whole": times(1.0, 9.0, 2.0)}, {"whole": times(4.0)}]  # medians 2 and 4
    theirs = [{"whole": times(4.0)}, {"whole": times(6.0)}]
    assert measure.ratio(ours, theirs, measure.seconds, 2) == "1.75x (1.50 to 2.00), goal ≥ 2x"
    loud = [{"whole": times(4.0, others=0.3)}]
    assert measure.ratio(ours, loud, measure.seconds, None) == "2.00x !"
    assert measure.ratio(ours, [], measure.seconds, 2) == ""


def test_step_lines():
    shape = work.SHAPES["smol"]
    flops = work.step_flops(shape)
    found = {
        "ours": [{"step": times(2.0), "peak_mib": 500.0}],
        "tunix": [{"step": times(4.0), "peak_mib": 1000.0}],
        "trl": [],
        # As much as one step in a second.
        "dots": [{"product": times(1.0), "product_flops": flops}],
    }
    time, peak = peers.step_lines(peers.Measure("seconds"), shape, found)
    assert time.cells == ("2.00 s", "2.00x, goal ≥ 1.6x", "", "50%, goal ≥ 50%")
    assert peak.cells == ("500 MiB", "0.50x, goal ≤ 0.4x", "", "")


def test_other_lines():
    measure = peers.Measure("seconds")
    none = dict.fromkeys(peers.SIDES, ())
    long = none | {
        "ours": [{"whole": times(1.1), "at_answers": times(1.0)}],
        "tunix": [{"whole": times(5.5)}],
    }
    (line,) = peers.long_lines(measure, SHAPE, long)
    assert line.cells[1] == "5.00x, goal ≥ 4x"
    assert line.cells[3] == "1.10x, goal ≤ 1.15x ours at limit 64"
    prompts = none | {"ours": [{"whole": times(1.0), "prefill_share": 0.125}]}
    (line,) = peers.prompts_lines(measure, SHAPE, prompts)
    assert line.cells == ("1.00 s", "", "", "prefill FLOPs 1/8 of unshared")
    refill = none | {"ours": [{"static": times(6.0), "refilled": times(2.0), "mean_length": 63.7}]}
    (line,) = peers.refill_lines(measure, SHAPE, refill)
    assert "mean 64" in line.work
    assert line.cells[3] == "3.00x, goal ≥ 2x as fast as our static batch"


def test_missing_environments_are_told(tmp_path):
    with pytest.raises(SystemExit, match=f"--venvs = {tmp_path}.*--setup --venvs {tmp_path}"):
        peers.check_environments(tmp_path, ["ours", "tunix"])
    peers.check_environments(tmp_path, ["ours", "dots"])
    made = [" ".join(command) for command in peers.setup_commands(tmp_path)]
    assert f"{tmp_path}/tunix/bin/pip install -q google-tunix==0.1.7" in made


def test_sides_take_turns(monkeypatch, tmp_path):
    calls = []

    def one_turn(given, side, row, shape):
        calls.append(side)
        return None if side == "trl" else {"scoring": times(1.0)}

    monkeypatch.setattr(peers, "one_turn", one_turn)
    path = tmp_path / "figures.jsonl"
    given = argparse.Namespace(rounds=2, sides=["ours", "tunix", "trl"], json=path)
    reports = peers.take_turns(given, "scoring", "small")
    # What failed once has no second turn.
    assert calls == ["ours", "tunix", "trl", "ours", "tunix"]
    assert [len(reports[side]) for side in peers.SIDES] == [2, 2, 0, 0]
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(row["side"], row["round"]) for row in rows] == [
        ("ours", 0),
        ("tunix", 0),
        ("ours", 1),
        ("tunix", 1),
    ]


def test_no_process_starts_without_room(monkeypatch):
    monkeypatch.setattr(peers, "free_gib", lambda: 16.0)
    monkeypatch.setattr(peers.subprocess, "run", lambda *a, **k: pytest.fail("started"))
    assert peers.one_turn(argparse.Namespace(), "tunix", "step", "smol") is None


def test_environments_are_asked_for_with_peers_only(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["peers.py", "--rows", "refill"])
    with pytest.raises(SystemExit, match="2"):
        peers.main()
    assert "--venvs DIR: where the peers' environments are" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["peers.py", "--rows", "refill", "--sides", "ours"])
    none = {side: [] for side in peers.SIDES}
    monkeypatch.setattr(peers, "take_turns", lambda given, row, shape: none)
    peers.main()
    assert "256 prompts in 32 slots" in capsys.readouterr().out
