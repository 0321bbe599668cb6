"""Which view is shown: five roots that stay, details opened on top of them, and the one before."""

from collections.abc import Callable, Mapping
from typing import final

from textual.containers import Container

from skulk_tui.screens.view import View
from skulk_tui.seat import Seat
from skulk_tui.table_model import Ref

RootFactory = Callable[[Seat], View]
DetailFactory = Callable[[Seat, Ref], View]


@final
class ViewStack(Container):
    """The body.

    Args:
        seat: The run.
        roots: Makes each root when it is first shown.
        details: Makes a detail of each kind of object.
        prepare: Is given each view before it is shown.
    """

    def __init__(
        self,
        seat: Seat,
        roots: Mapping[str, RootFactory],
        details: Mapping[str, DetailFactory],
        *,
        prepare: Callable[[View], None],
    ) -> None:
        super().__init__(id="body")
        self._prepare = prepare
        self._seat = seat
        self._make_root = roots
        self._make_detail = details
        self._roots: dict[str, View] = {}
        self._open: list[View] = []
        self._root = next(iter(roots))
        self._last: tuple[str, Ref | None] | None = None

    @property
    def root_id(self) -> str:
        """Id of the root that is shown, or lies under what is."""
        return self._root

    @property
    def current(self) -> View | None:
        """The view that is shown; None before the first."""
        return self._open[-1] if self._open else self._roots.get(self._root)

    @property
    def crumbs(self) -> tuple[str, ...]:
        """What is open on top of the root."""
        return tuple(view.ref.shown for view in self._open if view.ref is not None)

    @property
    def detail_kinds(self) -> frozenset[str]:
        """Kinds of objects that can be opened."""
        return frozenset(self._make_detail)

    def root(self, root_id: str) -> View | None:
        """Give a root, if it has been shown yet."""
        return self._roots.get(root_id)

    async def go(self, root_id: str) -> None:
        """Show a root, closing what is open on top of another."""
        self._remember()
        await self._close_details()
        if root_id != self._root or self._root not in self._roots:
            self._hide(self._roots.get(self._root))
            self._root = root_id
            if root_id not in self._roots:
                self._roots[root_id] = self._make_root[root_id](self._seat)
                await self.mount(self._roots[root_id])
        self._show()

    async def open(self, ref: Ref) -> bool:
        """Open an object on top; False where objects of its kind have no view."""
        make = self._make_detail.get(ref.kind)
        if make is None:
            return False
        current = self.current
        if current is not None and current.ref == ref:
            return True
        self._remember()
        self._hide(current)
        view = make(self._seat, ref)
        self._open.append(view)
        await self.mount(view)
        self._show()
        return True

    async def back(self) -> bool:
        """Close what is open on top; False at a root."""
        if not self._open:
            return False
        self._remember()
        view = self._open.pop()
        view.on_hidden()
        await view.remove()
        self._show()
        return True

    async def last(self) -> None:
        """Go to the view before this one."""
        if self._last is None:
            return
        root_id, ref = self._last
        if root_id != self._root or ref is None:
            await self.go(root_id)
        if ref is not None:
            await self.open(ref)

    async def reset(self) -> None:
        """Make all views anew: another cluster is attached."""
        await self._close_details()
        for view in self._roots.values():
            view.on_hidden()
            await view.remove()
        self._roots.clear()
        self._last = None
        await self.go(self._root)

    def _remember(self) -> None:
        if self.current is not None:
            self._last = (self._root, self.current.ref)

    def _hide(self, view: View | None) -> None:
        if view is not None:
            view.display = False
            view.on_hidden()

    def _show(self) -> None:
        view = self.current
        if view is None:
            return
        self._prepare(view)
        view.display = True
        view.on_shown()
        view.commit(None)
        view.focus_first()

    async def _close_details(self) -> None:
        while self._open:
            view = self._open.pop()
            view.on_hidden()
            await view.remove()
