"""What can be changed in the store, each as plan, effect and `skulk` line."""

from collections.abc import Mapping, Sequence

from protocol.admin_api import ConfigDocument
from protocol.control_api import TransferStatus
from protocol.errors import ClientError
from protocol.storage_api import RemovedModel
from protocol.verify_api import VerifyStatus
from skulk_tui.changes import Change, Option, Sent
from skulk_tui.client import path_of
from skulk_tui.formatting import format_bytes
from skulk_tui.frozen import still_so
from skulk_tui.lines import Line, Span, line, span
from skulk_tui.screens.store_rows import Disks, nodes_holding, ref_of_transfer
from skulk_tui.seat import Seat
from skulk_tui.transfer_rate import RATE_KEY, rate_body
from skulk_tui.transfer_waiters import waiting_for


def pull(seat: Seat, model_id: str, node_ids: Sequence[str]) -> Change:
    """Plan a download to some nodes; what has come of an earlier one is kept and gone on with."""
    entry = next((one for one in seat.view.models if one.id == model_id), None)
    size = entry.storage_size_bytes if entry else None
    names = [seat.view.name_of(node_id) for node_id in node_ids]

    async def send(option: str) -> Sent:
        del option
        path = path_of("/store/models/{}/download", model_id)
        for node_id in node_ids:
            await seat.link.request("POST", path, TransferStatus, query={"node": node_id})
        return Sent(message=f"{model_id} is being fetched by {', '.join(names)}")

    return Change(
        title=f"Pull {model_id}",
        effect=(
            line("Fetches ", span(f"{format_bytes(size)} to each of ", "strong"),
                 span(", ".join(names), "strong"), "."),
            line("From a node that has it where there is one, else from the model's source."),
        ),
        cli=" ".join(["skulk models pull", model_id, *(f"--on {name}" for name in names)]),
        options=(Option(key="n", title="fetch now"),),
        send=send,
    )  # fmt: skip


def cancel(seat: Seat, transfer: TransferStatus) -> Change:
    """Plan the end of a transfer; what has come stays, for a later pull to go on from."""
    name = seat.view.name_of(transfer.node_id)

    async def send(option: str) -> Sent:
        del option
        path = path_of("/store/models/{}/download", transfer.model_id)
        await seat.link.request("DELETE", path, TransferStatus, query={"node": transfer.node_id})
        again = pull(seat, transfer.model_id, (transfer.node_id,))
        return Sent(message=f"{transfer.model_id} is no longer fetched by {name}", undo=again)

    done = f"{format_bytes(transfer.done_bytes)} of {format_bytes(transfer.total_bytes)}"
    return Change(
        title=f"Cancel {transfer.model_id} on {name}",
        effect=(line(span(done, "strong"), " have come; they stay, and a later pull goes on."),),
        cli=f"skulk models pull {transfer.model_id} --on {name} --cancel",
        options=(Option(key="x", title="cancel the transfer"),),
        send=send,
        is_still_so=still_so(seat.view, [ref_of_transfer(transfer)]),
    )


def pause(seat: Seat, transfer: TransferStatus) -> Change:
    """Plan a pause: at once, since resuming takes it back."""
    return _paused(seat, transfer, "pause", "resume")


def resume(seat: Seat, transfer: TransferStatus) -> Change:
    """Plan that a paused transfer goes on, at once."""
    return _paused(seat, transfer, "resume", "pause")


def _paused(seat: Seat, transfer: TransferStatus, deed: str, opposite: str | None) -> Change:
    """Plan a pause or its end; `opposite` takes it back, None where it is that itself."""
    name = seat.view.name_of(transfer.node_id)
    waiting = waiting_for(seat.view.instances, transfer.model_id, transfer.node_id)

    async def send(option: str) -> Sent:
        del option
        path = path_of(f"/store/models/{{}}/download/{deed}", transfer.model_id)
        status = await seat.link.request(
            "POST", path, TransferStatus, query={"node": transfer.node_id}
        )
        undo = None if opposite is None else _paused(seat, status, opposite, None)
        what = f"{transfer.model_id} on {name}"
        if deed == "resume":
            return Sent(message=f"{what} goes on", undo=undo)
        who = f"; {len(waiting)} placed wait for it" if waiting else ""
        return Sent(message=f"{what} is paused{who}: :resume goes on", undo=undo)

    done = f"{format_bytes(transfer.done_bytes)} of {format_bytes(transfer.total_bytes)}"
    kept = line(span(done, "strong"), " have come; they stay, over restarts too.")
    waits = line(f"Placed, and waiting for it: {', '.join(waiting)}.")
    return Change(
        title=f"{deed.capitalize()} {transfer.model_id} on {name}",
        effect=(kept, waits) if waiting else (kept,),
        cli=f"skulk store {deed} {transfer.model_id} --on {name}",
        options=(Option(key="p", title=deed),),
        send=send,
        is_at_once=True,
        is_still_so=still_so(seat.view, [ref_of_transfer(transfer)]),
    )


