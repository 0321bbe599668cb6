"""Every metric that a node shows, by name; docs/metrics.md is made from this list."""

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["counter", "gauge", "histogram"]
Subject = Literal["requests", "instances", "node", "cluster"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One metric, with all its series."""

    name: str
    kind: Kind
    subject: Subject
    help: str
    labels: tuple[str, ...] = ()


def _family(subject: Subject, kind: Kind, name: str, meaning: str, *labels: str) -> Family:
    return Family(name=f"skulk_{name}", kind=kind, subject=subject, help=meaning, labels=labels)


API_REQUESTS: Final = _family(
    "requests", "counter", "api_requests_total",
    "Answers to this node's clients, streams by how they began",
    "route", "method", "dialect", "status",
)  # fmt: skip
INFERENCE_REQUESTS: Final = _family(
    "requests", "counter", "inference_requests_total",
    "Requests that an instance was asked to serve, by the reason or the error code they ended with",
    "dialect", "outcome",
)  # fmt: skip
INFERENCE_OPEN: Final = _family(
    "requests", "gauge", "inference_requests_open",
    "Requests of this node's clients that are being served, wherever their instance is",
)  # fmt: skip
PROMPT_TOKENS: Final = _family(
    "requests", "counter", "prompt_tokens_total",
    "Tokens of the prompts of requests that ended well, as their engine counted them", "model",
)  # fmt: skip
CACHED_TOKENS: Final = _family(
    "requests", "counter", "cached_prompt_tokens_total",
    "Of them, tokens that the engine had in its cache", "model",
)  # fmt: skip
COMPLETION_TOKENS: Final = _family(
    "requests", "counter", "completion_tokens_total",
    "Tokens generated for requests that ended well, as their engine counted them", "model",
)  # fmt: skip
FIRST_TOKEN: Final = _family(
    "requests", "histogram", "time_to_first_token_seconds",
    "From a request that was read to the first piece of its stream", "model",
)  # fmt: skip
INTER_TOKEN: Final = _family(
    "requests", "histogram", "inter_token_seconds",
    "Between two pieces of a stream that did not come together", "model",
)  # fmt: skip
WHOLE_REQUEST: Final = _family(
    "requests", "histogram", "request_seconds",
    "From a request that was read to its end, well or badly", "model",
)  # fmt: skip

QUEUE_WAIT: Final = _family(
    "instances", "histogram", "queue_wait_seconds",
    "How long requests waited for a slot of an instance of this node, whoever took them", "model",
)  # fmt: skip
_INSTANCE: Final = ("instance", "model", "engine")
RUNNING: Final = _family(
    "instances", "gauge", "instance_running_requests", "Requests that have a slot", *_INSTANCE
)
QUEUED: Final = _family(
    "instances", "gauge", "instance_queued_requests", "Requests that wait for a slot", *_INSTANCE
)
SLOTS: Final = _family(
    "instances", "gauge", "instance_slots", "Requests that are served at a time", *_INSTANCE
)
TOKENS_PER_S: Final = _family(
    "instances", "gauge", "instance_tokens_per_second",
    "Tokens a second that all answers together were given in the last seconds", *_INSTANCE,
)  # fmt: skip
WINDOW: Final = _family(
    "instances", "gauge", "instance_window_tokens",
    "Tokens that one request may fill, prompt and output together", *_INSTANCE,
)  # fmt: skip

NODE_INFO: Final = _family(
    "node", "gauge", "node_info", "Always 1; the labels say which node this is",
    "node_id", "name", "role", "version",
)  # fmt: skip
ENGINE_INFO: Final = _family(
    "node", "gauge", "engine_info", "1 for a build of an engine that can run here, else 0",
    "engine", "provider", "version",
)  # fmt: skip
MEMORY: Final = _family(
    "node", "gauge", "node_memory_bytes", "RAM under cgroup limits, without swap"
)
MEMORY_AVAILABLE: Final = _family(
    "node", "gauge", "node_memory_available_bytes", "RAM that an engine could take now"
)
ACCELERATOR_FREE: Final = _family(
    "node", "gauge", "node_accelerator_free_bytes", "Free memory of an accelerator",
    "accelerator", "name",
)  # fmt: skip
ACCELERATOR_BUSY: Final = _family(
    "node", "gauge", "node_accelerator_busy_ratio",
    "Time in which an accelerator computed lately, 0 to 1", "accelerator", "name",
)  # fmt: skip
ACCELERATOR_WATTS: Final = _family(
    "node", "gauge", "node_accelerator_watts", "Power that an accelerator draws",
    "accelerator", "name",
)  # fmt: skip
ACCELERATOR_CELSIUS: Final = _family(
    "node", "gauge", "node_accelerator_celsius", "Temperature of an accelerator",
    "accelerator", "name",
)  # fmt: skip
ACCELERATOR_HERTZ: Final = _family(
    "node", "gauge", "node_accelerator_hertz", "Clock of an accelerator's processors",
    "accelerator", "name",
)  # fmt: skip
DISK_FREE: Final = _family(
    "node", "gauge", "node_disk_free_bytes", "Free space of the volume that holds the models"
)
CPU_RATIO: Final = _family(
    "node", "gauge", "node_cpu_ratio", "Processor time in use, of all processors, 0 to 1"
)
LOOP_LAG: Final = _family(
    "node", "gauge", "node_event_loop_lag_seconds", "How late the daemon's own loop was lately"
)
JOURNAL_DURABLE: Final = _family(
    "node", "gauge", "node_journal_durable", "1 while the journal reaches the disk, else 0"
)
JOURNAL_UNWRITTEN: Final = _family(
    "node", "gauge", "node_journal_unwritten_records",
    "Records that are not on disk because the disk fails",
)  # fmt: skip
HEALTH_REASONS: Final = _family(
    "node", "gauge", "node_health_reasons", "Reasons why this node is not well", "level"
)

CLUSTER_NODES: Final = _family(
    "cluster", "gauge", "cluster_nodes", "Members by what this node sees of them", "liveness"
)
CLUSTER_INSTANCES: Final = _family(
    "cluster", "gauge", "cluster_instances", "Instances by how far they are", "phase"
)
HAS_MASTER: Final = _family(
    "cluster", "gauge", "cluster_has_master", "1 while this node knows a master, else 0"
)
IS_MASTER: Final = _family(
    "cluster", "gauge", "cluster_is_master", "1 while this node is the master, else 0"
)
TERM: Final = _family("cluster", "gauge", "cluster_term", "Number of the last term in the log")
SEQ: Final = _family("cluster", "gauge", "cluster_seq", "Position of the last event in the log")

FAMILIES: Final[tuple[Family, ...]] = (
    API_REQUESTS, INFERENCE_REQUESTS, INFERENCE_OPEN, PROMPT_TOKENS, CACHED_TOKENS,
    COMPLETION_TOKENS, FIRST_TOKEN, INTER_TOKEN, WHOLE_REQUEST, QUEUE_WAIT, RUNNING, QUEUED, SLOTS,
    TOKENS_PER_S, WINDOW, NODE_INFO, ENGINE_INFO, MEMORY, MEMORY_AVAILABLE, ACCELERATOR_FREE,
    ACCELERATOR_BUSY, ACCELERATOR_WATTS, ACCELERATOR_CELSIUS, ACCELERATOR_HERTZ,
    DISK_FREE, CPU_RATIO, LOOP_LAG, JOURNAL_DURABLE, JOURNAL_UNWRITTEN, HEALTH_REASONS,
    CLUSTER_NODES, CLUSTER_INSTANCES, HAS_MASTER, IS_MASTER, TERM, SEQ,
)  # fmt: skip
"""In the order in which they are shown."""
