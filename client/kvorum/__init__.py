"""kvorum: a replicated key-value store with message queues, opened like a local database.

    async with kvorum.open_kv("app.kv") as kv:                                  # embedded: one folder, no server
    async with kvorum.open_kv("kvorum://n1:7401,n2:7401,n3:7401") as kv:        # a cluster: same API, same semantics

`kvorum.sync` has the same for programs without asyncio, `kvorum.errors` what can go wrong and what to do about it.
"""

from kvorum import errors, limits
from kvorum._version import __version__
from kvorum.atomic import AtomicOperation
from kvorum.changes import Change, Changes, Follower, Listing, RangeWatch
from kvorum.commit import CommitResult, Sent
from kvorum.consistency import Consistency
from kvorum.durations import Duration
from kvorum.entry import Entry
from kvorum.errors import KvorumError
from kvorum.keys import Key, KeyPart
from kvorum.kv import Kv, open_kv
from kvorum.kvu64 import KvU64
from kvorum.listing import ListIterator
from kvorum.mutation import CommitVersionstamp, commit_versionstamp
from kvorum.opening import Opening
from kvorum.queues.batch import Batch
from kvorum.queues.dead import DeadLetters
from kvorum.queues.delivered import DeadLetterInfo, Failure
from kvorum.queues.infos import MessageInfo, QueueStats, ScheduleInfo, TopicInfo
from kvorum.queues.message import Message
from kvorum.queues.outgoing import Outgoing, SendOptions
from kvorum.queues.policy import Exponential, QueuePolicy
from kvorum.queues.queue import Queue
from kvorum.queues.receiver import Receiver
from kvorum.queues.topic import Topic
from kvorum.tls import Tls
from kvorum.transaction import UNCOMMITTED, Transaction
from kvorum.watch import Watch

__all__ = [
    "UNCOMMITTED",
    "AtomicOperation",
    "Batch",
    "Change",
    "Changes",
    "CommitResult",
    "CommitVersionstamp",
    "Consistency",
    "DeadLetterInfo",
    "DeadLetters",
    "Duration",
    "Entry",
    "Exponential",
    "Failure",
    "Follower",
    "Key",
    "KeyPart",
    "Kv",
    "KvU64",
    "KvorumError",
    "ListIterator",
    "Listing",
    "Message",
    "MessageInfo",
    "Opening",
    "Outgoing",
    "Queue",
    "QueuePolicy",
    "QueueStats",
    "RangeWatch",
    "Receiver",
    "ScheduleInfo",
    "SendOptions",
    "Sent",
    "Tls",
    "Topic",
    "TopicInfo",
    "Transaction",
    "Watch",
    "__version__",
    "commit_versionstamp",
    "errors",
    "limits",
    "open_kv",
]
