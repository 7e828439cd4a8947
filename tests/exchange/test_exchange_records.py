"""SEE: what is published, who gets what of it, and the file it goes to."""

import dataclasses
import json
import math
import os
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hacpo_jax.errors import UserError
from hacpo_jax.exchange import Exchange, Outcome, Rollout, Scalar, Trace, read_jsonl, write_jsonl

# What each record type may hold, as the objectives that ask for it need it.
SCALAR = {"step", "prompt_id", "source", "index", "reward", "valid"}
OUTCOME = SCALAR | {"response", "success", "finish_reason", "tokens"}
MEANS = {"behavior_mean_log_prob", "behavior_mean_log_prob_without_eos"}
ROLLOUT = OUTCOME | MEANS | {"prompt", "group_advantage"}
TRACE = ROLLOUT | {"log_probs", "spans"}
FIELDS = {Scalar: SCALAR, Outcome: OUTCOME, Rollout: ROLLOUT, Trace: TRACE}


def trace(**changes) -> Trace:
    fields = {
        "step": 3,
        "prompt_id": "math/7",
        "source": "a",
        "index": 0,
        "reward": 0.5,
        "valid": True,
        "response": "so 42",
        "success": False,
        "finish_reason": "stop",
        "tokens": (5, 6, 2),
        "prompt": "6 * 7?",
        "behavior_mean_log_prob": -0.1,
        "behavior_mean_log_prob_without_eos": -0.2,
        "group_advantage": -0.7,
        "log_probs": (-0.1, -0.2, 0.0),
        "spans": ((0, 2), (2, 5), (5, 5)),
    }
    return Trace(**fields | changes)


LINE = {"record": "trace", **dataclasses.asdict(trace())}


def narrow(record_type, **changes):
    """`trace`, with the fields of `record_type` only."""
    full = trace(**changes)
    return record_type(**{name: getattr(full, name) for name in FIELDS[record_type]})


def published(record_type=Trace) -> Exchange:
    exchange = Exchange(["a", "b"])
    exchange.publish("b", [narrow(record_type, source="b", index=i) for i in (1, 0)])
    exchange.publish("a", [narrow(record_type, source="a")])
    return exchange


@pytest.mark.parametrize("record_type", FIELDS)
def test_a_learner_gets_only_the_fields_of_the_type_it_asks_for(record_type):
    for record in published().collect(record_type, learner="a", own=True):
        assert type(record) is record_type
        assert {field.name for field in dataclasses.fields(record)} == FIELDS[record_type]
        for name in TRACE:
            assert hasattr(record, name) == (name in FIELDS[record_type])
        assert not hasattr(record, "__dict__")  # no room for anything else
    (record,) = published().collect(record_type, learner="b", own=False)
    full = trace(source="a")
    assert all(getattr(record, name) == getattr(full, name) for name in FIELDS[record_type])


@pytest.mark.parametrize("offered", FIELDS)
@pytest.mark.parametrize("asked", FIELDS)
def test_a_learner_is_served_by_its_type_and_richer_ones(offered, asked):
    """Scalars alone serve pooled statistics; nobody makes up what was not published."""
    if FIELDS[asked] <= FIELDS[offered]:
        found = published(offered).collect(asked, learner="a", own=True)
        assert [(type(r), r.source, r.index) for r in found] == [
            (asked, "a", 0),
            (asked, "b", 1),
            (asked, "b", 0),
        ]
    else:
        needs = f"'a' needs a {asked.__name__} .* 'b' published a {offered.__name__}"
        with pytest.raises(ValueError, match=needs):
            published(offered).collect(asked, learner="a", own=False)


def test_only_what_is_collected_must_be_rich_enough():
    """An agent that publishes rewards only still learns from a peer that publishes more."""
    exchange = Exchange(["a", "b"])
    exchange.publish("a", [narrow(Scalar)])
    exchange.publish("b", [trace(source="b")])
    assert exchange.collect(Trace, learner="a", own=False) == (trace(source="b"),)
    with pytest.raises(ValueError, match="'a' published a Scalar"):
        exchange.collect(Trace, learner="a", own=True)


