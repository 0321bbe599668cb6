"""Facts to capabilities: which backends a node may be planned with, and what stands in the way.

For each engine the computes come from the first of these that has something to say:

    1. what the operator declares (SKULK_BACKENDS): replaces the rest, for all engines at once
    2. what the build itself reports that it can compute on
    3. the accelerators that were seen
    and the CPU as the floor of 3.

A backend without a usable build is never advertised, declared or not: a plan onto it could only
fail. Nor is one for a device that was seen before and is gone, as after a suspend: an engine that
finds its GPU gone may go on with the CPU and say nothing. Disagreements are conflicts, each with
what was observed, what was declared and what to do. The scripted engine is part of skulk and always
there, so that the fabric can be tried and tested without a model.
"""

from collections.abc import Iterable
from typing import Final

from protocol.cards import BackendTag, Compute, EngineName
from protocol.nodes import (
    Accelerator,
    CapabilityConflict,
    EngineFacts,
    NodeCapabilities,
    NodeFacts,
    Role,
)

SCRIPTED_BACKEND: Final[BackendTag] = "scripted-cpu"
CPU_UNSUPPORTED: Final = "engine.cpu_unsupported"
"""`EngineFacts.reason` begins with this code when the build's canary trapped on this CPU."""

_COMPUTES: Final[dict[EngineName, tuple[Compute, ...]]] = {
    "scripted": ("cpu",),
    "llama_server": ("cuda", "rocm", "vulkan", "metal", "cpu"),
    "llama_cpp": ("cuda", "rocm", "vulkan", "metal", "cpu"),
    "mlx": ("metal", "cuda", "cpu"),
    "vllm": ("cuda", "rocm", "cpu"),
}
"""What each engine can compute on at all, best first."""


def derive(facts: NodeFacts, *, role: Role = "full") -> NodeCapabilities:
    """Derive what may be planned on a node from what its probes found.

    Args:
        facts: One probe pass.
        role: A `management` node serves nothing; its conflicts are not worth an operator's time.
    """
    if role == "management":
        return NodeCapabilities()
    usable = [build for build in facts.engines if build.usable and build.engine != "scripted"]
    gone = lost_computes(facts)
    inferred = _unique(
        tag
        for build in usable
        for tag in _tags_of(build, facts.accelerators)
        if tag.partition("-")[2] not in gone
    )
    backends = inferred
    conflicts = [*_build_conflicts(facts), *_accelerator_conflicts(facts, inferred)]
    if facts.declared_backends is not None:
        declared = tuple(
            tag for tag in facts.declared_backends if tag.partition("-")[2] not in gone
        )
        backends, declared_conflicts = _declared(declared, usable, inferred)
        conflicts.extend(declared_conflicts)
    return NodeCapabilities(
        backends=_unique((*backends, SCRIPTED_BACKEND)), conflicts=tuple(conflicts)
    )


def remember(facts: NodeFacts, before: NodeFacts | None) -> NodeFacts:
    """Add the accelerators that are gone since an earlier pass of the same process.

    A driver that has lost its devices over a suspend may still name them, with nothing that tells
    their memory any more: such a device is gone too.

    Args:
        facts: Of this pass.
        before: What this function gave for the pass before; None for the first.
    """
    if before is None:
        return facts
    left = list(facts.accelerators)
    lost: list[Accelerator] = []
    for device in (*before.accelerators, *before.lost_accelerators):
        same = next((one for one in left if _is_still(one, device)), None)
        if same is None:
            lost.append(device)
        else:
            left.remove(same)
    vendors = {device.vendor for device in lost}
    kept = [one for one in facts.accelerators if not (_is_dark(one) and one.vendor in vendors)]
    return facts.model_copy(update={"accelerators": tuple(kept), "lost_accelerators": tuple(lost)})


def builds_at_work(facts: NodeFacts) -> tuple[EngineFacts, ...]:
    """Give the engine builds with what they can compute on now: not on a device that is gone."""
    gone = lost_computes(facts)
    if not gone:
        return facts.engines
    return tuple(
        build.model_copy(
            update={"computes": tuple(one for one in build.computes if one not in gone)}
        )
        for build in facts.engines
    )


