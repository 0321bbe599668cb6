import errno
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from protocol.commands import AdmitMember, ReportLeave, ReportLoss
from protocol.errors import ClusterError
from protocol.events import MemberRemoved
from protocol.peer_messages import Heartbeat, LogPosition, Vote, pack_frame
from protocol.state import Policy
from skulkd.cluster.mastership_ports import MemberSeen
from skulkd.core.election import CALM_PULSE_S
from skulkd.core.voting import TermVote
from skulkd.eventlog.journal_term import TermFile
from skulkd.runtime.tasks import sleep
from skulkd.runtime.virtual_time import run_virtual
from tests.support.elected_nodes import TERM_PATH, ElectedCluster, ElectedNode

Story = Callable[[ElectedCluster], Coroutine[Any, Any, None]]


def tell(story: Story, n_nodes: int = 3, *, policy: Policy = "availability") -> None:
    """Run a story on a cluster that has a master."""

    async def main() -> None:
        cluster = ElectedCluster(n_nodes, policy=policy, seed=n_nodes)
        await cluster.start()
        await cluster.wait_agreed()
        await sleep(1.0)
        await story(cluster)
        await cluster.close()

    run_virtual(main, seed=n_nodes, limit_s=300)


def master_and_others(cluster: ElectedCluster) -> tuple[ElectedNode, list[ElectedNode]]:
    (master,) = cluster.masters()
    return master, [node for node in cluster.on() if node is not master]


def seen_of(node: ElectedNode, other: ElectedNode) -> MemberSeen:
    return next(
        member for member in node.mastership.seen().members if member.node_id == other.node_id
    )


# ---- The fence ----


def test_a_master_that_slept_knows_so_before_anything_runs_and_tells_its_log_first() -> None:
    async def story(cluster: ElectedCluster) -> None:
        master, _ = master_and_others(cluster)
        assert master.mastership.is_master
        master.clock.sleep(2.1)
        assert not master.mastership.is_master
        assert master.mastership.term is None
        assert master.log.leads is not None, "nothing has run yet"
        await sleep(CALM_PULSE_S)
        assert master.log.story[1] == "rest"

    tell(story)


def test_a_cluster_of_one_that_slept_leads_again_at_once_in_a_new_term() -> None:
    async def story(cluster: ElectedCluster) -> None:
        (master,) = cluster.masters()
        master.clock.sleep(3600.0)
        await sleep(0.5)
        assert master.mastership.is_master
        assert master.log.story == ["lead 2", "rest", "lead 3"]

    tell(story, 1)


def test_the_time_before_a_node_takes_part_is_not_its_lag() -> None:
    async def main() -> None:
        cluster = ElectedCluster(1)
        node = cluster.nodes[1]
        await node.start(opened_s=30.0)
        await sleep(0.1)
        seen = node.mastership.seen()
        assert not seen.is_lagging
        assert seen.role == "master"
        await cluster.close()

    run_virtual(main)


# ---- Promises ----


def test_a_node_whose_disk_fails_gives_no_vote_and_the_others_elect_without_it() -> None:
    async def story(cluster: ElectedCluster) -> None:
        master, (sick, _) = master_and_others(cluster)
        sick.disk.sync_error = OSError(errno.EIO, "bad sector")
        await master.crash()
        await cluster.wait_agreed()
        assert not sick.mastership.is_master
        promise = sick.mastership.seen().promise
        assert promise is not None
        assert promise.term <= 2
        assert isinstance(sick.mastership.vote_error, OSError)

    tell(story)


def test_in_quorum_no_master_is_elected_by_a_vote_that_is_not_durable() -> None:
    async def story(cluster: ElectedCluster) -> None:
        master, (sick, _) = master_and_others(cluster)
        sick.disk.sync_error = OSError(errno.EIO, "bad sector")
        await master.crash()
        await sleep(30.0)
        assert cluster.masters() == []
        sick.disk.sync_error = None
        assert await cluster.wait_agreed() < 10.0

    tell(story, policy="quorum")


