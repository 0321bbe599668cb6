"""From a word that an operator types to the object it names. Pure."""

from protocol.errors import ClientError
from protocol.ids import parse_command_id
from skulk_tui.table_model import Ref
from skulk_tui.view_state import ViewState


def ref_named(view: ViewState, kind: str, word: str) -> Ref:
    """Give the node, model or instance of a name or id; an instance also by the start of its id.

    Commands and other kinds are named by their id alone.

    Raises:
        ClientError: `client.usage`: there is none, or there are several.
        RequestError: `request.invalid_id`: a command has no such id.
    """
    if kind == "command":
        return Ref(kind=kind, id=parse_command_id(word))
    if kind not in {"node", "model", "instance"}:
        return Ref(kind=kind, id=word)
    candidates = _candidates(view, kind)
    found = [ref for ref, _ in candidates if ref.id == word]
    found = found or [ref for ref, names in candidates if word in names]
    if not found and kind == "instance":
        found = [ref for ref, _ in candidates if ref.id.startswith(word)]
    if not found:
        raise ClientError(
            "client.usage",
            f"there is no {kind} {word[:60]!r}",
            remediation="Tab completes the names that there are.",
        )
    if len(found) > 1:
        raise ClientError(
            "client.usage",
            f"there are {len(found)} {kind}s {word[:60]!r}",
            remediation=f"Name one by its id: {', '.join(ref.id for ref in found[:4])}.",
        )
    return found[0]


def _candidates(view: ViewState, kind: str) -> list[tuple[Ref, set[str]]]:
    if kind == "node":
        members = [node.member for node in view.nodes]
        return [
            (Ref(kind=kind, id=one.node_id, name=one.name), {one.name, one.node_id})
            for one in members
        ]
    if kind == "model":
        return [(Ref(kind=kind, id=one.id), {one.id, one.name}) for one in view.models]
    return [
        (Ref(kind=kind, id=one.instance_id, name=one.model_id), {one.instance_id, one.model_id})
        for one in view.instances
    ]


def url_of_node(view: ViewState, word: str) -> str:
    """Give where a node serves HTTP, by its name or id; an address is taken as it is.

    Raises:
        ClientError: `client.usage`: no such node, or it serves no HTTP.
    """
    if "." in word or ":" in word:
        return word
    ref = ref_named(view, "node", word)
    member = next(node.member for node in view.nodes if node.member.node_id == ref.id)
    address = member.dialled or (member.addresses[0] if member.addresses else "")
    host = address.rpartition(":")[0]
    if not host or not member.api_port:
        raise ClientError(
            "client.usage",
            f"{ref.shown} serves no HTTP that is known here",
            remediation="Open it there (`skulk api open`), and attach by its address.",
        )
    return f"{'https' if member.api_tls else 'http'}://{host}:{member.api_port}"
