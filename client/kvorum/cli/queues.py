"""`kvorum queue …`: look at queues, send, receive, and what an operator does with them."""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import click

import kvorum
from kvorum.cli import notation
from kvorum.cli.policies import MILLISECOND, policy_json, shown_duration, shown_policy
from kvorum.cli.progress import Waiting
from kvorum.cli.session import (
    NOT_FOUND,
    USAGE,
    Duration,
    Options,
    database_options,
    dry_run_option,
    echo,
    fail,
    note,
    print_json,
    print_plan,
    print_table,
    require_existing,
    runs,
)

_COUNTS: Final = ("messages", "ready", "scheduled", "waiting", "leased", "dead")
_TOTALS: Final = ("sent", "delivered", "done", "failed", "lost", "died", "expired", "duplicates")
_NAME: Final = click.argument("name", metavar="QUEUE")


@click.group("queue")
def queue_group() -> None:
    """Look at queues, send and receive, and manage them."""


def time_json(moment: datetime | None) -> str | None:
    """A time as JSON data."""
    return None if moment is None else moment.isoformat(timespec="milliseconds")


def shown_time(moment: datetime | None) -> str:
    """A time for people."""
    return "" if moment is None else moment.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"


# ---- list and stats


def stats_json(stats: kvorum.QueueStats, *, counts: bool = True) -> dict[str, object]:
    """The figures of a queue as JSON data."""
    left_out = () if counts else ("ready", "scheduled", "waiting")
    data: dict[str, object] = {"queue": stats.name, "defined": stats.policy is not None, "paused": stats.paused}
    data |= {name: getattr(stats, name) for name in (*_COUNTS, *_TOTALS, "consumers") if name not in left_out}
    data["oldest_age_ms"] = None if stats.oldest_age is None else stats.oldest_age // MILLISECOND
    data |= {"sent_per_s": stats.sent_per_s, "done_per_s": stats.done_per_s}
    if stats.policy is not None:
        data["policy"] = policy_json(stats.policy)
    return data


@queue_group.command("list")
@click.argument("prefix", required=False, default="", metavar="[PREFIX]")
@click.option("--counts", is_flag=True, help="Also count ready, scheduled and waiting messages, one by one.")
@database_options
@runs
async def list_command(options: Options, prefix: str, counts: bool) -> int | None:
    """List the queues that are defined or were used."""
    require_existing(options)
    async with options.open() as kv:
        found = await kv.queues(prefix, counts=counts)
    if options.as_json:
        for stats in found:
            print_json(stats_json(stats, counts=counts))
        return None
    shown = _COUNTS if counts else ("messages", "leased", "dead")
    columns = ("Queue", *(name.capitalize() for name in shown), "Oldest", "Consumers", "Sent/s", "Done/s", "State")
    print_table(columns, [_list_row(stats, shown) for stats in found])
    return None


def _list_row(stats: kvorum.QueueStats, shown: Sequence[str]) -> tuple[str, ...]:
    return (
        stats.name or '""',
        *(f"{getattr(stats, name):,}" for name in shown),
        "" if stats.oldest_age is None else shown_duration(stats.oldest_age),
        str(stats.consumers),
        f"{stats.sent_per_s:.1f}",
        f"{stats.done_per_s:.1f}",
        "paused" if stats.paused else "",
    )


@queue_group.command("stats")
@_NAME
@click.option("--watch", is_flag=True, help="Again and again, until interrupted.")
@click.option("--every", type=Duration(), default="2s", show_default=True, help="With --watch: how often.")
@database_options
@runs
async def stats_command(options: Options, name: str, watch: bool, every: timedelta) -> int | None:
    """Show what is in a queue, and what happened in it."""
    require_existing(options)
    async with options.open() as kv:
        queue = kv.queue(name)
        while True:
            stats = await queue.stats()
            if options.as_json:
                print_json(stats_json(stats))
            elif watch:
                echo(_stats_line(stats))
            else:
                print_table(("", name or '""'), _stats_rows(stats))
            if not watch:
                if stats.policy is None and not (stats.sent or stats.messages or stats.dead or stats.consumers):
                    note("kvorum: nothing was ever sent to a queue of this name; `kvorum queue list` names all")
                return None
            await asyncio.sleep(max(0.1, every / timedelta(seconds=1)))


def _stats_line(stats: kvorum.QueueStats) -> str:
    counts = "  ".join(f"{name} {getattr(stats, name):,}" for name in _COUNTS)
    age = "" if stats.oldest_age is None else f"  oldest {shown_duration(stats.oldest_age)}"
    state = "  paused" if stats.paused else ""
    return f"{counts}{age}  sent/s {stats.sent_per_s:.1f}  done/s {stats.done_per_s:.1f}{state}"


