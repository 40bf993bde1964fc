"""Every metric of a node: its name, type, labels, what it says, and which figure it is made of.

`docs/metrics.md` is made of this table (`scripts/metrics`), and so is the page. A figure is what a part of the node
tells in `statistics()`: `raft.` those of the consensus layer, `status.` of its status, `node.` all others. Figures that
are in no row are shown as gauges `kvorum_debug_…`, of which none is promised: they come and go with the code.

Times are seconds, sizes bytes. Labels have few values: members of the cluster, kinds of operations, and the 100 largest
queues.
"""

from dataclasses import dataclass
from typing import Final, Literal

PREFIX: Final = "kvorum_"
DEBUG: Final = "debug_"

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Family:
    """A metric. `source` is the figure that it shows, or the sum of several, `a.b+c.d`; empty: the collector knows how
    it is made."""

    name: str
    """Without `kvorum_`, and without the `_total` that all counters end with."""
    kind: Kind
    help: str
    source: str = ""
    factor: float = 1.0
    """Figure × factor."""
    labels: tuple[str, ...] = ()
    optional: str = ""
    """When it is there; empty: always."""

    @property
    def shown(self) -> str:
        """As Prometheus names it; a histogram is `…_bucket`, `…_sum` and `…_count`."""
        return PREFIX + self.name + ("_total" if self.kind == "counter" else "")


def _c(name: str, source: str, text: str, optional: str = "") -> Family:
    return Family(name, "counter", text, source, optional=optional)


def _g(name: str, source: str, text: str, optional: str = "", factor: float = 1.0) -> Family:
    return Family(name, "gauge", text, source, factor, optional=optional)


def _q(kind: Kind, name: str, text: str) -> Family:
    return Family(name, kind, text, labels=("queue",), optional=QUEUES)


LEADER: Final = "on the leader"
QUEUES: Final = "on the leader, for the 100 largest queues, as of a look every 5 s"

