{{/* Options of the programs as variables of containers. */}}

{{/* A number as people write it: numbers of values are floats, and a million would be 1e+06. */}}
{{- define "hami.scalar" -}}
{{- if and (kindIs "float64" .) (eq . (floor .)) }}{{ int64 . }}{{ else }}{{ . }}{{ end -}}
{{- end }}

{{/* Whether a value is there: one that is null in values.yaml may be gone, and `get` makes "" of that. */}}
{{- define "hami.given" -}}
{{- if not (or (kindIs "invalid" .) (eq (toString .) "")) }}true{{ end -}}
{{- end }}

{{/* The variable of an option. */}}
{{- define "hami.variable" -}}
{{- $name := . | replace "-" "_" | upper -}}
{{- if has . (list "hami-core" "hami-core-version") }}{{ $name }}{{ else if eq . "kubeconfig" }}KUBECONFIG{{ else }}HAMI_{{ $name }}{{ end -}}
{{- end }}

{{/* From a list of lists [option, value]: those that have a value, as a container's env; nothing if there are none. */}}
{{- define "hami.env" -}}
{{- $env := list -}}
{{- range . -}}
{{- if include "hami.given" (last .) -}}
{{- $env = append $env (dict "name" (include "hami.variable" (first .)) "value" (include "hami.scalar" (last .))) -}}
{{- end -}}
{{- end -}}
{{- with $env }}{{ toYaml . }}{{ end -}}
{{- end }}

{{/* A map of options as such a list, sorted. */}}
{{- define "hami.moreEnv" -}}
{{- $pairs := list -}}
{{- range $option, $value := . }}{{ $pairs = append $pairs (list $option $value) }}{{ end -}}
{{- include "hami.env" $pairs -}}
{{- end }}

{{/* The least level that is logged, if it isn't the default. */}}
{{- define "hami.logLevel" -}}
{{- $level := .Values.logLevel -}}
{{- if include "hami.given" .Values.logVerbosity }}{{ $level = ge (int .Values.logVerbosity) 4 | ternary "debug" "info" }}{{ end -}}
{{- if ne $level "info" }}{{ $level }}{{ end -}}
{{- end }}

{{- define "hami.logFormat" -}}
{{- if ne .Values.logFormat "json" }}{{ .Values.logFormat }}{{ end -}}
{{- end }}

{{/* What stands in `env` must not be what the chart sets, or the last one would win without a word. */}}
{{- define "hami.refuseTwice" -}}
{{- $set := dict -}}
{{- range .env }}
{{- if hasKey $set .name }}
{{- fail (printf "%s: %s is set by the chart already: use the value or option for it, or write it once" $.where .name) }}
{{- end }}
{{- $_ := set $set .name true }}
{{- end }}
{{- end }}

{{/* The settings of one DaemonSet as a JSON object: the profile's, else the values', HAMi's names included. Argument: {root, profile}. */}}
{{- define "hami.node" -}}
{{- $values := .root.Values -}}
{{- $plugin := $values.kubeletPlugin -}}
{{- $node := dict
  "driverRoot" $values.nvidiaDriverRoot
  "cdiHook" $values.nvidiaCDIHookPath
  "driverEdits" $plugin.driverEdits
  "runtimeClassName" $plugin.runtimeClassName
  "priorityClassName" $plugin.priorityClassName
  "tolerations" $plugin.tolerations
  "resources" $plugin.containers.plugin.resources
  "hamiDir" ($plugin.hamiDirectoryPath | default ($values.global.gpuHookPath | empty | ternary "" (printf "%s/vgpu" (trimSuffix "/" (toString $values.global.gpuHookPath))))) -}}
{{- range $name := list "deviceSplitCount" "deviceMemoryScaling" "deviceCoreScaling" -}}
{{- $alias := get $values.devicePlugin $name -}}
{{- $_ := set $node $name (include "hami.given" $alias | empty | ternary (get $plugin $name) $alias) -}}
{{- end -}}
{{- $renamed := dict "nvidiaDriverRoot" "driverRoot" "nvidiaCDIHookPath" "cdiHook" "hamiDirectoryPath" "hamiDir" -}}
{{- range $name, $value := omit .profile "options" "env" "nodeSelector" "enabled" -}}
{{- $_ := set $node (get $renamed $name | default $name) $value -}}
{{- end -}}
{{- $_ := set $node "options" (mustMergeOverwrite (dict) ($plugin.options | default dict) (.profile.options | default dict)) -}}
{{- if include "hami.given" $values.legacyMetrics }}{{ $_ := set $node.options "legacy-metrics" $values.legacyMetrics }}{{ end -}}
{{- $_ := set $node "env" (concat ($plugin.containers.plugin.env | default list) (.profile.env | default list)) -}}
{{- toJson $node -}}
{{- end }}
