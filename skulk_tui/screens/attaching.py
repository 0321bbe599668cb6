"""Going over to another node of the cluster, or to another cluster that is saved."""

import string
from collections.abc import Sequence
from typing import Final

from protocol.errors import ClientError
from skulk_tui.changes import Option
from skulk_tui.naming import url_of_node
from skulk_tui.screens.view import Values
from skulk_tui.seat import Seat
from skulk_tui.tasks import run_blocking

_LETTERS: Final = string.ascii_lowercase + string.digits


async def attach(seat: Seat, values: Values) -> None:
    """Go on through another node: the one that is named, or one that is chosen.

    Raises:
        ClientError: `client.usage`: there is none of that name.
    """
    word = values.get("node") or await _choose(seat, "Go on through", _nodes(seat))
    if word is None:
        return
    url = url_of_node(seat.view, word)
    seat.link.attach(url)
    seat.tell(f"going on through {word} at {url}")


async def use(seat: Seat, values: Values) -> bool:
    """Go over to another cluster: the one that is named, or one that is chosen.

    Needs no network: the cluster in front may be out of reach. False where none was chosen.

    Raises:
        ClientError: `client.usage`: there is none of that name, or its key cannot be read.
    """
    clusters = seat.clusters
    if clusters is None:
        return False
    await run_blocking(clusters.read)
    if not clusters.names:
        raise ClientError(
            "client.usage",
            "no cluster is saved",
            remediation="`skulk cluster save NAME ADDRESS...` saves one; :attach takes an address.",
        )
    known = [(name, f"{name}  {', '.join(clusters.seeds(name)[:3])}") for name in clusters.names]
    name = values.get("cluster") or await _choose(seat, "Go over to", known)
    if name is None:
        return False
    target = await run_blocking(clusters.target, name)
    if seat.stop_streams is not None:
        seat.stop_streams()
    seat.link.use(target)
    seat.profile = target.profile
    seat.is_protected = target.protect
    seat.is_readonly = seat.is_always_readonly or target.readonly
    seat.undo = seat.paused_since = None
    seat.tell(f"going over to {name} at {target.url}")
    return True


def _nodes(seat: Seat) -> Sequence[tuple[str, str]]:
    """Give what can be attached to, each with how it is shown: members, then other addresses."""
    own = seat.view.hello.node_id if seat.view.hello is not None else ""
    members = [node.member for node in seat.view.nodes if node.member.api_port]
    found = [
        (one.name, f"{one.name}  {one.liveness}{'  attached now' if one.node_id == own else ''}")
        for one in members
    ]
    return [*found, *((url, url) for url in seat.link.addresses)]


async def _choose(seat: Seat, title: str, known: Sequence[tuple[str, str]]) -> str | None:
    if seat.shell is None:
        return None
    lettered = list(zip(_LETTERS, known, strict=False))
    options = [Option(key=letter, title=shown) for letter, (_, shown) in lettered]
    chosen = await seat.shell.choose(title, options)
    return next((word for letter, (word, _) in lettered if letter == chosen), None)
