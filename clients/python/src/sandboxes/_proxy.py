"""Which proxy requests to a service go through: an option of the client, else the environment. No I/O.

The rules are those of Go's golang.org/x/net/http/httpproxy, and in addition ALL_PROXY.
"""

from __future__ import annotations

import base64
import ipaddress
import os
from http import HTTPStatus
from typing import Literal, Mapping
from urllib.parse import unquote, urlsplit

from ._errors import TransportError
from ._http1 import Origin

ProxyOption = str | Literal[False] | None
"""The URL of a proxy, False for none, None for that of the environment."""

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Proxy:
    """An HTTP proxy: where it is and how it is asked. Texts of it have no password."""

    def __init__(self, source: str, url: str) -> None:
        """`source` is what named the URL, for errors."""
        refused = ValueError(f"{source}: must be the URL of an HTTP proxy, such as http://proxy:3128 or https://user:password@proxy")
        if any(not letter.isprintable() or letter.isspace() for letter in url):
            raise refused
        try:
            parts = urlsplit(url if "://" in url else "http://" + url)
            port = parts.port
        except ValueError:  # whose text has a part of the URL
            raise refused from None
        if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
            raise refused
        self.source = source
        self.tls = parts.scheme == "https"
        self.name = parts.hostname
        self.port = port or (443 if self.tls else 80)
        self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self.headers: list[tuple[str, str]] = []
        """What only the proxy may see."""
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self.headers.append(("Proxy-Authorization", "Basic " + base64.b64encode(pair.encode()).decode()))

    def __repr__(self) -> str:
        return f"<Proxy {self.url}>"

    def refusal(self, status: int) -> TransportError:
        """The error of an answer that the proxy itself gives instead of the service."""
        if status == 407:
            why = f"407 Proxy Authentication Required: the user or password in {self.source} is missing or wrong"
        else:
            try:
                why = f"{status} {HTTPStatus(status).phrase}"
            except ValueError:
                why = str(status)
        return TransportError(f"the proxy {self.url} of {self.source} refused the request: {why}",
                              sent=False, permanent=status < 500 and status != 429)


def proxy_for(origin: Origin, option: ProxyOption, environment: Mapping[str, str] = os.environ) -> Proxy | None:
    """The proxy of a service, or None where there is none."""
    if option is not None:
        return None if option is False else Proxy("proxy", option)
    names = ["https_proxy", "HTTPS_PROXY"] if origin.tls else ["http_proxy", "HTTP_PROXY"]
    if not origin.tls and environment.get("REQUEST_METHOD"):
        names = []  # in a CGI program HTTP_PROXY is the header Proxy of whoever sent the request
    name = _first([*names, "all_proxy", "ALL_PROXY"], environment)
    if name is None or _excluded(origin, environment.get(_first(["no_proxy", "NO_PROXY"], environment) or "", "")):
        return None
    return Proxy(name, environment[name])


def _first(names: list[str], environment: Mapping[str, str]) -> str | None:
    return next((name for name in names if environment.get(name)), None)


def _excluded(origin: Origin, no_proxy: str) -> bool:
    """Whether a service is on this machine or among the hosts of NO_PROXY."""
    name, port, address = ascii_name(origin.name), str(origin.port), _address(origin.name.partition("%")[0])
    if name == "localhost" or address is not None and address.is_loopback:
        return True
    entries = [entry.strip().lower() for entry in no_proxy.split(",")]
    return any(entry == "*" or bool(entry) and _matches(entry, name, port, address) for entry in entries)


def _matches(entry: str, name: str, port: str, address: _Address | None) -> bool:
    network = _network(entry)
    if network is not None:
        return address is not None and address in network
    host, only = _split_port(entry)
    if only not in ("", port) or not host:
        return False
    wanted = _address(host)
    if wanted is not None or address is not None:
        return wanted == address
    host = host[1:] if host.startswith("*.") else host
    if host.startswith("."):
        return name.endswith(ascii_name(host[1:], "."))
    return name == ascii_name(host) or name.endswith(ascii_name(host, "."))


def _address(text: str) -> _Address | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return None if "%" in text else mapped or address


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    address, slash, size = text.partition("/")
    if not slash or not (size.isascii() and size.isdecimal()) or "%" in address:
        return None
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None
    mapped = network.network_address.ipv4_mapped if isinstance(network, ipaddress.IPv6Network) else None
    return network if mapped is None else ipaddress.ip_network((mapped, max(0, network.prefixlen - 96)))


def _split_port(entry: str) -> tuple[str, str]:
    """The host and the port of an entry, as Go's net.SplitHostPort has them; without a port, the entry and nothing."""
    if entry.startswith("["):
        host, bracket, port = entry[1:].partition("]")
        return (host, port[1:]) if bracket and port.startswith(":") and ":" not in port[1:] else (entry, "")
    host, colon, port = entry.partition(":")
    return (host, port) if colon and ":" not in port else (entry, "")


def ascii_name(name: str, before: str = "") -> str:
    """A host's name as it is on the wire, after another text."""
    try:
        return before + (name if name.isascii() else name.encode("idna").decode())
    except UnicodeError:
        return before + name