def test_an_agent_has_its_own_records_whole():
    """Its own learner keeps ids and log-probs, whatever type it asks of its peers."""
    exchange = Exchange(["a", "b"])
    assert exchange.own("a") == ()
    exchange.publish("a", [trace()])
    assert exchange.own("a") == (trace(),) and exchange.own("b") == ()
    with pytest.raises(ValueError, match="got 'c'"):
        exchange.own("c")


def test_num_tokens_counts_the_end_token():
    assert narrow(Outcome).num_tokens == 3


def test_records_come_by_agent_then_as_published():
    exchange = published()
    order = [(r.source, r.index) for r in exchange.collect(Rollout, learner="a", own=True)]
    assert order == [("a", 0), ("b", 1), ("b", 0)]
    order = [(r.source, r.index) for r in exchange.collect(Rollout, learner="a", own=False)]
    assert order == [("b", 1), ("b", 0)]


def test_nobody_learns_from_half_a_step():
    """All behaviour log-probs of a step are fixed before any update of it."""
    exchange = Exchange(["a", "b"])
    exchange.publish("a", [trace()])
    with pytest.raises(ValueError, match=r"\['b'\] have not published"):
        exchange.collect(Scalar, learner="a", own=True)
    with pytest.raises(ValueError, match="published already"):
        exchange.publish("a", [trace()])
    exchange.publish("b", [])
    assert exchange.collect(Scalar, learner="b", own=True) == (
        Scalar(step=3, prompt_id="math/7", source="a", index=0, reward=0.5, valid=True),
    )


def test_names_are_checked():
    with pytest.raises(ValueError, match="different names"):
        Exchange(["a", "a"])
    with pytest.raises(ValueError, match=r"one of \['a', 'b'\], got 'c'"):
        published().collect(Scalar, learner="c", own=True)
    with pytest.raises(ValueError, match="record of 'a' published by 'b'"):
        Exchange(["a", "b"]).publish("b", [trace(source="a")])


def test_agents_publish_from_their_own_threads():
    names = [str(i) for i in range(8)]
    exchange = Exchange(names)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: exchange.publish(n, [trace(source=n)] * 50), names))
    records = exchange.collect(Scalar, learner="0", own=True)
    assert [r.source for r in records] == [n for n in names for _ in range(50)]


def test_records_cannot_be_changed_and_hold_plain_values():
    record = trace(
        step=np.int64(4),
        reward=np.float32(0.1),
        valid=np.bool_(True),
        tokens=np.array([1, 2], np.int32),
        group_advantage=np.float32(0.5),
        log_probs=np.array([-1.5, -0.25], np.float32),
        spans=np.array([[0, 2], [2, 5]]),
    )
    assert record.reward == float(np.float32(0.1)) and type(record.reward) is float
    assert record.valid is True and type(record.step) is int
    assert record.tokens == (1, 2) and record.log_probs == (-1.5, -0.25)
    assert record.spans == ((0, 2), (2, 5)) and type(record.group_advantage) is float
    assert {type(x) for x in record.tokens + record.log_probs} == {int, float}
    assert type(trace(tokens=tuple(np.arange(3))).tokens[0]) is int
    pairs = [(np.int64(0), np.int64(2)), [2, 5], (5, 5)]
    assert {type(x) for span in trace(spans=pairs).spans for x in span} == {int}
    assert hash(trace(spans=pairs)) == hash(trace())
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.reward = 1.0


def test_records_that_contradict_themselves_are_refused():
    for count in (0, 2, 4):
        with pytest.raises(ValueError, match=f"^log_probs .* {count} values and 3 tokens"):
            trace(log_probs=(0.0,) * count)
        with pytest.raises(ValueError, match=f"^spans .* {count} values and 3 tokens"):
            trace(spans=((0, 5),) * count)
    with pytest.raises(ValueError, match="spans"):
        trace(tokens=(5, 6), log_probs=(0.0, 0.0))
    for record_type in (Outcome, Rollout, Trace):
        with pytest.raises(ValueError, match="stop or length, got 'eos'"):
            narrow(record_type, finish_reason="eos")


floats = st.floats(allow_nan=False)


@st.composite
def token_rows(draw):
    """Ids, log-probs and spans of one response; as many of each."""
    size = draw(st.integers(0, 6))
    rows = (st.integers(0, 2**31), floats, st.tuples(st.integers(0, 99), st.integers(0, 99)))
    return [tuple(draw(st.lists(row, min_size=size, max_size=size))) for row in rows]


