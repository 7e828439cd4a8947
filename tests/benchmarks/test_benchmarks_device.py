"""The table of one accelerator, at a size that CPUs run; never its speed."""

import device
import pytest
from peer_scripts.work import Batch, Shape

from hacpo_jax.parallel.chips import Chip

# 1 layer of width 4, 2 query heads and 1 key head of 2, MLP of 6, 10 ids; 3 prompts of 2 tokens
# with 2 answers of 3 tokens each: 6 rows of 5 tokens.
SIZES = device.Sizes("m", Shape(1, 4, 2, 1, 2, 6, 10), Batch(prompts=3, samples=2, prompt=2, new=3))
CHIP = Chip("chip", flops=1e6, memory=None, bandwidth=1e5, link=1.0)


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_products_of_a_forward_pass():
    # q and o 4 x 4 each, k and v 4 x 2 each, three of 4 x 6 in the MLP.
    assert SIZES.shape.layer_products == 2 * 16 + 2 * 8 + 3 * 24
    # A row: 5 tokens through the layer, 3 through the head, and 1 + 2 + 3 + 4 + 5 pairs of tokens,
    # each two products of 2 heads of size 2.
    row = 2 * 5 * 120 + 2 * 3 * 4 * 10 + 15 * 2 * (2 * 2 * 2)
    assert SIZES.forward_flops() == 6 * row
    assert SIZES.update_flops() == 18 * row


def test_bytes_of_a_decode():
    # Three times all weights. For the second and the third token: keys and values, 2 numbers each,
    # of 3 prompts of 2 tokens, and of 6 answers those of 1 and then of 2 tokens. 2 bytes each.
    weights = 3 * (120 + 10 * 4)
    cache = 4 * (2 * 3 * 2 + 6 * (1 + 2))
    assert SIZES.decode_bytes() == 2 * (weights + cache)


def test_rows_of_one_attention():
    found = device.Found(decode=0.5, scoring=0.1, update=0.25, first=12.4, peak=3 * 2**29)
    decode, scoring, update = device.rows(SIZES, "xla", found, CHIP)
    # 18 tokens drawn and 30 passed; 1200 bytes of decoding against 5e4, 9,600 FLOPs against 1e5,
    # 28,800 against 2.5e5.
    assert SIZES.decode_bytes() == 1200
    assert SIZES.forward_flops() == 10_080
    assert decode == ["m", "xla", "decode", "0.500", "36", "2.4% of bandwidth", "1.50", "12 s"]
    assert scoring == ["m", "xla", "scoring", "0.100", "300", "10.1% MFU", "1.50", "12 s"]
    assert update == ["m", "xla", "update", "0.250", "120", "12.1% MFU", "1.50", "12 s"]


def test_published_sizes():
    # Products of Qwen3-1.7B without its table: 28 x (2 x 2048 x 24 x 128 + 3 x 2048 x 6144).
    assert device.MODELS[1].shape.layer_products == 1_409_286_144
    assert [sizes.shape.vocab for sizes in device.MODELS] == [151_936] * 2


def test_small_table_on_cpu():
    first, empty, head, rule, *body = device.table(device.SMALL)
    assert first.startswith("cpu (CPU, whose peaks are a guess), 20")
    assert (empty, cells(head), cells(rule)) == ("", list(device.COLUMNS), ["---"] * 8)
    found = [cells(line) for line in body]
    assert {len(row) for row in found} == {len(device.COLUMNS)}
    what = [(row[0], row[1]) for row in found]
    assert what == [("tiny", kind) for kind in ("splash", "cudnn", "xla", "xla", "xla")]
    assert all(row[2].startswith("cannot run here: runs on") for row in found[:2])
    assert [row[2] for row in found[2:]] == ["decode", "scoring", "update"]
    for _, _, _, seconds, tokens, share, peak, _ in found[2:]:
        assert float(seconds) > 0
        assert float(tokens.replace(",", "")) > 0
        assert float(share.partition("%")[0]) > 0
        assert peak == ""  # CPUs do not tell


def test_what_has_no_time_left_is_left_out(monkeypatch):
    monkeypatch.setattr(device, "LAST_START", -1.0)
    *_, splash, cudnn, xla = device.table(device.SMALL)
    for row, kind in ((splash, "splash"), (cudnn, "cudnn"), (xla, "xla")):
        assert cells(row)[:3] == ["tiny", kind, "left out: out of time"]


@pytest.mark.parametrize("text", ["RESOURCE_EXHAUSTED: Out of memory", "INTERNAL: broken"])
def test_no_room(monkeypatch, text):
    def fail(run, sizes):
        raise device.jax.errors.JaxRuntimeError(text)

    monkeypatch.setattr(device, "steps", fail)
    if text.startswith("INTERNAL"):
        with pytest.raises(device.jax.errors.JaxRuntimeError):
            device.measure(device.SMALL[0], "xla")
    else:
        assert device.measure(device.SMALL[0], "xla") == "no room on this device"
