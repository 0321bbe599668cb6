"""`GET /metrics`, read by a parser that knows nothing of how it was written."""

import asyncio
from dataclasses import replace
from typing import get_args

import pytest

from protocol.cluster_api import Liveness
from protocol.data_frames import Chunk, Failed, Finished, Started, Usage
from protocol.errors import ErrorBody
from protocol.ids import NodeId
from protocol.instances import Phase
from protocol.nodes import EngineFacts, Member, NodeFacts
from protocol.readings import InstanceReading, NodeReading, Readings
from skulkd.api.metric_families import FAMILIES
from skulkd.api.metric_text import MetricText
from tests.support.api_harness import CHAT, Api, chat_body, until, with_api
from tests.support.fake_ports import (
    MODEL,
    NODE,
    FakeDaemon,
    Pause,
    make_instance,
    make_state,
)
from tests.support.metrics_table import documented, tables
from tests.support.prometheus_text import ReadFamily, read_metrics

OTHER = NodeId("nbbbbbbbbbbbbbbbb")


async def read(api: Api) -> dict[str, ReadFamily]:
    reply = await api.client.get("/metrics")
    assert reply.status_code == 200
    return read_metrics(reply.text)


def test_the_document_lists_every_metric() -> None:
    assert documented() == tables(), "renew it: python -m tests.support.metrics_table"


def test_every_metric_is_shown_with_its_kind_and_help_in_one_name_space() -> None:
    async def story(api: Api) -> None:
        reply = await api.client.get("/metrics")
        assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        families = read_metrics(reply.text)
        shown = {(name, family.kind) for name, family in families.items()}
        assert shown == {(family.name, family.kind) for family in FAMILIES}
        assert all(name.startswith("skulk_") for name in families)
        assert all(len(family.help.split()) > 3 for family in families.values())

    with_api(story)


def test_a_stream_counts_its_tokens_and_times_its_pieces() -> None:
    daemon = FakeDaemon()
    daemon.inference.script = [
        Started(7),
        Chunk("a"),
        Pause(0.03),
        Chunk("b"),
        Chunk("c"),
        Finished("length", Usage(prompt_tokens=7, completion_tokens=3, cached_tokens=5)),
    ]

    async def story(api: Api) -> None:
        await api.chat(stream=True)
        await api.chat()
        families = await read(api)
        ended = families["skulk_inference_requests_total"]
        assert ended.value(dialect="openai", outcome="length") == 2
        assert families["skulk_inference_requests_open"].value() == 0
        assert families["skulk_prompt_tokens_total"].value(model=MODEL) == 14
        assert families["skulk_cached_prompt_tokens_total"].value(model=MODEL) == 10
        assert families["skulk_completion_tokens_total"].value(model=MODEL) == 6
        # A whole answer has no pieces that a client could see.
        assert families["skulk_time_to_first_token_seconds"].value("_count", model=MODEL) == 1
        gaps = families["skulk_inter_token_seconds"]
        long = gaps.value("_count", model=MODEL) - gaps.value("_bucket", model=MODEL, le="0.02")
        assert long == 1
        assert gaps.value("_sum", model=MODEL) > 0.029  # the loop counts in milliseconds
        assert families["skulk_request_seconds"].value("_count", model=MODEL) == 2

    with_api(story, daemon)


def test_answers_are_counted_by_route_dialect_and_status() -> None:
    async def story(api: Api) -> None:
        await api.chat()
        await api.chat(messages=[])
        await api.client.post("/v1/messages", json=chat_body(max_tokens=5))
        await api.client.get("/instance/none")
        await api.client.get("/v1/models/no/such")
        answers = (await read(api))["skulk_api_requests_total"]
        assert answers.value(route=CHAT, method="POST", dialect="openai", status="200") == 1
        assert answers.value(route=CHAT, dialect="openai", status="400") == 1
        assert answers.value(route="/v1/messages", dialect="anthropic", status="200") == 1
        assert answers.value(route="/instance/{instance_id}", dialect="control", status="400") == 1
        assert answers.value(route="/v1/models/{model_id:path}", status="404") == 1

    with_api(story)


def test_failures_are_counted_by_their_code_streamed_or_whole() -> None:
    daemon = FakeDaemon()
    lost = Failed(ErrorBody(code="cluster.link_lost", message="cut"))
    daemon.inference.script = [Started(7), Chunk("a"), lost]

    async def story(api: Api) -> None:
        await api.chat(stream=True)
        await api.chat()
        families = await read(api)
        ended = families["skulk_inference_requests_total"]
        assert ended.value(outcome="cluster.link_lost") == 2
        assert families["skulk_inference_requests_open"].value() == 0
        assert families["skulk_completion_tokens_total"].value(model=MODEL) == 0

    with_api(story, daemon)


def test_clients_that_go_away_are_counted_and_open_requests_shown() -> None:
    daemon = FakeDaemon()
    daemon.inference.script = [Started(7), Chunk("a"), asyncio.Event()]

    async def story(api: Api) -> None:
        for is_stream in (True, False):
            asking = asyncio.ensure_future(api.chat(stream=is_stream))
            await until(lambda: bool(daemon.inference.running))
            assert (await read(api))["skulk_inference_requests_open"].value() == 1
            asking.cancel()
            await until(lambda: not daemon.inference.running)
        families = await read(api)
        assert families["skulk_inference_requests_open"].value() == 0
        assert families["skulk_inference_requests_total"].value(outcome="request.cancelled") == 2

    with_api(story, daemon)


