import pytest

from protocol.cards import BackendTag
from protocol.nodes import NodeCapabilities
from skulkd.core.facts import (
    SCRIPTED_BACKEND,
    builds_at_work,
    derive,
    lost_computes,
    remember,
    without_build,
)
from tests.support.builders import an_accelerator, an_engine, some_facts


def conflict_codes(capabilities: NodeCapabilities) -> list[str]:
    return [conflict.code for conflict in capabilities.conflicts]


def test_a_node_with_no_engine_still_offers_the_scripted_one() -> None:
    assert derive(some_facts(engines=())).backends == (SCRIPTED_BACKEND,)


def test_a_management_node_offers_nothing() -> None:
    capabilities = derive(some_facts(override_error="no such file"), role="management")
    assert (capabilities.backends, capabilities.conflicts) == ((), ())


def test_the_builds_own_list_is_taken_best_first() -> None:
    engine = an_engine(computes=("cpu", "vulkan"))
    facts = some_facts(engines=(engine,), accelerators=(an_accelerator(compute="cuda"),))
    capabilities = derive(facts)
    assert capabilities.backends == ("llama_server-vulkan", "llama_server-cpu", SCRIPTED_BACKEND)
    assert capabilities.conflicts == ()


def test_a_build_that_lists_nothing_gets_what_was_seen_and_the_cpu_as_floor() -> None:
    facts = some_facts(
        engines=(an_engine(computes=()),), accelerators=(an_accelerator(compute="cuda"),)
    )
    assert derive(facts).backends == ("llama_server-cuda", "llama_server-cpu", SCRIPTED_BACKEND)
    bare = derive(some_facts(engines=(an_engine(computes=()),)))
    assert bare.backends == ("llama_server-cpu", SCRIPTED_BACKEND)


def test_a_declaration_replaces_what_was_found() -> None:
    facts = some_facts(
        engines=(an_engine(computes=("vulkan", "cpu")),),
        accelerators=(an_accelerator(compute="vulkan"),),
        declared_backends=("llama_server-cpu",),
    )
    assert derive(facts).backends == ("llama_server-cpu", SCRIPTED_BACKEND)


def test_a_bare_declaration_stands_for_all_computes_found() -> None:
    facts = some_facts(
        engines=(an_engine(computes=("vulkan", "cpu")),),
        accelerators=(an_accelerator(compute="vulkan"),),
        declared_backends=("llama_server",),
    )
    capabilities = derive(facts)
    assert capabilities.backends == ("llama_server-vulkan", "llama_server-cpu", SCRIPTED_BACKEND)
    assert capabilities.conflicts == ()


@pytest.mark.parametrize(
    ("declared", "advertised"),
    [("llama_server-cuda", True), ("vllm-cuda", False)],
)
def test_a_declaration_that_nothing_confirms_is_loud(
    declared: BackendTag, advertised: bool
) -> None:
    capabilities = derive(some_facts(declared_backends=(declared,)))
    assert (declared in capabilities.backends) == advertised
    assert conflict_codes(capabilities) == ["backend_override_conflict"]
    assert capabilities.conflicts[0].declared == declared


def test_an_override_that_does_not_work_is_an_error() -> None:
    capabilities = derive(some_facts(override_error="there is no such file"))
    assert conflict_codes(capabilities) == ["invalid_engine_binary"]
    assert capabilities.conflicts[0].level == "error"
    assert "SKULK_LLAMA_SERVER_BIN" in capabilities.conflicts[0].remediation


def test_a_build_that_traps_on_this_cpu_is_named_and_not_advertised() -> None:
    broken = an_engine(usable=False, reason="engine.cpu_unsupported: SIGILL", path="/opt/new")
    alone = derive(some_facts(engines=(broken,)))
    assert alone.backends == (SCRIPTED_BACKEND,)
    assert (conflict_codes(alone), alone.conflicts[0].level) == (
        ["engine_cpu_unsupported"],
        "error",
    )
    beside = derive(some_facts(engines=(broken, an_engine())))
    assert beside.backends == ("llama_server-cpu", SCRIPTED_BACKEND)
    assert beside.conflicts[0].level == "warning"


def test_an_engine_that_is_merely_absent_is_no_conflict() -> None:
    absent = an_engine("mlx", usable=False, reason="not installed", path="")
    assert derive(some_facts(engines=(an_engine(), absent))).conflicts == ()


def test_a_gpu_that_no_build_computes_on_is_an_error_with_the_remedy() -> None:
    facts = some_facts(accelerators=(an_accelerator(compute="cuda"),))
    capabilities = derive(facts)
    assert conflict_codes(capabilities) == ["gpu_serving_disabled"]
    assert "skulkd[vulkan]" in capabilities.conflicts[0].remediation


