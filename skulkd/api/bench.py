"""`POST /bench/chat/completions`: one chat, whole, with what it took."""

from typing import final

from protocol.ids import CommandId
from skulkd.api.dialects.fields import Fields
from skulkd.api.dialects.openai_bench import BenchCall, Neighbours, refuse_several
from skulkd.api.dialects.openai_chat import parse_chat
from skulkd.api.http import Answer, Request
from skulkd.api.inference import ChatService
from skulkd.api.json_body import decode_object


@final
class BenchRoutes:
    """The benchmark's route.

    Args:
        chat: Serves what is measured, as it serves every chat.
    """

    def __init__(self, chat: ChatService) -> None:
        self._chat = chat

    async def chat(self, request: Request) -> Answer:
        """`POST /bench/chat/completions`."""
        fields = await decode_object(await request.body())
        return await self._chat.serve(request, {**fields, "stream": False}, self._parsed)

    def _parsed(self, body: Fields, *, command_id: CommandId) -> BenchCall:
        call = parse_chat(body, command_id=command_id)
        refuse_several(call)
        ready = self._chat.ready(call.task.model_id)
        neighbours = Neighbours(
            n_in_flight=self._chat.n_in_flight(ready),
            serves_several=any(instance.plan.slots > 1 for instance in ready),
        )
        return BenchCall(call, neighbours)
