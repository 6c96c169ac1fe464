# One image for both programs: the node daemon (its entry point; daemonset.yaml) and hami-webhook (the command in webhook.yaml).
#
#   podman build -t hami-dra:0.1.0 .
#
# The names below are short; a builder without a default for short names (podman) needs one in its registries.conf, or full names
# by --build-arg. PYTHON: any image with Python >= 3.11, its venv module, and a glibc no older than that of GO.
# HAMI_CORE_VERSION: the release of HAMi-core, from which follows how its shared region is laid out. HAMI_CORE and
# HAMI_CORE_LIBRARY: an image and the path in it of the libvgpu.so of that release, when they are not HAMi's own.
ARG PYTHON=python:3.11-slim-bookworm
ARG GO=golang:1.26-bookworm
ARG HAMI_CORE_VERSION=2.10.0
ARG HAMI_CORE=projecthami/hami:v${HAMI_CORE_VERSION}

FROM ${HAMI_CORE} AS hami-core

FROM ${GO} AS toolkit
# nvidia-ctk finds out what the driver needs in a container. Its hook runs on the host and comes with the host's toolkit.
# With cgo, since it loads the driver's NVML.
ARG TOOLKIT=github.com/NVIDIA/nvidia-container-toolkit
ARG TOOLKIT_VERSION=1.20.2
RUN CGO_ENABLED=1 GOBIN=/toolkit go install \
    -ldflags="-s -w -X ${TOOLKIT}/internal/info.version=${TOOLKIT_VERSION}" ${TOOLKIT}/cmd/nvidia-ctk@v${TOOLKIT_VERSION}

FROM ${GO} AS hami
# What the daemon brings to the host beside nvidia-ctk: HAMi-core, what release that is, and the hook that renews its regions.
ARG HAMI_CORE_VERSION
ARG HAMI_CORE_LIBRARY=/k8s-vgpu/lib/nvidia/libvgpu.so.v${HAMI_CORE_VERSION}
WORKDIR /hami
COPY --from=hami-core ${HAMI_CORE_LIBRARY} libvgpu.so
RUN digest=$(sha256sum <libvgpu.so) \
    && printf '[{"sha256": "%s", "version": "%s"}]\n' "${digest%% *}" "${HAMI_CORE_VERSION}" >versions.json
COPY native /src
RUN gcc -std=c11 -static -O2 -Wall -Wextra -Werror -s -o hami-region-hook /src/*.c

FROM ${PYTHON} AS build
WORKDIR /src
COPY requirements/run.txt requirements/run.txt
RUN python3 -m venv /opt/hami && /opt/hami/bin/pip install --no-cache-dir --require-hashes -r requirements/run.txt
COPY pyproject.toml README.md LICENSE ./
COPY hami_kubeletplugin hami_kubeletplugin
# What runs needs no installer.
RUN /opt/hami/bin/pip install --no-cache-dir --no-deps . && /opt/hami/bin/pip uninstall --yes pip setuptools

FROM ${PYTHON}
COPY --from=hami /hami /usr/local/lib/hami
COPY --from=toolkit /toolkit/nvidia-ctk /usr/bin/nvidia-ctk
COPY --from=build /opt/hami /opt/hami
ENV PATH=/opt/hami/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
ENTRYPOINT ["hami-kubeletplugin"]
CMD ["run"]
