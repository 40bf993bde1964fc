"""The command group. Commands are loaded when they are called, so `kvorum --help` and `kvorum node` stay quick."""

import difflib
import importlib
from typing import Final

import click
from click.shell_completion import CompletionItem

from kvorum._version import __version__

_COMMANDS: Final = {
    "get": ("kvorum.cli.entries:get_command", "Print the entries of keys."),
    "set": ("kvorum.cli.entries:set_command", "Set the value of a key."),
    "touch": ("kvorum.cli.entries:touch_command", "Change when a key expires."),
    "delete": ("kvorum.cli.entries:delete_command", "Delete a key, or all keys below it."),
    "list": ("kvorum.cli.entries:list_command", "List entries below a prefix or between two keys."),
    "count": ("kvorum.cli.entries:count_command", "Count keys below a prefix or between two keys."),
    "watch": ("kvorum.cli.streams:watch_command", "Print entries as they change, until interrupted."),
    "enqueue": ("kvorum.cli.streams:enqueue_command", "Put a message into the queue."),
    "listen": ("kvorum.cli.streams:listen_command", "Take messages from the queue and print them."),
    "queue": ("kvorum.cli.queues:queue_group", "Look at queues, send and receive, and manage them."),
    "topic": ("kvorum.cli.topics:topic_group", "Messages for several queues."),
    "schedule": ("kvorum.cli.schedules:schedule_group", "Recurring messages."),
    "auth": ("kvorum.cli.auth:auth_group", "Tokens: who may do what."),
    "status": ("kvorum.cli.status:status_command", "Show the nodes of a cluster."),
    "certs": ("kvorum.cli.certs:certs_group", "Make and show certificates for TLS."),
    "cluster": ("kvorum.cli.quarantine:cluster_group", "Look at a cluster's members, and change them."),
    "doctor": ("kvorum.cli.doctor:doctor_command", "Look for what is often wrong."),
    "top": ("kvorum.cli.top:top_command", "Watch nodes, rates and queues, live."),
    "bench": ("kvorum.cli.bench:bench_command", "Measure how fast a database is from here."),
    "completion": ("kvorum.cli.completion:completion_command", "Let a shell complete commands."),
    "pitr": ("kvorum.cli.pitr:pitr_group", "Restore any moment from an archive of the log."),
    "backup": ("kvorum.cli.backup:backup_group", "Back a database up to a file, and restore it."),
    "node": ("kvorum.cli.node:node_command", "Run one node of a cluster."),
}


_OTHER_NAMES: Final = {
    "consume": "queue receive",
    "del": "delete",
    "expire": "touch",
    "help": "--help",
    "keys": "list --keys-only",
    "ls": "list",
    "member": "cluster members",
    "members": "cluster members",
    "publish": "topic send",
    "put": "set",
    "receive": "queue receive",
    "restore": "backup restore",
    "rm": "delete",
    "run": "node",
    "scan": "list",
    "send": "queue send",
    "serve": "node",
    "server": "node",
    "snapshot": "backup save",
    "start": "node",
    "token": "auth token",
    "ttl": "get --expiry",
    "version": "--version",
}
"""What people look for who know other command lines."""


class LazyGroup(click.Group):
    """Knows its commands by name and imports a command's module when the command is wanted."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, _, name = _COMMANDS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click's, which knows no names of commands that are not loaded, and so has no guess."""
        name = args[0]
        if name in _COMMANDS or name.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        close = difflib.get_close_matches(name, _COMMANDS, n=1)
        guess = _OTHER_NAMES.get(name) or (close[0] if close else None)
        hint = f"did you mean `kvorum {guess}`?" if guess else "`kvorum --help` shows those that there are."
        raise click.UsageError(f"no such command {name!r}; {hint}", ctx)

    def invoke(self, ctx: click.Context) -> object:
        """As click's; a command that needs more than was installed says what to install."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            from kvorum.cli.session import USAGE, fail, missing_extra

            fail(USAGE, missing_extra(error))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click's; options of commands that stand before the command are told where they belong."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            get = self.get_command(ctx, "get")
            assert get is not None
            if error.option_name not in {option for parameter in get.params for option in parameter.opts}:
                raise
            option = error.option_name
            text = f"{option} is an option of commands and stands behind them: kvorum get … {option} …"
            raise click.UsageError(text, ctx) from None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names of commands come from the table, so that completing one imports none."""
        named = [
            CompletionItem(name, help=text) for name, (_, text) in _COMMANDS.items() if name.startswith(incomplete)
        ]
        return [*named, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kvorum")
def kvorum() -> None:
    """A replicated key-value store with message queues, from the shell.

    \b
    Keys are JSON arrays:        '["users", "ada"]'   '["by-id", {"int": "1"}]'   '["raw", {"b64": "AQI="}]'
    Values are JSON:             '{"name": "Ada"}'    42    '"text"'
    With --py both are Python:   "('users', 1)"       "{'name': 'Ada'}"

    The database is a folder or kvorum://host:port,host:port, given by --url or $KVORUM_URL.

    \b
    Exit status: 0 done, 1 not found or check failed, 2 wrong usage, or else nothing that repeating would mend,
                 3 unavailable (certainly nothing was applied), 4 unknown outcome, 130 Ctrl-C, 143 SIGTERM.

    With --json every line of standard output is one JSON document, and lists are one line for each of their items. What
    went wrong is no JSON: the exit status says it, and a line on standard error.
    """
