"""A substitute for `python:X.Y-slim` where no registry of images can be reached: this machine's CPython.

The interpreter under /usr/local, the shared libraries that it and the packages of the image need, busybox for a shell,
and the packages to be installed under /wheels: builds then need no network. For tests, never to be shipped.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from .steps import Failed, run

_LEFT_OUT = shutil.ignore_patterns(
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "turtledemo",
    "__pycache__",
    "config-*",
    "*.a",
)
_BY_NAME = re.compile(
    r"^\s*lib(?:nss_files|nss_dns|resolv|gcc_s|stdc\+\+|pthread|dl|rt|util|z|m)\.so\S* .*=> (\S+)$", re.M
)
"""Libraries that wheels and name look-ups load by name, in `ldconfig -p`."""
_PATH = "/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin"
IMPORT_OPTIONS = ("-c", f"ENV PATH={_PATH} LANG=C.UTF-8", "-c", 'CMD ["python3"]')
"""For `docker import`."""


def find_python(version: str) -> tuple[Path, str]:
    """A CPython of this machine, of that version X.Y if there is one, and its X.Y."""
    homes = [*Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin"), Path("/usr/local/bin"), Path("/usr/bin")]
    for candidate in [*(home / f"python{version}" for home in homes), Path(sys.base_prefix, "bin/python3")]:
        if candidate.exists() and (found := _version(candidate)):
            return candidate, found
    raise Failed("no CPython with ssl and sqlite3 was found on this machine")


def _version(python: Path) -> str:
    code = "import sys, ssl, sqlite3, ctypes; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def write(python: Path, version: str, wheels: Path | None, folder: Path, archive: Path) -> None:
    """Put together the root file system in `folder`, and as a tar file."""
    prefix = Path(run([python, "-c", "import sys; print(sys.base_prefix)"], timeout=30).strip())
    for name in ("usr/local/bin", "usr/bin", "bin", "etc", "lib64", "root", "proc", "sys", "dev", "run", "var/tmp"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "tmp").mkdir()
    (folder / "tmp").chmod(0o1777)
    _copy_python(prefix, version, folder / "usr/local")
    _copy_busybox(folder)
    _copy_libraries(folder, python)
    (folder / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n")
    (folder / "etc/group").write_text("root:x:0:\nnogroup:x:65534:\n")
    (folder / "etc/nsswitch.conf").write_text("hosts: files dns\n")
    if wheels is not None:
        shutil.copytree(wheels, folder / "wheels")
        text = "[global]\nno-index = true\nfind-links = /wheels\ndisable-pip-version-check = true\n"
        (folder / "etc/pip.conf").write_text(text)
    with tarfile.open(archive, "w") as tar:
        tar.add(folder, ".", filter=_as_root)


def _as_root(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = "root"
    return info


def _copy_python(prefix: Path, version: str, local: Path) -> None:
    shutil.copy(prefix / f"bin/python{version}", local / "bin")
    library = local / f"lib/python{version}"
    shutil.copytree(prefix / f"lib/python{version}", library, ignore=_LEFT_OUT, symlinks=True)
    for shared in (prefix / "lib").glob(f"libpython{version}*.so*"):
        shutil.copy(shared, local / "lib", follow_symlinks=False)
    (local / "bin/python3").symlink_to(f"python{version}")
    (local / "bin/python").symlink_to("python3")
    (library / "site-packages").mkdir()
    bundled = list((library / "ensurepip/_bundled").glob("pip-*.whl"))
    if bundled:
        shutil.unpack_archive(bundled[0], library / "site-packages", "zip")
    else:  # Debian takes it out of the library: the one of this environment is as good
        import pip

        shutil.copytree(Path(pip.__file__).parent, library / "site-packages/pip", ignore=_LEFT_OUT)


def _copy_busybox(folder: Path) -> None:
    busybox = shutil.which("busybox")
    if busybox is None:
        raise Failed("busybox is not there (Debian: busybox-static)")
    shutil.copy(busybox, folder / "bin/busybox")
    for applet in run([busybox, "--list"], timeout=30).split():
        link = folder / "bin" / applet
        if not link.exists():
            link.symlink_to("busybox")
    (folder / "usr/bin/env").symlink_to("/bin/env")


def _copy_libraries(folder: Path, python: Path) -> None:
    local = folder / "usr/local"
    modules = [path for path in local.rglob("*.so*") if path.is_file()]
    # Some modules of the library may lack their libraries on this machine as well: they are left as they are.
    said = subprocess.run(["ldd", python, *modules], capture_output=True, text=True, timeout=120, check=False).stdout
    found = set(re.findall(r"=> (/\S+)", said)) | set(re.findall(r"^\s+(/lib\S*/ld-\S+)", said, re.M))
    found |= set(_BY_NAME.findall(run([_ldconfig(), "-p"], timeout=30)))
    for library in sorted(found):
        if "libpython" in library:
            continue
        place = folder / library.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.exists():
            shutil.copy(os.path.realpath(library), place)
    shutil.copy("/etc/ld.so.conf", folder / "etc")
    shutil.copytree("/etc/ld.so.conf.d", folder / "etc/ld.so.conf.d")
    run([_ldconfig(), "-r", folder], timeout=60)


def _ldconfig() -> str:
    return shutil.which("ldconfig") or "/sbin/ldconfig"
