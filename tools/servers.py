"""The addresses of servers that a user names."""

from urllib.parse import urlsplit


def is_server(url: str) -> bool:
    """Whether `url` is that of a server, as in http://host:port/v1; a password or a key does not belong in one.

    So it may have neither `user:password@` nor `?key=...` nor `#...`: it stands in names of folders and in reports.
    """
    if "?" in url or "#" in url:
        return False
    try:
        parts = urlsplit(url)
        named = parts.scheme in ("http", "https") and bool(parts.hostname)
        return named and "@" not in parts.netloc and parts.port != 0
    except ValueError:
        return False
