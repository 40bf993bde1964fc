"""Queues as they are meant, without indexes, slices or savepoints: a dictionary of messages, searched and copied as a
whole."""

import copy
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.store.queues.formats import Payload, Settings
from kvorum_node.store.queues.policies import Policy, parse, pause_before

Group = tuple[int, bytes]
"""(length, name) in the order of the index; (255, b"") = the queue's own."""


@dataclass
class Letter:
    """A message."""

    message_id: bytes
    queue: str
    made: pb.Enqueue
    enqueued_ms: int
    due_ms: int
    group: Group | None
    expires_ms: int
    headers: bytes
    origin: tuple[str, bytes, int, int, int] | None = None
    attempt: int = 0
    failures: list[tuple[int, int, int, str]] = field(default_factory=list)
    lease_id: bytes = b""
    holder: tuple[bytes, int] = (b"", 0)
    extended_ms: int = 0
    died: tuple[int, bytes] | None = None
    """When, and its place."""

    @property
    def until_done(self) -> bool:
        return bool(self.made.dedup_id) and not self.made.dedup_window_ms


class No(Exception):
    """A commit is refused."""

    def __init__(self, outcome: int) -> None:
        super().__init__(outcome)
        self.outcome = outcome


@dataclass
class Queues:
    """The state, and what one entry does to it."""

    now_ms: int = 0
    index: int = 0
    letters: dict[bytes, Letter] = field(default_factory=dict)
    settings: dict[str, Settings] = field(default_factory=dict)
    tallies: dict[str, Counter[str]] = field(default_factory=dict)
    dedup: dict[tuple[str, bytes], tuple[bytes, int]] = field(default_factory=dict)
    topics: dict[str, dict[str, Any]] = field(default_factory=dict)
    schedules: dict[str, tuple[int, int, bytes]] = field(default_factory=dict)
    keys: dict[bytes, bytes] = field(default_factory=dict)
    # of the running entry and commit
    number: int = 0
    leases: int = 0
    made: int = 0
    ended: list[bytes] = field(default_factory=list)
    extended: list[tuple[bytes, int]] = field(default_factory=list)
    granted: list[tuple[bytes, bytes, int, bool]] = field(default_factory=list)

    # ---- an entry

    def apply(self, index: int, now_ms: int, commands: list[pb.Command]) -> list[Any]:
        self.index, self.now_ms, self.number, self.leases = index, max(now_ms, self.now_ms), 0, 0
        self.ended, self.extended, self.granted = [], [], []
        return [self.command(command) for command in commands]

    def command(self, command: pb.Command) -> Any:
        kind = command.WhichOneof("command") or ""
        if kind == "writes":
            return [self.commit(pb.AtomicWrite.FromString(write.op)) for write in command.writes.writes]
        self.number += 1
        self.made = 0
        return getattr(self, kind)(getattr(command, kind))

    @property
    def stamp(self) -> bytes:
        return self.index.to_bytes(8, "big") + (self.number - 1).to_bytes(2, "big")

    def next_id(self) -> bytes:
        self.made += 1
        return self.stamp + (4_095 + self.made).to_bytes(2, "big")

    def commit(self, write: pb.AtomicWrite) -> tuple[int, list[int], list[tuple[int, bytes]]]:
        """Outcome, refused settles, duplicates."""
        self.number += 1
        self.made = 0
        refused: list[int] = []
        duplicates: list[tuple[int, bytes]] = []
        before = copy.deepcopy(self)
        try:
            for at, settle in enumerate(write.settles):
                try:
                    self.settle(settle)
                except No:
                    if not write.each:
                        raise
                    refused.append(at)
            for at, message in enumerate(write.enqueues):
                if message.topic:
                    self.publish(message, at)
                else:
                    holder = self.take_in(message, message.queue, self.stamp + at.to_bytes(2, "big"))
                    if holder is not None:
                        duplicates.append((at, holder))
        except No as no:
            self.__dict__.update(before.__dict__)
            return no.outcome, [], []
        return pb.OUTCOME_DONE, refused, duplicates

    # ---- coming

    def policy(self, queue: str) -> Policy:
        return parse(queue.encode(), self.settings.get(queue))

    def tally(self, queue: str) -> Counter[str]:
        return self.tallies.setdefault(queue, Counter())

    def count(self, queue: str, kind: str) -> int:
        return sum(
            1
            for letter in self.letters.values()
            if letter.queue == queue
            and {"messages": letter.died is None, "leased": bool(letter.lease_id), "dead": letter.died is not None}[
                kind
            ]
        )

    def take_in(
        self, message: pb.Enqueue, queue: str, message_id: bytes, *, headers: bytes = b"", bounded: bool = True
    ) -> bytes | None:
        """The holder of its deduplication id, if it is not taken."""
        policy = self.policy(queue)
        key = (queue, message.dedup_id)
        if message.dedup_id and key in self.dedup:
            holder, end = self.dedup[key]
            if not end or end > self.now_ms:
                self.tally(queue)["duplicates"] += 1
                return holder
        if bounded and policy.max_backlog is not None and self.count(queue, "messages") >= policy.max_backlog:
            raise No(pb.OUTCOME_QUEUE_FULL)
        if message.dedup_id:
            end = self.now_ms + message.dedup_window_ms if message.dedup_window_ms else 0
            self.dedup[key] = (message_id, end)
        group: Group | None = (255, b"") if policy.ordered else None
        if message.HasField("group"):
            group = (len(message.group.encode()), message.group.encode())
        ttl = message.ttl_ms or policy.retention_ms
        due = self.now_ms + message.delay_ms
        self.put(
            Letter(
                message_id,
                queue,
                message,
                self.now_ms,
                due,
                group,
                self.now_ms + ttl if ttl else 0,
                message.headers + headers,
            )
        )
        return None

    def put(self, letter: Letter) -> None:
        self.letters[letter.message_id] = letter
        self.tally(letter.queue)["sent"] += 1

    def publish(self, message: pb.Enqueue, at: int, *, headers: bytes = b"", bounded: bool = True) -> None:
        topic = self.topics.get(message.topic)
        if topic is None:
            return
        for queue in sorted(topic["queues"], key=str.encode):
            self.take_in(message, queue, self.next_id(), headers=headers, bounded=bounded)
        if topic["retention"]:
            kept = pb.Enqueue()
            kept.CopyFrom(message)
            kept.topic = ""
            kept.headers = message.headers + headers
            topic["retained"].append((self.now_ms, kept))
            for _ in range(4):
                self.trim(topic)

    def trim(self, topic: dict[str, Any], least: int = 1) -> None:
        retained = topic["retained"]
        if len(retained) > least and retained[0][0] + topic["retention"] <= self.now_ms:
            del retained[0]

    # ---- standing

    def line(self, letter: Letter) -> list[Letter]:
        """Those of its group, the head first."""
        same = (
            other
            for other in self.letters.values()
            if other.queue == letter.queue and other.group == letter.group and other.died is None
        )
        return sorted(same, key=lambda other: other.message_id)

    def waits(self, letter: Letter) -> bool:
        return letter.died is None and letter.group is not None and self.line(letter)[0] is not letter

    def ready(self, queue: str) -> list[Letter]:
        """Ready and scheduled ones."""
        found = [
            letter
            for letter in self.letters.values()
            if letter.queue == queue and letter.died is None and not letter.lease_id and not self.waits(letter)
        ]
        return sorted(found, key=lambda letter: (letter.due_ms, letter.message_id))

    def idle(self, queue: str) -> list[Letter]:
        waiting = [letter for letter in self.letters.values() if letter.queue == queue and self.waits(letter)]
        return self.ready(queue) + sorted(waiting, key=lambda letter: (letter.group, letter.message_id))

    def dead(self, queue: str) -> list[Letter]:
        found = [letter for letter in self.letters.values() if letter.queue == queue and letter.died]
        return sorted(found, key=lambda letter: letter.died[1] if letter.died else b"")

    # ---- going

    def part(self, letter: Letter) -> None:
        """It is done or dead: free what it holds."""
        if letter.until_done and self.dedup.get((letter.queue, letter.made.dedup_id)) == (letter.message_id, 0):
            del self.dedup[letter.queue, letter.made.dedup_id]
        if letter.group is not None:
            line = self.line(letter)
            if line[0] is letter and len(line) > 1:
                line[1].due_ms = max(line[1].due_ms, self.now_ms)

    def delete(self, letter: Letter) -> None:
        if letter.died is None:
            self.part(letter)
        if letter.lease_id:
            self.end(letter)
        del self.letters[letter.message_id]

    def end(self, letter: Letter) -> None:
        self.ended.append(letter.lease_id)
        letter.lease_id, letter.extended_ms = b"", 0

    def undeliver(self, letter: Letter, counter: str) -> None:
        for key in letter.made.keys_if_undelivered:
            self.keys[key] = letter.made.payload
        self.tally(letter.queue)[counter] += 1
        self.delete(letter)

    def overdue(self, letter: Letter) -> bool:
        return bool(letter.expires_ms) and letter.expires_ms <= self.now_ms

    def give_back(self, letter: Letter) -> None:
        self.end(letter)
        letter.attempt -= 1
        if self.overdue(letter):
            self.undeliver(letter, "expired")

    def fail(self, letter: Letter, kind: int, reason: str, delay_ms: int | None) -> None:
        policy = self.policy(letter.queue)
        made = letter.made
        own = tuple(made.backoff.delays_ms) if made.HasField("backoff") else None
        steps = own if own is not None else policy.backoff
        if own == ():
            most = 1
        elif policy.max_attempts:
            most = policy.max_attempts
        else:
            most = 20 if own is None and policy.exponential else len(steps) + 1
        self.tally(letter.queue)["lost" if kind == pb.FAILURE_KIND_LOST else "failed"] += 1
        self.end(letter)
        letter.failures.append((letter.attempt, self.now_ms, kind, reason))
        if len(letter.failures) > limits.MAX_FAILURES:
            del letter.failures[1]
        if kind == pb.FAILURE_KIND_REJECTED or letter.attempt >= most:
            self.bury(letter)
        elif self.overdue(letter):
            self.undeliver(letter, "expired")
        else:
            if delay_ms is None and own is None and policy.exponential:
                delay_ms = pause_before(policy, Payload(0, None, (), b""), letter.message_id, letter.attempt)
            elif delay_ms is None:
                delay_ms = steps[min(letter.attempt, len(steps)) - 1]
            letter.due_ms = self.now_ms + delay_ms

    def bury(self, letter: Letter) -> None:
        policy = self.policy(letter.queue)
        if letter.made.keys_if_undelivered or policy.dead_letters == pb.DEAD_LETTERS_DROP:
            self.undeliver(letter, "died")
            return
        self.tally(letter.queue)["died"] += 1
        target = policy.dead_letter_queue.decode()
        if policy.dead_letters == pb.DEAD_LETTERS_QUEUE and letter.origin is None and target != letter.queue:
            self.delete(letter)
            origin = (letter.queue, letter.message_id, letter.enqueued_ms, self.now_ms, letter.attempt)
            moved = self.anew(letter, target, origin)
            moved.failures = letter.failures
            self.put(moved)
            return
        self.part(letter)
        letter.died = (self.now_ms, self.next_id())

    def anew(self, letter: Letter, queue: str, origin: tuple[str, bytes, int, int, int] | None) -> Letter:
        policy = self.policy(queue)
        own: Group | None = (255, b"") if policy.ordered else None
        group = letter.group if letter.made.HasField("group") else own
        expires = self.now_ms + policy.retention_ms if policy.retention_ms else 0
        message_id = self.next_id()
        return Letter(message_id, queue, letter.made, self.now_ms, self.now_ms, group, expires, letter.headers, origin)

    # ---- verdicts

    def settle(self, verdict: pb.Settle) -> None:
        letter = self.letters.get(verdict.message_id)
        kind = verdict.kind
        if kind in (pb.SETTLE_KIND_CANCEL, pb.SETTLE_KIND_RESCHEDULE):
            if letter is None or letter.lease_id or (kind == pb.SETTLE_KIND_RESCHEDULE and letter.died):
                raise No(pb.OUTCOME_MESSAGE_GONE)
            if kind == pb.SETTLE_KIND_CANCEL:
                self.delete(letter)
            else:
                letter.due_ms = self.now_ms + verdict.delay_ms
            return
        if letter is None or not verdict.lease_id or letter.lease_id != verdict.lease_id:
            raise No(pb.OUTCOME_STALE_LEASE)
        if kind == pb.SETTLE_KIND_EXTEND:
            letter.extended_ms = verdict.delay_ms or self.policy(letter.queue).lease_ms
            self.extended.append((letter.lease_id, letter.extended_ms))
        elif kind == pb.SETTLE_KIND_ACK:
            self.tally(letter.queue)["done"] += 1
            self.delete(letter)
        elif kind == pb.SETTLE_KIND_RETURN:
            self.give_back(letter)
        else:
            rejected = kind == pb.SETTLE_KIND_REJECT
            failure = pb.FAILURE_KIND_REJECTED if rejected else pb.FAILURE_KIND_FAILED
            self.fail(letter, failure, verdict.reason, verdict.delay_ms if verdict.HasField("delay_ms") else None)

    # ---- commands

    def lease(self, command: pb.Lease) -> int:
        policy = self.policy(command.queue)
        count = 0 if policy.paused else command.count
        if policy.max_in_flight:
            count = min(count, max(0, policy.max_in_flight - self.count(command.queue, "leased")))
        chosen = [letter for letter in self.ready(command.queue) if letter.due_ms <= self.now_ms][:count]
        for letter in chosen:
            letter.attempt += 1
            lease_id = self.index.to_bytes(8, "big") + self.leases.to_bytes(4, "big")
            self.leases += 1
            self.granted.append((letter.message_id, lease_id, letter.attempt, command.take))
            self.tally(letter.queue)["delivered"] += 1
            if command.take:
                self.tally(letter.queue)["done"] += 1
                self.delete(letter)
            else:
                letter.lease_id, letter.holder = lease_id, (command.session, command.consumer)
        return len(chosen)

    def release(self, command: pb.Release) -> None:
        for released in command.leases:
            letter = self.letters.get(released.message_id)
            if letter is None or not released.lease_id or letter.lease_id != released.lease_id:
                continue
            if released.counts:
                self.fail(letter, pb.FAILURE_KIND_LOST, "", 0)
            else:
                self.give_back(letter)

    def sweep(self, command: pb.Sweep) -> None:
        """All of it: what a limited one leaves is not looked at by tests of the model."""
        for key, (_, end) in list(self.dedup.items()):
            if end and end <= self.now_ms:
                del self.dedup[key]
        due = [letter for letter in self.letters.values() if letter.died is None and self.overdue(letter)]
        for letter in sorted(due, key=lambda letter: (letter.expires_ms, letter.message_id)):
            if not letter.lease_id:
                self.undeliver(letter, "expired")
        for topic in self.topics.values():
            for _ in range(len(topic["retained"])):
                self.trim(topic, 0)

    def define_queue(self, command: pb.DefineQueue) -> None:
        self.tally(command.name)
        self.settings[command.name] = self.settings.get(command.name, Settings())._replace(policy=command.policy)

    def pause_queue(self, command: pb.PauseQueue) -> None:
        settings = self.settings.get(command.name, Settings())
        if settings.paused != command.paused:
            self.tally(command.name)
            self.settings[command.name] = settings._replace(paused=command.paused)
            if self.settings[command.name] == Settings():
                del self.settings[command.name]

    def purge(self, command: pb.Purge) -> int:
        chosen = (self.dead if command.dead else self.idle)(command.queue)[: command.limit or limits.QUEUE_CHUNK]
        for letter in chosen:
            self.delete(letter)
        return len(chosen)

    def requeue(self, command: pb.Requeue) -> int:
        if command.message_ids:
            chosen = [self.letters[mid] for mid in command.message_ids if mid in self.letters]
        else:
            chosen = (self.idle if command.to_origin else self.dead)(command.queue)
        fit = [
            letter
            for letter in chosen
            if letter.queue == command.queue
            and not letter.lease_id
            and (letter.died is None) == command.to_origin
            and (letter.origin is not None or not command.to_origin)
        ]
        for letter in fit[: command.limit or limits.QUEUE_CHUNK]:
            target = letter.origin[0] if command.to_origin and letter.origin is not None else letter.queue
            self.delete(letter)
            moved = self.anew(letter, target, None if command.to_origin else letter.origin)
            moved.failures = letter.failures if moved.origin else []
            key = (target, moved.made.dedup_id)
            if moved.until_done and (key not in self.dedup or 0 < self.dedup[key][1] <= self.now_ms):
                self.dedup[key] = (moved.message_id, 0)
            self.put(moved)
        return min(len(fit), command.limit or limits.QUEUE_CHUNK)

    def remove_queue(self, command: pb.RemoveQueue) -> int:
        """All at once: tests of the model repeat it until it is done."""
        queue = command.name
        chosen = self.idle(queue) + [
            letter for _, letter in sorted(self.letters.items()) if letter.queue == queue and letter.lease_id
        ]
        for letter in chosen + self.dead(queue):
            self.delete(letter)
        for key in [key for key in self.dedup if key[0] == queue]:
            del self.dedup[key]
        self.settings.pop(queue, None)
        self.tallies.pop(queue, None)
        return 0

    def define_topic(self, command: pb.DefineTopic) -> None:
        if command.remove:
            self.topics.pop(command.name, None)
            return
        topic = self.topics.setdefault(command.name, {"retention": 0, "queues": set(), "retained": []})
        topic["retention"] = command.retention_ms

    def subscribe(self, command: pb.Subscribe) -> int:
        if command.remove:
            if command.topic in self.topics:
                self.topics[command.topic]["queues"].discard(command.queue)
            return 0
        topic = self.topics.setdefault(command.topic, {"retention": 0, "queues": set(), "retained": []})
        if command.queue in topic["queues"]:
            return 0
        topic["queues"].add(command.queue)
        if not command.HasField("since_ms"):
            return 0
        begin = max(0, self.now_ms - command.since_ms)
        chosen = [message for at_ms, message in topic["retained"] if at_ms >= begin]
        for message in chosen:
            self.take_in(message, command.queue, self.next_id(), bounded=False)
        return len(chosen)

    def define_schedule(self, command: pb.DefineSchedule) -> None:
        if not command.definition:
            self.schedules.pop(command.name, None)
            return
        _, last, _ = self.schedules.get(command.name, (0, 0, b""))
        self.schedules[command.name] = (command.next_ms, last, command.definition)

    def tick(self, command: pb.Tick) -> bool:
        next_ms, last_ms, definition = self.schedules.get(command.schedule, (0, 0, b""))
        if not next_ms or next_ms != command.tick_ms or next_ms > self.now_ms:
            return False
        if not command.skip:
            last_ms = next_ms
            message = pb.Schedule.FromString(definition).message
            headers = pb.Headers(tick_ms=next_ms).SerializeToString()
            if message.topic:
                self.publish(message, 0, headers=headers, bounded=False)
            else:
                self.take_in(message, message.queue, self.next_id(), headers=headers, bounded=False)
        self.schedules[command.schedule] = (command.next_ms, last_ms, definition)
        return True
