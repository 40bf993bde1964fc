"""`kvorum auth …`: tokens, and whether they are asked for."""

from datetime import datetime, timedelta
from typing import Any, Final

import click

import kvorum
from kvorum.auth import NewToken, TokenInfo
from kvorum.cli import notation
from kvorum.cli.queues import shown_time, time_json
from kvorum.cli.session import (
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
    runs,
)
from kvorum.target import Folder

_TOKEN: Final = click.argument("wanted", metavar="NAME_OR_ID")  # not "token", which is the caller's own
_QUEUE_HELP: Final = "queue or topic; NAME* = all that begin so. May be repeated."


@click.group("auth")
def auth_group() -> None:
    """Tokens: who may do what. Whatever is changed here counts on all nodes from that moment on."""


@auth_group.command("on")
@database_options
@runs
async def on_command(options: Options) -> int | None:
    """Ask everybody for a token from now on."""
    async with _opened(options) as kv:
        await kv.auth.on()
    if options.as_json:
        print_json({"on": True})
    return None


@auth_group.command("off")
@database_options
@runs
async def off_command(options: Options) -> int | None:
    """Let everybody do everything; the tokens stay."""
    async with _opened(options) as kv:
        await kv.auth.off()
    if options.as_json:
        print_json({"on": False})
    return None


@auth_group.command("whoami")
@database_options
@runs
async def whoami_command(options: Options) -> int | None:
    """Show who the caller is to the cluster, and what it may do."""
    async with _opened(options) as kv:
        found = await kv.auth.whoami()
    if options.as_json:
        token = None if found.token is None else _as_json(found.token)
        print_json({"on": found.on, "known": found.known, "root": found.root, "token": token})
        return None
    note(f"tokens are {'asked for' if found.on else 'not asked for: everybody may do everything'}")
    if found.root:
        echo("root")
    elif found.token is None:
        echo("nobody")
    else:
        _print([found.token], options)
    return None


@auth_group.group("token")
def token_group() -> None:
    """Make, list, rotate and revoke tokens."""


@token_group.command("create")
@click.argument("name")
@click.option("--read", "read", multiple=True, metavar="KEY", help="Read this key and all below it; [] = everything.")
@click.option("--write", "write", multiple=True, metavar="KEY", help="Write this key and all below it.")
@click.option("--send", multiple=True, metavar="NAME", help=f"Send to this {_QUEUE_HELP}")
@click.option("--receive", multiple=True, metavar="NAME", help=f"Receive from this {_QUEUE_HELP}")
@click.option("--manage", multiple=True, metavar="NAME", help=f"Manage this {_QUEUE_HELP}")
@click.option("--admin", is_flag=True, help="Change members and tokens, and manage all queues.")
@click.option(
    "--operations", "operations_per_second", type=int, help="Operations a second on each node; default: no bound."
)
@click.option("--connections", type=int, help="Connections to each node; default: no bound.")
@click.option("--expires", "expire_in", type=Duration(), help="Good for nothing after that: 90d, 12h; default: never.")
@database_options
@runs
async def create_command(
    options: Options, name: str, read: tuple[str, ...], write: tuple[str, ...], **more: Any
) -> int | None:
    """Make a token and print it. It is shown this once; the cluster keeps only a hash of it."""
    if not any((read, write, more["send"], more["receive"], more["manage"], more["admin"])):
        fail(USAGE, "this token could do nothing: give --read, --write, --send, --receive, --manage or --admin")
    async with _opened(options) as kv:
        made = await kv.auth.create(name, read=map(options.key, read), write=map(options.key, write), **more)
    _show_new(made, options)
    return None


@token_group.command("list")
@database_options
@runs
async def list_command(options: Options) -> int | None:
    """List all tokens, without their secrets."""
    async with _opened(options) as kv:
        found = await kv.auth.list()
    _print(found, options)
    return None


@token_group.command("show")
@_TOKEN
@database_options
@runs
async def show_command(options: Options, wanted: str) -> int | None:
    """Show a token, without its secret."""
    async with _opened(options) as kv:
        found = await kv.auth.show(wanted)
    _print([found], options)
    return None


