"""Which node is asked, with which key, and by which rule each was chosen. One resolver for all.

Order for the node: `--node`, `--cluster`, SKULK_NODE, SKULK_CLUSTER, the current profile, loopback.
Order for the key: SKULK_API_KEY, the file named by SKULK_API_KEY_FILE, the profile's file, the file
`api_key` in the configuration directory. A key is never taken from the command line, where every
user of the machine could read it.
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
from skulk_tui.own_files import CONFIG_FILE, may_exist

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
    """Which rule named the node: `--node`, `--cluster NAME`, `SKULK_NODE`, `SKULK_CLUSTER NAME`,
    `current profile NAME` or `default`."""
    api_key: str | None = None
    key_rule: str = "none"
    """Where the key comes from: a variable's name, a file's path, `prompt` or `none`."""
    insecure: bool = False
    """The operator allowed a key over plain HTTP beyond this machine."""
    seeds: tuple[str, ...] = ()
    """Further addresses of the same cluster, tried when this one does not answer."""
    profile: str = ""
    """The profile's name; empty where none was chosen."""
    protect: bool = False
    """The profile wants every change asked about."""
    readonly: bool = False
    """The profile, or SKULK_READONLY, wants nothing changed."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """All addresses, in the order in which they are tried."""
        return (self.url, *self.seeds)

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
    node: str | None,
    environ: Mapping[str, str],
    *,
    config_dir: Path,
    insecure: bool = False,
    cluster: str | None = None,
) -> Target:
    """Choose the node and the key.

    Raises:
        ClientError: `client.usage` for a bad URL, an unknown profile, or an unusable file.
    """
    if node:
        return _at_node(node, "--node", environ, config_dir, insecure=insecure)
    if cluster:
        return _at_profile(cluster, "--cluster", environ, config_dir, insecure=insecure)
    if environ.get("SKULK_NODE"):
        return _at_node(environ["SKULK_NODE"], "SKULK_NODE", environ, config_dir, insecure=insecure)
    if environ.get("SKULK_CLUSTER"):
        name = environ["SKULK_CLUSTER"]
        return _at_profile(name, "SKULK_CLUSTER", environ, config_dir, insecure=insecure)
    current = _current_profile(config_dir)
    if current is not None:
        return _at_profile(current, "current profile", environ, config_dir, insecure=insecure)
    return _at_node(DEFAULT_NODE, "default", environ, config_dir, insecure=insecure)


def _current_profile(config_dir: Path) -> str | None:
    # Most machines have no such file, and what reads it takes a while to load.
    if not may_exist(config_dir / CONFIG_FILE):
        return None
    from skulk_tui.profiles import read_config

    return read_config(config_dir).current


def _at_node(
    node: str, rule: str, environ: Mapping[str, str], config_dir: Path, *, insecure: bool
) -> Target:
    api_key, key_rule = _find_key(environ, config_dir, None)
    return Target(
        url=parse_node_url(node, rule),
        url_rule=rule,
        api_key=api_key,
        key_rule=key_rule,
        insecure=insecure,
        readonly=_wants_readonly(environ),
    )


def _at_profile(
    name: str, rule: str, environ: Mapping[str, str], config_dir: Path, *, insecure: bool
) -> Target:
    from skulk_tui.profiles import key_path, read_config

    profile = read_config(config_dir).named(name, rule)
    urls = [parse_node_url(seed, f"a seed of the profile {name}") for seed in profile.seeds]
    url, *seeds = dict.fromkeys(urls)
    api_key, key_rule = _find_key(environ, config_dir, key_path(config_dir, name))
    return Target(
        url=url,
        url_rule=f"{rule} {name}",
        api_key=api_key,
        key_rule=key_rule,
        insecure=insecure or profile.insecure,
        seeds=tuple(seeds),
        profile=name,
        protect=profile.protect,
        readonly=profile.readonly or _wants_readonly(environ),
    )


def _wants_readonly(environ: Mapping[str, str]) -> bool:
    return bool(environ.get("SKULK_READONLY"))


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


def _find_key(
    environ: Mapping[str, str], config_dir: Path, of_profile: Path | None
) -> tuple[str | None, str]:
    if environ.get("SKULK_API_KEY"):
        return check_key(environ["SKULK_API_KEY"], "SKULK_API_KEY"), "SKULK_API_KEY"
    named = environ.get("SKULK_API_KEY_FILE")
    if named:
        api_key = _read_key(Path(named).expanduser())
        if api_key is None:
            raise ClientError(
                "client.usage",
                f"SKULK_API_KEY_FILE names {named}, which does not exist",
                remediation="Write the key there with mode 0600, or unset the variable.",
            )
        return api_key, str(Path(named).expanduser())
    for path in (of_profile, config_dir / "api_key"):
        api_key = _read_key(path) if path is not None else None
        if api_key is not None:
            return api_key, str(path)
    return None, "none"


def _read_key(path: Path) -> str | None:
    """Read a key file; None where there is none."""
    try:
        return _read_private(path)
    except FileNotFoundError:
        return None
    except OSError as wrong:
        raise ClientError(
            "client.usage",
            f"the key file {path} cannot be read: {wrong.strerror or wrong}",
            remediation="Make it readable for you alone (mode 0600).",
        ) from wrong


def _read_private(path: Path) -> str:
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
