"""URIs of stores: their secret parts, and their form without secrets.

    s3://KEY:SECRET@bucket/jobs/flights?endpoint_override=127.0.0.1:9000&scheme=http      as given
    s3://bucket/jobs/flights?endpoint_override=127.0.0.1:9000&scheme=http                 as logged and stored

The form without secrets identifies the location; the reader opens it with credentials from the environment. The part
before an `@` is removed if it contains a password or the store is S3, whose key is half of a secret. Otherwise it may
be part of the location, as in `abfss://container@account`. Parameters of the query are removed if their name denotes a
secret, or their value contains an `@`.

A secret may contain an unescaped `/`, `?`, `#` or `@`, which ends the credentials too early. Such a URI is not opened
(`check_credentials`). It is shown without everything up to its last `@`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import unquote

from statebackend.checkpoint.errors import StorageError

_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_ALMOST_URI = re.compile(r"\s*['\"]?([A-Za-z][A-Za-z0-9+.-]+):/+")
_SHORT_SECRET: Final = 3
_AUTHORITY_END = re.compile("[/?#]|$")
_S3_SCHEMES: Final = ("s3", "s3a", "s3n")
_BUCKET = re.compile("[A-Za-z0-9._-]*")
_MISPLACED_CREDENTIALS = re.compile("/+(?=[^/?#@]*:[^@]*@)")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:@\[\]]*)(:[0-9]{1,5})?")
_PARAMETER = re.compile(r"([?&;])([^=&;#]*)=([^&;#]*)")
_SECRET_NAME = re.compile(
    r"(?i)secret|password|passwd|token|credential|signature|^pass$|^pwd$|^auth$|session|account.?key|access.?key|api.?key|"
    r"shared.?key|^sig$|^key$|^sas"
)
_WITHOUT_ENDPOINT: Final = ("request_timeout_s",)


def is_uri(text: str) -> bool:
    """Whether the text is a URI of a store instead of a path."""
    return _URI.match(text) is not None


def scheme_of(uri: str) -> str:
    """The scheme in lower case; "" if there is none."""
    found = _URI.match(uri)
    return "" if found is None else found[1].lower()


def parent_and_name(place: str) -> tuple[str, str]:
    """The parent of a path or URI, and the name in it; the parent of a URI keeps the parameters."""
    path, parameters = _path_and_parameters(place)
    parent, slash, name = path.rstrip("/").rpartition("/")
    return f"{parent or slash or '.'}{parameters}", name


def place_inside(place: str, name: str) -> str:
    """The path or URI of a name in a directory; a URI keeps its parameters."""
    path, parameters = _path_and_parameters(place)
    return f"{path.rstrip('/')}/{name}{parameters}"


def _path_and_parameters(place: str) -> tuple[str, str]:
    path, mark, parameters = place.partition("?") if is_uri(place) else (place, "", "")
    return path, f"{mark}{parameters}"


def without_secrets(uri: str) -> str:
    """The form of a URI to show, log and store; a path is returned unchanged."""
    span = _credentials(uri)
    if span is not None:
        start, end = span
        uri = uri[:start] + (uri[end + 1 :] if end < len(uri) else "...")
    if not is_uri(uri):
        return uri
    kept = _PARAMETER.sub(lambda found: "" if _is_secret_parameter(found[2], found[3]) else found[0], uri)
    if "?" in uri and "?" not in kept:
        # The first parameter was removed, and another one replaces it.
        kept = re.sub("[&;]", "?", kept, count=1)
    return kept


def secrets_of(uri: str) -> tuple[str, ...]:
    """The secrets that must not be in any message: the parts that `without_secrets` removes, the longest first."""
    if not is_uri(uri):
        return ()
    found = [match[3] for match in _PARAMETER.finditer(uri) if _is_secret_parameter(match[2], match[3])]
    span = _credentials(uri)
    if span is not None:
        credentials = uri[span[0] : span[1]]
        # Some libraries end the credentials at an unescaped character, and report only a part.
        found += [credentials, *credentials.split(":"), *re.split("[:/?#@]", credentials)]
    # Libraries report decoded values.
    found += [unquote(one) for one in found]
    return tuple(sorted({one for one in found if one}, key=len, reverse=True))


def redacted(text: str, secrets: Iterable[str]) -> str:
    """A text with ``***`` in place of secrets.

    A secret of up to three characters is replaced only as a value: after ``=``, ``:`` or a quote. Elsewhere it would
    make the text unreadable, and the gaps would show the secret.
    """
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        if len(secret) > _SHORT_SECRET:
            text = text.replace(secret, "***")
        else:
            text = re.sub(rf"(?<=[=:\"'`]){re.escape(secret)}(?!\w)", "***", text)
    return text


def check_credentials(uri: str) -> None:
    """Raise `StorageError` if it is unclear where the credentials of a URI end."""
    span = _credentials(uri)
    if span is None:
        return
    start, end = span
    if end == len(uri) or re.search("[/?#@]", uri[start:end]):
        raise StorageError(
            f"cannot open {without_secrets(uri)!r}: it has credentials with an unescaped '/', '?', '#' or '@', or "
            f"credentials and another '@'. Write %2F, %3F, %23 and %40 in their place, or give the credentials in the "
            f"environment"
        )


def check_path(path: str) -> None:
    """Raise `StorageError` for a path that was meant to be a URI. A local directory of this name would be created."""
    found = _ALMOST_URI.match(path)
    if found is not None and not is_uri(path):
        scheme = found[1]
        meant = without_secrets(f"{scheme}://{'/' if scheme.lower() == 'file' else ''}{path[found.end() :]}")
        raise StorageError(
            f"cannot open {meant!r}: the argument is a path, because it does not begin with '{scheme}://'. Pass the "
            f"URI as text: pathlib.Path removes a slash. A path may begin with './'"
        )


def endpoint_of(place: str) -> str:
    """The target of requests for a location, for comparison only: it may contain secrets. "" for a path on a disk."""
    scheme = scheme_of(place)
    if scheme in ("", "file"):
        return ""
    span = _credentials(place)
    start = len(scheme) + len("://") if span is None else span[1] + 1
    authority = place[start : _authority_end(place, start)]
    # All parameters: a name or value that looks like a secret may choose the endpoint too.
    parameters = sorted(found[0][1:] for found in _PARAMETER.finditer(place) if found[2] not in _WITHOUT_ENDPOINT)
    # A bucket is not an endpoint: the region or the endpoint in the parameters determines it.
    return f"{scheme}://{'' if scheme in _S3_SCHEMES else authority}?{'&'.join(parameters)}"


def _credentials(uri: str) -> tuple[int, int] | None:
    """The start and end of the credentials before the location; None if there are none.

    They end at an `@`. If it is missing, everything that follows may be secret.
    """
    scheme = _URI.match(uri)
    if scheme is None:
        return None
    start = scheme.end()
    end = _authority_end(uri, start)
    misplaced = _MISPLACED_CREDENTIALS.match(uri, start)
    if misplaced is not None and scheme[1].lower() != "file":
        # One slash too many, as in s3:///KEY:SECRET@bucket.
        return misplaced.end(), uri.rindex("@")
    is_s3 = scheme[1].lower() in _S3_SCHEMES
    if (_BUCKET if is_s3 else _HOST).fullmatch(uri, start, end):
        return None
    user, at, host = uri[start:end].rpartition("@")
    if at and not is_s3 and ":" not in user and _HOST.fullmatch(host):
        return None
    last = uri.rfind("@", start)
    return start, len(uri) if last < 0 else last


def _authority_end(uri: str, start: int) -> int:
    found = _AUTHORITY_END.search(uri, start)
    return len(uri) if found is None else found.start()


def _is_secret_parameter(name: str, value: str) -> bool:
    return _SECRET_NAME.search(name) is not None or "@" in unquote(value)
