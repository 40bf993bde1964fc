# The image of a node; `kvorum` in it is also the command line.
#   docker build -t kvorum:local .
# The same Python in both stages, of the version that PYTHON_VERSION asks for and no other: what is locked was tested
# with it. No Debian package is needed, neither builder's extensions are used, and nothing writes to the root file
# system at run time: `docker run --read-only` works with a volume at /var/lib/kvorum and a tmpfs at /tmp.
ARG BASE_IMAGE=python:3.12-slim
ARG BUILD_IMAGE=${BASE_IMAGE}

FROM ${BUILD_IMAGE} AS build
ARG PYTHON_VERSION=3.12
COPY deploy/image/check_python.py /build/
RUN ["python3", "/build/check_python.py", "build"]
# What changes seldom comes first. Packages that come as source are built with locked tools, not with what pip would fetch.
COPY requirements/image.txt requirements/image-build.txt /build/
RUN python3 -m venv --without-pip /build/tools \
    && python3 -m pip --python /build/tools/bin/python3 install --no-cache-dir --require-hashes -r /build/image-build.txt \
    && python3 -m pip --python /build/tools/bin/python3 wheel --no-cache-dir --require-hashes --no-build-isolation -r /build/image.txt -w /build/wheels
COPY pyproject.toml README.md LICENSE /build/source/
COPY client/kvorum /build/source/client/kvorum
COPY client/kvorum_command /build/source/client/kvorum_command
COPY raft/kvorum_raft /build/source/raft/kvorum_raft
COPY node/kvorum_node /build/source/node/kvorum_node
# The environment has no pip: nothing is installed into a running node.
RUN python3 -m pip --python /build/tools/bin/python3 wheel --no-cache-dir --no-index --no-deps --no-build-isolation /build/source -w /build/wheels \
    && python3 -m venv --without-pip /opt/kvorum \
    && python3 -m pip --python /opt/kvorum/bin/python3 install --no-cache-dir --no-index --no-deps /build/wheels/*.whl \
    && /opt/kvorum/bin/kvorum --version
COPY deploy/image/health.py deploy/image/setup_secrets.py /opt/kvorum/image/

FROM ${BASE_IMAGE}
ARG PYTHON_VERSION=3.12
COPY deploy/image/check_python.py /opt/kvorum/image/
RUN ["python3", "/opt/kvorum/image/check_python.py", "final"]
COPY --from=build /opt/kvorum /opt/kvorum
# Volumes that are mounted here for the first time take over whom the folders belong to.
RUN mkdir -p /var/lib/kvorum /etc/kvorum && chown 10001:10001 /var/lib/kvorum /etc/kvorum && chmod 700 /var/lib/kvorum
ENV PATH=/opt/kvorum/bin:/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin \
    HOME=/tmp \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    KVORUM_DATA_DIR=/var/lib/kvorum
USER 10001:10001
WORKDIR /tmp
# Clients (gRPC), HTTP (KV Connect, health, metrics), peers.
EXPOSE 7401 7402 7403
# A node that leads hands the leadership over first.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=10s --start-period=60s --retries=3 CMD ["python3", "-I", "-S", "/opt/kvorum/image/health.py"]
ENTRYPOINT ["kvorum"]
CMD ["node"]
