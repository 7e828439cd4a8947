"""In which order programs are tried on a slice."""

import types

import smallest_slice


def test_every_program_has_a_turn_the_largest_first(monkeypatch):
    groups = [types.SimpleNamespace(name=name, size=size) for name, size in (("a", 1), ("b", 2))]
    names = ["gather", "prefill", "decode", "evaluate", "snapshot", "update", "optimizer", "new"]

    def shapes(programs, group):
        jobs = [types.SimpleNamespace(name=name) for name in names]
        return types.SimpleNamespace(jobs=lambda: jobs)

    monkeypatch.setattr(smallest_slice, "GroupShapes", shapes)
    monkeypatch.setattr(
        smallest_slice, "residents", lambda _, group: types.SimpleNamespace(total=group.size)
    )
    found = list(smallest_slice.largest_first(types.SimpleNamespace(groups=groups)))
    large = [(group, name) for name in ("evaluate", "update", "decode") for group in "ba"]
    assert found[:6] == large
    assert sorted(found) == sorted((group, name) for name in names for group in "ab")
