"""The addresses of servers that a user names, and the secrets that are for them alone."""

import os
from urllib.parse import urlsplit

# Base URL, the environment variables that lead elsewhere, and that of the key. To add one: a line here; for embeddings,
# rows of its models in tools/retrievers/models.toml, too.
PROVIDERS = {
    "openai": ("https://api.openai.com/v1", ("OPENAI_BASE_URL", "OPENAI_API_BASE"), "OPENAI_API_KEY"),
    "gemini": ("https://generativelanguage.googleapis.com/v1beta/openai", (), "GEMINI_API_KEY"),
}
SERVER_KEY = "SEXTANT_API_KEY"  # a user's key for a provider is not for every server that speaks its protocol


def secret(variable: str) -> str:
    """The key that the environment has under this name; "" for none."""
    return os.environ.get(variable, "").strip()


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


def openai_account(url: str) -> dict[str, str]:
    """The headers that say which organization and project pays, for OpenAI itself; none for any other server."""
    parts = urlsplit(url)
    if (parts.scheme, parts.hostname) != ("https", "api.openai.com"):
        return {}
    variables = {
        "openai-organization": ("OPENAI_ORG_ID", "OPENAI_ORGANIZATION"),
        "openai-project": ("OPENAI_PROJECT_ID", "OPENAI_PROJECT"),
    }
    found = {header: os.environ.get(one) or os.environ.get(other) for header, (one, other) in variables.items()}
    return {header: value.strip() for header, value in found.items() if value}


def hide_keys(text: str, least: int = 8) -> str:
    """`text` without keys: what the environment has under a name that ends like that of a secret.

    Values of fewer than `least` letters are words like others.
    """
    for name, value in os.environ.items():
        if name.endswith(("_KEY", "_TOKEN", "_SECRET")) and len(value) >= least:
            text = text.replace(value, "***")
    return text
