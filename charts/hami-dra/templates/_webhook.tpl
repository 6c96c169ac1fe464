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
