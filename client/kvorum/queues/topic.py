"""Topics: a message for each of those who have subscribed."""

from datetime import timedelta
from typing import Any, Unpack

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum.commit import CommitResult, commit_result
from kvorum.durations import Duration, milliseconds
from kvorum.errors import InvalidArgument
from kvorum.queues.desk import Desk
from kvorum.queues.infos import TopicInfo, pages, topic_info
from kvorum.queues.outgoing import SendOptions, outgoing_to_topic, queue_name, topic_name
from kvorum.queues.policy import Named

_PAGE = 100


class Topic:
    """A topic by its name. Made by `Kv.topic`, without any I/O."""

    def __init__(self, desk: Desk, name: str) -> None:
        self._desk = desk
        self._name = topic_name(name)

    @property
    def name(self) -> str:
        return self._name

    def __repr__(self) -> str:
        return f"<kvorum.Topic {self._name!r}>"

    async def send(
        self, value: object, *, timeout: Duration | None = None, **options: Unpack[SendOptions]
    ) -> CommitResult:
        """Put a copy of a message on the queue of each subscription, in one commit; see `SendOptions`.

        A topic that does not exist, or has no subscriptions, takes it, and it goes nowhere (but to what is retained).

        Errors: as `Queue.send`.
        """
        link = self._desk.link
        op = pb.AtomicWrite(enqueues=(outgoing_to_topic(value, self._name, options),)).SerializeToString()
        return commit_result(await link.backend.write(op, timeout=link.within(timeout)))

    async def define(self, *, retention: Duration | None = None, timeout: Duration | None = None) -> None:
        """Make it, or change it. `retention`: how long messages are kept for subscriptions that start in the past.

        Errors: InvalidArgument, LimitExceeded.
        """
        kept = 0
        if retention is not None:
            kept = milliseconds(retention, "retention", "MAX_RETENTION", limits.MAX_RETENTION)
        await self._desk.call(timeout, topic=pb.DefineTopic(name=self._name, retention_ms=kept))

    async def remove(self, *, timeout: Duration | None = None) -> None:
        """Remove it with its subscriptions; their queues stay."""
        await self._desk.call(timeout, topic=pb.DefineTopic(name=self._name, remove=True))

    async def subscribe(
        self, queue: "str | Named", *, since: timedelta | int | float | None = None, timeout: Duration | None = None
    ) -> int:
        """Let a queue have a copy of each message from now on, and of those of the last `since` that are retained.

        Returns how many of those there were. Of a subscription that is there already nothing changes.

        Errors: InvalidArgument, LimitExceeded.
        """
        call = pb.Subscribe(topic=self._name, queue=_name_of(queue))
        if since is not None:
            call.since_ms = milliseconds(since, "since", "MAX_RETENTION", limits.MAX_RETENTION)
        return (await self._desk.call(timeout, subscribe=call)).count

    async def unsubscribe(self, queue: "str | Named", *, timeout: Duration | None = None) -> None:
        """End a subscription; its queue stays."""
        call = pb.Subscribe(topic=self._name, queue=_name_of(queue), remove=True)
        await self._desk.call(timeout, subscribe=call)

    async def subscriptions(self, *, timeout: Duration | None = None) -> list[str]:
        """The queues that have subscribed."""
        found = await self.info(timeout=timeout)
        return [] if found is None else list(found.queues)

    async def info(self, *, timeout: Duration | None = None) -> TopicInfo | None:
        """What is known of it; None: it is not there."""
        return next((topic for topic in await listed_topics(self._desk, timeout) if topic.name == self._name), None)


async def listed_topics(desk: Desk, timeout: Duration | None) -> list[TopicInfo]:
    """All topics, in order of their names."""

    def ask(after: bytes) -> dict[str, Any]:
        return {"topics": pb.ListTopics(limit=_PAGE, after=after)}

    return [topic_info(info) async for reply in pages(desk, ask, timeout) for info in reply.topics]


def _name_of(queue: "str | Named") -> str:
    name = queue if isinstance(queue, str) else getattr(queue, "name", None)
    if not isinstance(name, str):
        raise InvalidArgument(f"a subscription is a queue or its name, got {type(queue).__name__}")
    return queue_name(name)
