"""Runs of the notebooks in kernels of their own, and models for their switch to real ones.

    python tests/notebooks/notebook_runs.py [NAME ...]

runs notebooks as they are, in a folder of their own, and keeps what they show.
"""

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

from hacpo_jax.agents import build_agents, export_agent
from hacpo_jax.config import parse_config
from hacpo_jax.models import init_params

REPOSITORY = Path(__file__).resolve().parents[2]
NOTEBOOKS = REPOSITORY / "notebooks"
SHAPE = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_layers": 1,
    "num_heads": 2,
    "num_kv_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 512,
}


def read(name: str) -> NotebookNode:
    """A notebook as it is in the repository."""
    return nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)


def execute(name: str, folder: Path, after: Mapping[str, str]) -> NotebookNode:
    """A notebook with more cells, run from the first to the last; fails where one of them does.

    Args:
      name: of the notebook.
      folder: where it works; made here.
      after: code to be run after the cell that has the tag, and after all of them (`end`).
    """
    notebook = read(name)
    tagged = {tag for cell in notebook.cells for tag in cell.metadata.get("tags", ())} | {"end"}
    assert set(after) <= tagged
    cells = []
    for cell in notebook.cells:
        cells.append(cell)
        for tag in cell.metadata.get("tags", ()):
            cells += [nbformat.v4.new_code_cell(after[tag])] if tag in after else []
    cells += [nbformat.v4.new_code_cell(after["end"])] if "end" in after else []
    notebook.cells = cells
    folder.mkdir()
    # Programs that are compiled quickly rather than well.
    return _run(notebook, folder, {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"})


def _run(notebook: NotebookNode, folder: Path, settings: Mapping[str, str]) -> NotebookNode:
    """The notebook as it is after its run; a kernel has one device and no network."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    environment = {
        **os.environ,
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=1",
        "HF_HUB_OFFLINE": "1",
        "IPYTHONDIR": str(folder / ".ipython"),
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(REPOSITORY),
        "PYTHONWARNINGS": "ignore:IProgress not found",  # ipywidgets would draw tqdm's bars
        **settings,
    }
    client = NotebookClient(
        notebook,
        timeout=3600,  # of one cell; a busy machine is no failure
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )
    return client.execute(env=environment)


def replaced(variable: str, pairs: Sequence[tuple[str, str]]) -> str:
    """Code that replaces what must be there once in a text."""
    return "\n".join(
        f"assert {variable}.count({old!r}) == 1\n{variable} = {variable}.replace({old!r}, {new!r})"
        for old, new in pairs
    )


def outputs(notebook: NotebookNode) -> list[NotebookNode]:
    """All of them, in order."""
    return [out for cell in notebook.cells if cell.cell_type == "code" for out in cell.outputs]


def printed(notebook: NotebookNode) -> str:
    """What stands on both streams."""
    return "".join(out.text for out in outputs(notebook) if out.output_type == "stream")


def pictures(notebook: NotebookNode) -> int:
    """How many there are."""
    return sum("image/png" in out.get("data", {}) for out in outputs(notebook))


def write_models(folder: Path) -> list[Path]:
    """Two Hugging Face folders whose next token depends on the last one alone.

    Their layers add nothing to what they are given: a Qwen2 that reads bytes, and a Llama of 300
    BPE tokens.
    """
    texts = ["What is 17 + 25? The answer is 42.", "17 + 25 = 17 + 20 + 5 = 42"]
    agents = [
        {"name": "qwen", "model": {"family": "qwen2", **SHAPE}, "tokenizer": {"kind": "bytes"}},
        {
            "name": "llama",
            "model": {"family": "llama", **SHAPE},
            "tokenizer": {"kind": "bpe", "vocab_size": 280},
        },
    ]
    addition = {"kind": "arithmetic", "size": 8}
    config = parse_config(
        {
            "run_dir": "never made",
            "task": {"train": addition, "eval": {"test": addition}},
            "agents": agents,
            "sampling": {"max_new_tokens": 1},
            "training": {"steps": 1, "prompts_per_step": 1, "mini_batch_prompts": 1},
        }
    )
    folders = []
    for agent in build_agents(config.agents, texts):
        params = init_params(agent.model, jax.random.key(agent.index))
        layers = params["layers"]
        for part, name in (("attention", "o"), ("mlp", "down")):
            layers[part][name] = jnp.zeros_like(layers[part][name])
        folders.append(folder / agent.name)
        export_agent(agent, params, folders[-1], dtype=jnp.float32)
    return folders


def _refresh(name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        notebook = _run(read(name), Path(folder), {})
    notebook.metadata.language_info = {"name": "python"}  # no version of this machine's
    nbformat.write(notebook, NOTEBOOKS / f"{name}.ipynb")


if __name__ == "__main__":
    for chosen in sys.argv[1:] or sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb")):
        _refresh(chosen)
