"""Put the certificates of Amazon RDS into the layer: `make certificates`, before `sam build`.

RDS signs its servers with roots of its own that no system knows, so verified connections need
them. They are public and Amazon renews them, which is why they are fetched and not kept here. A
deployment that only talks to RDS Proxy or to another Postgres can do without.
"""

from __future__ import annotations

import re
import ssl
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Final

SOURCE: Final = "https://truststore.pki.rds.amazonaws.com/global/global-bundle.pem"
TARGET: Final = Path(__file__).resolve().parent.parent / "shared/sume_jobs/rds-global-bundle.pem"
_MOST_BYTES: Final = 2_000_000


def check(bundle: bytes) -> int:
    """Count the certificates in a bundle. Raises ValueError where one is not of Amazon RDS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=bundle.decode("ascii"))
    except (ssl.SSLError, UnicodeDecodeError) as error:
        raise ValueError(f"this is no bundle of certificates ({type(error).__name__})") from None
    certificates = context.get_ca_certs()
    for certificate in certificates:
        names = str(certificate["subject"])
        if not re.search(r"'commonName', 'Amazon RDS |'organizationName', 'Amazon", names):
            raise ValueError(f"a certificate is not Amazon's: {names}")
    if not certificates:
        raise ValueError("there is no certificate in it")
    return len(certificates)


def main() -> int:
    """Fetch, check and keep the bundle; returns the exit status."""
    try:
        with urllib.request.urlopen(SOURCE, timeout=30) as answer:
            bundle = answer.read(_MOST_BYTES)
        number = check(bundle)
    except (urllib.error.URLError, OSError, ValueError) as error:
        print(f"The certificates were not fetched from {SOURCE}: {error}", file=sys.stderr)
        return 1
    TARGET.write_bytes(bundle)
    print(f"{number} certificates of Amazon RDS are now part of the layer")
    return 0


if __name__ == "__main__":
    sys.exit(main())
