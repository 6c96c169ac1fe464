# One image for both programs: the node daemon (its entry point; daemonset.yaml) and hami-webhook (the command in webhook.yaml).
#
#   podman build -t hami-dra:0.1.0 .
#
# Nothing comes in that isn't known before: images by digest (`skopeo inspect --format '{{.Digest}}' docker://IMAGE` tells a newer
# one), Python packages and NVIDIA's headers by hash (requirements/), HAMi-core's source by commit and digest (native/hami-core), the
# toolkit by its sum; what that needs it names itself, for sum.golang.org to check.
#
# REVISION: the commit that this is built from, for `--version` and the labels: --build-arg REVISION=$(git rev-parse HEAD).
#
# PYTHON: any image with Python >= 3.11, its venv module, libstdc++ (for grpc), and a glibc no older than that of GO.
# HAMI_CORE_FROM: `source`, HAMi-core as native/hami-core builds it, with our patches; or `image`, the library of a release of HAMi's,
# without them: docs/limits.md says what doesn't hold then.
#
# source: OLD_GLIBC is any image with gcc, git, pip and a glibc that no GPU container has an older one of (--glibc-floor).
# HAMI_CORE_SOURCE is a URL of git, or a folder in the build: `-v $PWD/HAMi-core:/HAMi-core:ro --build-arg HAMI_CORE_SOURCE=/HAMi-core`.
# image: HAMI_CORE_VERSION is the release, from which follows how its shared region is laid out. HAMI_CORE and HAMI_CORE_LIBRARY: an
# image and the path in it of the libvgpu.so of that release. HAMI_CORE_SHA256: of that file, as docs/operating.md says. It is what
# limits containers, so there is no image with another one.
ARG PYTHON=docker.io/library/python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b
ARG GO=docker.io/library/golang:1.26-bookworm@sha256:a688600ca24f8a4d3ca77f95b0dd40704a9fc787c826660eb7ba0b641b8b175d
ARG OLD_GLIBC=docker.io/library/python:3.11-bullseye@sha256:09b445e23f55008fcad0f04a0735abfbacf576a2855fa4a738d99fa994ff5eaa
ARG HAMI_CORE_FROM=source
ARG HAMI_CORE_VERSION=2.10.0
ARG HAMI_CORE=docker.io/projecthami/hami:v2.10.0@sha256:8c45cd84d8df3e6a8fe8c95e0141684973b5015692a0ef87588da05284f34447

FROM ${OLD_GLIBC} AS hami-core-source
ARG HAMI_CORE_SOURCE=https://github.com/Project-HAMi/HAMi-core
COPY requirements/headers.txt /build/
RUN pip install --no-cache-dir --require-hashes --no-deps --target /headers -r /build/headers.txt
COPY native/hami-core /build
RUN /build/build "${HAMI_CORE_SOURCE}" /headers/nvidia/cu13/include /hami

FROM ${HAMI_CORE} AS hami-release

FROM ${GO} AS hami-core-image
ARG HAMI_CORE_VERSION
ARG HAMI_CORE_LIBRARY=/k8s-vgpu/lib/nvidia/libvgpu.so.v${HAMI_CORE_VERSION}
ARG HAMI_CORE_SHA256
WORKDIR /hami
COPY --from=hami-release ${HAMI_CORE_LIBRARY} libvgpu.so
RUN digest=$(sha256sum <libvgpu.so) && digest=${digest%% *} \
    && if [ "${digest}" != "${HAMI_CORE_SHA256}" ]; then \
    echo "libvgpu.so has SHA-256 ${digest}, HAMI_CORE_SHA256 is '${HAMI_CORE_SHA256}': see docs/operating.md" >&2; exit 1; fi \
    && printf '[{"sha256": "%s", "version": "%s"}]\n' "${digest}" "${HAMI_CORE_VERSION}" >versions.json

FROM hami-core-${HAMI_CORE_FROM} AS hami-core

