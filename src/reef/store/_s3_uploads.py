"""Finding and discarding S3 uploads that were begun and never finished.

Parts of such an upload are invisible and billed. obstore has no request to list them, so this one
errand goes through boto3.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from reef.errors import (
    AccessDeniedError,
    BucketNotFoundError,
    UnavailableError,
    UnsupportedStoreError,
)
from reef.settings import parse_flag, parse_seconds
from reef.store._url import StoreURL


def abort_s3_uploads(url: StoreURL, prefix: str, before_us: int) -> Sequence[str]:
    """Abort the uploads under `prefix` that were begun before that time; return their keys.

    Raises UnsupportedStoreError without boto3, BucketNotFoundError, AccessDeniedError and
    UnavailableError.
    """
    try:
        import boto3
        from botocore import UNSIGNED
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError
    except ImportError:
        raise UnsupportedStoreError(
            f"{url.redacted}: discarding unfinished uploads takes boto3: pip install 'reefdb[s3]', "
            "or give the bucket a lifecycle rule that aborts incomplete multipart uploads"
        ) from None
    options = url.options
    hosted = parse_flag("virtual_hosted_style", options.get("virtual_hosted_style", "off"))
    style = "virtual" if hosted else "path"
    seconds = parse_seconds("timeout", options.get("timeout", "30s"))
    unsigned = parse_flag("skip_signature", options.get("skip_signature", "off"))
    try:
        client = boto3.Session(profile_name=options.get("profile")).client(
            "s3",
            endpoint_url=options.get("endpoint"),
            region_name=options.get("region") or os.environ.get("AWS_REGION") or "us-east-1",
            aws_access_key_id=options.get("access_key_id"),
            aws_secret_access_key=options.get("secret_access_key"),
            aws_session_token=options.get("session_token"),
            config=Config(
                s3={"addressing_style": style},
                connect_timeout=seconds,
                read_timeout=seconds,
                retries={"total_max_attempts": 3, "mode": "standard"},
                signature_version=UNSIGNED if unsigned else None,
            ),
        )
        return _abort(client, url.bucket, prefix, before_us)
    except NoCredentialsError as error:
        raise AccessDeniedError(f"{url.redacted}: no credentials were found") from error
    except ClientError as error:
        raise _explain(url, error.response) from error
    except BotoCoreError as error:
        raise UnavailableError(f"{url.redacted}: unfinished uploads: {error}; retry") from error


def _explain(url: StoreURL, response: Any) -> Exception:
    code = response.get("Error", {}).get("Code", "")
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code == "NoSuchBucket":
        return BucketNotFoundError(
            f"{url.redacted}: there is no such bucket; create it, or fix the URL"
        )
    if status in (401, 403):
        return AccessDeniedError(
            f"{url.redacted}: unfinished uploads: access was refused ({status} {code}); "
            "check the credentials and what they allow"
        )
    return UnavailableError(f"{url.redacted}: unfinished uploads: {status} {code}; retry")


def _abort(client: Any, bucket: str, prefix: str, before_us: int) -> Sequence[str]:
    aborted = []
    pages = client.get_paginator("list_multipart_uploads").paginate(Bucket=bucket, Prefix=prefix)
    for page in pages:
        for upload in page.get("Uploads", ()):
            if upload["Initiated"].timestamp() * 1_000_000 < before_us:
                client.abort_multipart_upload(
                    Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"]
                )
                aborted.append(upload["Key"])
    return aborted
