"""`kvorum completion`: what a shell needs to complete commands and options."""

from typing import Final

import click
from click.shell_completion import get_completion_class

from kvorum.cli.session import echo

VARIABLE: Final = "_KVORUM_COMPLETE"
"""Set by the shell's function when it asks `kvorum` for completions."""


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_command(shell: str) -> None:
    """Print a script that lets a shell complete commands, options and their choices.

    \b
    bash:  kvorum completion bash > ~/.local/share/bash-completion/completions/kvorum
    zsh:   kvorum completion zsh > a folder of $fpath, as _kvorum
    fish:  kvorum completion fish > ~/.config/fish/completions/kvorum.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    root = click.get_current_context().find_root().command
    echo(kind(root, {}, "kvorum", VARIABLE).source())