@given(
    response=st.text(st.characters(exclude_categories=())),
    numbers=st.lists(floats, min_size=4, max_size=4),
    rows=token_rows(),
)
@example(
    response="\u2028 \r\n \x00 \ud800!",
    numbers=[0.1, 5e-324, -0.0, 1 / 3],
    rows=[(1, 2, 3), (-math.inf, 0.1 + 0.2, -0.0), ((0, 1), (1, 4), (4, 4))],
)
def test_files_give_back_exactly_what_was_written(tmp_path_factory, response, numbers, rows):
    path = tmp_path_factory.mktemp("jsonl") / "rollouts" / "0.jsonl"
    # Two halves of a pair that stand side by side are one character to JSON.
    joined = response.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    names = ("reward", *sorted(MEANS), "group_advantage")
    changes = {"response": joined, **dict(zip(names, numbers, strict=True))}
    changes |= dict(zip(("tokens", "log_probs", "spans"), rows, strict=True))
    records = [narrow(record_type, **changes) for record_type in FIELDS]
    write_jsonl(path, records)
    back = read_jsonl(path)
    assert back == records and [type(r) for r in back] == [type(r) for r in records]
    bits = [struct.pack(f"{len(r.log_probs)}d", *r.log_probs) for r in (back[-1], records[-1])]
    assert bits[0] == bits[1]
    assert repr(back) == repr(records)  # tells -0.0 from 0.0, and tuples from lists
    lines = path.read_bytes().split(b"\n")
    assert len(lines) == len(records) + 1 and lines[-1] == b""


def test_nan_stays_nan_and_the_file_stays_json(tmp_path):
    path = tmp_path / "r.jsonl"
    write_jsonl(path, [trace(reward=math.nan, log_probs=(math.nan, -math.inf, 1.0))])
    (record,) = read_jsonl(path)
    assert math.isnan(record.reward) and math.isnan(record.log_probs[0])
    assert record.log_probs[1:] == (-math.inf, 1.0)

    def refuse(name):
        raise AssertionError(name)

    json.loads(path.read_text(), parse_constant=refuse)


def test_an_exchange_can_be_replayed_from_its_file(tmp_path):
    agents = {name: [trace(source=name, index=i) for i in (1, 0)] for name in ("b", "a")}
    write_jsonl(tmp_path / "step.jsonl", [r for records in agents.values() for r in records])
    again = Exchange.replay(read_jsonl(tmp_path / "step.jsonl"))
    assert again.collect(Trace, learner="a", own=False) == tuple(agents["b"])
    assert again.collect(Outcome, learner="b", own=True) == tuple(
        narrow(Outcome, source=name, index=i) for name in ("b", "a") for i in (1, 0)
    )


def test_two_steps_are_not_replayed_as_one():
    with pytest.raises(ValueError, match=r"\[3, 4\]"):
        Exchange.replay([trace(), trace(step=4)])


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "r.jsonl"
    write_jsonl(path, [trace()])

    def breaking():
        yield trace(step=9)
        raise RuntimeError("preempted")

    with pytest.raises(RuntimeError, match="preempted"):
        write_jsonl(path, breaking())
    assert read_jsonl(path) == [trace()]
    assert os.listdir(tmp_path) == ["r.jsonl"]
    write_jsonl(path, [])
    assert read_jsonl(path) == []


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"[]",
        b'{"record": "secret"}',
        b'{"record": "scalar"}',
        b"\xff",
        b'{"step": 1}',
        b"",
        json.dumps({**LINE, "log_probs": [0.0]}).encode(),
        json.dumps({**LINE, "log_probs": None}).encode(),
        json.dumps({**LINE, "spans": [[0], [2], [5]]}).encode(),
        json.dumps({**LINE, "record": "rollout"}).encode(),
    ],
)
def test_a_broken_line_is_named(tmp_path, line):
    path = tmp_path / "r.jsonl"
    path.write_bytes(json.dumps(LINE).encode() + b"\n")
    assert read_jsonl(path) == [trace()]
    path.write_bytes(path.read_bytes() + line + b"\n")
    with pytest.raises(UserError) as caught:
        read_jsonl(path)
    assert caught.value.field == f"{path}:2"


def test_the_exchange_needs_no_jax():
    code = "import sys; sys.modules['jax'] = None; import hacpo_jax.exchange"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
