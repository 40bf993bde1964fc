"""kvorum: a replicated key-value store with message queues, opened like a local database.

    async with kvorum.open_kv("app.kv") as kv:                                  # embedded: one folder, no server
    async with kvorum.open_kv("kvorum://n1:7401,n2:7401,n3:7401") as kv:        # a cluster: same API, same semantics

`kvorum.sync` has the same for programs without asyncio, `kvorum.errors` what can go wrong and what to do about it.
"""

from kvorum import errors, limits
from kvorum._version import __version__
from kvorum.atomic import AtomicOperation
from kvorum.changes import Change, Changes, Follower, Listing, RangeWatch
from kvorum.commit import CommitResult
from kvorum.consistency import Consistency
from kvorum.durations import Duration
from kvorum.entry import Entry
from kvorum.errors import KvorumError
from kvorum.keys import Key, KeyPart
from kvorum.kv import Kv, open_kv
from kvorum.kvu64 import KvU64
from kvorum.listing import ListIterator
from kvorum.message import Message
from kvorum.mutation import CommitVersionstamp, commit_versionstamp
from kvorum.opening import Opening
from kvorum.transaction import UNCOMMITTED, Transaction
from kvorum.watch import Watch

__all__ = [
    "UNCOMMITTED",
    "AtomicOperation",
    "Change",
    "Changes",
    "CommitResult",
    "CommitVersionstamp",
    "Consistency",
    "Duration",
    "Entry",
    "Follower",
    "Key",
    "KeyPart",
    "Kv",
    "KvU64",
    "KvorumError",
    "ListIterator",
    "Listing",
    "Message",
    "Opening",
    "RangeWatch",
    "Transaction",
    "Watch",
    "__version__",
    "commit_versionstamp",
    "errors",
    "limits",
    "open_kv",
]
