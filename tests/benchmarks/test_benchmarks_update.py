"""What an update holds, from compiled programs; and the benchmark of its time, in small."""

import argparse
import dataclasses

import pytest
import update_speed
from peer_scripts.work import Shape
from update_memory import QWEN3, Size, temporaries

# The head is nearly all of it: 8 answers of 512 tokens, one at a time.
MODEL = dataclasses.replace(
    QWEN3,
    vocab_size=65_536,
    hidden_size=128,
    intermediate_size=128,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_dim=64,
)
SIZE = Size(MODEL, answers=8, width=512, tokens=512)


@pytest.mark.parametrize("topology", ["cpu:1", "v5e:1x1"])
def test_an_update_holds_a_small_part_of_its_logits_however_many_there_are(topology):
    found, step = temporaries(topology, SIZE)
    assert max(found, step) < SIZE.logits / 8
    # Twice the answers add nothing but places, twice the vocabulary nothing at all: the sums of
    # gradients are arguments, and are added to where they are.
    more, _ = temporaries(topology, dataclasses.replace(SIZE, answers=16))
    assert more < found + 16 * 512 * 16
    wide = dataclasses.replace(MODEL, vocab_size=2 * MODEL.vocab_size)
    wider, _ = temporaries(topology, dataclasses.replace(SIZE, model=wide))
    assert wider < found + 2**20


def test_the_benchmark_s_phases_run(monkeypatch):
    shape = Shape(layers=1, hidden=16, heads=1, kv_heads=1, head_dim=16, inner=16, vocab=64)
    monkeypatch.setitem(update_speed.SHAPES, "tiny", shape)
    options = argparse.Namespace(
        shape="tiny", prompts=2, samples=2, prompt=3, new=4, mean=2.0, tokens=100, remat=False
    )
    phases = update_speed.make_phases(options)
    assert list(phases) == ["score", "update"]
    for run in phases.values():
        run()
