"""The smallest TPU slice that each preset fits: python benchmarks/smallest_slice.py [PRESET ...].

Slices of each kind are tried from the smallest on, with the settings in `SETTINGS` in turn, which
change memory and speed but not the result. What stays on a device is counted first; only where it
leaves room are programs compiled, those of the largest agent before the others, up to the first
that does not fit. Needs no TPU; one program takes about a minute.
"""

import argparse
import json
import os
from collections.abc import Iterator
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"

from hacpo_jax.cli.configs import find_config
from hacpo_jax.config import Config, load_config
from hacpo_jax.errors import UserError
from hacpo_jax.parallel.plan import device_memory, held_by_device, plan, prepare_plan, residents
from hacpo_jax.parallel.plan_shapes import GroupShapes
from hacpo_jax.parallel.topology import topology_devices

PRESETS = ("hacpo_qwen3_1.7b_4b_size", "hacpo_qwen3_4b_llama3.2_3b_model")
SLICES = {
    "v5e": ("2x2", "2x4", "4x4", "4x8", "8x8"),
    "v6e": ("1x1", "2x2", "2x4", "4x4", "4x8"),
    "v5p": ("2x2x1", "2x2x2", "2x2x4", "2x4x4"),
}
SETTINGS = ((), ("mesh.tensor=4", "sampling.max_rows=64"))

LARGEST = ("evaluate", "update", "decode")
"""Programs that need most, in order; the others come after them."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("presets", nargs="*", default=PRESETS, metavar="PRESET")
    parser.add_argument("--kinds", nargs="+", choices=SLICES, default=list(SLICES))
    parser.add_argument("--json", type=Path, help="file that receives the same as JSON")
    arguments = parser.parse_args()
    rows = []
    for preset in arguments.presets:
        for kind in arguments.kinds:
            rows.append({"preset": preset, "kind": kind, **smallest(preset, kind)})
            if arguments.json:
                arguments.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print("| preset | kind | slice | settings | fullest | by |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        print("| {preset} | {kind} | {slice} | {settings} | {fullest} | {by} |".format(**row))


def smallest(preset: str, kind: str) -> dict[str, str]:
    """The first slice and settings that fit, and the program that fills a device most."""
    for shape in SLICES[kind]:
        devices = topology_devices(f"{kind}:{shape}")
        for settings in SETTINGS:
            config = load_config(find_config(preset), settings)
            try:
                fullest, by = fill(config, devices)
            except UserError as error:  # a mesh that these devices cannot be
                print(f"{preset} {kind}:{shape} {' '.join(settings)}: {error}", flush=True)
                continue
            told = f"{fullest:.0%} by {by}"
            print(f"{preset} {kind}:{shape} {' '.join(settings)}: {told}", flush=True)
            if fullest <= 1:
                words = " ".join(settings) or "-"
                return {"slice": shape, "settings": words, "fullest": f"{fullest:.0%}", "by": by}
    return {"slice": "-", "settings": "-", "fullest": "-", "by": "-"}


def fill(config: Config, devices: list) -> tuple[float, str]:
    """The largest share of a device's memory that is needed, and by what; not beyond the first
    that is more than all."""
    programs, memory = prepare_plan(config, devices), device_memory(devices[0])
    assert memory is not None
    held = max(held_by_device(programs).values())
    if held > memory:
        return held / memory, "what stays there"
    fullest, by = held / memory, "what stays there"
    for group, name in largest_first(programs):
        (one,) = plan(config, devices, only=[(group, name)]).programs
        share = one.needed / memory if one.bytes else max(one.needed / memory, 1.01)
        if share > fullest:
            fullest, by = share, f"{name} of {group}"
        if fullest > 1:
            break
    return fullest, by


def largest_first(programs) -> Iterator[tuple[str, str]]:
    """Names of groups and programs; updates and decodes of the largest agents first."""
    groups = sorted(programs.groups, key=lambda group: -residents(programs, group).total)
    jobs = [(g.name, job.name) for g in groups for job in GroupShapes(programs, g).jobs()]
    last = len(LARGEST)
    yield from sorted(jobs, key=lambda pair: LARGEST.index(pair[1]) if pair[1] in LARGEST else last)


if __name__ == "__main__":
    main()
