"""`kvorum get | set | touch | delete | list | count`."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import click

import kvorum
from kvorum.cli import notation
from kvorum.cli.progress import Bar, on_terminal
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
from kvorum.keys import Key
from kvorum.mutation import delete_range_mutation
from kvorum.steps import DELETE_STEP, delete_in_steps

_COLUMNS = ("Key", "Value", "Versionstamp")
_MILLISECOND = timedelta(milliseconds=1)


def entry_json(entry: kvorum.Entry) -> dict[str, object]:
    """An entry as JSON data; value and versionstamp are null if the key is absent."""
    return {
        "key": notation.key_json(entry.key),
        "value": notation.value_json(entry.value),
        "versionstamp": entry.versionstamp,
    }


def print_entries(entries: Iterable[kvorum.Entry], options: Options) -> None:
    """A table, or one JSON object a line."""
    if options.as_json:
        for entry in entries:
            print_json(entry_json(entry))
    else:
        print_table(_COLUMNS, [_row(entry, options) for entry in entries])


def _row(entry: kvorum.Entry, options: Options) -> tuple[str, str, str]:
    value = "" if entry.versionstamp is None else options.shown_value(entry.value)
    return options.shown_key(entry.key), value, entry.versionstamp or "absent"


# ---- get


@click.command("get")
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@click.option("--expiry", is_flag=True, help="Also print how long each of them has to live.")
@database_options
@runs
async def get_command(options: Options, keys: tuple[str, ...], expiry: bool) -> int | None:
    """Print the entries of keys, all from one snapshot."""
    wanted = [options.key(text) for text in keys]
    require_existing(options)
    async with options.open() as kv:
        entries = await kv.get_many(wanted)
        left = [await kv.expires_in(entry.key) for entry in entries] if expiry else []
    absent = [entry for entry in entries if entry.versionstamp is None]
    if options.as_json or len(absent) < len(entries):
        if expiry:
            _print_with_expiry(entries, left, options)
        else:
            print_entries(entries, options)
    for entry in absent:
        note(f"kvorum: not found: {options.shown_key(entry.key)}{integers_hint(entry.key, options)}")
    return NOT_FOUND if absent else None


def _print_with_expiry(entries: Iterable[kvorum.Entry], left: Iterable[timedelta | None], options: Options) -> None:
    if options.as_json:
        for entry, time in zip(entries, left, strict=True):
            print_json({**entry_json(entry), "expires_in_ms": None if time is None else time // _MILLISECOND})
    else:
        rows = [(*_row(entry, options), _shown_time(entry, time)) for entry, time in zip(entries, left, strict=True)]
        print_table((*_COLUMNS, "Expires in"), rows)


def _shown_time(entry: kvorum.Entry, left: timedelta | None) -> str:
    if left is None:
        return "never" if entry else ""
    return str(left // _MILLISECOND * _MILLISECOND)


def integers_hint(key: Key, options: Options) -> str:
    """JSON and Python mean different keys by the same digits."""
    if options.python or not any(type(part) is float and part.is_integer() for part in key):
        return ""
    return ' (numbers in a JSON key are floats; what Python wrote with an int is {"int": "1"}, or --py)'


# ---- set and delete


class _Checks:
    """The conditions of a write."""

    def __init__(self, if_absent: bool, if_exists: bool, if_version: str | None, if_not_newer: str | None) -> None:
        self.given = [
            name
            for name, value in (
                ("--if-absent", if_absent),
                ("--if-exists", if_exists),
                ("--if-version", if_version),
                ("--if-not-newer", if_not_newer),
            )
            if value
        ]
        self._version = if_version
        self._not_newer = if_not_newer
        if len(self.given) > 1:
            fail(USAGE, f"{' and '.join(self.given)} cannot be combined")

    def add(self, atomic: Any, key: Key) -> None:
        """Put the condition into an atomic write."""
        match self.given:
            case ["--if-absent"]:
                atomic.check(key, None)
            case ["--if-exists"]:
                atomic.check(key, exists=True)
            case ["--if-version"]:
                atomic.check(key, self._version)
            case ["--if-not-newer"]:
                atomic.check(key, version_le=self._not_newer)


def _check_options(function: Any) -> Any:
    for option in (
        click.option("--if-not-newer", metavar="VERSIONSTAMP", help="Only if it was not written after this."),
        click.option("--if-version", metavar="VERSIONSTAMP", help="Only if this is still its versionstamp."),
        click.option("--if-exists", is_flag=True, help="Only if the key exists."),
        click.option("--if-absent", is_flag=True, help="Only if the key does not exist."),
    ):
        function = option(function)
    return function


@click.command("set")
@click.argument("key")
@click.argument("value")
@click.option(
    "--expire-in", type=Duration(), help="Delete it after this time: 90s, 30m, 7d; a bare number is milliseconds."
)
@_check_options
@database_options
@runs
async def set_command(
    options: Options,
    key: str,
    value: str,
    expire_in: timedelta | None,
    **conditions: Any,
) -> int | None:
    """Set the value of a key and print the commit's versionstamp."""
    wanted, content, checks = options.key(key), options.value(value), _Checks(**conditions)
    async with options.open() as kv:
        atomic = kv.atomic()
        checks.add(atomic, wanted)
        done = await atomic.set(wanted, content, expire_in=expire_in).commit()
    return _report(done, options, checks, wanted)


