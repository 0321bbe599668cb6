"""A session with one of two real nodes shows, asks and follows both."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, cluster_of, running_cluster
from tests.support.scripted_models import add_scripted_model, add_slow_talker
from tests.support.session_client import Frame, session_with

pytestmark = pytest.mark.e2e

QUICK = "scripted/quick"
TALKER = "scripted/talker"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nodes; the second has a model that talks slowly."""
    with running_cluster(tmp_path_factory.mktemp("session"), 2) as nodes:
        add_scripted_model(nodes[1].models_dir, QUICK, reply="A short answer.")
        add_slow_talker(nodes[1].models_dir, TALKER, token_delay_ms=10)
        yield nodes


def play(story: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await story()

    asyncio.run(bounded())


def test_the_rows_of_both_nodes_come_through_either(cluster: Cluster) -> None:
    ids = [cluster_of(node)["node_id"] for node in cluster]

    async def story() -> None:
        for node in cluster:
            async with session_with(node.port) as client:
                for topic in ("cluster", "health", "models"):
                    await client.subscribe(topic)
                rows = await client.rows_until(
                    lambda rows: all(
                        f"{kind}/{node_id}" in rows
                        for kind in ("node", "health")
                        for node_id in ids
                    )
                )
                assert {rows[f"node/{one}"]["member"]["name"] for one in ids} == {
                    "attic",
                    "kitchen",
                }
                own = client.frames[0]["node_id"]
                other = next(one for one in ids if one != own)
                assert rows[f"link/{own}/{other}"]["state"] == "up"
                assert rows["cluster"]["alive"] == 2

    play(story)


def test_a_node_answers_for_the_other_and_tells_its_log(cluster: Cluster) -> None:
    async def story() -> None:
        async with session_with(cluster[0].port) as client:
            answer = await client.ask("GET", "/node/identity", query="node=kitchen")
            assert answer["status"] == 200
            assert answer["body"]["name"] == "kitchen"
            await client.subscribe("logs", node="kitchen", backlog=50)
            frame = await client.next("lines")
            assert any("serving at" in item["message"] for item in frame["items"])
            await client.subscribe("logs", backlog=1)
            own = await client.next("lines")
            assert len(own["items"]) == 1

    play(story)


def test_one_session_places_and_the_other_sees_it_load_and_its_story(cluster: Cluster) -> None:
    async def story() -> None:
        where = cluster_of(cluster[1])["node_id"]
        async with (
            session_with(cluster[0].port) as operator,
            session_with(cluster[1].port) as watcher,
        ):
            await watcher.subscribe("placements")
            await watcher.next("rows")
            placed = await operator.ask(
                "POST", "/place_instance", body={"model_id": QUICK, "nodes": [where]}
            )
            assert placed["status"] == 202, placed
            key = f"instance/{placed['body']['instance_id']}"
            await watcher.rows_until(
                lambda rows: rows.get(key, {}).get("phase") == "ready", wait_s=30
            )
            await watcher.subscribe("command", command_id=placed["body"]["command_id"])
            lines = await watcher.next("lines")
            assert "instance_placed" in {item["kind"] for item in lines["items"]}, lines

    play(story)


def test_a_chat_through_the_other_node_goes_on_after_the_socket_was_cut(cluster: Cluster) -> None:
    where = [cluster_of(cluster[1])["node_id"]]
    instance_id = cluster[1].place(TALKER, nodes=where, context_tokens=4096)
    for node in cluster:
        node.wait_phase(instance_id)
    body = {
        "model": TALKER,
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 100,
    }

    async def story() -> None:
        frames: list[Frame] = []
        async with session_with(cluster[0].port) as client:
            await client.send(type="open", id=1, body=body)
            while sum(len(frame["events"]) for frame in frames) < 10:
                frames.append(await client.next("stream", "refused"))
            client.socket.transport.abort()
        n_had = sum(len(frame["events"]) for frame in frames)
        async with session_with(cluster[0].port) as client:
            command_id = frames[0]["command_id"]
            await client.send(type="resume", id=1, command_id=command_id, offset=n_had)
            while not frames[-1]["is_end"]:
                frames.append(await client.next("stream", "refused"))
        events = [event for frame in frames for event in frame["events"]]
        answer = cluster[0].http.post("/v1/chat/completions", json=body)
        whole = answer.json()["choices"][0]["message"]["content"]
        told = "".join(event["choices"][0]["delta"].get("content") or "" for event in events)
        assert told == whole

    play(story)


def test_a_session_with_a_node_that_stops_is_told_so(tmp_path: Path) -> None:
    with running_cluster(tmp_path, 1) as nodes:

        async def story() -> None:
            async with session_with(nodes[0].port) as client:
                await client.subscribe("cluster")
                await client.next("rows")
                nodes[0].process.terminate()
                closing = await client.closed(wait_s=10)
                assert closing is not None
                assert closing["error"]["code"] == "cluster.stopping"

        play(story)
        assert nodes[0].wait_exit() == 0