def _stats_rows(stats: kvorum.QueueStats) -> list[tuple[str, str]]:
    rows = [(name, f"{getattr(stats, name):,}") for name in (*_COUNTS, "consumers", *_TOTALS)]
    rows.append(("oldest", "" if stats.oldest_age is None else shown_duration(stats.oldest_age)))
    rows += [("sent/s", f"{stats.sent_per_s:.1f}"), ("done/s", f"{stats.done_per_s:.1f}")]
    rows.append(("paused", "yes" if stats.paused else "no"))
    rows.append(("policy", ("" if stats.policy is None else shown_policy(stats.policy)) or "defaults"))
    return rows


# ---- peek, dead


def info_json(info: kvorum.MessageInfo) -> dict[str, object]:
    """A message as JSON data."""
    data: dict[str, object] = {
        "id": info.id,
        "queue": info.queue,
        "state": info.state,
        "value": notation.value_json(info.value),
        "attempt": info.attempt,
        "enqueued_at": time_json(info.enqueued_at),
        "due_at": time_json(info.due_at),
        "expires_at": time_json(info.expires_at),
        "group": info.group,
        "dedup_id": info.dedup_id,
        "headers": dict(info.headers),
        "holder": info.holder,
        "failures": [
            {"attempt": one.attempt, "at": time_json(one.at), "kind": one.kind, "reason": one.reason}
            for one in info.failures
        ],
    }
    if info.origin is not None:
        data["origin"] = {
            "queue": info.origin.queue,
            "id": info.origin.id,
            "enqueued_at": time_json(info.origin.enqueued_at),
            "died_at": time_json(info.origin.died_at),
            "attempts": info.origin.attempts,
        }
    return data


def _print_infos(infos: Sequence[kvorum.MessageInfo], options: Options) -> None:
    if options.as_json:
        for info in infos:
            print_json(info_json(info))
        return
    columns = ("Id", "State", "Attempt", "Enqueued", "Due", "Group", "Value", "Last failure")
    print_table(columns, [_info_row(info, options) for info in infos])


def _info_row(info: kvorum.MessageInfo, options: Options) -> tuple[str, ...]:
    last = info.failures[-1] if info.failures else None
    return (
        info.id,
        info.state,
        str(info.attempt),
        shown_time(info.enqueued_at),
        shown_time(info.due_at),
        info.group or "",
        options.shown_value(info.value),
        "" if last is None else f"{last.kind}: {last.reason}" if last.reason else last.kind,
    )


_LIMIT: Final = click.option(
    "--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Messages at most."
)


@queue_group.command("peek")
@_NAME
@click.option("--kind", type=click.Choice(["all", "ready", "leased", "dead"]), default="all", show_default=True)
@click.option("--id", "message_id", metavar="ID", help="This message only.")
@_LIMIT
@database_options
@runs
async def peek_command(options: Options, name: str, kind: Any, message_id: str | None, limit: int) -> int | None:
    """Look at the first messages of a queue; they stay where they are."""
    require_existing(options)
    async with options.open() as kv:
        if message_id is not None:
            found = await kv.queue(name).find(message_id)
            infos = [] if found is None else [found]
        else:
            infos = await kv.queue(name).peek(limit=limit, kind=kind)
    if message_id is not None and not infos:
        note(f"kvorum: not found: message {message_id}")
        return NOT_FOUND
    _print_infos(infos, options)
    return None


@queue_group.command("dead")
@_NAME
@_LIMIT
@database_options
@runs
async def dead_command(options: Options, name: str, limit: int) -> int | None:
    """Look at the dead letters that are kept with a queue."""
    require_existing(options)
    async with options.open() as kv:
        _print_infos(await kv.queue(name).dead.peek(limit=limit), options)
    return None


@queue_group.command("requeue")
@_NAME
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--all", "everything", is_flag=True, help="All dead letters of the queue.")
@click.option("--to-origin", is_flag=True, help="QUEUE is a dead letter queue: send its messages back.")
@database_options
@runs
async def requeue_command(
    options: Options, name: str, ids: tuple[str, ...], everything: bool, to_origin: bool
) -> int | None:
    """Make dead letters messages again, and print how many."""
    if bool(ids) + everything + to_origin != 1:
        fail(USAGE, "give ids of dead letters, --all or --to-origin")
    require_existing(options)
    async with options.open() as kv:
        queue = kv.queue(name)
        if to_origin:
            count = await queue.requeue_to_origin()
        else:
            count = await queue.dead.requeue(ids or None)
    _print_count(count, options)
    return NOT_FOUND if ids and count < len(ids) else None


