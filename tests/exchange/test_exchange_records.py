"""SEE: what is published, who gets what of it, and the file it goes to."""

import dataclasses
import json
import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hacpo_jax.errors import UserError
from hacpo_jax.exchange import Exchange, Outcome, Rollout, Scalar, read_jsonl, write_jsonl


def rollout(**changes) -> Rollout:
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
        "log_probs": (-0.1, -0.2, 0.0),
    }
    return Rollout(**fields | changes)


def published() -> Exchange:
    exchange = Exchange(["a", "b"])
    exchange.publish("b", [rollout(source="b", index=i) for i in (1, 0)])
    exchange.publish("a", [rollout(source="a")])
    return exchange


def test_a_learner_gets_only_the_fields_of_the_type_it_asks_for():
    scalars = published().collect(Scalar, learner="a", own=True)
    assert {type(record) for record in scalars} == {Scalar}
    names = {field.name for field in dataclasses.fields(scalars[0])}
    assert names == {"step", "prompt_id", "source", "index", "reward", "valid"}
    assert not hasattr(scalars[0], "response") and not hasattr(scalars[0], "log_probs")
    (outcome,) = published().collect(Outcome, learner="b", own=False)
    assert type(outcome) is Outcome and not hasattr(outcome, "behavior_mean_log_prob")
    assert (outcome.response, outcome.success, outcome.num_tokens) == ("so 42", False, 3)


def test_records_come_by_agent_then_as_published():
    exchange = published()
    order = [(r.source, r.index) for r in exchange.collect(Rollout, learner="a", own=True)]
    assert order == [("a", 0), ("b", 1), ("b", 0)]
    order = [(r.source, r.index) for r in exchange.collect(Rollout, learner="a", own=False)]
    assert order == [("b", 1), ("b", 0)]


def test_nobody_learns_from_half_a_step():
    """All behaviour log-probs of a step are fixed before any update of it."""
    exchange = Exchange(["a", "b"])
    exchange.publish("a", [rollout()])
    with pytest.raises(ValueError, match=r"\['b'\] have not published"):
        exchange.collect(Scalar, learner="a", own=True)
    with pytest.raises(ValueError, match="published already"):
        exchange.publish("a", [rollout()])
    exchange.publish("b", [])
    assert exchange.collect(Scalar, learner="b", own=True) == (
        Scalar(step=3, prompt_id="math/7", source="a", index=0, reward=0.5, valid=True),
    )
    exchange.clear()
    exchange.publish("a", [])


def test_names_are_checked():
    with pytest.raises(ValueError, match="different names"):
        Exchange(["a", "a"])
    with pytest.raises(ValueError, match=r"one of \['a', 'b'\], got 'c'"):
        published().collect(Scalar, learner="c", own=True)
    with pytest.raises(ValueError, match="record of 'a' published by 'b'"):
        Exchange(["a", "b"]).publish("b", [rollout(source="a")])


def test_agents_publish_from_their_own_threads():
    names = [str(i) for i in range(8)]
    exchange = Exchange(names)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: exchange.publish(n, [rollout(source=n)] * 50), names))
    records = exchange.collect(Scalar, learner="0", own=True)
    assert [r.source for r in records] == [n for n in names for _ in range(50)]


def test_records_cannot_be_changed_and_hold_plain_values():
    record = rollout(
        step=np.int64(4),
        reward=np.float32(0.1),
        valid=np.bool_(True),
        tokens=np.array([1, 2], np.int32),
        log_probs=np.array([-1.5, -0.25], np.float32),
    )
    assert record.reward == float(np.float32(0.1)) and type(record.reward) is float
    assert record.valid is True and type(record.step) is int
    assert record.tokens == (1, 2) and record.log_probs == (-1.5, -0.25)
    assert {type(x) for x in record.tokens + record.log_probs} == {int, float}
    assert type(rollout(tokens=tuple(np.arange(3))).tokens[0]) is int
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.reward = 1.0


def test_records_that_contradict_themselves_are_refused():
    with pytest.raises(ValueError, match="2 values and 3 tokens"):
        rollout(log_probs=(0.0, 0.0))
    with pytest.raises(ValueError, match="stop or length, got 'eos'"):
        rollout(finish_reason="eos")


floats = st.floats(allow_nan=False)


@given(
    response=st.text(st.characters(exclude_categories=())),
    reward=floats,
    mean=floats,
    log_probs=st.lists(floats, min_size=3, max_size=3).map(tuple),
)
@example(
    response="\u2028 \r\n \x00 \ud800!", reward=0.1, mean=5e-324, log_probs=(-math.inf, 0.3, -0.0)
)
def test_files_give_back_exactly_what_was_written(
    tmp_path_factory, response, reward, mean, log_probs
):
    path = tmp_path_factory.mktemp("jsonl") / "rollouts" / "0.jsonl"
    # Two halves of a pair that stand side by side are one character to JSON.
    joined = response.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    full = rollout(response=joined, reward=reward, behavior_mean_log_prob=mean, log_probs=log_probs)
    records = [full, rollout(log_probs=None), *published().collect(Outcome, learner="a", own=True)]
    records += published().collect(Scalar, learner="a", own=True)
    write_jsonl(path, records)
    back = read_jsonl(path)
    assert back == records and [type(r) for r in back] == [type(r) for r in records]
    assert repr(back) == repr(records)  # tells -0.0 from 0.0
    lines = path.read_bytes().split(b"\n")
    assert len(lines) == len(records) + 1 and lines[-1] == b""


def test_nan_stays_nan_and_the_file_stays_json(tmp_path):
    path = tmp_path / "r.jsonl"
    write_jsonl(path, [rollout(reward=math.nan, log_probs=(math.nan, -math.inf, 1.0))])
    (record,) = read_jsonl(path)
    assert math.isnan(record.reward) and math.isnan(record.log_probs[0])
    assert record.log_probs[1:] == (-math.inf, 1.0)

    def refuse(name):
        raise AssertionError(name)

    json.loads(path.read_text(), parse_constant=refuse)


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "r.jsonl"
    write_jsonl(path, [rollout()])

    def breaking():
        yield rollout(step=9)
        raise RuntimeError("preempted")

    with pytest.raises(RuntimeError, match="preempted"):
        write_jsonl(path, breaking())
    assert read_jsonl(path) == [rollout()]
    assert os.listdir(tmp_path) == ["r.jsonl"]
    write_jsonl(path, [])
    assert read_jsonl(path) == []


@pytest.mark.parametrize(
    "line",
    [b"{", b"[]", b'{"record": "secret"}', b'{"record": "scalar"}', b"\xff", b'{"step": 1}', b""],
)
def test_a_broken_line_is_named(tmp_path, line):
    path = tmp_path / "r.jsonl"
    write_jsonl(path, [rollout()])
    path.write_bytes(path.read_bytes() + line + b"\n")
    with pytest.raises(UserError) as caught:
        read_jsonl(path)
    assert caught.value.field == f"{path}:2"


def test_the_exchange_needs_no_jax():
    code = "import sys; sys.modules['jax'] = None; import hacpo_jax.exchange"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
