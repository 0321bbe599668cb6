"""When an event is committed; pure.

    quorum         durable on a majority of the voters, and of the current term: an event of an
                   earlier term is committed by the first one of this term behind it
    availability   durable here and on one other voter that is alive, so that it survives the death
                   of either; alone, durable here

A disk that fails does not count: with it, the others' copies alone decide. Where nobody else is
left in availability, and in a cluster of one, nothing better than memory can be promised, and that
is said.

Source: D. Ongaro, Consensus: Bridging Theory and Practice (2014), section 3.6.2, for the first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from protocol.state import Policy

Durable = Literal["member", "local", "memory"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCopy:
    """The master's log."""

    head_seq: int
    durable_seq: int
    is_failing: bool
    """The disk has failed: nothing more gets durable now."""
    is_voter: bool
    is_alone: bool
    """There is no other member, with a vote or without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherCopy:
    """What the master knows of another voter's log."""

    durable_seq: int
    """Up to here it is durable and agrees with the master's."""
    is_waited_for: bool
    """It is alive and its log moves."""


def committed_seq(
    policy: Policy, own: OwnCopy, others: Sequence[OtherCopy], *, first_seq: int
) -> int:
    """Say up to where the master's log is committed; never more than its end.

    Args:
        policy: Of the state at the log's end.
        own: The master's copy.
        others: Of every other voter.
        first_seq: Where the master's term begins.
    """
    if policy == "quorum" and not own.is_alone:
        seq = _majority_seq(own, others)
        return seq if seq >= first_seq else 0
    waited_for = [other.durable_seq for other in others if other.is_waited_for]
    if not waited_for:
        return own.head_seq if own.is_failing else own.durable_seq
    best = min(max(waited_for), own.head_seq)
    return best if own.is_failing else min(best, own.durable_seq)


def durable_of(seq: int, own: OwnCopy, others: Sequence[OtherCopy]) -> Durable:
    """Say what a committed event rests on."""
    if any(other.durable_seq >= seq for other in others):
        return "member"
    return "local" if own.durable_seq >= seq else "memory"


def _majority_seq(own: OwnCopy, others: Sequence[OtherCopy]) -> int:
    copies = [other.durable_seq for other in others]
    if own.is_voter:
        copies.append(own.durable_seq)
    copies.sort(reverse=True)
    n_needed = len(copies) // 2 + 1
    return min(copies[n_needed - 1], own.head_seq) if copies else 0
