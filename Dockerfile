# One image for both programs: the node daemon (its entry point; daemonset.yaml) and hami-webhook (the command in webhook.yaml).
#
#   podman build -t hami-dra:0.1.0 .
#
# The names below are short; a builder without a default for short names (podman) needs one in its registries.conf, or full names
# by --build-arg. PYTHON: any image with Python >= 3.11, its venv module, and a glibc no older than that of GO.
# HAMI_CORE: any image with a libvgpu.so; HAMi's own names it by its version, HAMI_CORE_LIBRARY says how.
ARG PYTHON=python:3.11-slim-bookworm
ARG GO=golang:1.26-bookworm
ARG HAMI_CORE=projecthami/hami:v2.10.0

FROM ${HAMI_CORE} AS hami-core

FROM ${GO} AS toolkit
# nvidia-ctk finds out what the driver needs in a container. Its hook runs on the host and comes with the host's toolkit.
# With cgo, since it loads the driver's NVML.
ARG TOOLKIT=github.com/NVIDIA/nvidia-container-toolkit
ARG TOOLKIT_VERSION=1.20.2
RUN CGO_ENABLED=1 GOBIN=/toolkit go install \
    -ldflags="-s -w -X ${TOOLKIT}/internal/info.version=${TOOLKIT_VERSION}" ${TOOLKIT}/cmd/nvidia-ctk@v${TOOLKIT_VERSION}

FROM ${PYTHON} AS build
WORKDIR /src
COPY requirements/run.txt requirements/run.txt
RUN python3 -m venv /opt/hami && /opt/hami/bin/pip install --no-cache-dir --require-hashes -r requirements/run.txt
COPY pyproject.toml README.md LICENSE ./
COPY hami_kubeletplugin hami_kubeletplugin
# What runs needs no installer.
RUN /opt/hami/bin/pip install --no-cache-dir --no-deps . && /opt/hami/bin/pip uninstall --yes pip setuptools

FROM ${PYTHON}
ARG HAMI_CORE_LIBRARY=/k8s-vgpu/lib/nvidia/libvgpu.so.v2.10.0
COPY --from=hami-core ${HAMI_CORE_LIBRARY} /usr/local/lib/hami/libvgpu.so
COPY --from=toolkit /toolkit/nvidia-ctk /usr/bin/nvidia-ctk
COPY --from=build /opt/hami /opt/hami
ENV PATH=/opt/hami/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
ENTRYPOINT ["hami-kubeletplugin"]
CMD ["run"]