RAFT: Final = (
    _g("raft_has_leader", "status.has_leader", "1 if this node knows a leader"),
    _g("raft_is_leader", "status.is_leader", "1 if this node leads"),
    _g("raft_term", "status.term", "Raft term"),
    _c("raft_leader_changes", "raft.leader_changes", "times that this node has come to know a leader"),
    _g("raft_commit_index", "status.commit_index", "last log entry that is known to be committed"),
    _g("raft_applied_index", "status.applied_index", "last log entry that is in the state"),
    _g("raft_last_log_index", "status.last_log_index", "last entry of this node's log"),
    _g("raft_durable_index", "status.durable_index", "last entry of this node's log that is synced"),
    _g("raft_log_base_index", "raft.log_base_index", "the log begins behind this entry"),
    _g("raft_members", "status.members", "members of the cluster, learners included"),
    Family("raft_peer_connected", "gauge", "1 if this node has a connection to the peer", labels=("peer",)),
    Family(
        "raft_follower_lag_entries",
        "gauge",
        "entries of the leader's log that the peer has not acknowledged as synced",
        labels=("peer",),
        optional=LEADER,
    ),
    Family(
        "raft_peer_rtt_seconds",
        "histogram",
        "from the beginning of a round (a heartbeat, or a proof for readers) to the peer's first answer; a round that"
        " carries entries includes the peer's sync",
        labels=("peer",),
        optional=LEADER,
    ),
    Family("raft_commit_seconds", "histogram", "from appending an entry to its commit, on the leader"),
    Family("raft_apply_seconds", "histogram", "applying an entry to the state, its transaction included"),
    _g("raft_proposals_pending", "node.proposer_waiting", "operations that wait to be put into an entry"),
    _g("raft_proposals_in_flight", "node.proposer_in_flight", "entries that were proposed and are not applied"),
    _c("raft_proposals", "node.proposer_commands", "commands that were proposed, a client's group of writes being one"),
    _c("raft_proposals_failed", "node.proposer_failed", "commands that were refused or lost with the leadership"),
    _c("raft_proposed_entries", "node.proposer_entries", "entries that this node has proposed"),
    _c("raft_applied_entries", "raft.applied", "entries applied since the start"),
    _g("raft_uncommitted_bytes", "raft.uncommitted_bytes", "bytes of the leader's entries that are not committed"),
    _c("raft_elections", "raft.elections", "times that this node has stood for election"),
    _c("raft_pre_votes", "raft.pre_votes", "times that this node has asked whether it could win one"),
    _c(
        "raft_elections_left",
        "raft.elections_left",
        "times that this node has left an election to others, since it had no state or much to apply",
    ),
    _c("raft_step_downs", "raft.step_downs", "times that this node has left office"),
    _c("raft_leadership_transfers", "raft.transfers", "times that this node began to hand its office over"),
    _c("raft_append_refusals", "raft.refusals", "appends that a follower refused because its log differed"),
    _c("raft_log_truncations", "raft.log_truncations", "times that the end of this node's log was another leader's"),
    _c("raft_state_mismatches", "raft.state_alarms", "comparisons of content hashes in which nodes differed"),
    _g("raft_state_missing", "raft.hollow", "1 while this node waits for a snapshot to have a state at all"),
    _c("raft_snapshots_installed", "raft.installs", "snapshots that became the state of this node"),
    _c("raft_snapshots_sent", "raft.snapshots_sent", "snapshots sent whole"),
    _c("raft_snapshot_sent_bytes", "raft.snapshot_bytes_sent", "bytes of snapshots sent"),
    _c("raft_snapshot_received_bytes", "raft.snapshot_bytes_received", "bytes of snapshots received"),
    _c("raft_read_rounds", "node.barrier_rounds", "proofs that the leader still leads, made for readers"),
    _g(
        "raft_clock_offset_seconds",
        "raft.clock_offset_ms",
        "this node's clock minus the middle one of the cluster's",
        "as soon as enough clocks are known",
        0.001,
    ),
    _c("raft_peer_received_bytes", "raft.peer_bytes_in", "bytes received from peers"),
    _c("raft_peer_sent_bytes", "raft.peer_bytes_out", "bytes sent to peers"),
    _c("raft_peer_received_frames", "raft.peer_frames_in", "messages received from peers"),
    _c("raft_peer_sent_frames", "raft.peer_frames_out", "writes to peers' sockets"),
    _c("raft_peer_bad_inputs", "raft.peer_bad_inputs", "connections to the peer port that spoke nonsense"),
    _c("raft_peer_rejects", "raft.peer_rejects", "peers that were refused, or that refused this node"),
    _c("raft_peer_wrong_names", "raft.peer_wrong_names", "peers whose certificate names another node"),
    _g(
        "raft_peer_clear_connections",
        "raft.peer_clear_connections",
        "connections with peers that are open without TLS",
        "with `peer_tls = prefer`",
    ),
    _c(
        "raft_peer_clear_connects",
        "raft.peer_clear_connects",
        "connections with peers that were made without TLS by a node that prefers it",
    ),
    _c("raft_peer_connects", "raft.peer_connects", "connections made with peers"),
    _c("raft_peer_disconnects", "raft.peer_disconnects", "connections with peers that broke"),
)

