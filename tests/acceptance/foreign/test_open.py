"""Opening a database: tokens, addresses, and programs that name none."""

import json
import subprocess
from pathlib import Path

import pytest

from kvorum_node.dev_cluster import DevCluster
from tests.acceptance.foreign.conftest import NODES, Client, at
from tests.acceptance.foreign.process import Foreign, Refused, deno, environment


@pytest.mark.parametrize("node", range(NODES))
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (
            "deno",
            "the metadata endpoint at '{url}' responded with status 401 Unauthorized: The access token is not",
        ),
        ("@deno/kv", "Unexpected response status: 401 The access token is not this cluster's."),
        ("kv-connect-kit", "Unexpected response status: 401 The access token is not this cluster's."),
    ],
)
def test_a_wrong_token_is_said_at_once(
    clients_installed: None, nodes: DevCluster, tmp_path: Path, kind: str, text: str, node: int
) -> None:
    url = nodes.http_url(node)
    with pytest.raises(ConnectionError) as error:
        Foreign(kind, [url], tmp_path, token="wrong-token").close()
    assert text.format(url=url) in str(error.value) or text.format(url=url + "/") in str(error.value)


def test_a_wrong_token_in_denokv(clients_installed: None, nodes: DevCluster, tmp_path: Path) -> None:
    """It opens nothing before the first call."""
    with Foreign("denokv", [nodes.http_url(1)], tmp_path, token="wrong-token") as client:
        with pytest.raises(Refused) as refused:
            client.run("await kv.get(('a',))")
        assert "401" in refused.value.message
        assert "The access token is not this cluster's." in refused.value.message


def test_a_program_that_names_no_database(clients_installed: None, nodes: DevCluster, tmp_path: Path) -> None:
    """It runs unchanged: the address stands in the environment."""
    program = tmp_path / "program.ts"
    program.write_text(
        """
        const kv: Deno.Kv = await Deno.openKv();
        await kv.set(["unchanged"], { by: "a program" });
        console.log(JSON.stringify((await kv.get(["unchanged"])).value));
        kv.close();
        """
    )
    variables = {**environment(tmp_path), "DENO_KV_DEFAULT_PATH": nodes.http_url(2)}
    done = subprocess.run([*deno(), program], env=variables, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout) == {"by": "a program"}
    assert done.stderr == ""


def test_a_closed_port_is_said_at_once(clients_installed: None, tmp_path: Path) -> None:
    with pytest.raises(ConnectionError, match="failed to connect to"):
        Foreign("deno", ["http://127.0.0.1:1"], tmp_path).close()


@at(["@deno/kv"])
@pytest.mark.parametrize("version", [1, 2, 3])
def test_each_version_of_the_protocol(client: Client, p: str, version: int) -> None:
    found = client(
        """
        const other = await tools.openKv(url, { supportedVersions: [version] });
        const absent = { key: [p], versionstamp: null };
        const results = [];
        for (let i = 0; i < 2; i++)
          results.push((await other.atomic().check(absent).set([p], { version }).commit()).ok);
        await other.atomic().sum([p, "sum"], 5n).commit();
        results.push((await other.get([p])).value, (await tools.collect(other.list({ prefix: [p] })))[0].value);
        other.close();
        return results;
        """,
        p=p,
        url=client.url,
        version=version,
    )
    assert found == [True, False, {"version": version}, {"$u64": "5"}]
