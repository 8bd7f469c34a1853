"""to come"""

from __future__ import annotations

import click


@click.command()
def read() -> None:
    """to come"""
