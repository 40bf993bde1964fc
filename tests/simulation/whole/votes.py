"""Whether a folder keeps its word: of each incarnation, one vote a term, and none once it has forgotten what it had
acknowledged."""

from typing import TYPE_CHECKING, Any

from kvorum_raft._proto import raft_pb2 as pb

if TYPE_CHECKING:
    from tests.simulation.whole.judge import Judge
    from tests.simulation.whole.process import Process

_KEPT = 300


class Votes:
    """Looks at what nodes say to each other."""

    def __init__(self, judge: "Judge") -> None:
        self._judge = judge
        self._given: dict[tuple[bytes, int], str] = {}
        self._acknowledged: dict[bytes, dict[int, int]] = {}
        """Term of each entry that an incarnation has acknowledged, by its index; the newest ones."""

    def watch(self, process: "Process") -> None:
        raft = process.raft
        assert raft is not None
        transport, send = raft._transport, raft._transport.send

        def observed(node: Any, envelope: pb.Envelope) -> bool:
            self._said(process, node.id, envelope)
            return send(node, envelope)

        transport.send = observed  # type: ignore[method-assign]

    def _said(self, process: "Process", target: str, envelope: pb.Envelope) -> None:
        body = envelope.WhichOneof("body")
        if body == "append_reply" and envelope.append_reply.success:
            self._acknowledges(process, envelope.append_reply.match_index)
        elif body == "vote" and envelope.vote.granted:
            self._votes(process, envelope.term, target)
        elif body == "request_vote":
            self._votes(process, envelope.term, process.machine.node_id)

    def _acknowledges(self, process: "Process", index: int) -> None:
        assert process.raft is not None
        term = process.raft._journal.term_at(index)
        entries = self._acknowledged.setdefault(self._incarnation(process), {})
        if term is None or entries.get(index) == term:
            return
        entries[index] = term
        if len(entries) > _KEPT:
            del entries[next(iter(entries))]

    def _votes(self, process: "Process", term: int, candidate: str) -> None:
        assert process.raft is not None
        incarnation = self._incarnation(process)
        if self._given.setdefault((incarnation, term), candidate) != candidate:
            other = self._given[incarnation, term]
            self._judge.broken(f"the folder of {process.name} votes in term {term} for {candidate} after {other}")
        last = process.raft._journal.last_index
        for index, entry_term in self._acknowledged.get(incarnation, {}).items():
            if index > last and self._judge.terms.get(index) == entry_term:
                self._judge.broken(
                    f"the folder of {process.name} votes in term {term}, and its log ends at entry {last}: "
                    f"it has acknowledged entry {index}, which is committed"
                )
                break

    @staticmethod
    def _incarnation(process: "Process") -> bytes:
        assert process.raft is not None
        return bytes(process.raft._admissions.identity.incarnation)
