"""Chats in every dialect: from a request to an instance, and its frames back to the client.

A stream commits its status at once, so that bytes flow however long the prompt takes; what goes
wrong after that is its first or last event. Where clients of the dialect go by the status, it is
held back for a moment, in which a prompt that is too long is refused by it. A whole answer commits
nothing before it is there, so every failure has its own status.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeVar, final

from pydantic import ValidationError

from protocol.control_api import CancelReply
from protocol.data_frames import Chunk, Failed, Finished, Started, Terminal
from protocol.errors import ErrorBody, RequestError, SkulkError, error_of
from protocol.ids import CommandId, InstanceId, ModelId, parse_command_id
from protocol.instances import Instance
from protocol.tasks import ChatTask
from skulkd.api.admission import admitted
from skulkd.api.asking import NO_TERMINAL, RETRIED, Asking, Serving
from skulkd.api.choices import all_ended, usage_of_all
from skulkd.api.control import mint
from skulkd.api.dependencies import ApiDependencies
from skulkd.api.dialects.anthropic_messages import parse_messages, parse_prompt
from skulkd.api.dialects.chat_dialect import ChatCall, ChoicesCall
from skulkd.api.dialects.fields import Fields
from skulkd.api.dialects.openai_chat import parse_chat
from skulkd.api.dialects.openai_chat_output import error_event, opening_comment
from skulkd.api.dialects.openai_completions import parse_completion
from skulkd.api.dialects.openai_responses import ResponsesCall, parse_responses
from skulkd.api.dialects.pictures import Pictures
from skulkd.api.errors import bug, envelope, invalid_body
from skulkd.api.http import Answer, Principal, Reply, Request, Send, StreamReply, json_reply
from skulkd.api.interrupt import Interruptible, stopping
from skulkd.api.json_body import decode_object
from skulkd.api.open_stream import OpenStream, ServedStream, Writers
from skulkd.api.other_nodes import OtherNodes
from skulkd.api.query import MAX_DIGITS, whole_number
from skulkd.api.selection import Sight, choose
from skulkd.api.sight import check_sight
from skulkd.api.sse import SSE_HEADERS, EventStream, TurnWrites, stream_headers
from skulkd.api.streams import KeptStream, KeptStreams, StreamReader
from skulkd.api.waking import STREAM_WAIT_S, WHOLE_WAIT_S, Waking, wait_of
from skulkd.core.model_capabilities import heeded
from skulkd.core.warm_prefixes import WarmPrefixes
from skulkd.runtime.logs import command_id as log_command_id

_log = logging.getLogger(__name__)

_Call = TypeVar("_Call", bound=ChatCall)
Parse = Callable[..., _Call]
"""Takes the fields of a body, the `command_id`, and the `pictures` that read its images."""

_BUSY_RETRY_S: Final = 1
_COPY_BYTES: Final = 64 << 10
_SHOWN_KINDS: Final = 10


@final
class ChatService:
    """Serves chats, counts their prompts, and cancels them.

    Args:
        deps: The rest of the daemon.
        others: Asks the node of an instance for what its engine alone can tell.
    """

    def __init__(self, deps: ApiDependencies, others: OtherNodes) -> None:
        self._deps = deps
        self._others = others
        self._open: dict[CommandId, _Interruptible] = {}
        self._warm = WarmPrefixes(secrets.token_bytes(32))
        self._turn = TurnWrites()
        self._kept = KeptStreams(self.cancel_here, deps.keep_limits)
        self._meters = deps.meters
        self.waking: Final = Waking(deps, self._sight)
        self.asking: Final = Asking(deps, self.waking, self._note_warm)
        deps.cancels.add_here(self.cancel_here)

    @property
    def n_open(self) -> int:
        """How many requests are being served."""
        return len(self._open)

    def stop(self) -> None:
        """End every request with an error that says so; new ones are refused by the app."""
        for running in list(self._open.values()):
            running.interrupt(stopping())
        self._kept.stop()

    def interrupt(self, command_id: CommandId, reason: SkulkError) -> None:
        """End a request with an error, if there is one of this id."""
        if command_id in self._open:
            self._open[command_id].interrupt(reason)

    async def chat(self, request: Request) -> Answer:
        """`POST /v1/chat/completions`."""
        return await self._serve_choices(request, parse_chat)

    async def completions(self, request: Request) -> Answer:
        """`POST /v1/completions`."""
        return await self._serve_choices(request, parse_completion)

    async def messages(self, request: Request) -> Answer:
        """`POST /v1/messages`."""
        return await self._serve(request, parse_messages)

    async def responses(self, request: Request) -> Answer:
        """`POST /v1/responses`."""
        return await self._serve(request, _parse_response)

    async def count_tokens(self, request: Request) -> Answer:
        """`POST /v1/messages/count_tokens`: by the engine, so its node is asked."""
        body = await request.body()
        fields = await decode_object(body)
        call, candidates = await self._admitted(request, fields, parse_prompt)
        candidates = await self.awake(request, candidates)
        own_id = self._deps.face.node_id
        here = [item for item in candidates if item.plan.shards[0].node_id == own_id]
        if not here and request.asker is None:
            host = candidates[0].plan.shards[0].node_id
            return await self._others.answer(host, request, changes_state=False, body=body)
        instance_id = (here or candidates)[0].instance_id
        task = heeded((here or candidates)[0].card, call.task)
        n_tokens = await self._deps.counts.count_tokens(instance_id, task)
        return Reply(body=b'{"input_tokens":%d}' % n_tokens)

    async def open(self, request: Request, on_end: Callable[[], None]) -> KeptStream:
        """Begin a chat whose stream lasts without a connection: one of a session.

        Args:
            request: As for `chat`.
            on_end: Called once when the stream is over; not where this raises.

        Raises:
            SkulkError: What `chat` refuses with; `request.overloaded`.
        """
        if self._kept.is_crowded():
            raise RequestError(
                "request.overloaded",
                "the streams that wait to be read take all the memory that there is for them",
                remediation="Try again shortly, or send the request over HTTP.",
                retry_after_s=5,
            )
        fields = await decode_object(await request.body())
        call, candidates = await self._admitted(request, fields, parse_chat)
        command_id = call.task.command_id
        kept = self._kept.open(command_id, request.principal.name, None, call.framing)
        meter = self._meters.begin(candidates[0].model_id, call.dialect)
        stream = OpenStream(call, self._writers(call), kept, request, meter)
        self._open[command_id] = stream

        def on_done(producer: asyncio.Task[None]) -> None:
            del producer, self._open[command_id]
            stream.close()
            on_end()

        stream.producer = self._deps.tasks.start(
            self._produce(candidates, stream), name=f"chat {command_id}", essential=False
        )
        # Not in the task itself: one that is cancelled before its first turn never gets there.
        stream.producer.add_done_callback(on_done)
        return kept

    def kept(self, command_id: CommandId, principal: Principal) -> KeptStream:
        """Find a stream that is under way, or ended a while ago.

        Raises:
            RequestError: `request.not_found`.
        """
        return self._kept.find(command_id, principal)

    async def resume(self, request: Request) -> Answer:
        """`GET /v1/streams/{command_id}`: what a stream has said from an offset on, and goes on."""
        command_id = parse_command_id(request.params["command_id"])
        request.command_id = command_id
        offset = whole_number(request, "offset", 0)
        last_id = request.headers.get(b"last-event-id")
        if last_id is not None and last_id.isdigit() and len(last_id) <= MAX_DIGITS:
            offset = int(last_id) + 1
        kept = self._kept.find(command_id, request.principal)
        kept.read_from(offset, _ignore).close()  # what is wrong with it is told before a stream
        return StreamReply(
            run=lambda send: self._read_on(request, send, kept, offset), headers=SSE_HEADERS
        )

    async def _serve(self, request: Request, parse: Parse[ChatCall]) -> Answer:
        return await self.serve(request, await decode_object(await request.body()), parse)

    async def serve(self, request: Request, fields: Fields, parse: Parse[ChatCall]) -> Answer:
        """Serve a dialect that has one answer to a request.

        Args:
            request: Gets the command id.
            fields: Its body.
            parse: Raises what the chat is refused with.

        Raises:
            SkulkError: What it is refused with; not once a stream has begun.
        """
        call, candidates = await self._admitted(request, fields, parse)
        task = call.task
        if task.stream:
            writers = ((task, call.stream(self._now_s())),)
            return await self._stream(request, call, candidates, writers)
        answer = call.answer(self._now_s())
        return await self._whole(
            request,
            call,
            candidates,
            1,
            lambda _, serving: self._gathered(task, serving, answer.add),
            lambda ended, elapsed_s: answer.document(ended[0], elapsed_s),
        )

    async def _serve_choices(self, request: Request, parse: Parse[ChoicesCall]) -> Answer:
        """Serve a dialect that may ask for several answers to a request."""
        fields = await decode_object(await request.body())
        call, candidates = await self._admitted(request, fields, parse)
        if call.task.stream:
            return await self._stream(request, call, candidates, self._writers(call))
        tasks, answer = call.tasks, call.answer(self._now_s())
        return await self._whole(
            request,
            call,
            candidates,
            len(tasks),
            lambda choice, serving: self._gathered(
                tasks[choice], serving, partial(answer.add, choice=choice)
            ),
            lambda ended, elapsed_s: answer.document(ended[0], elapsed_s, ended[1:]),
        )

    def _writers(self, call: ChoicesCall) -> Writers:
        return tuple(zip(call.tasks, call.streams(self._now_s()), strict=True))

    async def _admitted(
        self, request: Request, fields: Fields, parse: Parse[_Call]
    ) -> tuple[_Call, tuple[Instance, ...]]:
        command_id = mint(self._deps, request)
        log_command_id.set(command_id)
        try:
            call = await self._parsed(request, fields, partial(parse, command_id=command_id))
        except ValidationError as error:
            raise invalid_body(error, ChatTask) from error
        return call, admitted(call, self.ready(call.task.model_id, call.task))

    async def _parsed(self, request: Request, fields: Fields, parse: Callable[..., _Call]) -> _Call:
        """Read a request; once more where images had to be fetched for it."""
        fetch = self._deps.images
        sight = partial(check_sight, self._deps.state.state, fields)
        pictures = Pictures(sight, fetch.refusal_of)
        call = parse(fields, pictures=pictures)
        if not pictures.missing:
            return call
        self.ready(call.task.model_id)  # nothing is fetched for a model that cannot answer
        fetched = await fetch.fetch_all(pictures.missing, request.hold_more)
        return parse(fields, pictures=Pictures(sight, fetch.refusal_of, fetched))

    async def cancel(self, request: Request) -> Answer:
        """`POST /v1/cancel/{command_id}`."""
        command_id = parse_command_id(request.params["command_id"])
        request.command_id = command_id
        if not (
            self._deps.cancels.cancel_here(command_id)
            or await self._deps.cancels.cancel_elsewhere(command_id)
        ):
            raise RequestError(
                "request.not_found",
                "Command not found or already completed",
                remediation="Compare the id with the x-skulk-command-id header of the answer.",
            )
        return json_reply(CancelReply(message="Command cancelled.", command_id=command_id))

    def cancel_here(self, command_id: CommandId) -> bool:
        """End a request that this node has taken; False when there is none of that id."""
        running = self._open.get(command_id)
        if running is None:
            return False
        if not self._deps.inference.cancel(command_id):
            # Not taken up yet, or just over: the client is owed an end all the same.
            running.interrupt(RequestError("request.cancelled", "the request was cancelled"))
        return True

    # ---- Admission ----

    def ready(self, model_id: ModelId, task: ChatTask | None = None) -> tuple[Instance, ...]:
        """Give who could serve a model, or a chat, now or once awake; see `choose`."""
        deps = self._deps

        def warmth(instances: Sequence[Instance]) -> Mapping[InstanceId, int]:
            blocks = () if task is None else self._warm.blocks(task)
            ids = (instance.instance_id for instance in instances)
            return self._warm.warmth(blocks, ids, deps.clock.monotonic_s())

        return choose(deps.state.state, model_id, self._sight(), deps.random, warmth)

    def n_in_flight(self, instances: tuple[Instance, ...]) -> int:
        """Count the requests that these instances have now, waiting ones included."""
        sight = self._sight()
        return sum(sight.load(instance)[0] for instance in instances)

    def _sight(self) -> Sight:
        deps = self._deps
        return Sight(
            node_id=deps.face.node_id,
            is_reachable=deps.is_reachable,
            in_flight=self.asking.in_flight,
            readings=deps.readings.readings,
            now_s=deps.clock.monotonic_s(),
        )

    # ---- The two ways back ----

    async def _whole(
        self,
        request: Request,
        call: ChatCall,
        candidates: tuple[Instance, ...],
        n: int,
        gather: Callable[[int, Serving], Coroutine[Any, Any, Terminal]],
        document: Callable[[tuple[Finished, ...], float], bytes],
    ) -> Reply:
        """Answer once all choices are there.

        Args:
            request: Whose connection ends it all when it is lost.
            call: What it asks for.
            candidates: Which instances may serve it.
            n: How many choices.
            gather: Serves a choice, by its number, from those that are awake.
            document: Takes the good terminals of all, and the seconds that they took.
        """
        task = call.task
        meter = self._meters.begin(candidates[0].model_id, call.dialect)
        deadline_s = self.waking.deadline_s(wait_of(request, WHOLE_WAIT_S))
        block = Interruptible(request.connection)
        self._open[task.command_id] = block
        try:
            with meter, block:
                name = f"chat {task.command_id}"
                awake = await self.waking.awake(candidates, deadline_s)
                serving = Serving(awake, deadline_s, request.principal.name)
                ended = await all_ended(
                    self._deps.tasks, n, lambda choice: gather(choice, serving), name=name
                )
                if isinstance(ended, Failed):
                    raise _failure(ended.error)
                meter.finish(ended[0].reason, usage_of_all(ended))
        finally:
            del self._open[task.command_id]
        return Reply(body=document(ended, meter.elapsed_s))

    async def _gathered(
        self, task: ChatTask, serving: Serving, add: Callable[[Chunk], None]
    ) -> Terminal:
        """Serve a task into an answer."""

        def take(chunk: Chunk) -> bool:
            add(chunk)
            return True

        frames = self.asking.frames(task, serving, take)
        try:
            async for frame in frames:
                if isinstance(frame, Chunk):
                    add(frame)
                elif not isinstance(frame, Started):
                    return frame
        finally:
            await frames.aclose()
        raise AssertionError(NO_TERMINAL)  # `_frames` gives one

    async def _stream(
        self,
        request: Request,
        call: ChatCall,
        candidates: tuple[Instance, ...],
        writers: Writers,
    ) -> StreamReply:
        """Answer with a stream.

        Raises:
            SkulkError: What it is refused with, in the dialects that are told by a status.
        """
        if not call.refuses_by_status:

            async def run(send: Send) -> None:
                await self._begin(request, call, candidates, writers).follow(send)

            return StreamReply(run=run, headers=stream_headers(call.framing))
        served = self._begin(request, call, candidates, writers)
        await served.admitted(self._deps.stream_limits.hold_s)
        return StreamReply(run=served.follow, headers=stream_headers(call.framing))

    def _begin(
        self,
        request: Request,
        call: ChatCall,
        candidates: tuple[Instance, ...],
        writers: Writers,
    ) -> ServedStream:
        """Have a stream served; its events gather until somebody follows it."""
        task = call.task
        _, writer = writers[0]
        events = EventStream(
            request.connection,
            clock=self._deps.clock,
            limits=self._deps.stream_limits,
            turn=self._turn,
            name=task.command_id,
            keep_alive=writer.keep_alive,
        )
        if writer.opening:
            events.put(writer.opening)
        kept = self._kept.open(task.command_id, request.principal.name, events, call.framing)
        meter = self._meters.begin(candidates[0].model_id, call.dialect)
        stream = OpenStream(call, writers, kept, request, meter)
        self._open[task.command_id] = stream
        producer = self._deps.tasks.start(
            self._produce(candidates, stream), name=f"chat {task.command_id}", essential=False
        )

        def end() -> None:
            request.connection.on_lost(None)
            del self._open[task.command_id]
            if not producer.done():
                producer.cancel()
            stream.close()

        def on_lost() -> None:
            events.lose()
            producer.cancel()
            stream.close()

        request.connection.on_lost(on_lost)
        return ServedStream(events=events, stream=stream, end=end)

    async def _read_on(self, request: Request, send: Send, kept: KeptStream, offset: int) -> None:
        events = EventStream(
            request.connection,
            clock=self._deps.clock,
            limits=self._deps.stream_limits,
            turn=self._turn,
            name=f"{kept.command_id} again",
        )
        events.put(opening_comment(kept.command_id))
        more = asyncio.Event()
        reader = kept.read_from(offset, more.set)
        copying = self._deps.tasks.start(
            _copy(reader, more, events), name=f"read {kept.command_id} again", essential=False
        )
        request.connection.on_lost(events.lose)
        try:
            await events.run(send)
        finally:
            request.connection.on_lost(None)
            copying.cancel()
            reader.close()

    async def _produce(self, candidates: tuple[Instance, ...], stream: OpenStream) -> None:
        """Put events until all choices have ended; a bug ends the stream with its error."""
        command_id = stream.call.task.command_id
        log_command_id.set(command_id)
        choices = stream.choices
        deadline_s = self.waking.deadline_s(wait_of(stream.request, STREAM_WAIT_S))

        async def serve(number: int) -> Terminal:
            choice = choices[number]
            frames = self.asking.frames(choice.task, serving, choice.take)
            try:
                return await choice.relay(frames)
            finally:
                await frames.aclose()

        try:
            awake = await self.waking.awake(candidates, deadline_s)
            serving = Serving(awake, deadline_s, stream.request.principal.name)
            name = f"chat {command_id}"
            ended = await all_ended(self._deps.tasks, len(choices), serve, name=name)
        except SkulkError as error:
            stream.fail(error)
            return
        except Exception:  # ruff: ignore[blind-except] - a bug must not leave the stream open
            _log.exception("serving the stream failed")
            stream.fail(bug())
            return
        if isinstance(ended, Failed):
            stream.fail(_failure(ended.error))

    def _note_warm(
        self, instance: Instance, task: ChatTask, candidates: tuple[Instance, ...]
    ) -> None:
        """An instance reads a prompt; of no use where there is no other to choose."""
        if len(candidates) > 1:
            blocks = self._warm.blocks(task)
            self._warm.note(instance.instance_id, blocks, self._deps.clock.monotonic_s())

    async def awake(
        self,
        request: Request,
        candidates: tuple[Instance, ...],
        *,
        wait_s: float = WHOLE_WAIT_S,
    ) -> tuple[Instance, ...]:
        """Wait for what serves a request that is not a stream; ends when its client goes.

        Raises:
            SkulkError: As `Waking.awake`.
        """
        deadline_s = self.waking.deadline_s(wait_of(request, wait_s))
        with Interruptible(request.connection):
            return await self.waking.awake(candidates, deadline_s)

    def _now_s(self) -> int:
        return self._deps.clock.wall_ms() // 1000


class _Interruptible(Protocol):
    def interrupt(self, reason: SkulkError) -> None:
        """End with this error: the status of a whole answer, the last event of a stream."""
        ...


async def _copy(reader: StreamReader, more: asyncio.Event, events: EventStream) -> None:
    """Copy a kept stream to a client to its end."""
    try:
        await _copy_events(reader, more, events)
    except RequestError as error:
        body = envelope(error, dialect="openai", command_id=reader.stream.command_id)
        events.put(error_event(body))
    finally:
        events.end()


async def _copy_events(reader: StreamReader, more: asyncio.Event, events: EventStream) -> None:
    """Give each event as a server-sent one, with its number as its id.

    Raises:
        RequestError: `request.stream_gone`.
    """
    framing = reader.stream.framing
    while not reader.is_at_end:
        more.clear()
        number = reader.offset
        for event in reader.take(_COPY_BYTES):
            events.put(b"id: %d\n%b" % (number, framing.as_sse(event)))
            number += 1
        if events.is_full:
            await events.room()
        elif not reader.has_more:
            await more.wait()
    if reader.stream.is_done and reader.stream.end_mark:
        events.put(reader.stream.end_mark)


def _parse_response(body: Fields, *, command_id: CommandId, pictures: Pictures) -> ResponsesCall:
    call = parse_responses(body, command_id=command_id, pictures=pictures)
    if call.left_out:
        kinds = ", ".join(repr(kind) for kind in call.left_out[:_SHOWN_KINDS])
        _log.info("%d tools are left out that nothing here runs: %s", len(call.left_out), kinds)
    return call


def _ignore() -> None:
    """Nobody waits."""


def _failure(error: ErrorBody) -> SkulkError:
    if error.code in RETRIED and error.retry_after_s is None:
        error = error.model_copy(update={"retry_after_s": _BUSY_RETRY_S})
    return error_of(error)