def without_build(facts: NodeFacts, build: EngineFacts) -> NodeFacts:
    """Take a build out of use that trapped on this CPU with its first model.

    Its trial run computes nothing, and passes where only computing needs the newer instructions.
    What is part of skulk stays: it has none of its own.
    """
    if build.provider == "builtin":
        return facts
    reason = f"{CPU_UNSUPPORTED}: it died of SIGILL when it was given a model"
    engines = tuple(
        one.model_copy(update={"usable": False, "reason": reason})
        if (one.engine, one.provider, one.path) == (build.engine, build.provider, build.path)
        else one
        for one in facts.engines
    )
    return facts.model_copy(update={"engines": engines})


def _is_still(device: Accelerator, before: Accelerator) -> bool:
    same = (device.vendor, device.name) == (before.vendor, before.name)
    return same and _is_dark(device) <= _is_dark(before)


def _tags_of(build: EngineFacts, accelerators: tuple[Accelerator, ...]) -> list[BackendTag]:
    known = _COMPUTES[build.engine]
    if build.computes:
        return [f"{build.engine}-{compute}" for compute in known if compute in build.computes]
    seen = {accelerator.compute for accelerator in accelerators} | {"cpu"}
    return [f"{build.engine}-{compute}" for compute in known if compute in seen]


def _declared(
    declared: tuple[BackendTag, ...], usable: list[EngineFacts], inferred: tuple[BackendTag, ...]
) -> tuple[tuple[BackendTag, ...], list[CapabilityConflict]]:
    """Take the operator's word as far as there is a build to keep it."""
    taken: list[BackendTag] = []
    conflicts: list[CapabilityConflict] = []
    engines = {build.engine for build in usable}
    for tag in declared:
        engine, _, compute = tag.partition("-")
        if engine == "scripted":
            continue
        if not compute:
            taken.extend(found for found in inferred if found.partition("-")[0] == engine)
        if engine not in engines:
            conflicts.append(_override_conflict(tag, inferred, "no usable build of its engine"))
        elif compute:
            taken.append(tag)
            if tag not in inferred:
                conflicts.append(_override_conflict(tag, inferred, "no probe confirms it"))
    return _unique(taken), conflicts


def _override_conflict(
    tag: BackendTag, inferred: tuple[BackendTag, ...], why: str
) -> CapabilityConflict:
    found = ", ".join(inferred) or "none"
    return CapabilityConflict(
        code="backend_override_conflict",
        level="warning",
        observed=found,
        declared=tag,
        message=f"SKULK_BACKENDS declares {tag}, and {why}; found were: {found}",
        remediation="Correct SKULK_BACKENDS, or unset it to use what was found.",
    )


def _build_conflicts(facts: NodeFacts) -> list[CapabilityConflict]:
    conflicts: list[CapabilityConflict] = []
    if facts.override_error:
        conflicts.append(
            CapabilityConflict(
                code="engine_cpu_unsupported"
                if CPU_UNSUPPORTED in facts.override_error
                else "invalid_engine_binary",
                level="error",
                observed=facts.override_error,
                declared=facts.override_path,
                message=f"the configured engine {facts.override_path} does not work: "
                f"{facts.override_error}",
                remediation="Correct SKULK_LLAMA_SERVER_BIN, or unset it to use what is found.",
            )
        )
    served = {build.engine for build in facts.engines if build.usable}
    for build in facts.engines:
        # A build that was merely not found has no path, and is nothing to complain about.
        if build.usable or not (build.path or build.reason.startswith(CPU_UNSUPPORTED)):
            continue
        if build.path and build.path == facts.override_path:
            continue
        conflicts.append(_build_conflict(build, has_other=build.engine in served))
    return conflicts


def _build_conflict(build: EngineFacts, *, has_other: bool) -> CapabilityConflict:
    where = build.path or build.provider
    level = "warning" if has_other else "error"
    if build.reason.startswith(CPU_UNSUPPORTED):
        return CapabilityConflict(
            code="engine_cpu_unsupported",
            level=level,
            observed=build.reason,
            declared=where,
            message=f"{build.engine} at {where} does not run on this CPU: {build.reason}",
            remediation="Use the default engine build (xllamacpp), or one compiled for this CPU.",
        )
    return CapabilityConflict(
        code="invalid_engine_binary",
        level=level,
        observed=build.reason,
        declared=where,
        message=f"{build.engine} at {where} is not usable: {build.reason}",
        remediation="Install what is missing, or remove the build; `skulk doctor` shows it again."
        if build.reason.endswith("is missing")
        else "Repair or remove it; `skulk doctor` shows it again.",
    )


