"""Opens S3-compatible storage, and says in one line why a request failed.

Credentials, endpoint and region come from the environment (`AWS_ACCESS_KEY_ID`,
`AWS_SECRET_ACCESS_KEY`, `AWS_ENDPOINT_URL`, `AWS_REGION`; `AWS_SKIP_SIGNATURE=true` for a public
bucket), and appear in no message.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

REQUEST_PATIENCE = timedelta(seconds=120)
"""Longest duration of one request, such as the transfer of a part."""
RETRY_PATIENCE = timedelta(seconds=20)
"""Time in which a failed request is repeated."""
METADATA_SERVICE = "169.254.169.254"
"""Address that is asked for credentials where the environment has none."""
CAUSES = {
    "NoSuchBucket": "the bucket does not exist",
    METADATA_SERVICE: "there are no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "Missing AccessKeyId": "there are no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "InvalidAccessKeyId": "the key of AWS_ACCESS_KEY_ID is unknown there",
    "SignatureDoesNotMatch": "AWS_SECRET_ACCESS_KEY is not the secret of AWS_ACCESS_KEY_ID",
    "AccessDenied": "these credentials may not do this",
    "dns error": "the name of its host is unknown",
    "tcp connect error": "nothing answers there",
    "timed out": "it does not answer in time",
}
"""Phrases for causes, by a part of the client's message."""


def endpoint() -> str:
    """Address of the storage, which may contain a password; empty for that of the provider."""
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")


def open_client(bucket: str, prefix: str) -> Any:
    """The client of a bucket, an obstore `S3Store`; no request is made.

    Args:
        bucket: name of the bucket.
        prefix: beginning of all keys; may be empty.

    Raises:
        obstore.exceptions.BaseError: the environment is not valid.
        ModuleNotFoundError: obstore is not installed.
    """
    from obstore.store import S3Store

    return S3Store(
        bucket,
        prefix=prefix or None,
        client_options={
            "allow_http": endpoint().startswith("http://"),
            "connect_timeout": timedelta(seconds=5),
            "timeout": REQUEST_PATIENCE,
        },
        retry_config={"max_retries": 3, "retry_timeout": RETRY_PATIENCE},
    )


def failure(address: object, at: str, text: str) -> str:
    """One line about a failed request.

    Args:
        address: address of the bucket.
        at: endpoint with which its client was opened; a password in it is left out.
        text: message of the client, of several lines.
    """
    scheme, separator, rest = at.partition("://")
    place = f" at {scheme}{separator}{rest.rpartition('@')[2]}" if at else ""
    cause = next((phrase for part, phrase in CAUSES.items() if part in text), None)
    cause = cause or text.splitlines()[0].partition(": <?xml")[0]
    return f"{address}{place}: {cause.rstrip('.')}."
