"""Names of archived files: what is in them is known without opening them.

    <cluster id>/<node>/base-<entry>-<term>-<when it was made>
    <cluster id>/<node>/segment-<first entry>-<last entry>-<term of the last>

Each node that archives writes to a place of its own, all that it has applied; so it depends on nobody, and a change of
the leader is nothing to it. Committed entries are the same on all nodes, so a restore takes them from whichever place
has them.
"""

import re
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

_BASE: Final = re.compile(r"base-(\d{20})-(\d{20})-(\d{15})\Z")
_SEGMENT: Final = re.compile(r"segment-(\d{20})-(\d{20})-(\d{20})\Z")
_CLUSTER: Final = re.compile(r"[0-9a-f]{32}\Z")
_NODE: Final = "node-"


class Base(NamedTuple):
    """A backup in the archive."""

    cluster_id: bytes
    node_id: str
    entry: int
    """Index of the last entry that is in it."""
    term: int
    made_ms: int

    @property
    def name(self) -> str:
        return f"{place(self.cluster_id, self.node_id)}base-{self.entry:020}-{self.term:020}-{self.made_ms:015}"


class Segment(NamedTuple):
    """Entries first to last of the log."""

    cluster_id: bytes
    node_id: str
    first: int
    last: int
    last_term: int

    @property
    def name(self) -> str:
        return f"{place(self.cluster_id, self.node_id)}segment-{self.first:020}-{self.last:020}-{self.last_term:020}"


def place(cluster_id: bytes, node_id: str) -> str:
    """What the names of one node's files begin with."""
    return f"{cluster_id.hex()}/{_NODE}{quote(node_id, safe='')}/"


def parse(name: str) -> Base | Segment | None:
    """None: it is no file of ours."""
    parts = name.split("/")
    if len(parts) != 3 or not _CLUSTER.match(parts[0]) or not parts[1].startswith(_NODE):
        return None
    cluster_id, node_id = bytes.fromhex(parts[0]), unquote(parts[1].removeprefix(_NODE))
    if found := _BASE.match(parts[2]):
        return Base(cluster_id, node_id, *map(int, found.groups()))
    if found := _SEGMENT.match(parts[2]):
        segment = Segment(cluster_id, node_id, *map(int, found.groups()))
        return segment if 0 < segment.first <= segment.last else None
    return None
