"""What mDNS says and hears, on its own thread; the only module that knows python-zeroconf.

Decision record 0008 says why this library. The form of what is announced is that of `_skulk._tcp`:
the instance is called by the node's id and never by the machine's name; SRV has the first port,
TXT the strings of `skulkd.cluster.sightings.txt_of`.
"""

import asyncio
import logging
import re
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, final

from zeroconf import (
    IPVersion,
    NonUniqueNameException,
    RecordUpdate,
    RecordUpdateListener,
    Zeroconf,
)
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from protocol.ids import NODE_ID_PATTERN
from skulkd.cluster.discovery import Announcement
from skulkd.cluster.mdns_thread import FIRST_RETRY_S, LAST_RETRY_S, MdnsThread, Report, Wish
from skulkd.cluster.packet_pace import PacketPace
from skulkd.cluster.sightings import txt_of
from skulkd.runtime.tasks import Tasks, sleep, timeout

if TYPE_CHECKING:
    from zeroconf._protocol.outgoing import DNSOutgoing

_log = logging.getLogger(__name__)

SERVICE_TYPE: Final = "_skulk._tcp.local."
GROUP: Final = "224.0.0.251"
CALL_S: Final = 10.0
"""For one call of the library; registering a name takes 1.2 s."""
END_S: Final = 2.0
SETTLE_S: Final = 2.0
"""Between two changes of what is announced."""
MAX_QUESTIONS: Final = 8
"""About neighbours that did not tell all, at a time."""
QUESTION_S: Final = 3.0
MAX_HOSTS: Final = 32
"""Of one neighbour; what is beyond is not looked at."""
NODE_ID: Final = re.compile(NODE_ID_PATTERN)
LOCAL: Final = ".local."


async def serve(thread: MdnsThread) -> None:
    """Announce and listen as is wished, until it is over or there is no address to use.

    Raises:
        Exception: Whatever the library meets.
    """
    zeroconf = _PacedZeroconf(thread.pace, _usable(thread.wish.hosts))
    responder = AsyncZeroconf(zc=zeroconf)
    tasks = Tasks("mdns", on_death=lambda story, _: _log.error("%s", story))
    ear = _Ear(zeroconf, thread, tasks)
    browser: AsyncServiceBrowser | None = None
    try:
        async with timeout(CALL_S):
            await zeroconf.async_wait_for_start()
        zeroconf.async_add_listener(ear, None)
        browser = AsyncServiceBrowser(zeroconf, SERVICE_TYPE, handlers=[_ignore])
        await _follow(thread, zeroconf)
    finally:
        zeroconf.async_remove_listener(ear)
        await tasks.close(END_S)
        # The first goodbye leaves with the responder, so it must find a slot.
        await sleep(thread.pace.wait_s(1, now_s=asyncio.get_running_loop().time()) or 0.0)
        async with timeout(END_S):
            if browser is not None:
                await browser.async_cancel()
            await responder.async_close()


async def _follow(thread: MdnsThread, zeroconf: "_PacedZeroconf") -> None:
    """Make what is announced, and where, into what is wished."""
    shown: AsyncServiceInfo | None = None
    retry_s = FIRST_RETRY_S
    while True:
        wish = thread.wish
        if wish.is_over or not wish.hosts:
            return
        is_taken = False
        async with timeout(CALL_S):
            usable = _usable(wish.hosts)
            if shown is not None and wish.announcement is not None:
                # What is announced on an interface that is new must be what holds now: neighbours
                # keep an old address for two minutes if they hear it together with the new one.
                zeroconf.registry.async_update(service_info(wish.announcement, wish.hosts))
            await zeroconf.async_update_interfaces(usable, _version(usable))
            thread.on_report(_report(zeroconf, wish, is_taken=False))
            try:
                shown = await _show(zeroconf, shown, wish)
            except NonUniqueNameException:
                is_taken = True
        report = _report(zeroconf, wish, is_taken=is_taken)
        thread.on_report(report)
        if report.warning:
            await thread.wait_other(wish, limit_s=retry_s)
            retry_s = min(2 * retry_s, LAST_RETRY_S)
        else:
            retry_s = FIRST_RETRY_S
            await thread.wait_over(SETTLE_S)
            await thread.wait_other(wish)


async def _show(
    zeroconf: Zeroconf, shown: AsyncServiceInfo | None, wish: Wish
) -> AsyncServiceInfo | None:
    """Announce what is wished, in place of what is announced now; give the former.

    Raises:
        NonUniqueNameException: Another responder has our name.
    """
    # The library leaves open what the inner awaitable gives, hence the ignored checks.
    if wish.announcement is None:
        if shown is not None:
            await (await zeroconf.async_unregister_service(shown))  # pyright: ignore[reportUnknownMemberType]
        return None
    info = service_info(wish.announcement, wish.hosts)
    if shown is None:
        await (await zeroconf.async_register_service(info))  # pyright: ignore[reportUnknownMemberType]
    elif _content(info) != _content(shown):
        await (await zeroconf.async_update_service(info))  # pyright: ignore[reportUnknownMemberType]
    return info


