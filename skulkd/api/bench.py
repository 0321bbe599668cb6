"""`POST /bench/chat/completions`: one chat, whole, with what it took."""

from collections.abc import Iterable
from typing import final

from protocol.ids import CommandId, NodeId
from skulkd.api.dialects.fields import Fields
from skulkd.api.dialects.openai_bench import BenchCall, Neighbours, refuse_several
from skulkd.api.dialects.openai_chat import parse_chat
from skulkd.api.dialects.pictures import Pictures
from skulkd.api.http import Answer, Request
from skulkd.api.inference import ChatService
from skulkd.api.json_body import decode_object
from skulkd.api.ports import ReadingsView


@final
class BenchRoutes:
    """The benchmark's route.

    Args:
        chat: Serves what is measured, as it serves every chat.
        readings: Tell what it costs.
    """

    def __init__(self, chat: ChatService, readings: ReadingsView) -> None:
        self._chat = chat
        self._readings = readings

    async def chat(self, request: Request) -> Answer:
        """`POST /bench/chat/completions`."""
        fields = await decode_object(await request.body())
        return await self._chat.serve(request, {**fields, "stream": False}, self._parsed)

    def _parsed(self, body: Fields, *, command_id: CommandId, pictures: Pictures) -> BenchCall:
        call = parse_chat(body, command_id=command_id, pictures=pictures)
        refuse_several(call)
        ready = self._chat.ready(call.task.model_id)
        neighbours = Neighbours(
            n_in_flight=self._chat.n_in_flight(ready),
            serves_several=any(instance.plan.slots > 1 for instance in ready),
        )
        nodes = tuple({shard.node_id: None for one in ready for shard in one.plan.shards})
        return BenchCall(call, neighbours, lambda: self._watts(nodes))

    def _watts(self, nodes: Iterable[NodeId]) -> dict[NodeId, float]:
        """Sum what the accelerators of each node draw now, where one tells."""
        found: dict[NodeId, float] = {}
        for node_id in nodes:
            reading = self._readings.readings.nodes.get(node_id)
            told = [one.watts for one in reading.accelerators if one.watts] if reading else []
            if told:
                found[node_id] = sum(told)
        return found