STORAGE: Final = (
    Family("storage_fsync_seconds", "histogram", "one write of the log, its sync included"),
    _c("storage_log_transactions", "raft.log_transactions", "synced writes of the log, each of all that waited"),
    _g("storage_log_unsynced_age_seconds", "raft.log_unsynced_age", "age of the oldest log write that is not synced"),
    _g("storage_map_bytes", "node.map_bytes", "size to which the state may grow"),
    _g("storage_used_bytes", "node.used_bytes", "high-water mark of the state's file"),
    _g("storage_readers", "node.readers", "reader slots of the state in use"),
    _g("storage_snapshots", "node.snapshots", "read transactions that are open"),
    _g("storage_rows", "node.rows", "rows of the state, of all kinds"),
    _g("storage_keys", "node.keys", "keys"),
    _g("storage_messages", "node.messages", "messages of all queues"),
    _g("storage_sessions", "node.sessions", "sessions of clients"),
    _g("storage_queues", "node.queues", "queues"),
    _g("storage_topics", "node.topics", "topics"),
    _g("storage_schedules", "node.schedules", "recurring messages"),
    _g("storage_history_bytes", "node.history_bytes", "bytes of changes that are kept for watches of ranges"),
    _g("storage_disk_bytes", "node.disk_bytes", "size of the data folder's file system"),
    _g("storage_disk_free_bytes", "node.disk_free_bytes", "free space of it"),
    _g(
        "storage_space_low",
        "node.space_low",
        "1 while this node says that its disk is nearly full, so growth is refused",
    ),
    _c("storage_space_shortages", "node.space_shortages", "times that its disk became nearly full"),
    _g("storage_state_rebuilt", "node.state_rebuilt", "1 if the state was not trusted at this start, and built anew"),
    _c("storage_corruptions", "node.corruptions", "damage that was met when reading the state"),
    _c("storage_scrubs", "node.scrubs", "scans of the whole state that found no damage"),
    _c("storage_checkpoints", "raft.checkpoints", "checkpoints made"),
    _c("storage_checkpoint_failures", "raft.checkpoint_failures", "checkpoints that failed"),
    _g("storage_checkpoint_age_seconds", "raft.checkpoint_age", "age of the newest checkpoint"),
    _g("storage_checkpoint_bytes", "raft.checkpoint_bytes", "its size"),
    _g("storage_checkpoint_duration_seconds", "raft.checkpoint_seconds", "how long it took"),
    _g("storage_replay_bytes", "raft.replay_bytes", "bytes of log behind it, which a start would replay"),
    _g("storage_replay_seconds", "raft.replay_seconds", "seconds that it took to apply those"),
)

KV: Final = (
    Family(
        "kv_ops",
        "counter",
        "operations answered, each once, those that were refused at once included. op: write (an atomic operation),"
        " read (up to 10 keys), list, queue_call; code: ok, or what was answered instead: not_leader, overloaded, …",
        labels=("op", "code"),
    ),
    Family(
        "kv_op_seconds",
        "histogram",
        "from an operation's arrival at this node until its answer is handed to the connection. op: write, read"
        " (linearizable ones), list (until its last slice is read)",
        labels=("op",),
    ),
    _c("kv_conflicts", "node.write_conflicts", "writes whose checks failed"),
    _c("kv_keys_expired", "node.swept_keys", "keys and timers that sweeps have removed", LEADER),
    _g("kv_watchers", "node.watches+node.range_watches", "watches of keys and of ranges that are open on this node"),
    _g("kv_watched_keys", "node.watched_keys", "keys that are watched"),
    _c("kv_watch_events", "node.watch_events+node.range_watch_events", "events given to watches"),
    _g("kv_watch_lag", "node.range_watches_waiting", "watches of ranges that have changes to be read"),
    _g("kv_reads_under_way", "node.reads_under_way", "reads that wait for a proof, a versionstamp, or their turn"),
    _g("kv_lists_open", "node.lists_open", "lists that hold a snapshot"),
    _g("kv_lists_waiting", "node.lists_waiting", "lists that wait for others to end"),
    _c(
        "kv_lists_given_up",
        "node.lists_too_old",
        "lists ended before they were read, as they held a snapshot for too long, or others waited for it",
    ),
)

