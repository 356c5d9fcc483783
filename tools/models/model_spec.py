"""The values of `--lm`: models, and the servers behind them.

The module imports little, so that a misspelt name is refused at once.

A spec is `offline` (no model), `MODEL@http://host:port/v1` (any server that speaks OpenAI's
protocol: vLLM, llama.cpp, Ollama, SGLang), `openai/MODEL`, or `provider/model` as LiteLLM names it.
Keys come from the environment, or from a file `.env` in the working directory, and go nowhere but
to the provider: $SEXTANT_API_KEY for the user's own server, $OPENAI_API_KEY for OpenAI
($OPENAI_BASE_URL leads elsewhere), LiteLLM's usual names for the others.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlsplit

from sextant.tools.errors import ProviderRefused, UnknownName, UsageError
from sextant.tools.models.secrets import get_secret
from sextant.tools.platform.cli import positive, share, temperature
from sextant.tools.platform.cli_options import Option, json_object, parse_name_value
from sextant.tools.platform.temporary_changes import changed_environment

APIS = ("chat", "responses")
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
WHEN = ("auto", "on", "off")  # auto: where the server is known to take it

_Option = partial(Option, group="settings of the model")
_Count = partial(_Option, metavar="N", read=positive)
_When = partial(_Option, metavar="WHEN", choices=WHEN)


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """The settings of a model, as in a request and its command line; None leaves a setting to the
    model.
    """

    seed: Annotated[
        int | None, _Option("the model's sampling seed, where it takes one", "N", int)
    ] = None
    temperature: Annotated[
        float | None, _Option("from 0 to 2; 0 where the model takes one", "X", temperature)
    ] = None
    top_p: Annotated[
        float | None, _Option("sample among the likeliest tokens of this share", "X", share)
    ] = None
    stop: Annotated[
        tuple[str, ...], _Option("end an answer before this text; repeatable", "TEXT")
    ] = ()
    max_tokens: Annotated[
        int | None,
        _Count("tokens of an answer and its reasoning; what the price table says, or 4096"),
    ] = None
    reasoning_effort: Annotated[
        str | None, _Option(f"one of {', '.join(EFFORTS)}; the model's own", "HOW", choices=EFFORTS)
    ] = None
    reasoning_tokens: Annotated[
        int | None,
        _Count("tokens of reasoning before an answer, where the model takes such a limit"),
    ] = None
    structured: Annotated[
        str, _When("send signatures as JSON schemas; auto where the server can")
    ] = "auto"
    stream: Annotated[str, _When("have answers sent as they are written: auto, on or off")] = "auto"
    api: Annotated[
        str, _Option(f"which of OpenAI's protocols: {' or '.join(APIS)}", "API", choices=APIS)
    ] = "chat"
    context: Annotated[
        int | None,
        _Count("tokens that the model takes, where neither the price table nor the server says"),
    ] = None
    extra_body: Annotated[
        Mapping[str, Any],
        _Option(
            "more of the request's body; null leaves a field out",
            "JSON",
            json_object,
            whole=True,
        ),
    ] = field(default_factory=dict)
    headers: Annotated[
        Mapping[str, str],
        _Option(
            "send a header with the value of this environment variable; repeatable",
            "NAME=ENV",
            parse_name_value,
            flag="--header",
        ),
    ] = field(default_factory=dict)
    client_certificate: Annotated[
        Path | None,
        _Option("a certificate with its key, in PEM, for a server that asks for one", "FILE"),
    ] = None


DEFAULTS = ModelSettings()


class ServerKind(NamedTuple):
    """The abilities of a kind of server; tools/models/server_detection.py has a table of kinds."""

    name: str
    limit: tuple[str, ...] = (
        "max_tokens",
    )  # words for the length of an answer; some servers refuse OpenAI's newer
    schema: bool = False  # whether `response_format` may be a JSON schema
    stream: bool = False  # whether a stream ends with its usage, by stream_options.include_usage
    # How an answer can be ended after its last field. "stop": by a stop text. "stream": by leaving
    # the stream, as each chunk has its usage; where a model may think, a stop text would end its
    # thoughts. "": in no way.
    stops: str = ""
    reasoning: tuple[
        str, ...
    ] = ()  # the path in the body of a limit of reasoning tokens; () where there is none
    owner: str = ""  # "owned_by" in its GET /models, where that tells it apart
    # Whether a schema may have bounds that are made for a call: lengths, counts, the ids of its
    # documents. Others may refuse them, or need long for each.
    bounds: bool = False
    # Whether a conversation may begin with a system message, and whether messages of the user and
    # of the model have to take turns: the templates of some models refuse others.
    system: bool = True
    turns: bool = False
    # A path asked next where GET /models does not tell the window; /v1 has the protocol's paths
    # alone
    more: str = ""


class ServerInfo(NamedTuple):
    """The known facts about a server and its model."""

    kind: ServerKind
    window: int | None = None  # tokens of prompt and answer together


UNKNOWN = ServerInfo(
    ServerKind("", more="/../openapi.json")
)  # transformers serve is told by its path for loading a model


# Base URL, the environment variables that lead elsewhere, and that of the key. To add one: a line
# here; for embeddings, rows of its models in tools/retrievers/models.toml, too.
PROVIDERS = {
    "openai": (
        "https://api.openai.com/v1",
        ("OPENAI_BASE_URL", "OPENAI_API_BASE"),
        "OPENAI_API_KEY",
    ),
    "gemini": ("https://generativelanguage.googleapis.com/v1beta/openai", (), "GEMINI_API_KEY"),
}
# A user's key for a provider is not for every server that speaks its protocol
SERVER_KEY = "SEXTANT_API_KEY"


# Where the address of a server begins. Names of models have an @ in them, too: @cf/meta/llama-3,
# claude-3-5-sonnet@20240620
_SERVER = re.compile(r"@(?=[a-z][a-z0-9+.-]*://)", re.IGNORECASE)
# An address without a scheme: a host with a port, or one that is given by its number, or this machine
_BARE_SERVER = re.compile(
    r"@(?=(?:[^@/]+:\d+|\d+\.\d+\.\d+\.\d+|\[[0-9a-f:]+\]|localhost)(?:/|\Z))", re.IGNORECASE
)
# What is added to an address for a request
_REQUEST_PATH = re.compile(r"/(?:chat/completions|completions|responses|embeddings)/?\Z")


def add_scheme(spec: str) -> str:
    """Return `MODEL@HOST:PORT` as `MODEL@http://HOST:PORT`, any other spec as it is. An argument type."""
    if _SERVER.search(spec):
        return spec
    return _BARE_SERVER.sub("@http://", spec, count=1)


def split_server(spec: str) -> tuple[str, str]:
    """Return the name and the URL of `MODEL@URL`, the URL "" if `spec` has none."""
    spec = add_scheme(spec)
    server = _SERVER.search(spec)
    return (spec[: server.start()], spec[server.end() :]) if server else (spec, "")


def parse(spec: str, option: str = "--lm") -> tuple[str, str]:
    """Return (LiteLLM name, base URL) of a spec, the value of `option`; "" for a part that it lacks. UsageError."""
    if spec == "offline":
        return "", ""
    name, url = split_server(spec)
    if url:
        if name and "?" in url:
            raise UsageError(
                f"{option} has an address with a query, which is not sent; leave the query out, or for "
                f"Azure write azure/DEPLOYMENT, and set $AZURE_API_KEY, $AZURE_API_BASE and "
                f"$AZURE_API_VERSION"
            )
        if not name or not is_server(url):
            wrong = f"{option} {name + '@...'!r} is no server; write MODEL@http://host:port/v1"
            raise UsageError(f"{wrong}, and put a key for it in $SEXTANT_API_KEY")
        if added := _REQUEST_PATH.search(url):
            base = url[: added.start()]
            raise UsageError(f"{option} names a path that is added by itself; write {name}@{base}")
        return f"openai/{name}", url
    if "?" in spec or "#" in spec:  # it would stand in the names of folders
        raise UsageError(
            f"{option} names no model with a ? or # in it; put keys into the environment"
        )
    provider, slash, model = spec.partition("/")
    if not (provider and slash and model):
        forms = "offline, provider/model (openai/gpt-5.2) or MODEL@http://host:port/v1"
        raise UsageError(f"{option} {spec!r} names no model; write {forms}")
    name, at, _ = provider.partition("@")
    if name and at:  # what follows may have a key in it
        form = "MODEL@http://host:port/v1, or with https"
        raise UsageError(f"{option} {name + '@...'!r} names a server without http; write {form}")
    return spec, ""


def is_openai(name: str, url: str) -> bool:
    """Whether the model speaks OpenAI's protocol, as our own client does."""
    return bool(url) or name.startswith("openai/")


