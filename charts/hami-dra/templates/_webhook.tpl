{{/* What the two configurations get of a certificate that isn't the webhook's own. */}}

{{- define "hami.injection" -}}
{{- if eq .Values.webhook.tls.mode "cert-manager" -}}
annotations:
  cert-manager.io/inject-ca-from: {{ include "hami.namespace" . }}/{{ include "hami.webhook" . }}
{{- end }}
{{- end }}

{{- define "hami.caBundle" -}}
{{- if eq .Values.webhook.tls.mode "secret" -}}
caBundle: {{ .Values.webhook.tls.caBundle | b64enc }}
{{- end }}
{{- end }}

{{/* The webhook's variables. */}}
{{- define "hami.webhookEnv" -}}
{{- $own := include "hami.webhook" . }}
{{- $resources := include "hami.resources" . | fromJson -}}
- name: HAMI_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
{{- with include "hami.env" (list
  (list "service" (eq $own "hami-webhook" | ternary "" $own))
  (list "tls-secret" (eq $own "hami-webhook" | ternary "" (printf "%s-tls" $own)))
  (list "tls-cert-file" (ne .Values.webhook.tls.mode "self-managed" | ternary "/etc/hami/tls/tls.crt" ""))
  (list "tls-key-file" (ne .Values.webhook.tls.mode "self-managed" | ternary "/etc/hami/tls/tls.key" ""))
  (list "driver-name" (eq .Values.driverName "gpu.hami.io" | ternary "" .Values.driverName))
  (list "device-class" (eq .Values.deviceClass.name .Values.driverName | ternary "" .Values.deviceClass.name))
  (list "resource-count-name" (eq $resources.count "nvidia.com/gpu" | ternary "" $resources.count))
  (list "resource-memory-name" (eq $resources.memory "nvidia.com/gpumem" | ternary "" $resources.memory))
  (list "resource-memory-alias" (eq $resources.memoryAlias "nvidia.com/gpumemory" | ternary "" $resources.memoryAlias))
  (list "resource-memory-percentage-name" (eq $resources.memoryPercentage "nvidia.com/gpumem-percentage" | ternary "" $resources.memoryPercentage))
  (list "resource-core-name" (eq $resources.cores "nvidia.com/gpucores" | ternary "" $resources.cores))
  (list "resource-priority-name" (eq $resources.priority "nvidia.com/priority" | ternary "" $resources.priority))
  (list "replace-scheduler" .Values.schedulerName)
  (list "log-level" (include "hami.logLevel" .))
  (list "log-format" (include "hami.logFormat" .))) }}{{ . | nindent 0 }}{{ end }}
{{- with include "hami.moreEnv" .Values.webhook.options }}{{ . | nindent 0 }}{{ end }}
{{- end }}
