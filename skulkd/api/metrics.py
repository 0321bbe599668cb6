"""`GET /metrics`: what this node has counted, and what it knows of itself and of its cluster.

What is of the cluster as a whole is called `skulk_cluster_…` and is the same on every node, as far
as they see the same. All else is this node's own, so that sums over nodes are right.
"""

from collections import Counter
from typing import Final, final, get_args

from protocol.cluster_api import Liveness
from protocol.instances import Phase
from protocol.nodes import Level
from skulkd.api import metric_families as families
from skulkd.api.dependencies import ApiDependencies
from skulkd.api.http import Answer, Reply, Request
from skulkd.api.metric_text import CONTENT_TYPE, MetricText

_MHZ: Final = 1e6
_HEADERS: Final = ((b"content-type", CONTENT_TYPE), (b"cache-control", b"no-store"))
_BAD_LEVELS: Final[tuple[Level, ...]] = ("warning", "error")


@final
class MetricsRoute:
    """The route for Prometheus.

    Args:
        deps: The rest of the daemon.
    """

    def __init__(self, deps: ApiDependencies) -> None:
        self._deps = deps

    async def show(self, request: Request) -> Answer:
        """`GET /metrics`."""
        del request
        text = MetricText()
        self._add_requests(text)
        self._add_instances(text)
        self._add_node(text)
        self._add_reading(text)
        self._add_cluster(text)
        return Reply(body=text.encode(), headers=_HEADERS)

    def _add_requests(self, text: MetricText) -> None:
        meters = self._deps.meters
        for (route, method, dialect, status), count in meters.http.items():
            text.add(families.API_REQUESTS, count, route, method, dialect, str(status))
        for (dialect, outcome), count in meters.outcomes.items():
            text.add(families.INFERENCE_REQUESTS, count, dialect, outcome)
        text.add(families.INFERENCE_OPEN, meters.n_open)
        for model, counted in meters.models.items():
            text.add(families.PROMPT_TOKENS, counted.prompt_tokens, model)
            text.add(families.CACHED_TOKENS, counted.cached_tokens, model)
            text.add(families.COMPLETION_TOKENS, counted.completion_tokens, model)
            text.add_histogram(families.FIRST_TOKEN, counted.first_s, model)
            text.add_histogram(families.INTER_TOKEN, counted.gaps_s, model)
            text.add_histogram(families.WHOLE_REQUEST, counted.whole_s, model)

    def _add_instances(self, text: MetricText) -> None:
        """Show the instances that this node serves."""
        deps = self._deps
        for model, waits in deps.queue_waits.items():
            text.add_histogram(families.QUEUE_WAIT, waits, model)
        for reading in deps.readings.readings.instances.values():
            instance = deps.state.state.instances.get(reading.instance_id)
            if instance is None or reading.node_id != deps.face.node_id:
                continue
            labels = (instance.instance_id, instance.model_id, instance.plan.engine)
            text.add(families.RUNNING, reading.in_flight, *labels)
            text.add(families.QUEUED, reading.queued, *labels)
            text.add(families.SLOTS, reading.slots, *labels)
            text.add(families.TOKENS_PER_S, reading.tokens_per_s, *labels)
            text.add(families.WINDOW, instance.plan.context_tokens, *labels)

    def _add_node(self, text: MetricText) -> None:
        """Show what this node is."""
        deps, face = self._deps, self._deps.face
        text.add(families.NODE_INFO, 1, face.node_id, face.name, face.role, face.version)
        member = deps.state.state.members.get(face.node_id)
        facts = None if member is None else member.facts
        if facts is not None:
            builds: dict[tuple[str, str, str], bool] = {}
            for build in facts.engines:  # one version may lie in two places
                key = (build.engine, build.provider, build.version)
                builds[key] = builds.get(key, False) or build.usable
            for key, is_usable in builds.items():
                text.add(families.ENGINE_INFO, int(is_usable), *key)
            text.add(families.MEMORY, facts.memory_bytes)
        health = deps.health.node_health().get(face.node_id)
        levels = Counter(reason.level for reason in health.reasons) if health else Counter[Level]()
        for level in _BAD_LEVELS:
            text.add(families.HEALTH_REASONS, levels[level], level)

    def _add_reading(self, text: MetricText) -> None:
        """Show how this node is now."""
        deps = self._deps
        reading = deps.readings.readings.nodes.get(deps.face.node_id)
        if reading is None:
            return
        text.add(families.MEMORY_AVAILABLE, reading.memory_available_bytes)
        text.add(families.DISK_FREE, reading.disk_free_bytes)
        text.add(families.CPU_RATIO, reading.cpu_ratio)
        text.add(families.LOOP_LAG, reading.loop_lag_s)
        text.add(families.JOURNAL_DURABLE, int(reading.journal_durable))
        text.add(families.JOURNAL_UNWRITTEN, reading.journal_unwritten)
        member = deps.state.state.members.get(deps.face.node_id)
        devices = member.facts.accelerators if member and member.facts else ()
        # The reading is of the devices of the last probe pass, the facts of the last report.
        for device, measured in zip(devices, reading.accelerators, strict=False):
            labels = (str(device.index), device.name)
            text.add(families.ACCELERATOR_FREE, measured.free_bytes, *labels)
            text.add(families.ACCELERATOR_BUSY, measured.busy_ratio, *labels)
            text.add(families.ACCELERATOR_WATTS, measured.watts, *labels)
            text.add(families.ACCELERATOR_CELSIUS, measured.celsius, *labels)
            hertz = None if measured.mhz is None else measured.mhz * _MHZ
            text.add(families.ACCELERATOR_HERTZ, hertz, *labels)

    def _add_cluster(self, text: MetricText) -> None:
        deps = self._deps
        state, look = deps.state.state, deps.cluster.look()
        seen = Counter(member.liveness for member in look.members)
        for liveness in get_args(Liveness):
            text.add(families.CLUSTER_NODES, seen[liveness], liveness)
        phases = Counter(instance.phase for instance in state.instances.values())
        for phase in get_args(Phase):
            text.add(families.CLUSTER_INSTANCES, phases[phase], phase)
        text.add(families.HAS_MASTER, int(look.master is not None))
        text.add(families.IS_MASTER, int(look.master == deps.face.node_id))
        text.add(families.TERM, state.term)
        text.add(families.SEQ, state.seq)