def check_provider(name: str, url: str) -> None:
    """Raise UnknownName for a provider that LiteLLM does not know."""
    if is_openai(name, url):
        return
    with _quiet_litellm() as litellm:
        try:
            litellm.get_llm_provider(name)
        except litellm.exceptions.BadRequestError:
            providers = [
                str(getattr(provider, "value", provider)) for provider in litellm.provider_list
            ]
            raise UnknownName("provider of models", name.partition("/")[0], providers) from None


def check_key(spec: str, headers: Mapping[str, str] = {}) -> None:
    """Raise ProviderRefused if the environment lacks the key that a model needs, UsageError for a header's value."""
    for header, variable in headers.items():
        if not get_secret(variable):
            raise UsageError(
                f"--header {header}={variable}: ${variable} is not set; export it, or put it into "
                f".env"
            )
    name, url = parse(spec)
    if not name or url:
        return
    if is_openai(name, url):
        missing = [] if get_secret("OPENAI_API_KEY") else ["OPENAI_API_KEY"]
    else:
        with _quiet_litellm() as litellm:
            missing = litellm.validate_environment(name)["missing_keys"]
    # Where something else is missing as well, there may be other ways in: Azure's and Amazon's
    # roles.
    if missing and all(variable.endswith("_API_KEY") for variable in missing):
        needs = f"{spec} needs a key; put it in ${' or $'.join(missing)}, or into the file .env"
        raise ProviderRefused(needs, source=spec)


