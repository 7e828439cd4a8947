"""What processes that tests start are told of XLA."""

import os


def xla_flags(devices: int) -> str:
    """The flags of this process with so many devices; of two the last holds."""
    return f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"
