"""Options of commands whose files or archives may lie in an S3-compatible store."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from kvorum.cli.session import USAGE, fail

_VARIABLES: Final = "KVORUM_ARCHIVE_S3_"
"""What the variables of a node's settings begin with."""
_OPTIONS: Final = (
    click.option(
        "--s3-path-style",
        type=click.Choice(["auto", "always", "never"]),
        default="auto",
        envvar=f"{_VARIABLES}PATH_STYLE",
        help="Whether the bucket stands in the URL's path; auto: if there is an endpoint.",
    ),
    click.option("--s3-region", envvar=f"{_VARIABLES}REGION", metavar="REGION", help="The store's region."),
    click.option(
        "--s3-endpoint",
        envvar=f"{_VARIABLES}ENDPOINT",
        metavar="URL",
        help="For s3://…: the store, if it is not AWS. Credentials come from the environment or AWS's own files.",
    ),
)


class ArchivePath(click.Path):
    """A folder that is there, or `s3://bucket/prefix`, which stays a text."""

    def __init__(self) -> None:
        super().__init__(exists=True, file_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and value[:5].lower() == "s3://":
            return value
        return super().convert(value, param, ctx)


def store_options(function: Callable[..., None]) -> Callable[..., None]:
    """The function gets them as `store`, a `kvorum_node.backup.places.Service`."""

    @functools.wraps(function)
    def run(s3_endpoint: str | None, s3_region: str | None, s3_path_style: str, **arguments: Any) -> None:
        from kvorum_node.backup import places

        try:
            store = places.service(
                s3_endpoint and places.endpoint(s3_endpoint), s3_region and places.region(s3_region), s3_path_style
            )
        except ValueError as error:
            fail(USAGE, f"--s3-endpoint or --s3-region {error}")
        function(store=store, **arguments)

    decorated = run
    for option in _OPTIONS:
        decorated = option(decorated)
    return decorated
