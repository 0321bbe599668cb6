"""Screen 4: what is being fetched, what lies on which disk, and what can go."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, final

from textual.events import Resize

from protocol.cluster_api import ClusterStorage
from protocol.control_api import TransferStatus
from protocol.errors import ClientError, SkulkError
from skulk_tui.changes import Change
from skulk_tui.formatting import format_duration
from skulk_tui.lines import line, span
from skulk_tui.naming import ref_named
from skulk_tui.screens.cluster_rows import short_model
from skulk_tui.screens.store_changes import cancel, limit, pause, prune, pull, resume, verify
from skulk_tui.screens.store_rows import (
    STORED_FACETS,
    TRANSFER_COLUMNS,
    TRANSFER_FACETS,
    Disks,
    disks_of,
    free_line,
    nodes_holding,
    ref_of_transfer,
    stored_columns,
    stored_rows,
    transfer_lines,
    transfer_of,
    transfer_rows,
    transfers_state,
)
from skulk_tui.screens.view import Handler, Values, View
from skulk_tui.seat import Seat
from skulk_tui.table_model import Ref, TableModel
from skulk_tui.transfer_rate import read_rate
from skulk_tui.view_state import Changes
from skulk_tui.widgets.pane import Pane, TablePane, TextPane

LOOK_AGAIN_S: Final = 10.0
"""Disks are asked for: nothing tells when a file has gone."""


@final
class StoreView(View):
    """The screen Store."""

    view_id: ClassVar[str] = "store"
    title: ClassVar[str] = "Store"

    def __init__(self, seat: Seat) -> None:
        super().__init__(seat)
        dash = seat.glyphs.rule
        self.disks = Disks()
        self._is_asking = False
        self._asked_at: float | None = None
        self._problem: SkulkError | None = None
        self._under_way: set[Ref] = set()
        self.transfers = TablePane(
            "transfers",
            "Transfers",
            TableModel(TRANSFER_COLUMNS, facets=TRANSFER_FACETS),
            empty=("nothing is being fetched; n on a model fetches it",),
            dash=dash,
        )
        self.stored = TablePane(
            "stored",
            "On disk",
            TableModel(
                stored_columns(self.disks, seat.view),
                facets=STORED_FACETS,
                sort="model",
                paged="nodes",
            ),
            empty=("no answer about the disks has come yet",),
            dash=dash,
        )
        self.detail = TextPane("detail", "", dash=dash)

    def panes(self) -> Sequence[Pane]:
        """Transfers move; they come first."""
        return (self.transfers, self.stored, self.detail)

    def handlers(self) -> Mapping[str, Handler]:
        """Give what the keys of this screen do."""
        return {
            "store.cancel": self._cancel,
            "store.pause": self._pause,
            "store.resume": self._resume,
            "store.limit": self._limit,
            "store.verify": self._verify,
            "store.pull": self._pull,
            "store.prune": self._prune,
            "store.open": self._open,
            "store.next_nodes": lambda _: self._turn_page(1),
            "store.previous_nodes": lambda _: self._turn_page(-1),
        }

    def on_shown(self) -> None:
        """Ask for the disks."""
        self._ask()

    def tick(self) -> None:
        """Ask for the disks again, once in a while."""
        if self._asked_at is None or self.seat.now() - self._asked_at >= LOOK_AGAIN_S:
            self._ask()

    def commit(self, changes: Changes | None) -> None:
        """Show what changed."""
        del changes
        view, glyphs = self.seat.view, self.seat.glyphs
        running = {ref_of_transfer(one) for one in view.transfers if one.state == "running"}
        if self._under_way - running:
            self._ask()  # what has ended lies on a disk now, or not
        self._under_way = running
        self.transfers.model.set_rows(transfer_rows(view, glyphs))
        self.transfers.note = transfers_state(view)
        self.stored.model.set_columns(stored_columns(self.disks, view))
        self.stored.model.set_rows(stored_rows(self.disks, view, glyphs))
        self.stored.note = self._age()
        self._show_free()
        if self._problem is not None:
            self.stored.empty = (self._problem.message, self._problem.remediation)
        elif self.disks.at is not None:
            self.stored.empty = ("no artifact lies on any disk; n on a model fetches one",)
        self._show_detail()
        self.redraw()

    def on_moved(self) -> None:
        """Show the object that the cursor has come to."""
        self._show_detail()

    def on_resize(self, event: Resize) -> None:
        """Say how much room there is on the nodes that fit now."""
        del event
        self.call_after_refresh(self._show_free)

    # ---- Nodes by pages ----

    def _turn_page(self, by: int) -> None:
        if self.stored.model.columns.turn_page(by, self.stored.size.width):
            self._show_free()
        else:
            self.seat.tell("there are no further nodes on this side")

    def _show_free(self) -> None:
        shown = self.stored.model.columns.page_keys(self.stored.size.width)
        self.stored.foot = free_line(self.disks, self.seat.view, shown)
        self.stored.redraw()

    # ---- Disks ----

    def _ask(self) -> None:
        if not self._is_asking and self.seat.link.view.may_change:
            self._is_asking = True
            self._asked_at = self.seat.now()
            self.run_worker(self._ask_disks(), exit_on_error=False)

    async def _ask_disks(self) -> None:
        try:
            answer = await self.seat.link.request("GET", "/store/storage", ClusterStorage)
            self.disks = disks_of(answer, at=self.seat.now())
            self._problem = None
        except SkulkError as error:
            self._problem = error
        finally:
            self._is_asking = False
        self.commit(None)

    def _age(self) -> str:
        if self.disks.at is None:
            return ""
        age_s = self.seat.now() - self.disks.at
        return "" if age_s < LOOK_AGAIN_S else f"{format_duration(age_s)} old"

    # ---- The object under the cursor ----

    def _show_detail(self) -> None:
        pane = self.stored if self.focused_pane is self.stored else self.transfers
        ref = pane.model.cursor
        transfer = transfer_of(ref, self.seat.view) if ref is not None else None
        if transfer is not None:
            lines = transfer_lines(transfer, self.seat.view, utc_offset_s=self.seat.utc_offset_s)
            self.detail.show(lines, title=transfer.model_id)
        elif ref is not None:
            held = [
                line(
                    span(f"{self.seat.view.name_of(node_id)}  ", "strong"),
                    span(item.path or "path not told"),
                    span("  used where it lies, outside the store" if item.linked else ""),
                    span(f"  damaged: {', '.join(item.damaged)}" if item.damaged else "", "bad"),
                )
                for node_id, item in nodes_holding(self.disks, ref.id)
            ]
            self.detail.show(held, title=ref.id)
        else:
            self.detail.show((), title="")

    async def _open(self, values: Values) -> None:
        del values
        for ref in self.selection[:1]:
            model_id = ref.id if ref.kind == "stored" else ref.id.partition("/")[2]
            await self.seat.open_ref(Ref(kind="model", id=model_id))

    # ---- Changes ----

    def _cancel(self, values: Values) -> None:
        transfer = self._meant(values)
        if transfer is not None:
            self.seat.confirm(cancel(self.seat, transfer))

    def _pause(self, values: Values) -> None:
        transfer = self._meant(values)
        if transfer is not None:
            is_command = bool(values.get("transfer"))
            is_paused = transfer.state == "paused" and not is_command
            self.seat.confirm((resume if is_paused else pause)(self.seat, transfer))

    def _resume(self, values: Values) -> None:
        transfer = self._meant(values)
        if transfer is not None:
            self.seat.confirm(resume(self.seat, transfer))

    def _limit(self, values: Values) -> None:
        rate_mb_s = read_rate(values.get("rate", ""))
        words = [word for word in values.get("nodes", "").split(",") if word]
        node_ids = [ref_named(self.seat.view, "node", word).id for word in words]
        there = [
            node.member.node_id for node in self.seat.view.nodes if node.member.liveness == "alive"
        ]
        self.seat.confirm(limit(self.seat, rate_mb_s, node_ids or there))

    def _verify(self, values: Values) -> None:
        model_id = values.get("model", "")
        if not model_id and self.selection:
            ref = self.selection[0]
            model_id = ref.id.partition("/")[2] if ref.kind == "transfer" else ref.id
        if not model_id:
            raise ClientError("client.usage", "no model is chosen", remediation=":verify MODEL")
        model = ref_named(self.seat.view, "model", model_id)
        held = [node for node, item in nodes_holding(self.disks, model.id) if not item.linked]
        if not held:
            raise ClientError("client.usage", f"no store holds files of {model.id}")
        self.seat.confirm(verify(self.seat, model.id, held))

    def _meant(self, values: Values) -> TransferStatus | None:
        """Give the transfer that a command names, or the one under the cursor."""
        if values.get("transfer"):
            return transfer_named(self.seat, values["transfer"], values.get("node", ""))
        selected = (transfer_of(ref, self.seat.view) for ref in self.selection[:1])
        return next((one for one in selected if one is not None), None)

    def _pull(self, values: Values) -> None:
        self.seat.confirm(pull_change(self.seat, self.selection, values, self.disks))

    def _prune(self, values: Values) -> None:
        del values
        models = [ref.id for ref in self.stored.selection]
        self.seat.confirm(prune(self.seat, models, self.disks))


def transfer_named(seat: Seat, model: str, node: str) -> TransferStatus:
    """Give the transfer of a model that is under way: to the node that is named, or the only one.

    Raises:
        ClientError: `client.usage`: there is none, or there are several.
    """
    node_id = ref_named(seat.view, "node", node).id if node else ""
    found = [
        one
        for one in seat.view.transfers
        if one.state in {"running", "paused"}
        and model in {one.model_id, short_model(one.model_id)}
        and node_id in {"", one.node_id}
    ]
    if len(found) == 1:
        return found[0]
    names = ", ".join(seat.view.name_of(one.node_id) for one in found)
    raise ClientError(
        "client.usage",
        f"{model[:60]} is fetched by {names}" if found else f"nobody fetches {model[:60]}",
        remediation="Name the node too: `MODEL on NODE`."
        if found
        else "Transfers stand on the screen Store.",
    )


def pull_change(seat: Seat, selection: Sequence[Ref], values: Values, disks: Disks) -> Change:
    """Plan a download from a command's words, or from what is selected.

    Without nodes named it goes to the transfer's own node, or to the node attached to.

    Raises:
        ClientError: `client.usage`: no model, no such model or node, or it lies there already.
    """
    node_ids: list[str] = []
    model_id = values.get("model", "")
    for ref in selection[:1] if not model_id else ():
        if ref.kind == "transfer":
            node_id, _, model_id = ref.id.partition("/")
            node_ids = [node_id]
        elif ref.kind in {"stored", "model"}:
            model_id = ref.id
    if not model_id:
        raise ClientError("client.usage", "no model is chosen", remediation=":pull MODEL [on A,B]")
    model = ref_named(seat.view, "model", model_id)
    if values.get("nodes"):
        words = values["nodes"].split(",")
        node_ids = [ref_named(seat.view, "node", word).id for word in words if word]
    if not node_ids and seat.view.hello is not None:
        node_ids = [seat.view.hello.node_id]
    whole = {node_id for node_id, item in nodes_holding(disks, model.id) if not item.damaged}
    lacking = [node_id for node_id in node_ids if node_id not in whole]
    if not lacking:
        raise ClientError(
            "client.usage",
            f"{model.id} lies there already",
            remediation="Name other nodes: `:pull MODEL on A,B`.",
        )
    return pull(seat, model.id, lacking)
