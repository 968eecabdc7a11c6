"""The certificate with which the server proves who it is: checked before anything loads."""

import ssl
from dataclasses import dataclass
from pathlib import Path

from appliance.errors import BadSetting


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """Two PEM files; the key may be in the certificate's."""

    file: Path
    key_file: Path | None = None

    @classmethod
    def from_settings(cls, file: Path | None, key_file: Path | None) -> "Certificate | None":
        """None without any. Raises BadSetting where the files are no certificate and its key."""
        if file is None:
            if key_file is not None:
                raise BadSetting("--tls-key needs the certificate too; set --tls-cert", param="tls_cert")
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(file, key_file, password=_no_password)
        except (OSError, ValueError) as error:
            raise BadSetting(
                f"--tls-cert {file} and --tls-key {key_file or file} do not fit: {error}; "
                "give two PEM files, the key without a password",
                param="tls_cert",
            ) from error
        return cls(file=file, key_file=key_file)


def _no_password() -> str:
    """Instead of the library's question on the terminal."""
    raise ValueError("the key has a password")
