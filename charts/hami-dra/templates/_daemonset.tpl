{{/* One DaemonSet. Argument: {root, name of the profile or "", profile, nodeSelector, affinity}. */}}
{{- define "hami.daemonset" -}}
{{- $labels := .name | empty | ternary dict (dict "hami.io/node-profile" .name) -}}
{{- $pod := include "hami.pod" (merge (dict "labels" $labels) .) | fromYaml -}}
{{- with $pod.Error }}{{ fail . }}{{ end -}}
{{- include "hami.refuseTwice" (dict "env" (first $pod.spec.containers).env "where" (.name | empty | ternary "kubeletPlugin.containers.plugin.env" (printf "nodeProfiles.%s.env" .name))) -}}
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: {{ include "hami.plugin" .root }}{{ with .name }}-{{ . }}{{ end }}
  namespace: {{ include "hami.namespace" .root | quote }}
  labels:
    {{- include "hami.pluginSelector" .root | nindent 4 }}
    {{- with $labels }}{{ toYaml . | nindent 4 }}{{ end }}
    {{- include "hami.labels" .root | nindent 4 }}
spec:
  # The default one's matches the pods of profiles too, and can't be changed any more. Each DaemonSet owns its pods by reference.
  selector:
    matchLabels:
      {{- include "hami.pluginSelector" .root | nindent 6 }}
      {{- with $labels }}{{ toYaml . | nindent 6 }}{{ end }}
  updateStrategy: {{- include "hami.updateStrategy" .root.Values.kubeletPlugin.updateStrategy | nindent 4 }}
  template:
    {{- include "hami.pod" (merge (dict "labels" $labels) .) | nindent 4 }}
{{- end }}

{{/* An affinity with all nodes left out that some selectors select, as JSON. Argument: {affinity, selectors by name}.
Of a selector `a=x, b=y` the nodes outside are those where a isn't x, or where b isn't y: alternatives, that multiply with those of the
other selectors and of the affinity itself. */}}
{{- define "hami.elsewhere" -}}
{{- $affinity := deepCopy .affinity -}}
{{- if .selectors -}}
{{- $node := get $affinity "nodeAffinity" | default dict -}}
{{- $required := get $node "requiredDuringSchedulingIgnoredDuringExecution" | default dict -}}
{{- $terms := get $required "nodeSelectorTerms" | default (list dict) -}}
{{- range $selector := .selectors -}}
{{- $more := list -}}
{{- range $term := $terms -}}
{{- range $key, $value := $selector -}}
{{- $other := dict "key" $key "operator" "NotIn" "values" (list $value) -}}
{{- $more = append $more (merge (dict "matchExpressions" (append (get $term "matchExpressions" | default list) $other)) $term) -}}
{{- end -}}
{{- end -}}
{{- $terms = $more -}}
{{- if gt (len $terms) 100 }}{{ fail "nodeProfiles: their labels make more than 100 alternatives of nodes that are in none of them: give the nodes one label by which profiles select, such as hami.io/profile=NAME" }}{{ end -}}
{{- end -}}
{{- $_ := set $node "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms) -}}
{{- $_ := set $affinity "nodeAffinity" $node -}}
{{- end -}}
{{- toJson $affinity -}}
{{- end }}