def limit(seat: Seat, rate_mb_s: int | None, node_ids: Sequence[str]) -> Change:
    """Plan another rate of transfers on some nodes, at once; undone, each has its own again."""
    return _limits(seat, dict.fromkeys(node_ids, rate_mb_s), is_undo=False)


def _limits(seat: Seat, rates: Mapping[str, int | None], *, is_undo: bool) -> Change:
    names = [seat.view.name_of(node_id) for node_id in rates]
    words = {
        seat.view.name_of(node_id): "off" if rate is None else f"{rate}MB/s"
        for node_id, rate in rates.items()
    }
    wanted = ", ".join(f"{word} on {name}" for name, word in words.items())

    async def send(option: str) -> Sent:
        del option
        before: dict[str, int | None] = {}
        for node_id, rate in rates.items():
            query = {"node": node_id}
            known = await seat.link.request("GET", "/config", ConfigDocument, query=query)
            in_file = known.node.file.get(RATE_KEY)
            before[node_id] = in_file if isinstance(in_file, int) else None
            await seat.link.request("PUT", "/config", ConfigDocument, rate_body(rate), query=query)
        undo = None if is_undo else _limits(seat, before, is_undo=True)
        return Sent(message=f"transfers are limited: {wanted}", undo=undo)

    return Change(
        title="Limit transfers",
        effect=(line("Sent to other nodes, and fetched from outside: ", span(wanted, "strong")),),
        cli=" ".join(
            ["skulk store limit", next(iter(words.values()), "off"), *(f"--on {n}" for n in names)]
        ),
        options=(Option(key="l", title="limit"),),
        send=send,
        is_at_once=True,
    )


def verify(seat: Seat, model_id: str, node_ids: Sequence[str]) -> Change:
    """Plan that some nodes hash a model's files again, at once; undone, they stop."""
    return _verifying(seat, model_id, node_ids, is_undo=False)


def _verifying(seat: Seat, model_id: str, node_ids: Sequence[str], *, is_undo: bool) -> Change:
    names = ", ".join(seat.view.name_of(node_id) for node_id in node_ids)

    async def send(option: str) -> Sent:
        del option
        path = path_of("/store/models/{}/verify", model_id)
        for node_id in node_ids:
            method = "DELETE" if is_undo else "POST"
            await seat.link.request(method, path, VerifyStatus, query={"node": node_id})
        if is_undo:
            return Sent(message=f"{model_id} is no longer verified on {names}")
        undo = _verifying(seat, model_id, node_ids, is_undo=True)
        return Sent(
            message=f"{model_id} is verified on {names}; what is damaged gets an x", undo=undo
        )

    return Change(
        title=f"{'End verifying' if is_undo else 'Verify'} {model_id}",
        effect=(line("Hashes the files on ", span(names, "strong"), "; deletes nothing."),),
        cli=f"skulk store verify {model_id}{' --cancel' if is_undo else ''}",
        options=(Option(key="v", title="verify"),),
        send=send,
        is_at_once=True,
    )


def prune(seat: Seat, model_ids: Sequence[str], disks: Disks) -> Change:
    """Plan the removal of artifacts from all disks.

    Raises:
        ClientError: `client.usage`: one of them is in use, or none lies anywhere.
    """
    copies: list[tuple[str, str]] = []
    effect: list[Line] = []
    total = 0
    for model_id in model_ids:
        held = list(nodes_holding(disks, model_id))
        if any(item.in_use for _, item in held):
            raise ClientError(
                "client.usage",
                f"{model_id} is in use",
                remediation="Stop what runs it first, or leave it out.",
            )
        for node_id, item in held:
            copies.append((model_id, node_id))
            total += 0 if item.linked else item.size_bytes
            what = "its entry alone" if item.linked else format_bytes(item.size_bytes)
            effect.append(line(span(f"{model_id} on {seat.view.name_of(node_id)}: "), span(what)))
    if not copies:
        raise ClientError("client.usage", "nothing is chosen that lies on a disk")
    effect.append(line("Frees ", Span(format_bytes(total), "bad"), " in all."))

    async def send(option: str) -> Sent:
        del option
        freed = 0
        for model_id, node_id in copies:
            path = path_of("/store/models/{}", model_id)
            removed = await seat.link.request("DELETE", path, RemovedModel, query={"node": node_id})
            freed += removed.freed_bytes
        return Sent(message=f"{len(copies)} copies are gone; {format_bytes(freed)} are free again")

    return Change(
        title=f"Prune {len(model_ids)} of the store",
        effect=tuple(effect),
        cli=f"skulk models rm {' '.join(model_ids)}",
        options=(Option(key="x", title="remove now", is_default_danger=True),),
        send=send,
        typed_word="prune",
    )
