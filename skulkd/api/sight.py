"""Whether a request's images can be shown to its model, before a byte of them is read. Pure."""

from protocol.errors import RequestError
from protocol.ids import ModelId
from protocol.instances import Instance
from protocol.state import ClusterState
from skulkd.api.dialects.fields import Fields, model_id_of
from skulkd.api.model_views import capabilities_of
from skulkd.api.selection import placed_instances
from skulkd.core.model_capabilities import sees

_MAX_NAMED = 5


def check_sight(state: ClusterState, fields: Fields, place: str) -> None:
    """Refuse an image for a model of which no copy sees.

    One that is not placed is left to whoever looks for its instances.

    Args:
        state: Of the cluster.
        fields: The request.
        place: Where the image stands in it.

    Raises:
        RequestError: `request.unsupported_field`; as of `model_id_of`.
    """
    copies = placed_instances(state, model_id_of(fields))
    if copies and not any(map(shows_images, copies)):
        raise blind(copies, place, tuple(state.instances.values()))


def shows_images(instance: Instance) -> bool:
    """Say whether an instance takes images."""
    return sees(instance.card, instance.plan.engine)


def blind(
    copies: list[Instance] | tuple[Instance, ...], place: str, placed: tuple[Instance, ...]
) -> RequestError:
    """Say that a model does not see, what it can do, and which models that are placed do see.

    Args:
        copies: Of the model, at least one.
        place: Where the image stands in the request.
        placed: All instances.
    """
    card = copies[0].card
    can = ", ".join(capabilities_of(card)) or "nothing that its card names"
    seeing: dict[ModelId, None] = dict.fromkeys(
        one.model_id for one in placed if one.phase == "ready" and shows_images(one)
    )
    named = ", ".join(sorted(seeing)[:_MAX_NAMED])
    return RequestError(
        "request.unsupported_field",
        f"`{place}` is an image, and {card.model_id} has no vision here; it can do: {can}",
        remediation=f"Ask a model that is placed and sees: {named}."
        if named
        else "Send text, or place a model that sees: `skulk models list` marks them with vision.",
        details={"param": place, "model_id": card.model_id, "seeing": named},
    )
