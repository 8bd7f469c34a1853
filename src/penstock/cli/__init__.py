"""The command line: `penstock COMMAND`.

commands/ says what each command takes; the modules beside it do the work, and are imported only by
the command that needs them, so that `penstock --help` answers at once.
"""

from penstock.cli.app import app

__all__ = ["main"]


def main() -> None:
    """The entry point that the package installs."""
    app(prog_name="penstock")
