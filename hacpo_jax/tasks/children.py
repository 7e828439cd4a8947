"""Fresh interpreters that run one function of this package."""

import json
import os
import sys

# Child processes find their modules where this one does.
_BOOT = """
import importlib, json, sys
sys.path[:], module, name = json.loads(sys.argv[1]), *sys.argv[2].split(":")
getattr(importlib.import_module(module), name)(*sys.argv[3:])
"""


def child_command(function: str, *arguments: str) -> list[str]:
    """The command that calls `module:function` with text arguments in a new interpreter."""
    path = json.dumps([*filter(None, sys.path), os.getcwd()])
    return [sys.executable, "-c", _BOOT, path, function, *arguments]


def child_environment() -> dict[str, str]:
    """The environment of children: sets of text have the same order in all of them."""
    return {**os.environ, "PYTHONHASHSEED": "0"}
