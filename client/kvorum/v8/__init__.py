"""V8's structured-clone format, as far as plain data needs it: the form in which values and messages are stored.

Deno and Node read what this writes, and this reads what they write. `v8serialize` knows the whole format but takes more
than 100 µs for a small dict, so everything that is data is done here, and what is left (RegExp, Error, typed arrays,
sparse arrays, boxed primitives, cyclic structures, Maps and Sets that no dict or set can hold) is handed to
`kvorum.v8.rest`, value by value.

The rule of writing: what is read back equals what was written, or it is refused. Hence no tuples (they would come back
as lists) and no naive datetimes. The one loss is documented: a float of integral value from 2^31 to 2^53 comes back as
an equal int, because JavaScript stores large integers in that form.

Writing appends to one buffer, because the format aligns two-byte strings to absolute positions. Reading passes
`(value, position)` around; a class with a cursor costs twice as much. Errors collect their path while they unwind:
`try` is free in the normal case, carrying a path along is not. Rejected: a table of functions by tag (a chain of `if`
in order of frequency is faster for small values).

Back references count all objects in the order in which they begin, as V8 does, so `refs` gets an element wherever
V8's deserialiser assigns an id.
"""

from kvorum.v8.format import HEADER
from kvorum.v8.reading import loads
from kvorum.v8.writing import dumps

__all__ = ["HEADER", "dumps", "loads"]