QUEUE: Final = (
    Family(
        "queue_queued",
        "gauge",
        "messages that are ready, delayed or waiting in a group",
        labels=("queue",),
        optional=QUEUES,
    ),
    _q("gauge", "queue_leased", "messages in consumers' hands"),
    _q("gauge", "queue_dead", "dead letters"),
    Family(
        "queue_oldest_age_seconds",
        "gauge",
        "for how long the first ready message has been due",
        labels=("queue",),
        optional=QUEUES,
    ),
    _q("gauge", "queue_consumers", "consumers that are connected"),
    _q("counter", "queue_enqueued", "messages sent"),
    Family(
        "queue_acked",
        "counter",
        "messages done: acknowledged, or handed out at most once",
        labels=("queue",),
        optional=QUEUES,
    ),
    _q("counter", "queue_retried", "attempts that failed"),
    Family(
        "queue_redeliveries",
        "counter",
        "attempts that were lost with their consumers",
        labels=("queue",),
        optional=QUEUES,
    ),
    _q("counter", "queue_died", "messages that became dead letters"),
    Family("queue_all_messages", "gauge", "messages of all queues, dead letters aside", optional=LEADER),
    Family("queue_all_dead", "gauge", "dead letters of all queues", optional=LEADER),
    Family("queue_all_enqueued", "counter", "messages sent to all queues", optional=LEADER),
    Family("queue_all_acked", "counter", "messages of all queues that are done", optional=LEADER),
    Family("queue_all_retried", "counter", "attempts of all queues that failed", optional=LEADER),
    Family(
        "queue_delivery_delay_seconds",
        "histogram",
        "from the moment that messages were due to their being leased, on the leader; those that are leased together"
        " count as the one that was due first",
    ),
    _c("queue_delivered", "node.queue_granted", "messages handed out by this node"),
    _c("queue_lapsed_leases", "node.queue_lapsed", "leases that ended because they lapsed"),
    _c("queue_stale_acks", "node.write_stale_leases", "writes that named a lease which was not current any more"),
    _g("queue_connected_consumers", "node.queue_consumers", "consumers that are connected to this node"),
    _g("queue_held_leases", "node.queue_leases", "leases that this node watches over", LEADER),
    _c("queue_ticks", "node.ticks", "recurring messages sent by this node"),
)

API: Final = (
    _g("api_streams", "node.streams", "gRPC streams that are open"),
    _g(
        "api_unread_bytes",
        "node.unread_bytes",
        "bytes held of answers that gRPC clients have not taken yet, copies included",
    ),
    _g("api_unread_limit_bytes", "node.unread_limit", "how many that may be: `unread_answers_mb`"),
    _c("api_unread_refused", "node.unread_refused", "answers refused, as too many others were not taken"),
    _c(
        "api_unread_ended",
        "node.unread_ended",
        "gRPC calls ended, as their clients took nothing while others needed the room",
    ),
    _g(
        "api_unfinished_bytes",
        "node.unfinished_bytes",
        "bytes held of gRPC clients' requests that may have come only in part",
    ),
    _g("api_unfinished_limit_bytes", "node.unfinished_limit", "how many that may be: `unfinished_requests_mb`"),
    _c(
        "api_unfinished_ended",
        "node.unfinished_ended",
        "gRPC calls ended, as nothing was heard of them while others needed the room",
    ),
    _g("api_calls_leaving", "node.calls_leaving", "gRPC calls that have ended, and whose clients keep them from going"),
    _c(
        "api_connections_shut",
        "node.connections_shut",
        "gRPC connections shut, as ended calls on them did not go, or as they held most of unfinished requests",
    ),
    Family(
        "api_request_seconds", "histogram", "from the end of an HTTP request's body to its answer", labels=("route",)
    ),
    Family("api_responses", "counter", "HTTP answers", labels=("route", "code")),
    _g("api_sessions_connected", "node.sessions_connected", "sessions that have a connection to this node"),
    _g("api_http_connections", "node.http_connections", "HTTP connections that are open"),
    _c("api_http_connections_made", "node.http_connections_made", "HTTP connections taken"),
    _c("api_http_turned_away", "node.http_connections_turned_away", "HTTP connections for which there was no room"),
    _g("api_kv_connect_watches", "node.kv_connect_watches", "watches of KV Connect that are open"),
    _c(
        "api_kv_connect_unknown_outcomes",
        "node.kv_connect_unknown_outcomes",
        "writes of KV Connect that were answered with 409: outcome unknown",
    ),
    _g("api_kv_connect_request_bytes", "node.kv_connect_request_bytes", "bytes of requests that are held"),
    _g("api_kv_connect_answer_bytes", "node.kv_connect_answer_bytes", "bytes of answers that are held"),
    _c("api_slow_operations", "node.slow_operations", "operations slower than `slow_operation_ms`"),
    _g("api_traces_followed", "node.traces_followed", "operations under way that get a span when they are answered"),
    _c("api_traces_dropped", "node.traces_dropped", "operations without a span, as too many were followed"),
    _c("api_traces_malformed", "node.traces_malformed", "trace contexts that made no sense and were left aside"),
)

