"""`kvorum schedule …`: recurring messages."""

from datetime import timedelta
from typing import Any, Final

import click

import kvorum
from kvorum.cli import notation
from kvorum.cli.queues import parse_headers, shown_time, time_json
from kvorum.cli.session import (
    NOT_FOUND,
    USAGE,
    Duration,
    Options,
    database_options,
    dry_run_option,
    fail,
    note,
    print_json,
    print_plan,
    print_table,
    require_existing,
    runs,
)

_NAME: Final = click.argument("name")


@click.group("schedule")
def schedule_group() -> None:
    """Recurring messages: exactly one for each tick of a cron expression."""


@schedule_group.command("list")
@database_options
@runs
async def list_command(options: Options) -> int | None:
    """List the schedules, with their next ticks."""
    require_existing(options)
    async with options.open() as kv:
        schedules = await kv.schedules()
    if options.as_json:
        for schedule in schedules:
            print_json(_as_json(schedule))
        return None
    print_table(
        ("Name", "Cron", "Time zone", "To", "Message", "Next", "Last"),
        [
            (
                schedule.name,
                schedule.cron,
                schedule.time_zone,
                f"topic {schedule.topic}" if schedule.topic else schedule.queue or '""',
                options.shown_value(schedule.value),
                shown_time(schedule.next_at) or "never",
                shown_time(schedule.last_at),
            )
            for schedule in schedules
        ],
    )
    return None


def _as_json(schedule: kvorum.ScheduleInfo) -> dict[str, object]:
    return {
        "name": schedule.name,
        "cron": schedule.cron,
        "time_zone": schedule.time_zone,
        "queue": None if schedule.topic else schedule.queue,
        "topic": schedule.topic or None,
        "value": notation.value_json(schedule.value),
        "misfire": schedule.misfire,
        "grace_ms": schedule.grace // timedelta(milliseconds=1),
        "next_at": time_json(schedule.next_at),
        "last_at": time_json(schedule.last_at),
    }


@schedule_group.command("set")
@_NAME
@click.argument("cron")
@click.argument("value", metavar="MESSAGE")
@click.option("--queue", help="Where the messages go.")
@click.option("--topic", help="Or to the subscriptions of this topic.")
@click.option("--time-zone", default="UTC", show_default=True, metavar="ZONE", help="As in Europe/Berlin.")
@click.option(
    "--misfire",
    type=click.Choice(["skip", "once", "all"]),
    default="once",
    show_default=True,
    help="What becomes of ticks that were missed.",
)
@click.option("--grace", type=Duration(), help="A tick that is later than this was missed; default 60s.")
@click.option("--group", help="Deliver them in order with the others of this group.")
@click.option("--ttl", type=Duration(), help="Drop a message that is not done by then.")
@click.option("--header", "headers", multiple=True, metavar="NAME=TEXT", help="Text that goes along; may be repeated.")
@database_options
@runs
async def set_command(
    options: Options,
    name: str,
    cron: str,
    value: str,
    queue: str | None,
    topic: str | None,
    headers: tuple[str, ...],
    **more: Any,
) -> int | None:
    """Send MESSAGE at each tick of CRON ("0 6 * * *"); replaces the schedule of that name."""
    if (queue is None) == (topic is None):
        fail(USAGE, "give --queue or --topic")
    message = options.value(value)
    async with options.open() as kv:
        await kv.schedule(name, cron, queue=queue, topic=topic, value=message, headers=parse_headers(headers), **more)
    if options.as_json:
        print_json({"name": name})
    return None


@schedule_group.command("remove")
@_NAME
@dry_run_option
@database_options
@runs
async def remove_command(options: Options, name: str, dry_run: bool) -> int | None:
    """Remove a schedule; the messages that it has sent stay."""
    require_existing(options)
    async with options.open() as kv:
        if dry_run:
            found = next((one for one in await kv.schedules() if one.name == name), None)
            if found is None:
                note(f"kvorum: not found: schedule {name}")
                return NOT_FOUND
            next_at = shown_time(found.next_at) or "never"
            text = f"would remove the schedule {found.cron} ({found.time_zone}), due next: {next_at}"
            print_plan(options, text, **_as_json(found))
            return None
        await kv.unschedule(name)
    if options.as_json:
        print_json({"name": name})
    return None