def test_a_node_with_a_damaged_promise_follows_and_promises_again_once_all_are_heard(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(cluster: ElectedCluster) -> None:
        master, (sick, other) = master_and_others(cluster)
        await sick.crash()
        sick.disk.replace(TERM_PATH, b"damaged")
        await other.crash()
        await sick.start()
        await cluster.wait_agreed()
        assert sick.mastership.seen().promise is None
        assert "does not vote until it has heard every other voter" in caplog.text
        await other.start()
        await sleep(2.0)
        assert sick.mastership.seen().promise == TermVote(term=2)
        await master.crash()
        await cluster.wait_agreed()
        assert TermFile(sick.disk, TERM_PATH).read().term == 3

    with caplog.at_level(logging.ERROR):
        tell(story)


# ---- Handover ----


def test_a_handover_makes_the_target_master_once_it_has_everything() -> None:
    async def story(cluster: ElectedCluster) -> None:
        master, (target, _) = master_and_others(cluster)
        for _ in range(50):
            master.log.append_something()
        await master.mastership.handover(target.node_id)
        await cluster.wait_agreed()
        assert cluster.masters() == [target]
        assert target.log.n_discarded == 0
        assert target.log.head_seq >= 60

    for policy in ("availability", "quorum"):
        tell(story, policy=policy)


def test_a_handover_that_comes_to_nothing_leaves_the_master_in_its_place() -> None:
    async def story(cluster: ElectedCluster) -> None:
        master, (target, _) = master_and_others(cluster)
        target.disk.sync_error = OSError(errno.EIO, "bad sector")
        with pytest.raises(ClusterError) as caught:
            await master.mastership.handover(target.node_id)
        assert caught.value.code == "cluster.handover_failed"
        assert "within 2 s" in caught.value.message
        assert cluster.masters() == [master]
        assert len(cluster.elections) == 1

    tell(story)


@pytest.mark.parametrize("case", ["not_master", "stranger", "self", "silent"])
def test_a_handover_that_cannot_be_is_refused_at_once(case: str) -> None:
    async def story(cluster: ElectedCluster) -> None:
        master, (other, silent) = master_and_others(cluster)
        await silent.crash()
        await sleep(1.0)
        asked, target, code = {
            "not_master": (other, master.node_id, "cluster.no_master"),
            "stranger": (master, "n" + "a" * 16, "cluster.not_member"),
            "self": (master, master.node_id, "cluster.handover_failed"),
            "silent": (master, silent.node_id, "cluster.handover_failed"),
        }[case]
        with pytest.raises(ClusterError) as caught:
            await asked.mastership.handover(type(master.node_id)(target))
        assert caught.value.code == code
        assert caught.value.remediation

    tell(story)


# ---- Goodbye ----


def test_a_member_that_leaves_has_left_within_a_second_and_is_missed_by_nobody() -> None:
    async def story(cluster: ElectedCluster) -> None:
        master, (leaver, _) = master_and_others(cluster)
        assert await leaver.leave() <= 1.05
        await sleep(1.0)
        assert master.log.appended.members[leaver.node_id].presence == "left"
        assert not master.mastership.is_alive(leaver.node_id)
        await sleep(20.0)
        assert not [c for c in cluster.commands if isinstance(c, ReportLoss)]
        assert len(cluster.elections) == 1
        await leaver.start()
        await sleep(5.0)
        assert master.log.appended.members[leaver.node_id].presence == "present"

    tell(story)


def test_a_master_that_leaves_is_replaced_within_a_second_of_its_goodbye() -> None:
    async def story(cluster: ElectedCluster) -> None:
        master, _ = master_and_others(cluster)
        assert await master.leave() <= 1.05
        assert await cluster.wait_agreed() < 1.0
        (now_master,) = cluster.masters()
        assert now_master.log.appended.members[master.node_id].presence == "left"

    for policy in ("availability", "quorum"):
        tell(story, policy=policy)


def test_a_goodbye_that_no_master_hears_is_said_for_the_leaver_by_the_next_one() -> None:
    async def story(cluster: ElectedCluster) -> None:
        master, (leaver, other) = master_and_others(cluster)
        cluster.network.cut(leaver.node_id, master.node_id)
        cluster.network.cut(master.node_id, leaver.node_id)
        await sleep(3.0)
        await leaver.leave()
        cluster.network.heal_all()
        await sleep(1.0)
        assert not other.mastership.is_alive(leaver.node_id)
        await master.crash()
        await cluster.wait_agreed()
        await sleep(1.0)
        assert other.log.appended.members[leaver.node_id].presence == "left"

    tell(story)


# ---- Sleep ----


@pytest.mark.parametrize("policy", ["availability", "quorum"])
def test_a_master_that_goes_to_sleep_is_replaced_at_once_and_comes_back_as_a_member(
    policy: Policy,
) -> None:
    async def story(cluster: ElectedCluster) -> None:
        sleeper, others = master_and_others(cluster)
        await sleeper.mastership.fall_asleep()
        assert not sleeper.mastership.is_master
        assert sleeper.log.leads is None, "its log rests before the machine does"
        n_said = cluster.n_said_by[sleeper.node_id]
        await sleep(1.0)
        (master,) = cluster.masters()
        assert master in others
        assert master.log.appended.members[sleeper.node_id].presence == "left"
        assert not master.mastership.is_alive(sleeper.node_id)
        sleeper.clock.sleep(3600.0)
        await sleep(5.0)
        assert cluster.n_said_by[sleeper.node_id] == n_said, "not a word"
        sleeper.mastership.wake_up()
        await sleep(1.0)
        assert master.mastership.is_alive(sleeper.node_id)
        assert sleeper.mastership.term == master.mastership.term
        await sleep(2.0)
        assert master.log.appended.members[sleeper.node_id].presence == "present"
        assert cluster.masters() == [master]
        assert not [c for c in cluster.commands if isinstance(c, ReportLoss)]

    tell(story, policy=policy)


def test_a_sleep_that_is_called_off_costs_nothing_but_a_moment() -> None:
    async def story(cluster: ElectedCluster) -> None:
        master, (sleeper, _) = master_and_others(cluster)
        await sleeper.mastership.fall_asleep()
        sleeper.mastership.wake_up()
        sleeper.mastership.wake_up()
        await sleep(3.0)
        assert sleeper.mastership.term == master.mastership.term
        assert master.log.appended.members[sleeper.node_id].presence == "present"

    tell(story)


def test_a_cluster_of_one_that_sleeps_leads_again_when_it_wakes() -> None:
    async def story(cluster: ElectedCluster) -> None:
        (node,) = cluster.on()
        await node.mastership.fall_asleep()
        assert not node.mastership.is_master
        node.clock.sleep(60.0)
        node.mastership.wake_up()
        assert await cluster.wait_agreed() < 0.5

    tell(story, 1)


def test_a_node_that_is_stopped_while_it_is_going_to_sleep_ends() -> None:
    async def story(cluster: ElectedCluster) -> None:
        _, (sleeper, _) = master_and_others(cluster)
        await sleeper.mastership.fall_asleep()
        n_before = cluster.n_said["Farewell"]
        await sleeper.mastership.farewell()
        assert cluster.n_said["Farewell"] == n_before, "it was said"
        sleeper.mastership.wake_up()
        await sleep(2.0)
        assert sleeper.mastership.term is None

    tell(story)


def test_a_cluster_of_one_says_goodbye_quickly_and_keeps_its_vote() -> None:
    async def story(cluster: ElectedCluster) -> None:
        (node,) = cluster.on()
        assert await node.leave() < 0.2
        await node.start()
        assert await cluster.wait_agreed() < 0.5

    tell(story, 1)


def test_saying_goodbye_twice_is_saying_it_once() -> None:
    async def story(cluster: ElectedCluster) -> None:
        _, (leaver, _) = master_and_others(cluster)
        await leaver.mastership.farewell()
        n_before = cluster.n_said["Farewell"]
        await leaver.mastership.farewell()
        await leaver.mastership.close()
        assert cluster.n_said["Farewell"] == n_before == 2
        assert not leaver.mastership.is_master
        assert leaver.mastership.term is None

    tell(story)


# ---- Members ----


async def _until_reported(cluster: ElectedCluster, kind: type) -> float:
    waited_s = 0.0
    while not any(isinstance(command, kind) for command in cluster.commands):
        await sleep(0.1)
        waited_s += 0.1
        assert waited_s < 60.0
    return waited_s


def test_a_member_that_nobody_hears_is_lost_after_six_seconds() -> None:
    async def story(cluster: ElectedCluster) -> None:
        _, (lost, *rest) = master_and_others(cluster)
        cluster.partition([lost.number], [node.number for node in cluster.on() if node is not lost])
        assert 5.4 <= await _until_reported(cluster, ReportLoss) <= 7.5
        (report,) = [c for c in cluster.commands if isinstance(c, ReportLoss)]
        assert report.node_id == lost.node_id
        assert not report.is_refused
        assert report.silent_ms >= 6000
        del rest

    tell(story)


def test_a_member_whose_process_has_ended_is_lost_after_two_seconds() -> None:
    async def story(cluster: ElectedCluster) -> None:
        _, (lost, _) = master_and_others(cluster)
        await lost.crash()
        assert 1.9 <= await _until_reported(cluster, ReportLoss) <= 2.6
        (report,) = [c for c in cluster.commands if isinstance(c, ReportLoss)]
        assert report.is_refused

    tell(story)


def test_a_member_that_others_hear_is_lost_to_the_master_after_fifteen_seconds() -> None:
    async def story(cluster: ElectedCluster) -> None:
        master, (lost, _) = master_and_others(cluster)
        cluster.network.cut(lost.node_id, master.node_id)
        assert 14.4 <= await _until_reported(cluster, ReportLoss) <= 16.0

    tell(story)


def test_a_lost_member_that_is_back_renews_itself() -> None:
    async def story(cluster: ElectedCluster) -> None:
        master, (lost, _) = master_and_others(cluster)
        await lost.crash()
        await _until_reported(cluster, ReportLoss)
        await sleep(1.0)
        assert master.log.appended.members[lost.node_id].presence == "lost"
        await lost.start()
        assert await _until_reported(cluster, AdmitMember) < 3.0
        await sleep(3.0)
        assert master.log.appended.members[lost.node_id].presence == "present"
        assert len([c for c in cluster.commands if isinstance(c, AdmitMember)]) == 1

    tell(story)


def test_a_node_that_is_back_takes_requests_once_its_links_are_up() -> None:
    async def story(cluster: ElectedCluster) -> None:
        master, (back, other) = master_and_others(cluster)
        await back.crash()
        await sleep(3.0)
        assert not master.mastership.is_reachable(back.node_id)
        await back.start()
        pairs = [(one, back) for one in (master, other)] + [(back, one) for one in (master, other)]
        for _ in range(300):
            if all(near.transport.link(far.node_id) == "up" for near, far in pairs):
                break
            await sleep(0.01)
        await sleep(0.1)  # a few ways of a word, and no heartbeat's time
        assert all(near.mastership.is_reachable(far.node_id) for near, far in pairs)

    tell(story)


def test_an_idle_cluster_submits_nothing() -> None:
    async def story(cluster: ElectedCluster) -> None:
        await sleep(120.0)
        assert cluster.commands == []
        assert cluster.n_said["Campaign"] <= 8

    tell(story)


def test_a_removed_node_falls_silent_and_is_not_missed() -> None:
    async def story(cluster: ElectedCluster) -> None:
        master, (removed, _) = master_and_others(cluster)
        master.log.append([MemberRemoved(node_id=removed.node_id)])
        await sleep(3.0)
        n_before = cluster.n_said.total()
        assert removed.mastership.term is None
        assert removed.node_id in removed.log.appended.removed
        await sleep(10.0)
        beats = cluster.n_said.total() - n_before
        assert beats <= 2 * 2 * 21, "two nodes, each to both others, twice a second"
        assert cluster.masters() == [master]

    tell(story)


# ---- What is seen ----


def test_what_is_seen_of_members_is_what_they_say_and_how_their_link_is() -> None:
    async def story(cluster: ElectedCluster) -> None:
        master, (gone, other) = master_and_others(cluster)
        await gone.crash()
        await sleep(0.7)
        seen = master.mastership.seen()
        assert (seen.role, seen.last_master) == ("master", master.node_id)
        assert seen.term == master.mastership.term
        assert seen.promise is not None
        assert seen.n_elections == 1
        lost, alive = seen_of(master, gone), seen_of(master, other)
        assert (lost.is_alive, lost.link) == (False, "refused")
        assert alive.is_alive
        assert alive.boot_id == f"{other.number:08x}00000001"
        assert alive.master == master.node_id
        assert alive.unheard == (gone.node_id,)
        assert alive.silent_s is not None
        assert alive.silent_s < 0.6
        assert not seen_of(master, master).silent_s
        assert master.mastership.is_reachable(other.node_id)
        assert not master.mastership.is_reachable(gone.node_id)
        assert master.mastership.silent_s(gone.node_id) is not None

    tell(story)


def test_two_processes_on_one_key_are_a_problem_that_names_both() -> None:
    async def story(cluster: ElectedCluster) -> None:
        master, (copied, _) = master_and_others(cluster)
        assert master.mastership.problems() == ()
        beat = Heartbeat(
            boot_id="f" * 16,
            number=2,
            master=master.node_id,
            is_minority=False,
            position=LogPosition(1, 10, 1, 10),
            commit_seq=10,
            chain=b"\0" * 16,
            unheard=(),
            is_lagging=False,
            hash_seq=0,
            state_hash=b"",
        )
        for _ in range(2):
            copied.transport.send(master.node_id, "election", pack_frame(beat))
            await sleep(1.0)
        (problem,) = master.mastership.problems()
        assert copied.node_id in problem
        assert "f" * 16 in problem
        assert f"{copied.number:08x}00000001" in problem
        assert master.mastership.seen().problems == (problem,)

    tell(story)


def test_frames_that_do_not_decode_change_nothing_and_are_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(cluster: ElectedCluster) -> None:
        master, (other, _) = master_and_others(cluster)
        for payload in (b"", b"\xc1", b"\x93\x01\x02\x03", bytes(range(256)), b"x" * 600):
            for _ in range(20):
                other.transport.send(master.node_id, "election", payload)
        await sleep(5.0)
        assert cluster.masters() == [master]
        assert master.mastership.seen().n_undecodable == 100
        said = [r for r in caplog.records if r.name == "skulkd.cluster.mastership"]
        assert len(said) == 1

    with caplog.at_level(logging.WARNING):
        tell(story)


def test_a_flood_of_messages_is_bounded_and_the_node_lives_on() -> None:
    async def story(cluster: ElectedCluster) -> None:
        master, (other, _) = master_and_others(cluster)
        receive = master.watched.receivers["election"]
        for number in range(10_000):
            receive(other.node_id, pack_frame(Vote(number, True, "", 2)))
        assert 5000 < master.mastership.seen().n_dropped < 10_000
        await sleep(5.0)
        assert cluster.masters() == [master]

    tell(story)


def test_watchers_are_told_of_changes_and_of_nothing_else() -> None:
    async def story(cluster: ElectedCluster) -> None:
        master, (other, third) = master_and_others(cluster)
        told: list[object] = []
        other.mastership.on_change(lambda: told.append(other.mastership.term))
        await sleep(30.0)
        assert told == []
        await third.crash()
        await sleep(0.5)
        assert told == [cluster.elections[0][1]]
        await master.crash()
        await sleep(1.0)
        assert told[1] is None
        assert told[-1] == cluster.elections[-1][1]

    tell(story)


def test_when_the_master_of_many_ends_a_few_of_them_ask_and_not_all() -> None:
    async def story(cluster: ElectedCluster) -> None:
        master, others = master_and_others(cluster)
        n_before = cluster.n_said["Campaign"]
        await master.crash()
        assert await cluster.wait_agreed() < 1.0
        assert cluster.n_said["Campaign"] - n_before <= 6 * len(others)
        assert len(cluster.elections) == 2

    tell(story, 20)


def test_a_goodbye_is_a_command_of_the_leaver() -> None:
    async def story(cluster: ElectedCluster) -> None:
        _, (leaver, _) = master_and_others(cluster)
        await leaver.leave()
        (report,) = [c for c in cluster.commands if isinstance(c, ReportLeave)]
        assert report.node_id == leaver.node_id
        assert report.command_id.startswith(leaver.node_id[1:7])

    tell(story)
