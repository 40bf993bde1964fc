"""`kvorum topic …`: messages for several queues."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import click

import kvorum
from kvorum.cli.policies import shown_duration
from kvorum.cli.queues import parse_headers
from kvorum.cli.session import (
    NOT_FOUND,
    Duration,
    Options,
    database_options,
    dry_run_option,
    echo,
    note,
    print_json,
    print_plan,
    print_table,
    require_existing,
    runs,
)

_NAME: Final = click.argument("name", metavar="TOPIC")


@click.group("topic")
def topic_group() -> None:
    """Topics: each message is copied to the queues that have subscribed."""


@topic_group.command("list")
@database_options
@runs
async def list_command(options: Options) -> int | None:
    """List the topics and their subscriptions."""
    require_existing(options)
    async with options.open() as kv:
        topics = await kv.topics()
    if options.as_json:
        for topic in topics:
            print_json(
                {
                    "topic": topic.name,
                    "retention_ms": None if topic.retention is None else topic.retention // timedelta(milliseconds=1),
                    "queues": list(topic.queues),
                    "retained": topic.retained,
                    "retained_bytes": topic.retained_bytes,
                }
            )
        return None
    print_table(
        ("Topic", "Queues", "Retention", "Retained", "Bytes"),
        [
            (
                topic.name,
                ", ".join(topic.queues),
                "" if topic.retention is None else shown_duration(topic.retention),
                f"{topic.retained:,}",
                f"{topic.retained_bytes:,}",
            )
            for topic in topics
        ],
    )
    return None


@topic_group.command("define")
@_NAME
@click.option("--retention", type=Duration(), help="How long messages are kept for subscriptions in the past.")
@database_options
@runs
async def define_command(options: Options, name: str, retention: timedelta | None) -> int | None:
    """Make a topic, or change it."""
    async with options.open() as kv:
        await kv.topic(name).define(retention=retention)
    if options.as_json:
        print_json({"topic": name})
    return None


@topic_group.command("remove")
@_NAME
@dry_run_option
@database_options
@runs
async def remove_command(options: Options, name: str, dry_run: bool) -> int | None:
    """Remove a topic with its subscriptions; their queues stay."""
    require_existing(options)
    async with options.open() as kv:
        if dry_run:
            return _plan_removal(options, name, await kv.topics())
        await kv.topic(name).remove()
    if options.as_json:
        print_json({"topic": name})
    return None


def _plan_removal(options: Options, name: str, topics: Sequence[kvorum.TopicInfo]) -> int | None:
    topic = next((one for one in topics if one.name == name), None)
    if topic is None:
        note(f"kvorum: not found: topic {name}")
        return NOT_FOUND
    text = (
        f"would remove the topic with {len(topic.queues):,} subscription(s) and {topic.retained:,} retained message(s)"
    )
    print_plan(options, text, queues=list(topic.queues), retained=topic.retained)
    return None


@topic_group.command("subscribe")
@_NAME
@click.argument("queue")
@click.option("--since", type=Duration(), help="Also what was sent in this time before and is retained.")
@database_options
@runs
async def subscribe_command(options: Options, name: str, queue: str, since: timedelta | None) -> int | None:
    """Let a queue have a copy of each message, and print how many earlier ones it got."""
    async with options.open() as kv:
        count = await kv.topic(name).subscribe(queue, since=since)
    if options.as_json:
        print_json({"count": count})
    else:
        echo(count)
    return None


@topic_group.command("unsubscribe")
@_NAME
@click.argument("queue")
@database_options
@runs
async def unsubscribe_command(options: Options, name: str, queue: str) -> int | None:
    """End a subscription; its queue stays."""
    require_existing(options)
    async with options.open() as kv:
        await kv.topic(name).unsubscribe(queue)
    if options.as_json:
        print_json({"topic": name, "queue": queue})
    return None


@topic_group.command("send")
@_NAME
@click.argument("value", metavar="MESSAGE")
@click.option("--delay", type=Duration(), help="Deliver it after this time.")
@click.option("--group", help="Deliver it in order with the others of this group.")
@click.option("--dedup-id", metavar="ID", help="Leave it out where the queue remembers this id.")
@click.option("--ttl", type=Duration(), help="Drop it if it is not done by then.")
@click.option("--header", "headers", multiple=True, metavar="NAME=TEXT", help="Text that goes along; may be repeated.")
@database_options
@runs
async def send_command(options: Options, name: str, value: str, headers: tuple[str, ...], **more: Any) -> int | None:
    """Send a message, and print the commit's versionstamp."""
    message = options.value(value)
    async with options.open() as kv:
        done = await kv.topic(name).send(message, headers=parse_headers(headers), **more)
    if options.as_json:
        print_json({"versionstamp": done.versionstamp})
    else:
        echo(done.versionstamp)
    return None