@cache
def import_litellm() -> Any:
    """Return LiteLLM, which takes seconds to import; it downloads no price map."""
    with changed_environment({"LITELLM_LOCAL_MODEL_COST_MAP": "True"}):
        import litellm  # as the docstring says

        return litellm if litellm.completion else None  # it may be one of DSPy's lazy modules


@contextmanager
def _quiet_litellm() -> Iterator[Any]:
    """Yield LiteLLM, which prints in the block no help on a provider that it does not know."""
    litellm = import_litellm()
    was_quiet = litellm.suppress_debug_info
    litellm.suppress_debug_info = True
    try:
        yield litellm
    finally:
        litellm.suppress_debug_info = was_quiet


def unsupported_reasoning_limit(model: str) -> UsageError:
    """Return the refusal of --reasoning-tokens."""
    return UsageError(
        f"--reasoning-tokens: {model} takes no such limit, as far as is known; --max-tokens "
        f"bounds reasoning and "
        "answer together, --reasoning-effort asks for less of it, and --extra-body sends what the "
        "server calls it"
    )


def price_is_known(spec: str, file: Path | None = None) -> bool:
    """Return whether a budget in dollars can be kept for this model; `file` is the user's own prices."""
    from sextant.tools.models.prices import price  # few runs need prices

    return spec == "offline" or price(spec, file) is not None


def is_server(url: str) -> bool:
    """Whether `url` is that of a server, as in http://host:port/v1, and has no secret, as it stands in reports."""
    try:
        address = urlsplit(url)
        named = address.scheme in ("http", "https") and bool(address.hostname) and address.port != 0
        return named and not set("?#").intersection(url) and "@" not in address.netloc
    except ValueError:
        return False
