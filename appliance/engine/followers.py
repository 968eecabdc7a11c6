"""Holds sequences back while another computes the prompt they share. Knows no blocks and no order."""

from collections.abc import Iterator

from appliance.engine.sequence import Sequence, SequenceId


class Followers:
    """Sequences whose `fork_of`, their leader, is live and has not computed the prompt yet."""

    def __init__(self) -> None:
        self._by_leader: dict[SequenceId, dict[SequenceId, Sequence]] = {}
        self._leaders: dict[SequenceId, SequenceId] = {}

    def __len__(self) -> int:
        return len(self._leaders)

    def __iter__(self) -> Iterator[Sequence]:
        for followers in self._by_leader.values():
            yield from followers.values()

    def add(self, sequence: Sequence) -> None:
        assert sequence.fork_of is not None
        leader_id = sequence.fork_of.sequence_id
        self._by_leader.setdefault(leader_id, {})[sequence.sequence_id] = sequence
        self._leaders[sequence.sequence_id] = leader_id

    def get(self, sequence_id: SequenceId) -> Sequence | None:
        leader_id = self._leaders.get(sequence_id)
        return None if leader_id is None else self._by_leader[leader_id][sequence_id]

    def discard(self, sequence_id: SequenceId) -> None:
        leader_id = self._leaders.pop(sequence_id, None)
        if leader_id is None:
            return
        followers = self._by_leader[leader_id]
        del followers[sequence_id]
        if not followers:
            del self._by_leader[leader_id]

    def release(self, leader: Sequence) -> list[Sequence]:
        """Return all that followed `leader`, whose prompt is computed; they may start now."""
        followers = self._by_leader.pop(leader.sequence_id, {})
        for sequence_id in followers:
            del self._leaders[sequence_id]
        return list(followers.values())

    def succeed(self, leader: Sequence) -> Sequence | None:
        """`leader` ended early: let its first follower, which is returned, lead the others."""
        heirs = self.release(leader)
        if not heirs:
            return None
        heirs[0].fork_of = None
        for follower in heirs[1:]:
            follower.fork_of = heirs[0]
            self.add(follower)
        return heirs[0]
