"""Opening and closing the API beyond loopback, and where it says that it is."""

from collections.abc import Awaitable, Callable

import pytest

from protocol.errors import ConfigError, RequestError
from protocol.ids import KeyId
from protocol.state import ApiKey
from skulkd.api import listeners as listeners_module
from skulkd.api.base_urls import Surroundings, base_urls
from skulkd.api.listeners import ApiListeners
from skulkd.api.open_door import OpenDoor
from skulkd.cluster.addresses import InterfaceAddress, MachineAddresses
from skulkd.cluster.tailnet import Tailnet
from skulkd.runtime.tasks import Tasks
from tests.support.api_harness import Api, until, with_api
from tests.support.fake_ports import make_state

KEY = ApiKey(
    key_id=KeyId("key-aaaaaaaa"), name="k", secret_sha256="ab" * 32, scope="read", created_at_ms=1
)
MACHINE = MachineAddresses(
    addresses=tuple(
        InterfaceAddress(interface=interface, host=host, prefix=24)
        for interface, host in (
            ("docker0", "172.17.0.1"),
            ("eth0", "192.0.2.7"),
            ("eth0", "2001:db8::7"),
            ("eth0", "fe80::7"),
            ("eth1", "198.51.100.7"),
            ("lo", "127.0.0.1"),
            ("tailscale0", "100.101.102.103"),
        )
    ),
    default_interface="eth0",
)
TAILNET = Tailnet(name="studio.tail1234.ts.net", addresses=("100.101.102.103", "fd7a::1"))
AROUND = Surroundings(machine=MACHINE, tailnet=TAILNET)


def urls(*listening: str, around: Surroundings = AROUND, scheme: str = "http") -> tuple[str, ...]:
    return base_urls(listening, around, scheme=scheme, port=52415)


# ---- What works from elsewhere ---------------------------------------------------------------


def test_a_node_on_loopback_has_no_address_for_others() -> None:
    assert urls("127.0.0.1", "::1") == ()


def test_names_come_first_then_the_network_that_leads_out() -> None:
    assert urls("::1", "0.0.0.0") == (
        "http://studio.tail1234.ts.net:52415",
        "http://192.0.2.7:52415",
        "http://198.51.100.7:52415",
        "http://100.101.102.103:52415",
    )


def test_addresses_are_of_the_family_that_is_listened_on() -> None:
    assert urls("127.0.0.1", "::") == (
        "http://studio.tail1234.ts.net:52415",
        "http://[2001:db8::7]:52415",
    )


def test_one_address_that_is_listened_on_is_the_one_that_works() -> None:
    assert urls("127.0.0.1", "192.0.2.7") == ("http://192.0.2.7:52415",)
    assert urls("100.101.102.103") == (
        "http://studio.tail1234.ts.net:52415",
        "http://100.101.102.103:52415",
    )


def test_names_that_clients_can_check_come_first_over_tls() -> None:
    around = Surroundings(machine=MACHINE, certificate_names=("lab.example",))
    assert urls("192.0.2.7", around=around, scheme="https") == (
        "https://lab.example:52415",
        "https://192.0.2.7:52415",
    )


def test_a_tailnet_that_tells_no_name_has_addresses_only() -> None:
    around = Surroundings(machine=MACHINE, tailnet=Tailnet(addresses=("100.101.102.103",)))
    assert "http://100.101.102.103:52415" in urls("0.0.0.0", around=around)
    assert around.names == frozenset()


# ---- Listeners -------------------------------------------------------------------------------


class Place:
    """Where this machine is: what a look finds, and how often one was taken."""

    def __init__(self) -> None:
        self.around = AROUND
        self.n_looks = 0
        self.kept: list[str | None] = []

    async def look(self) -> Surroundings:
        self.n_looks += 1
        return self.around

    async def persist(self, host: str | None) -> None:
        self.kept.append(host)


def told(
    story: Callable[[Api, ApiListeners, Place, Tasks], Awaitable[None]],
) -> None:
    async def run(api: Api) -> None:
        place, tasks = Place(), Tasks("test", on_death=lambda story, _: None)
        listeners = ApiListeners(
            api.server,
            api.daemon.state,
            place.persist,
            look_around=place.look,
            tasks=tasks,
            clock=api.daemon.clock,
        )
        api.daemon.state.state = make_state(api_keys={KEY.key_id: KEY})
        await story(api, listeners, place, tasks)
        await tasks.close(1)

    with_api(run)


def test_s02_nothing_opens_beyond_loopback_without_a_key() -> None:
    async def story(api: Api, listeners: ApiListeners, place: Place, _tasks: Tasks) -> None:
        api.daemon.state.state = make_state()
        with pytest.raises(RequestError) as caught:
            await listeners.open_api("0.0.0.0", persist=True)
        assert caught.value.code == "request.forbidden"
        assert caught.value.details["reason"] == "api.no_key"
        with pytest.raises(ConfigError) as named:
            await listeners.open_api("node.example", persist=True)
        assert named.value.code == "config.invalid"
        assert (place.kept, place.n_looks) == ([], 0)
        api.daemon.state.state = make_state(api_keys={KEY.key_id: KEY})
        assert f"http://0.0.0.0:{api.port}" in await listeners.open_api("0.0.0.0", persist=True)
        assert await listeners.open_api("0.0.0.0", persist=False) == listeners.urls()
        assert place.kept == ["0.0.0.0"]
        await listeners.close_api()
        assert place.kept == ["0.0.0.0", None]
        assert listeners.base_urls() == ()

    told(story)


def test_opening_tells_what_works_from_another_machine_and_takes_its_name() -> None:
    async def story(api: Api, listeners: ApiListeners, place: Place, _tasks: Tasks) -> None:
        assert not listeners.names()
        assert place.n_looks == 0, "who is closed asks nobody"
        await listeners.open_api("0.0.0.0", persist=False)
        assert listeners.base_urls()[0] == f"http://studio.tail1234.ts.net:{api.port}"
        assert "studio.tail1234.ts.net" in listeners.names()
        assert place.n_looks == 1

    told(story)


def test_a_tailnet_that_comes_up_later_is_noticed_when_its_name_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(api: Api, listeners: ApiListeners, place: Place, _tasks: Tasks) -> None:
        del api
        place.around = Surroundings(machine=MACHINE)
        await listeners.open_api("0.0.0.0", persist=False)
        place.around = AROUND
        assert not listeners.names()
        assert not listeners.names()
        assert place.n_looks == 1, "not before the next look is due"
        monkeypatch.setattr(listeners_module, "LOOK_AGAIN_S", 0.0)
        listeners.names()
        monkeypatch.undo()
        await until(lambda: "studio.tail1234.ts.net" in listeners.names())
        assert place.n_looks == 2

    told(story)


def test_a_door_that_is_open_from_the_start_is_looked_from_once() -> None:
    async def story(api: Api, listeners: ApiListeners, place: Place, tasks: Tasks) -> None:
        door = OpenDoor(api.server, api.daemon.state, "0.0.0.0", on_opened=listeners.on_opened)
        tasks.start(door.run(), name="door")
        await until(lambda: place.n_looks == 1)
        door.want("0.0.0.0")
        await until(lambda: listeners.base_urls() != ())
        assert place.n_looks == 1

    told(story)
