"""Operators and clients of simulated nodes: what they ask, how long they wait, what they judge."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, final

from skulkd.api.app import ApiApp
from tests.support.simulated_clients import SimulatedCall, SimulatedConnection, stream_fault
from tests.support.simulated_engine import word
from tests.support.simulated_story import Chat

OPERATOR_S: Final = 40.0
"""How long an operator's request may take: facts are waited for, a master, and a slow disk."""
CHAT_S: Final = 400.0
"""How long a chat may take, with two silent ones in front of it."""


@final
class People:
    """All who ask something in one history.

    Args:
        problems: Gets what does not hold.
        told: Gets what came of everything, in order.
        is_served: Says whether an engine works on a command.
        ends_s: From a cancel, or the loss of the client, to the end of all work for it.
    """

    def __init__(
        self,
        problems: list[str],
        told: list[str],
        *,
        is_served: Callable[[str], bool],
        ends_s: float,
    ) -> None:
        self.is_patient = False
        """Nobody stops reading any more."""
        self._problems = problems
        self._told = told
        self._is_served = is_served
        self._ends_s = ends_s
        self._tasks: list[asyncio.Task[object]] = []
        self._connections: list[SimulatedConnection] = []

    def begin(self, doing: Coroutine[Any, Any, object]) -> None:
        """Have somebody do something, while the history goes on."""
        task = asyncio.create_task(doing, name=f"person {len(self._tasks)}")
        self._tasks.append(task)

    async def wait_done(self) -> None:
        """Wait for everybody."""
        done = 0
        while done < len(self._tasks):
            done = len(self._tasks)
            await asyncio.gather(*self._tasks)

    def calm(self) -> None:
        """Have everybody read on."""
        self.is_patient = True
        for connection in self._connections:
            connection.choke(is_choked=False)

    async def ask(
        self, app: ApiApp, method: str, path: str, body: object = None, *, number: int = 1
    ) -> dict[str, Any]:
        """Ask as an operator; gives the answer's document where it was accepted."""
        call = SimulatedCall(app, method, path, body, number=number)
        if not await call.wait_over(OPERATOR_S):
            self._problems.append(f"{method} {path} took more than {OPERATOR_S:.0f} s")
            return {}
        document = call.document()
        self._tell(f"{method} {path} at {number}", call, document)
        return document if (call.connection.status or 500) < 300 else {}

    async def chat(self, act: Chat, app: ApiApp, *, number: int = 1) -> str:
        """Ask a model, and stay or do not; gives what came of it."""
        body = {
            "model": act.model,
            "messages": [{"role": "user", "content": "hi"}],
            "max_tokens": act.n_tokens,
            "stream": act.stream,
        }
        name = f"chat {len(self._connections)} at {number}"
        call = SimulatedCall(app, "POST", "/v1/chat/completions", body, number=number)
        self._connections.append(call.connection)
        bound_s = CHAT_S
        if act.manner != "read":
            await asyncio.sleep(act.changes_after_s)
            bound_s = await self._change(act, call)
        if not await call.wait_over(bound_s):
            self._problems.append(f"{name} was not over after {bound_s:.0f} s: {act}")
            return "late"
        command_id = command_id_of(call)
        if self._is_served(command_id):
            await asyncio.sleep(self._ends_s)
        if self._is_served(command_id):
            self._problems.append(f"{name} is over, and an engine works on it: {act}")
        return self._judge(name, act, call)

    async def _change(self, act: Chat, call: SimulatedCall) -> float:
        """Have the client do what it came for; gives how long the rest may take."""
        connection = call.connection
        match act.manner:
            case "cancel":
                command_id = command_id_of(call)
                if not command_id or call.is_over:
                    return CHAT_S
                path = f"/v1/cancel/{command_id}"
                cancel = SimulatedCall(call.app, "POST", path, number=call.number)
                await cancel.wait_over(self._ends_s)
                return self._ends_s if cancel.connection.status == 200 else CHAT_S
            case "leave":
                connection.lose()
                return self._ends_s
            case _:
                connection.choke(is_choked=not self.is_patient)
                return CHAT_S

    def _judge(self, name: str, act: Chat, call: SimulatedCall) -> str:
        connection = call.connection
        if call.was_cut or connection.is_lost:
            self._told.append(f"{name}: cut {call.was_cut}, left {connection.is_lost}")
            return "cut"
        if connection.status == 200 and act.stream:
            outcome, fault = stream_fault(connection.body, n_tokens=act.n_tokens)
            if not connection.is_complete:
                fault = fault or "the response does not end"
            if fault:
                self._problems.append(f"{name}: {fault}: {act}")
            self._told.append(f"{name}: {outcome} {connection.body.count(b'data:')}")
            return outcome
        document = call.document()
        self._tell(name, call, document)
        if connection.status == 200:
            text = document["choices"][0]["message"]["content"]
            if text != "".join(word(index) for index in range(act.n_tokens)):
                self._problems.append(f"{name}: the answer is {text[:200]!r}")
            return "finished"
        return f"{connection.status}"

    def _tell(self, name: str, call: SimulatedCall, document: dict[str, Any]) -> None:
        status = call.connection.status
        code = ""
        if status is not None and status >= 300:
            error: dict[str, Any] = document.get("error", {})
            code = str(error.get("skulk_code") or error.get("code"))
        if code == "internal.bug" or call.fault():
            self._problems.append(f"{name}: {call.fault() or document}")
        if status is None and not call.was_cut:
            self._problems.append(f"{name} was not answered")
        self._told.append(f"{name}: {status} {code}")


def command_id_of(call: SimulatedCall) -> str:
    """Read the id of a stream's command; empty where nothing has arrived."""
    return call.connection.body.partition(b": command_id ")[2].partition(b"\n")[0].decode()