@click.command("touch")
@click.argument("key")
@click.option(
    "--expire-in",
    type=Duration(),
    help="Delete it after this time from now: 90s, 30m, 7d; a bare number is milliseconds.",
)
@click.option("--never", is_flag=True, help="Keep it until it is deleted.")
@database_options
@runs
async def touch_command(options: Options, key: str, expire_in: timedelta | None, never: bool) -> int | None:
    """Change when a key expires; its value and versionstamp stay."""
    wanted = options.key(key)
    if never == (expire_in is not None):
        fail(USAGE, "give either --expire-in or --never")
    require_existing(options)
    async with options.open() as kv:
        done = await kv.touch(wanted, expire_in=expire_in)
    if options.as_json:
        print_json({"ok": done})
    if done:
        return None
    note(f"kvorum: not found: {options.shown_key(wanted)}{integers_hint(wanted, options)}")
    return NOT_FOUND


@click.command("delete")
@click.argument("key")
@click.option("--prefix", is_flag=True, help="Delete everything below the key, but not the key itself.")
@_check_options
@dry_run_option
@database_options
@runs
async def delete_command(options: Options, key: str, prefix: bool, dry_run: bool, **conditions: Any) -> int | None:
    """Delete a key. It is no error if it does not exist; see --if-exists.

    With --prefix, delete all keys below it, in many commits if they are many, and print their number.
    """
    wanted, checks = options.key(key), _Checks(**conditions)
    if prefix and checks.given:
        fail(USAGE, f"--prefix and {checks.given[0]} cannot be combined")
    if dry_run and checks.given:
        fail(USAGE, f"--dry-run and {checks.given[0]} cannot be combined")
    require_existing(options)
    async with options.open() as kv:
        if dry_run:
            number = await kv.count(wanted) if prefix else int(bool(await kv.get(wanted)))
            print_plan(options, f"would delete {number:,} key(s)", would_delete=number)
            return None
        if prefix:
            await _delete_prefix(kv, wanted, options)
            return None
        atomic = kv.atomic()
        checks.add(atomic, wanted)
        done = await atomic.delete(wanted).commit()
    return _report(done, options, checks, wanted)


async def _delete_prefix(kv: kvorum.Kv, prefix: Key, options: Options) -> None:
    """Step by step, so that it can be seen how far it has come."""
    total = await kv.count(prefix) if on_terminal() else None
    with Bar("deleting", total) as bar:
        mutation = delete_range_mutation(prefix, None, None, limit=DELETE_STEP)
        deleted = await delete_in_steps(kv.link, mutation, None, bar.show)
    if options.as_json:
        print_json({"deleted": deleted})
    else:
        echo(deleted)


def _report(done: kvorum.CommitResult, options: Options, checks: _Checks, key: Key) -> int | None:
    if options.as_json:
        print_json({"ok": done.ok, "versionstamp": done.versionstamp})
    elif done.ok:
        echo(done.versionstamp)
    if done.ok:
        return None
    note(f"kvorum: check failed: {options.shown_key(key)} does not meet {checks.given[0]}; nothing was changed")
    return NOT_FOUND


# ---- list


@click.command("list")
@click.argument("prefix", required=False, metavar="[PREFIX]")
@click.option("--start", metavar="KEY", help="Begin at this key.")
@click.option("--end", metavar="KEY", help="Stop before this key.")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="Entries at most.")
@click.option("--reverse", is_flag=True, help="Last key first.")
@click.option("--cursor", help="Go on where an earlier list ended.")
@click.option("--keys-only", is_flag=True, help="Leave the values where they are.")
@database_options
@runs
async def list_command(
    options: Options,
    prefix: str | None,
    start: str | None,
    end: str | None,
    limit: int,
    reverse: bool,
    cursor: str | None,
    keys_only: bool,
) -> int | None:
    """List the entries below a prefix (default: all), or from --start to --end."""
    first, low, high = _selector(options, prefix, start, end)
    require_existing(options)
    async with options.open() as kv:
        found = kv.list(
            prefix=first, start=low, end=high, limit=limit, reverse=reverse, cursor=cursor, keys_only=keys_only
        )
        if options.as_json:
            # Line by line, so that long lists need no memory.
            async for entry in found:
                print_json(_bare_json(entry) if keys_only else entry_json(entry))
        elif keys_only:
            rows = [(options.shown_key(entry.key), entry.versionstamp or "") async for entry in found]
            print_table(("Key", "Versionstamp"), rows)
        else:
            print_entries([entry async for entry in found], options)
        if found.has_more:
            note(f"more follows: --cursor {found.cursor}")
    return None


def _selector(options: Options, *texts: str | None) -> tuple[Key | None, Key | None, Key | None]:
    """Prefix, start and end; all three absent means everything."""
    prefix, start, end = (None if text is None else options.key(text) for text in texts)
    return (() if prefix is None and start is None and end is None else prefix), start, end


def _bare_json(entry: kvorum.Entry) -> dict[str, object]:
    return {"key": notation.key_json(entry.key), "versionstamp": entry.versionstamp}


@click.command("count")
@click.argument("prefix", required=False, metavar="[PREFIX]")
@click.option("--start", metavar="KEY", help="Begin at this key.")
@click.option("--end", metavar="KEY", help="Stop before this key.")
@database_options
@runs
async def count_command(options: Options, prefix: str | None, start: str | None, end: str | None) -> int | None:
    """Count the keys below a prefix (default: all), or from --start to --end."""
    first, low, high = _selector(options, prefix, start, end)
    require_existing(options)
    async with options.open() as kv:
        number = await kv.count(first, start=low, end=high)
    if options.as_json:
        print_json({"count": number})
    else:
        echo(number)
    return None
