"""A hub out of reach is one line, not two for every attempt."""

import logging

from hacpo_jax import hub_retries
from hacpo_jax.launch import main


def test_retries_are_told_once_and_other_lines_pass(caplog, capsys, monkeypatch):
    monkeypatch.setattr(hub_retries._ONCE, "told", False)
    for _ in range(2):  # as a notebook does
        assert main(["--help"]) == 0
    library = logging.getLogger("huggingface_hub.utils._http")
    for attempt in range(5):
        library.warning("'[Errno -2]' thrown while requesting HEAD %s", "https://huggingface.co/x")
        library.warning("Retrying in 1s [Retry %d/5].", attempt + 1)
    library.warning("You are sending unauthenticated requests")
    assert [record.getMessage() for record in caplog.records] == [
        "the Hugging Face hub does not answer; trying again for a while",
        "You are sending unauthenticated requests",
    ]
