"""One line about a hub that does not answer, not two for every attempt at every file."""

import logging

_log = logging.getLogger(__name__)
_RETRIES = ("thrown while requesting", "Retrying in ")


class _Once(logging.Filter):
    """Lets the library's lines through but for those about retries, the first of which is told."""

    told = False

    def filter(self, record: logging.LogRecord) -> bool:
        if not any(words in record.getMessage() for words in _RETRIES):
            return True
        if not self.told:
            _log.warning("the Hugging Face hub does not answer; trying again for a while")
        self.told = True
        return False


_ONCE = _Once()


def tell_once() -> None:
    """From now on the first retry of this process is told, and no other."""
    logging.getLogger("huggingface_hub.utils._http").addFilter(_ONCE)