FROM ${GO} AS toolkit
# nvidia-ctk finds out what the driver needs in a container; with cgo, since it loads the driver's NVML. nvidia-cdi-hook does some of
# that on the host, whose glibc may be an older one: so it is static. Both are under the Apache License 2.0.
ARG TOOLKIT=github.com/NVIDIA/nvidia-container-toolkit
ARG TOOLKIT_VERSION=1.20.2
ARG TOOLKIT_SUM=h1:ndvx+2v4c8HmRf8A5aONf1+sE32jNDZ7qnIaBEAN5i8=
ARG TOOLKIT_FLAGS="-s -w -X ${TOOLKIT}/internal/info.version=${TOOLKIT_VERSION}"
RUN go mod download -json ${TOOLKIT}@v${TOOLKIT_VERSION} >module.json \
    && if ! grep -F "\"Sum\": \"${TOOLKIT_SUM}\"" module.json; then \
    cat module.json >&2; echo "this toolkit's Sum is not TOOLKIT_SUM, ${TOOLKIT_SUM}" >&2; exit 1; fi \
    && export CGO_ENABLED=1 GOBIN=/toolkit && cgo=-tags=netgo,osusergo \
    && go install ${cgo} -ldflags="${TOOLKIT_FLAGS}" ${TOOLKIT}/cmd/nvidia-ctk@v${TOOLKIT_VERSION} \
    && go install ${cgo} -ldflags="${TOOLKIT_FLAGS} -extldflags=-static" ${TOOLKIT}/cmd/nvidia-cdi-hook@v${TOOLKIT_VERSION}
RUN cp "$(go env GOMODCACHE)/github.com/!n!v!i!d!i!a/nvidia-container-toolkit@v${TOOLKIT_VERSION}/LICENSE" /toolkit/ \
    && go version -m /toolkit/nvidia-ctk /toolkit/nvidia-cdi-hook >/toolkit/modules

FROM ${GO} AS host
# What the daemon brings to the host: HAMi-core, what release that is, and the hook that renews its regions.
WORKDIR /hami
COPY --from=hami-core /hami/libvgpu.so /hami/versions.json ./
COPY native /src
RUN gcc -std=c11 -static -O2 -Wall -Wextra -Werror -s -o hami-region-hook /src/*.c

FROM ${PYTHON} AS build
WORKDIR /src
COPY requirements/run.txt requirements/build.txt requirements/
RUN python3 -m venv /opt/hami \
    && /opt/hami/bin/pip install --no-cache-dir --no-compile --require-hashes -r requirements/run.txt -r requirements/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY hami_kubeletplugin hami_kubeletplugin
# What runs needs no installer.
RUN /opt/hami/bin/pip install --no-cache-dir --no-compile --no-index --no-deps --no-build-isolation . \
    && /opt/hami/bin/pip uninstall --yes pip setuptools
# daemonset.yaml mounts the host's /usr into it; below /lib is the driver's firmware.
RUN mkdir /driver-root && ln -s usr/lib /driver-root/lib

FROM ${PYTHON} AS root
COPY --from=host /hami /usr/local/lib/hami
COPY --from=toolkit /toolkit/nvidia-ctk /usr/bin/nvidia-ctk
COPY --from=toolkit /toolkit/nvidia-cdi-hook /usr/local/lib/hami/nvidia-cdi-hook
COPY --from=toolkit /toolkit/LICENSE /usr/share/doc/nvidia-container-toolkit/LICENSE
COPY --from=toolkit /toolkit/modules /tmp/modules
COPY --from=build /opt/hami /opt/hami
COPY --from=build /driver-root /driver-root
COPY LICENSE /usr/share/doc/hami-dra/LICENSE
COPY image /tmp/image
RUN /opt/hami/bin/python3 -B /tmp/image/slim /opt/hami \
    && /opt/hami/bin/python3 -B /tmp/image/bill /tmp/modules /usr/local/lib/hami >/usr/share/doc/hami-dra/sbom.cdx.json \
    && rm -rf /tmp/image /tmp/modules

# One layer, without what the steps above took away.
FROM scratch
COPY --from=root / /
ARG VERSION=0.1.0
ARG REVISION
ENV PATH=/opt/hami/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
    PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HAMI_REVISION=${REVISION}
LABEL org.opencontainers.image.title="hami-dra" \
    org.opencontainers.image.description="GPU sharing for Kubernetes through Dynamic Resource Allocation: node daemon and webhook" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.revision="${REVISION}"
ENTRYPOINT ["hami-kubeletplugin"]
CMD ["run"]