AUTH: Final = (
    _c("auth_denied", "node.auth_denied", "calls that were denied"),
    _g(
        "tls_cert_expiry_seconds",
        "node.tls_cert_expiry_seconds",
        "seconds until the certificate in use expires",
        "with TLS",
    ),
    _c("tls_reload_failures", "node.tls_reload_failures", "times that new certificates could not be read", "with TLS"),
)

PROCESS: Final = (
    Family("build_info", "gauge", "always 1", labels=("version", "python", "data_version")),
    Family(
        "process_loop_lag_seconds", "histogram", "by how much the event loop calls back too late, ten times a second"
    ),
    _g("process_loop_lag_worst_seconds", "node.loop_lag_worst_ever", "the worst since the start"),
    Family("process_cpu_seconds", "counter", "CPU time of this process, user and system"),
    Family("process_resident_memory_bytes", "gauge", "memory in use, mapped files included"),
    Family("process_virtual_memory_bytes", "gauge", "address space, the state's map included"),
    Family("process_start_time_seconds", "gauge", "when it was started, Unix seconds"),
    Family("process_open_fds", "gauge", "open file descriptors"),
    Family("process_max_fds", "gauge", "how many it may open"),
)

ARCHIVE: Final = "with `archive`"
BACKUP: Final = (
    _g("backups_under_way", "node.backups_under_way", "backups of this node that are being made or sent"),
    _c("backups_made", "node.backups", "backups that were sent whole, bases of the archive included"),
    _c("backup_failures", "node.backup_failures", "backups that were given up, by the node or by who asked for them"),
    _g(
        "backup_last_time_seconds", "node.backup_time_seconds", "when the last one was whole, Unix seconds; 0: none yet"
    ),
    _g("archive_entry", "node.archive_entry", "the last entry that is in the archive", ARCHIVE),
    _g("archive_lag_entries", "node.archive_lag_entries", "entries that were applied and are not in it", ARCHIVE),
    _g("archive_age_seconds", "node.archive_age_seconds", "for how long some of them have not been in it", ARCHIVE),
    _g("archive_failing_seconds", "node.archive_failing_seconds", "for how long it could not be written", ARCHIVE),
    _g("archive_base_age_seconds", "node.archive_base_age_seconds", "age of the newest base in it; 0: none", ARCHIVE),
    _c("archive_segments", "node.archive_segments", "segments of the log that were archived", ARCHIVE),
    _c("archive_bases", "node.archive_bases", "bases that were archived", ARCHIVE),
    _c("archive_bytes", "node.archive_bytes", "bytes of both", ARCHIVE),
    _c("archive_gaps", "node.archive_gaps", "gaps: entries that were cut off before they were archived", ARCHIVE),
    _c("archive_failures", "node.archive_failures", "times that the archive could not be written", ARCHIVE),
)

SECTIONS: Final = {
    "Raft": RAFT,
    "Storage": STORAGE,
    "Key-value": KV,
    "Queues": QUEUE,
    "API": API,
    "Security": AUTH,
    "Backups": BACKUP,
    "Process": PROCESS,
}
FAMILIES: Final = {family.name: family for rows in SECTIONS.values() for family in rows}
