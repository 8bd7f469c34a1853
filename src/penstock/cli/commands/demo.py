"""`penstock demo`: the whole idea, proven in a minute."""

from __future__ import annotations

import click


@click.command()
def demo() -> None:
    """to come"""