def test_graphics_without_memory_of_their_own_are_not_missed() -> None:
    graphics = an_accelerator(compute="vulkan", memory_bytes=None).model_copy(
        update={"vendor": "intel"}
    )
    assert derive(some_facts(accelerators=(graphics,))).conflicts == ()


def test_a_build_that_computes_on_an_unseen_device_is_a_degraded_detection() -> None:
    capabilities = derive(some_facts(engines=(an_engine(computes=("vulkan", "cpu")),)))
    assert conflict_codes(capabilities) == ["gpu_detection_degraded"]
    assert "llama_server-vulkan" in capabilities.backends


def test_b34_a_gpu_that_is_gone_after_a_suspend_is_an_error_and_no_candidate() -> None:
    before = some_facts(
        engines=(an_engine(computes=("cuda", "cpu")),),
        accelerators=(an_accelerator(compute="cuda"),),
    )
    gone = remember(before.model_copy(update={"accelerators": ()}), before)
    capabilities = derive(gone)
    assert capabilities.backends == ("llama_server-cpu", SCRIPTED_BACKEND)
    assert conflict_codes(capabilities) == ["gpu_lost"]
    assert capabilities.conflicts[0].level == "error"
    assert derive(remember(gone.model_copy(update={"lost_accelerators": ()}), gone)) == capabilities
    assert derive(remember(before, gone)) == derive(before)


def test_b34_a_gpu_that_its_driver_names_and_can_no_longer_ask_is_gone_too() -> None:
    known = an_accelerator(compute="cuda")
    dark = known.model_copy(update={"memory_bytes": None, "seen_by": "/proc/driver/nvidia"})
    engines = (an_engine(computes=("cuda", "cpu")),)
    before = some_facts(engines=engines, accelerators=(known,))
    after = remember(some_facts(engines=engines, accelerators=(dark,)), before)
    assert (after.accelerators, after.lost_accelerators) == ((), (known,))
    assert "llama_server-cuda" not in derive(after).backends


def test_one_of_two_gpus_gone_leaves_the_other_a_candidate() -> None:
    pair = (an_accelerator(index=0), an_accelerator(index=1))
    pair = tuple(one.model_copy(update={"name": "RTX 3090"}) for one in pair)
    before = some_facts(engines=(an_engine(computes=("cuda", "cpu")),), accelerators=pair)
    after = remember(before.model_copy(update={"accelerators": pair[:1]}), before)
    assert (len(after.accelerators), len(after.lost_accelerators)) == (1, 1)
    assert "llama_server-cuda" in derive(after).backends
    assert conflict_codes(derive(after)) == ["gpu_lost"]


def test_a_gpu_cannot_be_declared_back() -> None:
    before = some_facts(accelerators=(an_accelerator(compute="cuda"),))
    gone = remember(
        some_facts(
            engines=(an_engine(computes=("cuda", "cpu")),),
            declared_backends=("llama_server-cuda", "llama_server-cpu"),
        ),
        before,
    )
    assert derive(gone).backends == ("llama_server-cpu", SCRIPTED_BACKEND)


def test_a_device_whose_memory_nothing_tells_is_a_degraded_detection() -> None:
    dark = an_accelerator(compute="cuda", memory_bytes=None)
    facts = some_facts(engines=(an_engine(computes=("cuda", "cpu")),), accelerators=(dark,))
    capabilities = derive(facts)
    assert conflict_codes(capabilities) == ["gpu_detection_degraded"]
    assert "memory unknown" in capabilities.conflicts[0].observed


def test_b34_a_build_is_not_started_on_a_gpu_that_is_gone_whatever_it_lists() -> None:
    engines = (an_engine(computes=("cuda", "vulkan", "cpu")), an_engine("vllm", computes=("cuda",)))
    before = some_facts(engines=engines, accelerators=(an_accelerator(compute="cuda"),))
    gone = remember(some_facts(engines=engines), before)
    assert lost_computes(gone) == {"cuda", "vulkan"}
    assert [build.computes for build in builds_at_work(gone)] == [("cpu",), ()]
    assert builds_at_work(before) == engines


def test_a_build_that_traps_with_its_first_model_is_named_and_planned_no_more() -> None:
    newer = an_engine(path="/opt/new")
    other = an_engine(path="/opt/portable")
    capabilities = derive(without_build(some_facts(engines=(newer, other)), newer))
    assert capabilities.backends == ("llama_server-cpu", SCRIPTED_BACKEND)
    assert conflict_codes(capabilities) == ["engine_cpu_unsupported"]
    assert capabilities.conflicts[0].declared == "/opt/new"
    script = an_engine("scripted")
    assert without_build(some_facts(engines=(script,)), script).engines == (script,)
    alone = derive(without_build(some_facts(engines=(newer,)), newer))
    assert alone.backends == (SCRIPTED_BACKEND,)
