"""What can go wrong with the page's server, and who must act."""

from __future__ import annotations

from penstock.errors import ConfigurationError


class WebAddressError(ConfigurationError):
    """The server cannot listen where it was told to. Choose another port or interface."""


class WebTlsError(ConfigurationError):
    """Another interface than loopback needs a certificate and its key, and they must be usable."""