def test_what_clients_send_makes_no_series() -> None:
    async def story(api: Api) -> None:
        await read(api)
        before = await read(api)
        for number in range(40):
            await api.chat(model=f"no/such{number}")
            await api.client.get(f"/none/{number}")
            await api.client.get(f"/v1/models/no/{number}?x={number}")
            await api.client.patch(f"/instance/{number}")
            await api.client.get("/state", headers={"host": f"h{number}.example"})
        after = await read(api)
        answers = after.pop("skulk_api_requests_total")
        # One for each route and status, and those of requests that no route took.
        assert answers.value(route=CHAT, status="404") == 40
        assert answers.value(route="(none)", status="404") == 40
        assert answers.value(route="(none)", status="405") == 40
        assert answers.value(route="(none)", status="421") == 40
        assert answers.labels("method") <= {"GET", "POST", "(any)"}
        assert len(answers.samples) - len(before["skulk_api_requests_total"].samples) == 5
        assert {name: set(family.samples) for name, family in after.items()} == {
            name: set(family.samples) for name, family in before.items() if name in after
        }

    with_api(story)


def test_instances_are_those_that_run_here() -> None:
    here, away = make_instance(number=1), make_instance(number=2)
    daemon = FakeDaemon(here, away)
    own = InstanceReading(
        instance_id=here.instance_id,
        node_id=NODE,
        at_s=0,
        in_flight=3,
        queued=2,
        slots=4,
        tokens_per_s=12.5,
    )
    told = replace(own, instance_id=away.instance_id, node_id=OTHER)
    daemon.readings.readings = Readings(instances={here.instance_id: own, away.instance_id: told})
    daemon.queue_waits.of(MODEL).observe(0.2)

    async def story(api: Api) -> None:
        families = await read(api)
        names = {"instance": here.instance_id, "model": MODEL, "engine": "llama_server"}
        assert families["skulk_instance_running_requests"].value(**names) == 3
        assert families["skulk_instance_queued_requests"].value(**names) == 2
        assert families["skulk_instance_slots"].value(**names) == 4
        assert families["skulk_instance_tokens_per_second"].value(**names) == pytest.approx(12.5)
        assert families["skulk_instance_window_tokens"].value(**names) == 512
        assert families["skulk_instance_slots"].labels("instance") == {here.instance_id}
        assert families["skulk_queue_wait_seconds"].value("_count", model=MODEL) == 1

    with_api(story, daemon)


def test_the_node_and_its_engines_are_shown_and_the_unknown_is_left_out() -> None:
    daemon = FakeDaemon()
    build = EngineFacts(engine="llama_server", provider="hosted", version='1"\\\n', usable=True)
    facts = NodeFacts(
        hostname="h", os="linux", arch="x", n_cpus=2, memory_bytes=99, engines=(build, build)
    )
    member = Member(node_id=NODE, name="alpha", public_key="0" * 64, facts=facts)
    daemon.state.state = make_state(make_instance(), members={NODE: member})
    daemon.readings.readings = Readings(
        nodes={NODE: NodeReading(node_id=NODE, at_s=0, memory_available_bytes=None, cpu_ratio=0.5)}
    )

    async def story(api: Api) -> None:
        families = await read(api)
        assert families["skulk_node_info"].value(node_id=NODE, name="alpha", role="full") == 1
        engine = families["skulk_engine_info"]
        assert engine.value(engine="llama_server", version='1"\\\n') == 1
        assert families["skulk_node_memory_bytes"].value() == 99
        assert families["skulk_node_cpu_ratio"].value() == pytest.approx(0.5)
        assert families["skulk_node_memory_available_bytes"].samples == {}
        assert families["skulk_node_disk_free_bytes"].samples == {}

    with_api(story, daemon)


def test_nodes_and_instances_are_counted_by_all_they_may_be() -> None:
    daemon = FakeDaemon(make_instance("load", number=1), make_instance(number=2))

    async def story(api: Api) -> None:
        families = await read(api)
        phases = families["skulk_cluster_instances"]
        assert phases.labels("phase") == set(get_args(Phase))
        assert (phases.value(phase="load"), phases.value(phase="ready")) == (1, 1)
        nodes = families["skulk_cluster_nodes"]
        assert nodes.labels("liveness") == set(get_args(Liveness))
        assert nodes.value(liveness="alive") == 1
        assert families["skulk_cluster_has_master"].value() == 1
        assert families["skulk_cluster_is_master"].value() == 1
        assert families["skulk_cluster_seq"].value() == 5

    with_api(story, daemon)


def test_the_text_of_no_series_at_all_is_read() -> None:
    assert {name: family.samples for name, family in read_metrics(_empty()).items()} == {
        family.name: {} for family in FAMILIES
    }


def _empty() -> str:
    return MetricText().encode().decode()
