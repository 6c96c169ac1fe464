# The image of the node daemon.
#
#   podman build -t hami-dra:0.1.0 .
#
# PYTHON: any image with Python >= 3.11 on glibc. HAMI_CORE: an image with libvgpu.so; that of HAMi carries it by its version.
ARG PYTHON=python:3.11-slim-bookworm
ARG GO=golang:1.26-bookworm
ARG HAMI_CORE=projecthami/hami:v2.10.0

FROM ${HAMI_CORE} AS hami-core

FROM ${GO} AS toolkit
# nvidia-ctk finds out what the driver needs in a container. Its hook runs on the host and comes with the host's toolkit.
RUN go install github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-ctk@v1.20.2

FROM ${PYTHON} AS build
WORKDIR /src
COPY requirements/run.txt requirements/run.txt
RUN python3 -m venv /opt/hami && /opt/hami/bin/pip install --no-cache-dir --require-hashes -r requirements/run.txt
COPY pyproject.toml README.md LICENSE ./
COPY hami_kubeletplugin hami_kubeletplugin
RUN /opt/hami/bin/pip install --no-cache-dir --no-deps . && /opt/hami/bin/python -m compileall -q /opt/hami/lib

FROM ${PYTHON}
# HAMi's image names the library by its version.
ARG HAMI_CORE_LIBRARY=/k8s-vgpu/lib/nvidia/libvgpu.so.v2.10.0
COPY --from=hami-core ${HAMI_CORE_LIBRARY} /usr/local/lib/hami/libvgpu.so
COPY --from=toolkit /go/bin/nvidia-ctk /usr/bin/nvidia-ctk
COPY --from=build /opt/hami /opt/hami
ENV PATH=/opt/hami/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
ENTRYPOINT ["hami-kubeletplugin"]
CMD ["run"]
