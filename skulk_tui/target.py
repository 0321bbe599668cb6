"""Which node is asked, with which key, and by which rule each was chosen. One resolver for all.

Order for the node: `--node`, SKULK_NODE, loopback. Order for the key: SKULK_API_KEY, the file named
by SKULK_API_KEY_FILE, the file `api_key` in the configuration directory. A key is never taken from
the command line, where every user of the machine could read it.
"""

import ipaddress
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, urlsplit

from protocol.errors import ClientError

DEFAULT_PORT: Final = 52415
DEFAULT_NODE: Final = f"http://127.0.0.1:{DEFAULT_PORT}"
KEY_MAX_CHARS: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A node's address and the key to show it.

    Invariant: `url` is `scheme://host[:port]` without path, query, fragment or user.
    """

    url: str
    url_rule: str
    """Which rule named the node: `--node`, `SKULK_NODE` or `default`."""
    api_key: str | None = None
    key_rule: str = "none"
    """Where the key comes from: a variable's name, a file's path, `prompt` or `none`."""
    insecure: bool = False
    """The operator allowed a key over plain HTTP beyond this machine."""

    @property
    def is_loopback(self) -> bool:
        """Does traffic to the node stay on this machine?"""
        return is_loopback_host(urlsplit(self.url).hostname or "")

    @property
    def key_may_travel(self) -> bool:
        """May a key be sent: encrypted, on this machine, or allowed by name?"""
        return self.insecure or self.is_loopback or self.url.startswith("https://")

    def with_key(self, api_key: str, rule: str) -> "Target":
        """Give the same node with another key."""
        return replace(self, api_key=api_key, key_rule=rule)


def is_loopback_host(host: str) -> bool:
    """Is the host this machine, by name or address, without asking a resolver?"""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def resolve_target(
    node: str | None, environ: Mapping[str, str], *, config_dir: Path, insecure: bool = False
) -> Target:
    """Choose the node and the key.

    Raises:
        ClientError: `client.usage` for a bad URL or an unusable key file.
    """
    if node:
        url, rule = node, "--node"
    elif environ.get("SKULK_NODE"):
        url, rule = environ["SKULK_NODE"], "SKULK_NODE"
    else:
        url, rule = DEFAULT_NODE, "default"
    api_key, key_rule = _find_key(environ, config_dir)
    return Target(
        url=parse_node_url(url, rule),
        url_rule=rule,
        api_key=api_key,
        key_rule=key_rule,
        insecure=insecure,
    )


def parse_node_url(text: str, rule: str) -> str:
    """Check and complete a node's address: `host`, `host:port` and URLs are understood.

    Raises:
        ClientError: `client.usage`.
    """
    candidate = text.strip()
    try:
        split = urlsplit(candidate if "://" in candidate else f"http://{candidate}")
        port = split.port
    except ValueError as wrong:
        raise _bad_url(text, rule, str(wrong)) from wrong
    fault = _url_fault(split)
    if fault:
        raise _bad_url(text, rule, fault)
    host = f"[{split.hostname}]" if ":" in (split.hostname or "") else split.hostname
    if port is None and split.scheme == "https":
        return f"https://{host}"
    return f"{split.scheme}://{host}:{DEFAULT_PORT if port is None else port}"


def _url_fault(split: SplitResult) -> str:
    if split.scheme not in {"http", "https"}:
        return f"the scheme {split.scheme!r} is neither http nor https"
    if split.username is not None or split.password is not None:
        return "it carries a user or password; use SKULK_API_KEY or a key file"
    if split.path not in {"", "/"} or split.query or split.fragment:
        return "it carries a path or query; only scheme, host and port belong here"
    host = split.hostname or ""
    if not host or any(char.isspace() for char in host):
        return "it names no host"
    return ""


def _bad_url(text: str, rule: str, fault: str) -> ClientError:
    return ClientError(
        "client.usage",
        f"{rule} is not the address of a node: {text[:200]!r}: {fault}",
        remediation=f"Write it like {DEFAULT_NODE}.",
    )


def check_key(api_key: str, rule: str) -> str:
    """Accept a key's text: printable ASCII without spaces, so that it fits in a header.

    Raises:
        ClientError: `client.usage`; the key itself is never shown.
    """
    key = api_key.strip()
    if not key or len(key) > KEY_MAX_CHARS or not all("!" <= char <= "~" for char in key):
        raise ClientError(
            "client.usage",
            f"{rule} holds no API key: 1 to {KEY_MAX_CHARS} printable characters are expected",
            remediation="Make a key on the node with `skulk keys create NAME`.",
        )
    return key


def _find_key(environ: Mapping[str, str], config_dir: Path) -> tuple[str | None, str]:
    if environ.get("SKULK_API_KEY"):
        return check_key(environ["SKULK_API_KEY"], "SKULK_API_KEY"), "SKULK_API_KEY"
    named = environ.get("SKULK_API_KEY_FILE")
    path = Path(named).expanduser() if named else config_dir / "api_key"
    try:
        return _read_key(path), str(path)
    except FileNotFoundError:
        if named:
            raise ClientError(
                "client.usage",
                f"SKULK_API_KEY_FILE names {path}, which does not exist",
                remediation="Write the key there with mode 0600, or unset the variable.",
            ) from None
        return None, "none"
    except OSError as wrong:
        raise ClientError(
            "client.usage",
            f"the key file {path} cannot be read: {wrong.strerror or wrong}",
            remediation="Make it readable for you alone (mode 0600).",
        ) from wrong


def _read_key(path: Path) -> str:
    with path.open("rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ClientError(
                "client.usage",
                f"the key file {path} is open to other users (mode {stat.S_IMODE(mode):04o})",
                remediation=f"Run `chmod 600 {path}`.",
            )
        raw = file.read(KEY_MAX_CHARS * 2)
    return check_key(raw.decode("ascii", errors="replace"), f"the key file {path}")