def _print_count(count: int, options: Options) -> None:
    if options.as_json:
        print_json({"count": count})
    else:
        echo(count)


# ---- send, receive, cancel


@queue_group.command("send")
@_NAME
@click.argument("values", nargs=-1, required=True, metavar="MESSAGE...")
@click.option("--delay", type=Duration(), help="Deliver it after this time: 10s, 5m; a bare number is milliseconds.")
@click.option("--group", help="Deliver it in order with the others of this group.")
@click.option("--dedup-id", metavar="ID", help="Leave it out if the queue remembers this id.")
@click.option("--dedup-window", type=Duration(), help="How long the id is remembered; default: until it is done.")
@click.option("--ttl", type=Duration(), help="Drop it if it is not done by then.")
@click.option("--header", "headers", multiple=True, metavar="NAME=TEXT", help="Text that goes along; may be repeated.")
@click.option("--if-undelivered", multiple=True, metavar="KEY", help="Set this key if nobody can handle it.")
@database_options
@runs
async def send_command(
    options: Options,
    name: str,
    values: tuple[str, ...],
    headers: tuple[str, ...],
    if_undelivered: tuple[str, ...],
    **more: Any,
) -> int | None:
    """Send messages, in one commit, and print their ids."""
    messages = [options.value(text) for text in values]
    if len(messages) > 1 and more["dedup_id"] is not None:
        fail(USAGE, "--dedup-id is for one message")
    sending: Any = {
        **more,
        "headers": parse_headers(headers),
        "keys_if_undelivered": [options.key(text) for text in if_undelivered],
    }
    async with options.open() as kv:
        sent = await kv.queue(name).send_batch(messages, **sending)
    for one in sent:
        if options.as_json:
            print_json({"id": one.id, "duplicate": one.duplicate, "versionstamp": one.versionstamp})
        else:
            echo(f"{one.id} (duplicate)" if one.duplicate else one.id)
    return None


def parse_headers(texts: Sequence[str]) -> dict[str, str]:
    """`NAME=TEXT` of each."""
    found = {}
    for text in texts:
        header, equals, content = text.partition("=")
        if not equals or not header:
            fail(USAGE, f"{text!r} is no header; write NAME=TEXT")
        found[header] = content
    return found


@queue_group.command("receive")
@_NAME
@click.option("--max", "most", type=click.IntRange(1, 1_000), default=1, show_default=True, help="Messages at most.")
@click.option("--wait", type=Duration(), default="5s", show_default=True, help="How long to wait for them (≤ 60s).")
@click.option("--keep", is_flag=True, help="Print them and put them back, with this attempt counted.")
@database_options
@runs
async def receive_command(options: Options, name: str, most: int, wait: timedelta, keep: bool) -> int | None:
    """Take messages and print them; printed ones are done. Nothing there: status 1."""
    require_existing(options)
    async with options.open() as kv:
        batch = await kv.queue(name).receive_batch(max=most, wait=wait)
        for message in batch:
            if options.as_json:
                print_json(_message_json(message))
            else:
                echo(options.shown_value(message.value))
        if keep:
            await batch.retry_all(delay=0, reason="looked at by kvorum queue receive --keep")
        else:
            await batch.ack_all()
    return None if batch else NOT_FOUND


def _message_json(message: kvorum.Message) -> dict[str, object]:
    return {
        "id": message.id,
        "value": notation.value_json(message.value),
        "attempt": message.attempt,
        "enqueued_at": time_json(message.enqueued_at),
        "group": message.group,
        "headers": dict(message.headers),
    }


@queue_group.command("cancel")
@_NAME
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@database_options
@runs
async def cancel_command(options: Options, name: str, ids: tuple[str, ...]) -> int | None:
    """Delete messages that are in nobody's hands."""
    require_existing(options)
    async with options.open() as kv:
        done = [await kv.queue(name).cancel(id) for id in ids]
    for id, cancelled in zip(ids, done, strict=True):
        if options.as_json:
            print_json({"id": id, "cancelled": cancelled})
        elif not cancelled:
            note(f"kvorum: not found: message {id} is done, or in a consumer's hands")
    return None if all(done) else NOT_FOUND


@queue_group.command("reschedule")
@_NAME
@click.argument("id", metavar="ID")
@click.option("--delay", type=Duration(), default="0", show_default=True, help="Due after this time from now on.")
@database_options
@runs
async def reschedule_command(options: Options, name: str, id: str, delay: timedelta) -> int | None:
    """Change when a message is due that is in nobody's hands."""
    require_existing(options)
    async with options.open() as kv:
        done = await kv.queue(name).reschedule(id, delay=delay)
    if options.as_json:
        print_json({"id": id, "rescheduled": done})
    if done:
        return None
    note(f"kvorum: not found: message {id} is done, dead, or in a consumer's hands")
    return NOT_FOUND


