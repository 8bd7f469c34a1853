"""Every error Penstock raises, split by who must act on it.

All of them pickle (Spark ships them between processes): an error's `args` are its fields, and its
message is made from them when it is shown.
"""


class PenstockError(Exception):
    """The root: catch this to catch everything Penstock raises on purpose."""


class ConfigurationError(PenstockError):
    """An option, schema, name or selector is wrong. The caller changes it and tries again."""


class LocalProtocolError(PenstockError):
    """This process used Penstock in an order the protocol forbids. Fix the calling code."""


class FencedError(LocalProtocolError):
    """A newer process has taken this one's place: nothing that this one does counts any more. Stop
    it. If it should be the one that runs, stop the other and start it again; if both should, give
    each a number or name of its own."""


class RemoteProtocolError(PenstockError):
    """Another process wrote or sent what the protocol forbids. Look at that process."""


class CorruptStorageError(PenstockError):
    """Stored bytes are not what was written. Restore them from a copy; nothing was returned."""


class UnreadableRowError(PenstockError):
    """A row cannot be read as the user asks for it. To read it again does not help: correct the
    settings, or let such rows pass by one."""


class CommitFailedError(PenstockError):
    """The transaction is not committed and never will be. It is safe to run it again."""


class CommitStateUnknownError(PenstockError):
    """The transaction may or may not be committed. Do not run it again before `recover()` tells."""


class PeerUnavailableError(PenstockError):
    """A peer cannot be reached, or went away. Frames sent to it since the last answer may be lost;
    the next send opens a new connection, at the address the peer has by then."""