@token_group.command("revoke")
@_TOKEN
@click.option("--keep", is_flag=True, help="Disable it only, so that it stays in the list, and can be enabled again.")
@dry_run_option
@database_options
@runs
async def revoke_command(options: Options, wanted: str, keep: bool, dry_run: bool) -> int | None:
    """Make a token good for nothing, at once and on all nodes."""
    async with _opened(options) as kv:
        if dry_run:
            found = await kv.auth.show(wanted)
            verb = "disable" if keep else "revoke"
            print_plan(options, f"would {verb} token {found.name} ({found.id})", token=found.id, name=found.name)
            return None
        await (kv.auth.disable(wanted) if keep else kv.auth.revoke(wanted))
    if options.as_json:
        print_json({"token": wanted, "disabled": keep})
    return None


@token_group.command("enable")
@_TOKEN
@database_options
@runs
async def enable_command(options: Options, wanted: str) -> int | None:
    """Make a token good again that was revoked with --keep."""
    async with _opened(options) as kv:
        await kv.auth.disable(wanted, disabled=False)
    if options.as_json:
        print_json({"token": wanted, "disabled": False})
    return None


@token_group.command("rotate")
@_TOKEN
@click.option(
    "--overlap", type=Duration(), default="1h", show_default=True, help="How long the old secret is good as well."
)
@database_options
@runs
async def rotate_command(options: Options, wanted: str, overlap: timedelta) -> int | None:
    """Give a token a new secret and print it."""
    async with _opened(options) as kv:
        made = await kv.auth.rotate(wanted, overlap=overlap)
    _show_new(made, options)
    return None


def _opened(options: Options) -> kvorum.Opening:
    if isinstance(options.target, Folder):
        fail(USAGE, f"{options.url} is a folder: tokens are a cluster's, kvorum://host:port,…")
    return options.open()


def _show_new(made: NewToken, options: Options) -> None:
    if options.as_json:
        print_json({"id": made.id, "name": made.name, "token": made.text})
    else:
        echo(made.text)


def _print(found: list[TokenInfo], options: Options) -> None:
    if options.as_json:
        for token in found:
            print_json(_as_json(token))
        return
    print_table(
        ("Id", "Name", "May", "Expires", "State"),
        [(token.id, token.name, _may(token, options), shown_time(token.expires_at) or "never", _state(token))
         for token in found],
    )  # fmt: skip


def _may(token: TokenInfo, options: Options) -> str:
    scopes = token.scopes
    parts = ["admin"] if scopes.admin else []
    for right, keys in (("read", scopes.read), ("write", scopes.write)):
        parts += [f"{right} {options.shown_key(key)}" for key in keys]
    for right, names in (("send", scopes.send), ("receive", scopes.receive), ("manage", scopes.manage)):
        parts += [f"{right} {name or chr(34) * 2}" for name in names]
    if scopes.operations_per_second:
        parts.append(f"{scopes.operations_per_second:,} operations/s")
    if scopes.connections:
        parts.append(f"{scopes.connections:,} connections")
    return "\n".join(parts)


def _state(token: TokenInfo) -> str:
    if token.disabled:
        return "disabled"
    return f"old secret until {_shown(token.old_secret_until)}" if token.old_secret_until else "good"


def _shown(moment: datetime) -> str:
    return shown_time(moment) or ""


def _as_json(token: TokenInfo) -> dict[str, object]:
    scopes = token.scopes
    return {
        "id": token.id,
        "name": token.name,
        "read": [notation.key_json(key) for key in scopes.read],
        "write": [notation.key_json(key) for key in scopes.write],
        "send": list(scopes.send),
        "receive": list(scopes.receive),
        "manage": list(scopes.manage),
        "admin": scopes.admin,
        "operations_per_second": scopes.operations_per_second,
        "connections": scopes.connections,
        "created_at": time_json(token.created_at),
        "expires_at": time_json(token.expires_at),
        "disabled": token.disabled,
        "old_secret_until": time_json(token.old_secret_until),
    }
