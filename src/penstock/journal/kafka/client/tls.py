"""TLS contexts for connections to brokers."""

from __future__ import annotations

import ssl
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.journal.kafka.errors import KafkaSettingError

if TYPE_CHECKING:
    from penstock.journal.kafka.security import Tls


def client_context(tls: Tls) -> ssl.SSLContext:
    """Raises `KafkaSettingError` if certificates or keys cannot be used."""
    context = trusting(tls.authorities)
    context.minimum_version = (
        ssl.TLSVersion.TLSv1_3 if tls.least_version == "TLSv1.3" else ssl.TLSVersion.TLSv1_2
    )
    context.check_hostname = tls.checks_host_name
    if tls.certificates is not None and tls.key is not None:
        password = tls.key_password.text if tls.key_password is not None else ""
        _show(context, tls.certificates, tls.key.text, password)
    return context


def trusting(authorities: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cadata=authorities)
    except ssl.SSLError as error:
        raise KafkaSettingError("kafka.ssl.truststore", f"it cannot be used: {error}") from None


def _show(context: ssl.SSLContext, certificates: str, key: str, password: str) -> None:
    """Python takes a key from a file only: it is there for a moment, for this user alone."""
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        path = Path(folder) / "own.pem"
        path.touch(mode=0o600)
        path.write_text(f"{key}\n{certificates}" if certificates != key else key)
        try:
            context.load_cert_chain(path, password=password)
        except (ssl.SSLError, ValueError):
            raise KafkaSettingError(
                "kafka.ssl.keystore",
                "the key does not belong to the certificate, or kafka.ssl.key.password is wrong",
            ) from None
