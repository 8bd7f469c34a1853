"""Who does something by hand, as it is kept on record."""

from __future__ import annotations

import getpass
import os
import socket


def person() -> str:
    """The user at this host. A container may run as a user that has no name."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # the latter since Python 3.13
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"