def _accelerator_conflicts(
    facts: NodeFacts, inferred: tuple[BackendTag, ...]
) -> list[CapabilityConflict]:
    """Compare the accelerators with what the builds compute on, in both directions."""
    served: set[str] = {tag.partition("-")[2] for tag in inferred} - {"cpu"}
    conflicts = [
        _gpu_unused(accelerator, inferred)
        for accelerator in facts.accelerators
        if not served & _computes_on(accelerator) and not _is_marginal(accelerator)
    ]
    conflicts += [_gpu_lost(device) for device in facts.lost_accelerators]
    conflicts += [_gpu_unmeasured(device) for device in facts.accelerators if _is_dark(device)]
    reached: set[str] = set[str]().union(*(_computes_on(a) for a in facts.accelerators))
    unseen = sorted(served - reached)
    if unseen:
        what = ", ".join(unseen)
        conflicts.append(
            CapabilityConflict(
                code="gpu_detection_degraded",
                level="warning",
                observed="no such accelerator",
                declared=what,
                message=f"an engine build computes on {what}, and no probe sees such a device: "
                "its memory is unknown, plans use the RAM figure",
                remediation="Install the vendor's management tool, and check the permissions of "
                "the device files (group render or video).",
            )
        )
    return conflicts


def _gpu_unused(accelerator: Accelerator, inferred: tuple[BackendTag, ...]) -> CapabilityConflict:
    found = ", ".join(inferred) or "none"
    return CapabilityConflict(
        code="gpu_serving_disabled",
        level="error",
        observed=f"{accelerator.name} ({accelerator.compute}, seen by {accelerator.seen_by})",
        declared=found,
        message=f"{accelerator.name} is not used: no engine build here computes on it "
        f"(backends: {found})",
        remediation="Install an engine with GPU support, such as skulkd[vulkan], or set "
        "SKULK_LLAMA_SERVER_BIN to one.",
    )


def _gpu_lost(accelerator: Accelerator) -> CapabilityConflict:
    return CapabilityConflict(
        code="gpu_lost",
        level="error",
        observed="no probe sees it any more",
        declared=f"{accelerator.name} ({accelerator.compute}, was seen by {accelerator.seen_by})",
        message=f"{accelerator.name} was here and is gone: nothing is placed on it",
        remediation="Reload its driver or restart the machine (for NVIDIA: `sudo rmmod nvidia_uvm "
        "&& sudo modprobe nvidia_uvm`), then restart skulkd. It comes back by itself when it is "
        "seen after the next suspend.",
    )


def _gpu_unmeasured(accelerator: Accelerator) -> CapabilityConflict:
    return CapabilityConflict(
        code="gpu_detection_degraded",
        level="warning",
        observed=f"{accelerator.name}, memory unknown, seen by {accelerator.seen_by}",
        declared=accelerator.compute,
        message=f"the driver shows {accelerator.name}, and nothing tells its memory: plans use "
        "the RAM figure",
        remediation="Repair the driver's management library (NVML) or `nvidia-smi`: both must be "
        "of the version of the loaded driver.",
    )


def _is_dark(accelerator: Accelerator) -> bool:
    """Say whether a device must have memory of its own, of which nothing tells."""
    return (
        accelerator.memory_bytes is None
        and not accelerator.unified
        and accelerator.vendor in {"nvidia", "amd"}
    )


def lost_computes(facts: NodeFacts) -> set[str]:
    """Name the computes that only devices offered which are gone."""
    lost = set[str]().union(*(_computes_on(a) for a in facts.lost_accelerators))
    return lost.difference(*(_computes_on(a) for a in facts.accelerators))


def _computes_on(accelerator: Accelerator) -> set[str]:
    """All ways to compute on a device: its vendor's own, and Vulkan on everything but Apple's."""
    ways: set[str] = {accelerator.compute}
    if accelerator.vendor != "apple":
        ways.add("vulkan")
    return ways


def _is_marginal(accelerator: Accelerator) -> bool:
    """Say whether the CPU beside it does as well: Intel graphics without memory of their own."""
    return accelerator.vendor == "intel" and (
        accelerator.unified or accelerator.memory_bytes is None
    )


def _unique(tags: Iterable[BackendTag]) -> tuple[BackendTag, ...]:
    return tuple(dict.fromkeys(tags))
