"""Making a state that of another cluster, which goes on from it: what a restore needs (rules G1, C2).

Two things change. The cluster's row gets a new id and a new stamp base, so that every versionstamp given from now on is
larger than all that the old cluster can have given, and names another commit than any of them. And all sessions go,
with the results that they remember: their clients belong to the old cluster, and what they do not know the outcome of
was not done *here* unless it is in the state.

Keys, their stamps and expiry, messages, dead letters, schedules and the change history stay as they are. So do leases:
a message that was in a consumer's hands is leased still, to a session that is gone, and comes back by the ordinary rule
for lost consumers, a lease after the new leader has taken office (rules F2). Giving it back here would need a verdict
on whether its handling had begun, which nobody can know.
"""

from typing import TYPE_CHECKING, Final

from . import checked, records
from .records import CLUSTER_KEY, OWNER, RESULT, SESSION, STATE_KEY
from .rows import Rows

if TYPE_CHECKING:
    import lmdb

MAX_STAMP_BASE: Final = 1 << 62
_STAMP_BASE_SHIFT: Final = 20


def stamp_base_at(unix_ms: int) -> int:
    """The stamp base of a cluster that is made at that time: room for a million entries in each millisecond."""
    return unix_ms << _STAMP_BASE_SHIFT


def refound(
    env: "lmdb.Environment", state: records.State, old_base: int, cluster_id: bytes, stamp_base: int
) -> records.State:
    """Do it, in one transaction, to a state that nobody else uses; returns what the state row says then. Raises
    ValueError if the new cluster's stamps would not all be larger than the old one's, Damaged, lmdb.Error."""
    newest = state.applied_index + old_base
    if not newest < stamp_base <= MAX_STAMP_BASE - state.applied_index:
        raise ValueError(
            f"the last versionstamp of the old cluster is {newest}, the new cluster's would begin after {stamp_base}:"
            " is the clock of this machine right?"
        )
    with env.begin(write=True) as txn:
        rows = Rows(txn, state)
        rows.put(CLUSTER_KEY, records.pack_cluster(cluster_id, stamp_base))
        for table in (SESSION, RESULT, OWNER):
            while name := _first(txn, table):
                rows.remove(name)
        rows.sessions = 0
        changed = rows.state(state.applied_index, state.time_ms)
        checked.put(txn, STATE_KEY, records.pack_state(changed))
    return changed


def _first(txn: "lmdb.Transaction[bytes]", table: bytes) -> bytes | None:
    with txn.cursor() as cursor:
        if cursor.set_range(table) and cursor.key().startswith(table):
            return bytes(cursor.key())
    return None
