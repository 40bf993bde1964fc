"""What those are told who take something asynchronous for something plain."""

from typing import TYPE_CHECKING, ClassVar, NoReturn


class ReadByAsyncFor:
    """Base of what is gone through by `async for`: a plain `for`, or an index, says how it is done.

    By the old protocol of sequences, since with `__iter__` it would pass for an Iterable. For the same reason there is
    no `__await__`: what asks before it awaits (`inspect.isawaitable`) must not be told that this can be awaited.
    """

    _how: ClassVar[str]

    if not TYPE_CHECKING:  # type checkers know that it is no sequence, and shall go on saying so

        def __getitem__(self, _: object) -> NoReturn:
            raise TypeError(f"{type(self).__name__} is read by `async for`, not by `for`: {self._how}")
