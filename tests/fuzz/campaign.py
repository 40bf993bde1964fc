"""One target under atheris, which changes inputs towards code that was not reached yet: see `scripts/fuzz`.

    python -m tests.fuzz.campaign TARGET FOLDER SECONDS

FOLDER keeps what was found: the corpus, from which the next run goes on, and inputs that failed, as `crash-…`,
`timeout-…` or `oom-…`.
"""

import sys
from pathlib import Path

import atheris  # type: ignore[import-not-found, import-untyped, unused-ignore]  # only by scripts/fuzz

TIMEOUT = 10
"""Seconds that one input may take."""
MEMORY = 1_500
"""MiB that the process may grow to."""
LONGEST = 8_192
"""Bytes of an input."""


def main() -> None:
    """Does not return: the fuzzer ends the process."""
    name, folder, seconds = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    with atheris.instrument_imports(
        include=["kvorum", "kvorum_node", "kvorum_raft", "v8serialize", "h2", "h11", "hpack"]
    ):
        from tests.fuzz.targets import load

        target = load(name)
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target.SEEDS):
        (corpus / f"seed-{number:02}").write_bytes(seed)
    options = (
        f"-max_total_time={seconds}", f"-timeout={TIMEOUT}", f"-rss_limit_mb={MEMORY}", f"-max_len={LONGEST}",
        f"-artifact_prefix={folder}/", "-print_final_stats=1", "-verbosity=0",
    )  # fmt: skip
    with target.opened() as check:
        atheris.Setup([sys.argv[0], str(corpus), *options], check)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
