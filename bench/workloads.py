"""What `scripts/bench` measures, and beside what."""

from dataclasses import dataclass, replace
from typing import Final

from bench.kv_ends import Job

SAME: Final = "same: fsync on a majority before the answer"
READ: Final = "same: a read needs none; both ask a majority who leads"
WEAK: Final = "same: the state of one server"
NO_FSYNC: Final = "less: JetStream answers without an fsync, and can lose confirmed messages in a power cut"
ONE_FILE: Final = "less: one file on one machine, no replica"
PEERS: Final[dict[str, tuple[str, ...]]] = {
    "etcd": ("etcd", "clients"),
    "jetstream": ("nats", "clients"),
    "deno file": ("deno",),
}
"""What has to be installed for each (`bench.peers`)."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One kind of load. `part` is the group of workloads that share running clusters."""

    name: str
    title: str
    part: str
    job: Job
    callers: tuple[int, ...]
    peer: str = "etcd"
    """Empty: there is none."""
    durability: str = SAME
    """That of the peer, against kvorum's."""
    writes: bool = True
    """Acknowledged writes are counted after all nodes were killed."""
    figure: str = "rate"
    """What is compared: `rate`, or a latency (`p50_ms`, `p99_ms`), of which less is better."""
    unit: str = "/s"
    per_call: float = 1.0
    """Of the unit, what one call brings."""
    longer: float = 1.0
    """Times as many seconds as others."""
    nodes: int = 3
    note: str = ""

    def scaled(self, callers: int) -> Job:
        """The job with so many callers."""
        return replace(self.job, callers=callers)


ALL: Final = (1, 64, 256, 1_024)
BIG: Final = 65_530
"""64 KiB less what a value may have around it."""
LIST: Final = 40_000

_KEYS: Final = (
    Workload("set", "set, 100 bytes", "keys", Job("set"), ALL),
    Workload("get", "get, linearizable", "keys", Job("get"), ALL, durability=READ, writes=False),
    Workload(
        "get-local",
        "get, from the server at hand",
        "keys",
        Job("get_local"),
        ALL,
        durability=WEAK,
        writes=False,
        note='`consistency="eventual"`; etcd: `serializable`. kvorum never shows a client less than it has seen.',
    ),
    Workload("mixed", "90 % get, 10 % set", "keys", Job("mixed"), ALL),
    Workload("check-set", "check and set, each caller its key", "keys", Job("swap"), (1, 64, 256)),
    Workload(
        "check-set-contended",
        "get, check and set until it succeeds, 16 keys for all",
        "keys",
        Job("contend"),
        (64, 256),
        note="Successful ones are counted.",
    ),
    Workload(
        "sum-hot",
        "sum on one key",
        "keys",
        Job("add", keys=1),
        (1, 64, 256),
        note="etcd has no sum: get, check and set until it succeeds.",
    ),
    Workload("sum", "sum on 10,000 keys", "keys", Job("add"), (256,), note="etcd: as above."),
    Workload(
        "list",
        "list of 40,000 entries, decoded",
        "keys",
        Job("list", keys=LIST),
        (1,),
        durability=READ,
        writes=False,
        figure="p50_ms",
        unit=" entries/s",
        per_call=LIST,
        longer=2.0,
        note="kvorum: in steps of 1,000; etcd: one range.",
    ),
    Workload(
        "set-64k",
        "set, 64 KiB",
        "keys",
        Job("big", keys=500, size=BIG),
        (1, 64),
        unit=" MB/s",
        per_call=BIG / 1e6,
    ),
    Workload(
        "watch",
        "10,000 watches by 10 clients of one server, 1,000 writes/s: from a write to its event",
        "keys",
        Job("watch", rate=1_000, clients=10),
        (1,),
        writes=False,
        figure="p99_ms",
        unit=" events/s",
        longer=2.0,
    ),
    Workload(
        "sync",
        "set by the client without asyncio, from threads",
        "keys",
        Job("threads"),
        (1, 16),
        peer="",
        durability="",
        note="aetcd has no such client.",
    ),
)
_DENO: Final = (
    Workload("deno-set", "set by a Deno program", "deno", Job("set"), (1, 64, 256), "deno file", ONE_FILE),
    Workload(
        "deno-get", "get by a Deno program", "deno", Job("get"), (1, 64, 256), "deno file", ONE_FILE, writes=False
    ),
)
_QUEUE: Final = tuple(
    Workload(f"queue-{variant}", title, "queue", Job(variant), (flight,), "jetstream", NO_FSYNC, unit=" messages/s")
    for variant, flight, title in (
        ("push-1", 1, "send, handle, acknowledge one by one"),
        ("push-256", 256, "send, handle, acknowledge one by one"),
        ("transaction-256", 256, "the same, a write in each acknowledgement"),
        ("batches-256", 256, "acknowledged in batches"),
        ("all-batches-256", 256, "sent and acknowledged in batches"),
    )
)
_NODES: Final = tuple(
    Workload(
        f"{call}-{nodes}-nodes",
        f"{call}, {nodes} node{'s' * (nodes > 1)}",
        f"nodes-{nodes}",
        Job(call),
        (256,),
        durability=durability,
        writes=call == "set",
        nodes=nodes,
    )
    for nodes in (1, 3, 5)
    for call, durability in (("set", SAME), ("get", READ))
)
_GROWTH: Final = tuple(
    Workload(f"set-{name}-keys", f"set, {name} keys there", f"keys-{name}", Job("many", keys=keys), (256,), longer=2.0)
    for name, keys in (("10k", 10_000), ("1M", 1_000_000), ("5M", 5_000_000))
)
WORKLOADS: Final[dict[str, Workload]] = {one.name: one for one in (*_KEYS, *_QUEUE, *_DENO, *_NODES, *_GROWTH)}
OPTIONAL: Final = ("set-5M-keys",)
"""Only when they are asked for by name."""
QUICK: Final = (("set", 256), ("get", 256), ("set", 1), ("queue-push-256", 256))
HEADLINES: Final = {
    "set_256_vs_etcd": ("set", 256, "rate"),
    "get_256_vs_etcd": ("get", 256, "rate"),
    "set_1_p50_vs_etcd": ("set", 1, "p50_ms"),
    "mixed_256_vs_etcd": ("mixed", 256, "rate"),
    "queue_vs_jetstream": ("queue-push-256", 256, "rate"),
}
"""Name of the line, workload, callers and figure; of a latency less is better."""
