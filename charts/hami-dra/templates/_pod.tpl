{{/* The node daemon's pod. Argument: {root, profile, selector, affinity}. */}}
{{- define "hami.pod" -}}
{{- $root := .root -}}
{{- $values := $root.Values -}}
{{- $plugin := $values.kubeletPlugin -}}
{{- $node := include "hami.node" . | fromJson -}}
{{- $own := eq $node.driverRoot "/" -}}
{{- $mounted := or $own (regexMatch "^/(usr|etc|run/nvidia)(/|$)" $node.driverRoot) -}}
{{- $pluginDir := ne $plugin.kubeletPluginsDirectoryPath "/var/lib/kubelet/plugins" | ternary (printf "%s/%s" $plugin.kubeletPluginsDirectoryPath $values.driverName) "" -}}
{{- $hamiDir := $node.hamiDir | default "/usr/local/vgpu" -}}
{{- $scheme := $plugin.metrics.tlsSecretName | empty | ternary "" ", scheme: HTTPS" -}}
metadata:
  labels:
    {{- include "hami.pluginSelector" $root | nindent 4 }}
    {{- with .labels }}{{ toYaml . | nindent 4 }}{{ end }}
    {{- with $plugin.podLabels }}{{ toYaml . | nindent 4 }}{{ end }}
  {{- with $plugin.podAnnotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "hami.pluginAccount" $root | quote }}
  {{- with $node.priorityClassName }}
  priorityClassName: {{ . | quote }}
  {{- end }}
  {{- with $node.runtimeClassName }}
  runtimeClassName: {{ . | quote }}
  {{- end }}
  {{- with include "hami.pullSecrets" $root }}{{ . | nindent 2 }}{{ end }}
  # To see whether the processes of GPU containers have loaded HAMi-core.
  hostPID: {{ $plugin.hostPID }}
  terminationGracePeriodSeconds: {{ $plugin.terminationGracePeriodSeconds }}
  {{- with $plugin.podSecurityContext }}
  securityContext: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .affinity }}
  affinity: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $node.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: hami-kubeletplugin
      image: {{ include "hami.image" $root }}
      imagePullPolicy: {{ $values.image.pullPolicy }}
      args: [run]
      # Not below /dev, which is the host's here.
      terminationMessagePath: /tmp/termination-log
      terminationMessagePolicy: FallbackToLogsOnError
      env:
        - name: NODE_NAME
          valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
        {{- $metrics := $plugin.metrics }}
        {{- include "hami.env" (list
          (list "driver-root" ($own | ternary "/driver-root" (printf "/driver-root%s" $node.driverRoot)))
          (list "host-driver-root" $node.driverRoot)) | nindent 8 }}
        # Nothing to inject, unless the NVIDIA runtime brings the driver: only what it brings here shows what it brings to others.
        - name: NVIDIA_VISIBLE_DEVICES
          value: {{ eq (toString $node.driverEdits) "runtime" | ternary "all" "void" }}
        {{- with include "hami.env" (list
          (list "metrics-address" ($metrics.enabled | ternary (printf ":%v" $metrics.port) ""))
          (list "tls-cert-file" ($metrics.tlsSecretName | empty | ternary "" "/etc/hami/tls/tls.crt"))
          (list "tls-key-file" ($metrics.tlsSecretName | empty | ternary "" "/etc/hami/tls/tls.key"))
          (list "metrics-token-file" ($metrics.tokenSecretName | empty | ternary "" "/etc/hami/token/token"))
          (list "driver-name" (eq $values.driverName "gpu.hami.io" | ternary "" $values.driverName))
          (list "device-split-count" $node.deviceSplitCount)
          (list "device-memory-scaling" $node.deviceMemoryScaling)
          (list "device-core-scaling" $node.deviceCoreScaling)
          (list "driver-edits" $node.driverEdits)
          (list "nvidia-cdi-hook" $node.cdiHook)
          (list "plugin-dir" $pluginDir)
          (list "registry-dir" (eq $plugin.kubeletRegistrarDirectoryPath "/var/lib/kubelet/plugins_registry" | ternary "" $plugin.kubeletRegistrarDirectoryPath))
          (list "cdi-dir" (eq $plugin.cdiDirectoryPath "/var/run/cdi" | ternary "" $plugin.cdiDirectoryPath))
          (list "device-status" ($values.claimStatus.enabled | ternary "written" ""))
          (list "log-level" (include "hami.logLevel" $root))
          (list "log-format" (include "hami.logFormat" $root))) }}{{ . | nindent 8 }}{{ end }}
        {{- with $node.hamiDir }}
        - name: HAMI_DIR
          value: {{ . }}
        {{- end }}
        {{- with include "hami.moreEnv" $node.options }}{{ . | nindent 8 }}{{ end }}
        {{- with $node.env }}{{ toYaml . | nindent 8 }}{{ end }}
      {{- if $metrics.enabled }}
      ports:
        - {name: metrics, containerPort: {{ $metrics.port }}}
      # All ask gRPC's health service on the daemon's own socket. A node that can't prepare claims is alive, and not ready until that is
      # mended: a restart would help nothing, and it serves unprepares. One that stands by says of both what it would be.
      startupProbe:
        httpGet: {path: /healthz, port: metrics{{ $scheme }}}
        periodSeconds: 2
        timeoutSeconds: 5
        failureThreshold: 60
      livenessProbe:
        httpGet: {path: /healthz, port: metrics{{ $scheme }}}
        periodSeconds: 20
        timeoutSeconds: 5
        failureThreshold: 6
      readinessProbe:
        httpGet: {path: /readyz, port: metrics{{ $scheme }}}
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: 2
      {{- end }}
      # NVML opens /dev/nvidia*, and records, CDI specs and sockets are the host's: docs/security.md.
      securityContext: {{- toYaml $plugin.containers.plugin.securityContext | nindent 8 }}
      {{- with $node.resources }}
      resources: {{- toYaml . | nindent 8 }}
      {{- end }}
      volumeMounts:
        - {name: registry, mountPath: {{ $plugin.kubeletRegistrarDirectoryPath }}}
        - {name: plugins, mountPath: {{ $plugin.kubeletPluginsDirectoryPath }}}
        - {name: cdi, mountPath: {{ $plugin.cdiDirectoryPath }}}
        # What the daemon mounts for a claim's containers has to reach the container runtime.
        - {name: vgpu, mountPath: {{ $hamiDir }}, mountPropagation: Bidirectional}
        # Of the host's root what a driver and its configuration are in, two sockets that containers get, and the folder in which the GPU
        # operator's driver container shows its root when it comes. In /usr are the mounts of claims: without propagation they would live
        # on here when they are gone.
        - {name: usr, mountPath: /driver-root/usr, readOnly: true, mountPropagation: HostToContainer}
        - {name: etc, mountPath: /driver-root/etc, readOnly: true, recursiveReadOnly: IfPossible}
        - {name: persistenced, mountPath: /driver-root/run/nvidia-persistenced, readOnly: true}
        - {name: fabricmanager, mountPath: /driver-root/run/nvidia-fabricmanager, readOnly: true}
        - {name: operator, mountPath: /driver-root/run/nvidia, readOnly: true, mountPropagation: HostToContainer}
        {{- if not $mounted }}
        - {name: driver, mountPath: /driver-root{{ $node.driverRoot }}, readOnly: true, mountPropagation: HostToContainer}
        {{- end }}
        # A container's own /dev is made when it starts: nodes of a driver that is loaded later would never appear there.
        - {name: dev, mountPath: /dev}
        - {name: tmp, mountPath: /tmp}
        {{- if $metrics.tlsSecretName }}
        - {name: metrics-tls, mountPath: /etc/hami/tls, readOnly: true}
        {{- end }}
        {{- if $metrics.tokenSecretName }}
        - {name: metrics-token, mountPath: /etc/hami/token, readOnly: true}
        {{- end }}
        {{- with $plugin.extraVolumeMounts }}{{ toYaml . | nindent 8 }}{{ end }}
  volumes:
    - name: registry
      hostPath: {path: {{ $plugin.kubeletRegistrarDirectoryPath }}, type: DirectoryOrCreate}
    - name: plugins
      hostPath: {path: {{ $plugin.kubeletPluginsDirectoryPath }}, type: DirectoryOrCreate}
    - name: cdi
      hostPath: {path: {{ $plugin.cdiDirectoryPath }}, type: DirectoryOrCreate}
    - name: vgpu
      hostPath: {path: {{ $hamiDir }}, type: DirectoryOrCreate}
    - name: usr
      hostPath: {path: /usr, type: Directory}
    - name: etc
      hostPath: {path: /etc, type: Directory}
    - name: persistenced
      hostPath: {path: /run/nvidia-persistenced, type: DirectoryOrCreate}
    - name: fabricmanager
      hostPath: {path: /run/nvidia-fabricmanager, type: DirectoryOrCreate}
    - name: operator
      hostPath: {path: /run/nvidia, type: DirectoryOrCreate}
    {{- if not $mounted }}
    - name: driver
      hostPath: {path: {{ $node.driverRoot }}, type: Directory}
    {{- end }}
    - name: dev
      hostPath: {path: /dev}
    - name: tmp
      emptyDir: {}
    {{- with $metrics.tlsSecretName }}
    - name: metrics-tls
      secret: {secretName: {{ . | quote }}, defaultMode: 0400}
    {{- end }}
    {{- with $metrics.tokenSecretName }}
    - name: metrics-token
      secret: {secretName: {{ . | quote }}, defaultMode: 0400}
    {{- end }}
    {{- with $plugin.extraVolumes }}{{ toYaml . | nindent 4 }}{{ end }}
{{- end }}