def service_info(announcement: Announcement, hosts: Sequence[str]) -> AsyncServiceInfo:
    """Give the records that announce a node."""
    return AsyncServiceInfo(
        SERVICE_TYPE,
        f"{announcement.node_id}.{SERVICE_TYPE}",
        port=announcement.base_port,
        properties=dict(txt_of(announcement)),
        server=f"{announcement.node_id}.local.",
        parsed_addresses=list(hosts),
    )


def _content(info: AsyncServiceInfo) -> tuple[object, ...]:
    return info.name, info.port, info.text, info.parsed_addresses()


def _report(zeroconf: Zeroconf, wish: Wish, *, is_taken: bool) -> Report:
    used = {sender.interface_key[0] for sender in zeroconf.engine.senders}
    hosts = tuple(host for host in wish.hosts if host in used)
    unused = ", ".join(host for host in wish.hosts if host not in used)
    if is_taken:
        warning = (
            "another machine announces this node's own id: if its home was copied from here, move "
            "it away there, so that it becomes a node of its own"
        )
    else:
        warning = f"it cannot be used on {unused}" if unused else ""
    return Report(state="on" if hosts else "failed", warning=warning, hosts=hosts)


def _usable(hosts: Sequence[str]) -> list[str]:
    """Leave out addresses that cannot hear multicast: one of them would take the others down.

    Raises:
        OSError: None can.
    """
    usable: list[str] = []
    refusal: OSError | None = None
    for host in hosts:
        try:
            if ":" not in host:
                _try_group(host)
        except OSError as error:
            refusal = error
        else:
            usable.append(host)
    if not usable and refusal is not None:
        raise refusal
    return usable


def _try_group(host: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as trial:
        membership = socket.inet_aton(GROUP) + socket.inet_aton(host)
        trial.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)


def _version(hosts: Sequence[str]) -> IPVersion:
    return IPVersion.V6Only if ":" in hosts[0] else IPVersion.V4Only


def _instance_of(name: str) -> str:
    return name.removesuffix("." + SERVICE_TYPE)


def _ignore(**_: object) -> None:
    """The browser asks; the ear listens."""


@final
class _PacedZeroconf(Zeroconf):
    """Zeroconf whose packets, all of them, leave at a bounded pace."""

    def __init__(self, pace: PacketPace, hosts: Sequence[str]) -> None:
        self._pace = pace
        super().__init__(interfaces=list(hosts), ip_version=_version(hosts), use_asyncio=True)

    def async_send(self, out: "DNSOutgoing", *args: object, **kwargs: object) -> None:
        loop = asyncio.get_running_loop()
        wait_s = self._pace.reserve(len(out.packets()), now_s=loop.time())
        if wait_s is None:
            return
        send = super().async_send
        # Whatever else there is goes on as it came.
        loop.call_later(wait_s, lambda: send(out, *args, **kwargs))  # pyright: ignore[reportArgumentType]


@final
class _Ear(RecordUpdateListener):
    """Hears every record of our service, also those that only say the same again."""

    def __init__(self, zeroconf: Zeroconf, thread: MdnsThread, tasks: Tasks) -> None:
        super().__init__()
        self._zeroconf = zeroconf
        self._thread = thread
        self._tasks = tasks
        self._heard: dict[str, bool] = {}
        """Instances, and whether one that did not tell all may be asked for the rest."""
        self._n_questions = 0

    def async_update_records(self, zc: Zeroconf, now: float, records: list[RecordUpdate]) -> None:
        del zc
        for update in records:
            record = update.new
            name = record.name.lower()
            if name == SERVICE_TYPE:
                instance = _instance_of(getattr(record, "alias", "").lower())
                if record.is_expired(now):
                    self._thread.hear_goodbye(instance)
                else:
                    self._heard[instance] = True
            elif name.endswith("." + SERVICE_TYPE):
                self._heard[_instance_of(name)] = True
            else:
                # Its addresses, by the name that we gave its machine.
                self._heard.setdefault(name.removesuffix(LOCAL), False)

    def async_update_records_complete(self) -> None:
        heard, self._heard = self._heard, {}
        for instance, may_ask in heard.items():
            if NODE_ID.fullmatch(instance) is None:
                if may_ask:
                    self._thread.hear(instance, {}, ())
                continue
            info = AsyncServiceInfo(SERVICE_TYPE, f"{instance}.{SERVICE_TYPE}")
            if info.load_from_cache(self._zeroconf):
                self._hand_on(info)
            elif may_ask and self._n_questions < MAX_QUESTIONS:
                self._n_questions += 1
                self._tasks.start(self._ask(info), name=f"ask {instance}", essential=False)

    async def _ask(self, info: AsyncServiceInfo) -> None:
        try:
            if await info.async_request(self._zeroconf, QUESTION_S * 1000):
                self._hand_on(info)
        finally:
            self._n_questions -= 1

    def _hand_on(self, info: AsyncServiceInfo) -> None:
        hosts = info.parsed_addresses(IPVersion.All)[:MAX_HOSTS]
        self._thread.hear(_instance_of(info.name), dict(info.properties), hosts)
