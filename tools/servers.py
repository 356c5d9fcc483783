"""The addresses of servers that a user names."""

from urllib.parse import urlsplit


def is_server(url: str) -> bool:
    """Whether `url` is that of a server, as in http://host:port/v1; a password does not belong in one."""
    try:
        parts = urlsplit(url)
        named = parts.scheme in ("http", "https") and bool(parts.hostname)
        return named and "@" not in parts.netloc and parts.port != 0
    except ValueError:
        return False
