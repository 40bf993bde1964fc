"""The images: substitutes where the registry cannot be reached, and that of a node."""

from pathlib import Path
from typing import Final

from .cluster import Project
from .rootfs import IMPORT_OPTIONS
from .steps import Failed, say
from .supplies import ROOT, Supplies

BASE: Final = "python:3.12-slim"
PROMETHEUS: Final = "prom/prometheus:v3.5.0"
PULL: Final = 120.0
BUILD: Final = 600.0
_MARK: Final = "check_python.py"
"""In the history of an image that was built from our Dockerfile."""
_PROMETHEUS_FILE: Final = """\
ARG BASE
FROM ${BASE}
COPY prometheus /bin/prometheus
RUN mkdir -p /prometheus && chown 65534:65534 /prometheus
USER 65534:65534
WORKDIR /prometheus
ENTRYPOINT ["/bin/prometheus"]
"""


class Images:
    """`provide` fills the project's variables; `remove` removes every image that was made."""

    def __init__(self, project: Project, supplies: Supplies, folder: Path, *, sealed: bool) -> None:
        """`sealed`: no registry can be reached, so none is asked."""
        self._project = project
        self._supplies = supplies
        self._folder = folder
        self._sealed = sealed
        self._made: list[str] = []

    def provide(self) -> None:
        """Errors: Failed."""
        project, name = self._project, self._project.name
        env = project.env
        env["KVORUM_IMAGE"] = self._note(f"{name}:node")
        if self._pulled(BASE):
            env["BASE_IMAGE"] = BASE
        else:
            base, build = self._note(f"{name}:base"), self._note(f"{name}:build-base")
            self._import(build)
            env |= {"BUILD_IMAGE": build, "BASE_IMAGE": base, "PYTHON_VERSION": self._supplies.python}
            # What runs must not need what builds: neither pip nor wheels.
            library = f"/usr/local/lib/python{self._supplies.python}/site-packages/pip"
            self._derive(base, f"FROM {build}\nRUN rm -rf /wheels /etc/pip.conf {library}*\n")
        if self._pulled(PROMETHEUS):
            env["PROMETHEUS_IMAGE"] = PROMETHEUS
        else:
            say("a substitute Prometheus image from Debian's package")
            env["PROMETHEUS_IMAGE"] = image = self._note(f"{name}:prometheus")
            base = env["BASE_IMAGE"]
            files = self._folder / "prometheus-image"
            files.mkdir()
            (files / "prometheus").write_bytes(self._supplies.prometheus.read_bytes())
            (files / "prometheus").chmod(0o755)
            (files / "Dockerfile").write_text(_PROMETHEUS_FILE)
            project.docker(
                "build", "-q", "--force-rm", "-t", image, "--build-arg", f"BASE={base}", str(files), timeout=BUILD
            )
        self._refuses_another_python()
        say("building the image of a node")
        project.compose("build", "setup", timeout=BUILD)

    def _refuses_another_python(self) -> None:
        """The check of the version can fail."""
        env = self._project.env
        words = ["build", "-q", "--force-rm", str(ROOT), "--build-arg", f"BASE_IMAGE={env['BASE_IMAGE']}"]
        words += ["--build-arg", f"BUILD_IMAGE={env.get('BUILD_IMAGE', env['BASE_IMAGE'])}"]
        try:
            self._project.docker(*words, "--build-arg", "PYTHON_VERSION=3.99", timeout=BUILD)
        except Failed as error:
            if "PYTHON_VERSION asks for 3.99" not in str(error):
                raise
            return
        raise Failed("an image was built with PYTHON_VERSION=3.99")

    def remove(self) -> None:
        """Errors: Failed."""
        for image in reversed(self._made):
            if self._project.docker("image", "ls", "-q", image).strip():
                self._project.docker("image", "rm", "-f", image)
        # The classic builder keeps the images of stages. Those of other builds are not ours to remove.
        while ours := [image for image in self._dangling() if _MARK in self._history(image)]:
            for image in ours:
                self._project.docker("image", "rm", image)

    def _dangling(self) -> list[str]:
        return self._project.docker("image", "ls", "-q", "-f", "dangling=true").split()

    def _history(self, image: str) -> str:
        return self._project.docker("history", "--no-trunc", "--format", "{{.CreatedBy}}", image)

    def _note(self, image: str) -> str:
        self._made.append(image)
        return image

    def _pulled(self, image: str) -> bool:
        """It is there, or was pulled; then it stays, as what was there before does."""
        if self._sealed:
            return False
        try:
            self._project.docker("image", "inspect", image)
        except Failed:
            try:
                self._project.docker("pull", "-q", image, timeout=PULL)
            except Failed as error:
                say(f"{image} cannot be pulled: {str(error).splitlines()[-1]}")
                return False
        return True

    def _import(self, image: str) -> None:
        self._project.docker("import", *IMPORT_OPTIONS, str(self._supplies.base), image, timeout=BUILD)

    def _derive(self, image: str, dockerfile: str) -> None:
        """An image from a Dockerfile without files."""
        self._project.docker("build", "-q", "--force-rm", "-t", image, "-", timeout=BUILD, text=dockerfile)
