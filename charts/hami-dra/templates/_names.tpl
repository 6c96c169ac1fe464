{{/* Names, labels, images: what several templates say. */}}

{{- define "hami.prefix" -}}
{{- .Values.fullnameOverride | default .Values.nameOverride | default "hami" | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "hami.namespace" -}}
{{- .Values.namespaceOverride | default .Release.Namespace -}}
{{- end }}

{{- define "hami.plugin" -}}
{{ include "hami.prefix" . }}-kubeletplugin
{{- end }}

{{- define "hami.webhook" -}}
{{ include "hami.prefix" . }}-webhook
{{- end }}

{{- define "hami.pluginAccount" -}}
{{- .Values.serviceAccount.name | default (include "hami.plugin" .) -}}
{{- end }}

{{- define "hami.webhookAccount" -}}
{{- .Values.webhook.serviceAccount.name | default (include "hami.webhook" .) -}}
{{- end }}

{{/* As which the API server knows them. */}}
{{- define "hami.pluginUser" -}}
system:serviceaccount:{{ include "hami.namespace" . }}:{{ include "hami.pluginAccount" . }}
{{- end }}

{{- define "hami.webhookUser" -}}
system:serviceaccount:{{ include "hami.namespace" . }}:{{ include "hami.webhookAccount" . }}
{{- end }}

{{/* Labels of all objects, not of pods: a new version of the chart alone restarts nothing. */}}
{{- define "hami.labels" -}}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* By which everything finds the pods. Not of the release: who applied the manifests with kubectl finds the same DaemonSet and Deployment. */}}
{{- define "hami.pluginSelector" -}}
app.kubernetes.io/name: {{ include "hami.plugin" . }}
{{- end }}

{{- define "hami.webhookSelector" -}}
app.kubernetes.io/name: {{ include "hami.webhook" . }}
{{- end }}

{{- define "hami.image" -}}
{{- $name := .Values.image.repository -}}
{{- with .Values.global.imageRegistry }}{{ $name = printf "%s/%s" (trimSuffix "/" .) $name }}{{ end -}}
{{- if .Values.image.digest -}}
{{ $name }}@{{ .Values.image.digest }}
{{- else -}}
{{ $name }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}
{{- end }}

{{- define "hami.pullSecrets" -}}
{{- $secrets := list -}}
{{- range concat (.Values.imagePullSecrets | default list) (.Values.global.imagePullSecrets | default list) -}}
{{- $secrets = append $secrets (kindIs "string" . | ternary (dict "name" .) .) -}}
{{- end -}}
{{- with $secrets -}}
imagePullSecrets:
{{ toYaml . | indent 2 }}
{{- end }}
{{- end }}

{{/* The six resources, HAMi's names of the values first, as a JSON object. */}}
{{- define "hami.resources" -}}
{{- $own := .Values.webhook.resources -}}
{{- dict
  "count" (.Values.resourceName | default $own.count)
  "memory" (.Values.resourceMem | default $own.memory)
  "memoryAlias" $own.memoryAlias
  "memoryPercentage" (.Values.resourceMemPercentage | default $own.memoryPercentage)
  "cores" (.Values.resourceCores | default $own.cores)
  "priority" (.Values.resourcePriority | default $own.priority) | toJson -}}
{{- end }}

{{/* Without the default's rollingUpdate where another type was chosen, or the API server would refuse the two together. */}}
{{- define "hami.updateStrategy" -}}
{{- toYaml (has (get . "type") (list "Recreate" "OnDelete") | ternary (omit . "rollingUpdate") .) -}}
{{- end }}

{{- define "hami.monitoring" -}}
{{- if or .Values.monitoring.enabled .Values.prometheus.enabled }}true{{ end -}}
{{- end }}

{{/* Whether there are SecurityContextConstraints to make. */}}
{{- define "hami.openshift" -}}
{{- $enabled := .Values.openshift.enabled -}}
{{- if include "hami.given" .Values.platform.openshift }}{{ $enabled = .Values.platform.openshift }}{{ end -}}
{{- if eq (toString $enabled) "auto" -}}
{{- if .Capabilities.APIVersions.Has "security.openshift.io/v1" }}true{{ end -}}
{{- else if $enabled }}true{{ end -}}
{{- end }}

{{/* A DeviceClass's expression for our devices. Guarded: reading an attribute that a device lacks stops the scheduling everywhere. */}}
{{- define "hami.devices" -}}
device.driver == "{{ .Values.driverName }}" && "type" in device.attributes["{{ .Values.driverName }}"] && device.attributes["{{ .Values.driverName }}"].type == "hami-gpu"
{{- end }}
