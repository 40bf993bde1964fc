"""Tokens for programs without asyncio: `kv.auth` of `kvorum.sync`."""

import builtins
from collections.abc import Iterable
from datetime import timedelta

from kvorum import auth as asynchronous
from kvorum.auth import Identity, NewToken, Prefixes, TokenInfo
from kvorum.background import Background
from kvorum.durations import Duration


class Auth:
    """See `kvorum.auth.Auth`."""

    def __init__(self, auth: asynchronous.Auth, background: Background) -> None:
        self._auth = auth
        self._background = background

    def on(self, *, timeout: Duration | None = None) -> None:
        """See `kvorum.auth.Auth.on`."""
        self._background.call(lambda: self._auth.on(timeout=timeout))

    def off(self, *, timeout: Duration | None = None) -> None:
        """See `kvorum.auth.Auth.off`."""
        self._background.call(lambda: self._auth.off(timeout=timeout))

    def create(
        self,
        name: str,
        *,
        read: Prefixes = (),
        write: Prefixes = (),
        send: Iterable[str] = (),
        receive: Iterable[str] = (),
        manage: Iterable[str] = (),
        admin: bool = False,
        operations_per_second: int | None = None,
        connections: int | None = None,
        expire_in: Duration | None = None,
        timeout: Duration | None = None,
    ) -> NewToken:
        """See `kvorum.auth.Auth.create`."""
        return self._background.call(
            lambda: self._auth.create(
                name,
                read=read,
                write=write,
                send=send,
                receive=receive,
                manage=manage,
                admin=admin,
                operations_per_second=operations_per_second,
                connections=connections,
                expire_in=expire_in,
                timeout=timeout,
            )
        )

    def list(self, *, timeout: Duration | None = None) -> "builtins.list[TokenInfo]":
        """See `kvorum.auth.Auth.list`."""
        return self._background.call(lambda: self._auth.list(timeout=timeout))

    def show(self, token: str, *, timeout: Duration | None = None) -> TokenInfo:
        """See `kvorum.auth.Auth.show`."""
        return self._background.call(lambda: self._auth.show(token, timeout=timeout))

    def revoke(self, token: str, *, timeout: Duration | None = None) -> None:
        """See `kvorum.auth.Auth.revoke`."""
        self._background.call(lambda: self._auth.revoke(token, timeout=timeout))

    def disable(self, token: str, *, disabled: bool = True, timeout: Duration | None = None) -> None:
        """See `kvorum.auth.Auth.disable`."""
        self._background.call(lambda: self._auth.disable(token, disabled=disabled, timeout=timeout))

    def rotate(
        self, token: str, *, overlap: Duration = timedelta(hours=1), timeout: Duration | None = None
    ) -> NewToken:
        """See `kvorum.auth.Auth.rotate`."""
        return self._background.call(lambda: self._auth.rotate(token, overlap=overlap, timeout=timeout))

    def whoami(self, *, timeout: Duration | None = None) -> Identity:
        """See `kvorum.auth.Auth.whoami`."""
        return self._background.call(lambda: self._auth.whoami(timeout=timeout))