# ---- define and the like


@queue_group.command("define")
@_NAME
@click.option("--lease", type=Duration(), help="How long a lost consumer keeps a message (500ms to 12h).")
@click.option("--max-attempts", type=int, help="Attempts until a message is dead.")
@click.option("--backoff", metavar="STEPS", help="Pauses between attempts: 1s,5s,1m.")
@click.option("--exponential", metavar="BASE,CAP", help="Pauses that double, instead of --backoff: 1s,10m.")
@click.option("--dead-letters", metavar="keep|drop|QUEUE", help="Where dead messages go.")
@click.option("--max-batch", type=int, help="What batch consumers take at a time.")
@click.option("--max-wait", type=Duration(), help="How long they wait for more.")
@click.option("--retention", type=Duration(), help="Drop what is not done after this time.")
@click.option("--max-backlog", type=int, help="Refuse messages above this number.")
@click.option("--max-in-flight", type=int, help="Messages in the hands of all consumers together.")
@click.option("--ordered", is_flag=True, help="Messages without a group are one group.")
@database_options
@runs
async def define_command(
    options: Options, name: str, backoff: str | None, exponential: str | None, **more: Any
) -> int | None:
    """Set the policy of a queue, as a whole: what is not given has its default."""
    if backoff is not None and exponential is not None:
        fail(USAGE, "--backoff and --exponential cannot be combined")
    if backoff is not None:
        more["backoff"] = [_duration(step) for step in backoff.split(",") if step.strip()]
    if exponential is not None:
        parts = [_duration(part) for part in exponential.split(",")]
        if len(parts) != 2:
            fail(USAGE, f"--exponential takes BASE,CAP, as in 1s,10m: got {exponential!r}")
        more["backoff"] = kvorum.Exponential(parts[0], cap=parts[1])
    async with options.open() as kv:
        await kv.queue(name).define(**more)
    if options.as_json:
        print_json({"queue": name})
    return None


def _duration(text: str) -> timedelta:
    return Duration().convert(text.strip(), None, None)


@queue_group.command("pause")
@_NAME
@database_options
@runs
async def pause_command(options: Options, name: str) -> int | None:
    """Hand out no more messages until `kvorum queue resume`."""
    async with options.open() as kv:
        await kv.queue(name).pause()
    if options.as_json:
        print_json({"queue": name, "paused": True})
    return None


@queue_group.command("resume")
@_NAME
@database_options
@runs
async def resume_command(options: Options, name: str) -> int | None:
    """Hand out messages again."""
    require_existing(options)
    async with options.open() as kv:
        await kv.queue(name).resume()
    if options.as_json:
        print_json({"queue": name, "paused": False})
    return None


@queue_group.command("purge")
@_NAME
@click.option("--dead", is_flag=True, help="Its dead letters, instead of its messages.")
@dry_run_option
@database_options
@runs
async def purge_command(options: Options, name: str, dead: bool, dry_run: bool) -> int | None:
    """Delete the messages that are in nobody's hands, and print how many."""
    require_existing(options)
    async with options.open() as kv:
        queue = kv.queue(name)
        if dry_run:
            stats = await queue.stats()
            number = stats.dead if dead else stats.messages - stats.leased
            what = "dead letter(s)" if dead else f"message(s); {stats.leased:,} are in consumers' hands and would stay"
            print_plan(options, f"would delete {number:,} {what}", would_delete=number, leased=stats.leased)
            return None
        with Waiting(f"purging {name} …"):
            count = await (queue.dead.purge() if dead else queue.purge())
    _print_count(count, options)
    return None


@queue_group.command("remove")
@_NAME
@dry_run_option
@database_options
@runs
async def remove_command(options: Options, name: str, dry_run: bool) -> int | None:
    """Delete a queue with all that is in it, dead letters and policy too, and print how many messages."""
    require_existing(options)
    async with options.open() as kv:
        if dry_run:
            stats = await kv.queue(name).stats()
            number = stats.messages + stats.dead
            text = (
                f"would remove the queue with {stats.messages:,} message(s), {stats.leased:,} of them in consumers'"
                f" hands, and {stats.dead:,} dead letter(s)"
            )
            print_plan(options, text, would_delete=number, leased=stats.leased, dead=stats.dead)
            return None
        with Waiting(f"removing {name} …"):
            count = await kv.queue(name).remove()
    _print_count(count, options)
    return None
