"""URIs of stores: which of their parts are secret, and how one is shown and stored without them.

    s3://KEY:SECRET@bucket/jobs/flights?endpoint_override=127.0.0.1:9000&scheme=http      as it is given
    s3://bucket/jobs/flights?endpoint_override=127.0.0.1:9000&scheme=http                 as it is shown and stored

Who a URI is shown to finds the place by it, and opens it with credentials of his own, from the environment. What a URI
has in front of an `@` goes as a whole when there is a password in it or the store is S3, whose key is half of a secret;
otherwise it may be part of the place, as in `abfss://container@account`. Of the query those parameters go whose names
say what they are.
"""

from __future__ import annotations

import re

__all__ = ["is_uri", "parent_and_name", "place_inside", "scheme_of", "secrets_of", "without_secrets"]

_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_USER = re.compile(r"(?<=://)([^/?#]*)@")
_PARAMETER = re.compile(r"([?&;])([^=&;#]*)=([^&;#]*)")
_SECRET_NAME = re.compile(
    r"(?i)secret|password|passwd|token|credential|signature|account.?key|access.?key|api.?key|^sig$|^key$|^sas"
)


def is_uri(text: str) -> bool:
    """Whether it is a URI of a store, and no path."""
    return _URI.match(text) is not None


def scheme_of(uri: str) -> str:
    """The scheme in small letters; "" if there is none."""
    found = _URI.match(uri)
    return "" if found is None else found[1].lower()


def parent_and_name(place: str) -> tuple[str, str]:
    """The place of the directory that a place is in, and its name there; of a URI with its parameters."""
    path, parameters = _path_and_parameters(place)
    parent, slash, name = path.rstrip("/").rpartition("/")
    return f"{parent or slash or '.'}{parameters}", name


def place_inside(place: str, name: str) -> str:
    """The place of what has that name in the directory that a place is; of a URI with its parameters."""
    path, parameters = _path_and_parameters(place)
    return f"{path.rstrip('/')}/{name}{parameters}"


def _path_and_parameters(place: str) -> tuple[str, str]:
    path, mark, parameters = place.partition("?") if is_uri(place) else (place, "", "")
    return path, f"{mark}{parameters}"


def without_secrets(uri: str) -> str:
    """The URI as it may be shown, logged and stored; a path is returned as it is."""
    if not is_uri(uri):
        return uri
    user = _USER.search(uri)
    if user is not None and _is_secret_user(uri, user[1]):
        uri = uri[: user.start()] + uri[user.end() :]
    kept = _PARAMETER.sub(lambda found: "" if _SECRET_NAME.search(found[2]) else found[0], uri)
    if "?" in uri and "?" not in kept:
        # The first parameter has gone, and another one takes its place.
        kept = re.sub("[&;]", "?", kept, count=1)
    return kept


def secrets_of(uri: str) -> tuple[str, ...]:
    """What must be in no message: the parts that `without_secrets` takes away, the longest first."""
    if not is_uri(uri):
        return ()
    found = [match[3] for match in _PARAMETER.finditer(uri) if _SECRET_NAME.search(match[2])]
    user = _USER.search(uri)
    if user is not None and _is_secret_user(uri, user[1]):
        found += [user[1], *user[1].split(":")]
    return tuple(sorted({one for one in found if one}, key=len, reverse=True))


def _is_secret_user(uri: str, user: str) -> bool:
    return ":" in user or scheme_of(uri) == "s3"
