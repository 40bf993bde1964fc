"""`kvorum get | set | delete | list`."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import click

import kvorum
from kvorum.cli import notation
from kvorum.cli.session import (
    NOT_FOUND,
    USAGE,
    Duration,
    Options,
    database_options,
    echo,
    fail,
    note,
    print_json,
    print_table,
    require_existing,
    runs,
)
from kvorum.keys import Key

_COLUMNS = ("Key", "Value", "Versionstamp")


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
@database_options
@runs
async def get_command(options: Options, keys: tuple[str, ...]) -> int | None:
    """Print the entries of keys, all from one snapshot."""
    wanted = [options.key(text) for text in keys]
    require_existing(options)
    async with kvorum.open_kv(options.url, timeout=options.timeout) as kv:
        entries = await kv.get_many(wanted)
    absent = [entry for entry in entries if entry.versionstamp is None]
    if options.as_json or len(absent) < len(entries):
        print_entries(entries, options)
    for entry in absent:
        note(f"kvorum: not found: {options.shown_key(entry.key)}{_integers(entry.key, options)}")
    return NOT_FOUND if absent else None


def _integers(key: Key, options: Options) -> str:
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
    async with kvorum.open_kv(options.url, timeout=options.timeout) as kv:
        atomic = kv.atomic()
        checks.add(atomic, wanted)
        done = await atomic.set(wanted, content, expire_in=expire_in).commit()
    return _report(done, options, checks, wanted)


@click.command("delete")
@click.argument("key")
@_check_options
@database_options
@runs
async def delete_command(options: Options, key: str, **conditions: Any) -> int | None:
    """Delete a key. It is no error if it does not exist; see --if-exists."""
    wanted, checks = options.key(key), _Checks(**conditions)
    require_existing(options)
    async with kvorum.open_kv(options.url, timeout=options.timeout) as kv:
        atomic = kv.atomic()
        checks.add(atomic, wanted)
        done = await atomic.delete(wanted).commit()
    return _report(done, options, checks, wanted)


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
) -> int | None:
    """List the entries below a prefix (default: all), or from --start to --end."""
    if prefix is None and start is None and end is None:
        prefix = "()" if options.python else "[]"
    first, low, high = (None if text is None else options.key(text) for text in (prefix, start, end))
    require_existing(options)
    async with kvorum.open_kv(options.url, timeout=options.timeout) as kv:
        found = kv.list(prefix=first, start=low, end=high, limit=limit, reverse=reverse, cursor=cursor)
        if options.as_json:
            # Line by line, so that long lists need no memory.
            async for entry in found:
                print_json(entry_json(entry))
        else:
            print_entries([entry async for entry in found], options)
        if found.has_more:
            note(f"more follows: --cursor {found.cursor}")
    return None
