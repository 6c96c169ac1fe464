{{/* What can't go well is refused here, with a sentence. Types, bounds and unknown values are refused by values.schema.json. */}}

{{- define "hami.guards" -}}
{{- include "hami.guardCluster" . -}}
{{- include "hami.guardAliases" . -}}
{{- include "hami.guardValues" . -}}
{{- include "hami.guardProfiles" . -}}
{{- include "hami.guardOthers" . -}}
{{- end }}

{{- define "hami.guardCluster" -}}
{{- $version := .Capabilities.KubeVersion.Version -}}
{{- if eq (include "hami.namespace" .) "default" -}}
{{- fail "the namespace is `default`, where everybody makes pods, and a pod beside the daemon can use its ServiceAccount. Install with `-n hami-system --create-namespace`" -}}
{{- end -}}
{{- if and (semverCompare "<1.36.0-0" $version) (not .Values.confirm.consumableCapacityGate) -}}
{{- fail (printf "this is Kubernetes %s, where GPUs can be shared only with the feature gate DRAConsumableCapacity (from 1.36 on it is on): without it the API server drops what lets claims share a GPU. Turn it on in kube-apiserver, kube-scheduler, kube-controller-manager and kubelets, then set confirm.consumableCapacityGate=true" $version) -}}
{{- end -}}
{{- if and .Values.extendedResource.enabled (semverCompare "<1.36.0-0" $version) -}}
{{- fail (printf "extendedResource.enabled: this is Kubernetes %s, which drops a DeviceClass's extendedResourceName; it needs 1.36" $version) -}}
{{- end -}}
{{- if and .Values.webhook.enabled (eq .Values.webhook.tls.mode "cert-manager") (not (.Capabilities.APIVersions.Has "cert-manager.io/v1")) -}}
{{- fail "webhook.tls.mode is cert-manager, and this cluster has no cert-manager.io/v1: install cert-manager first, or use self-managed. (helm template: --api-versions cert-manager.io/v1)" -}}
{{- end -}}
{{- if and (or (include "hami.monitoring" .) .Values.monitoring.rules) (not (.Capabilities.APIVersions.Has "monitoring.coreos.com/v1")) -}}
{{- fail "monitoring: this cluster has no monitoring.coreos.com/v1: install the Prometheus operator first, or leave monitoring.enabled and monitoring.rules off. (helm template: --api-versions monitoring.coreos.com/v1)" -}}
{{- end -}}
{{- end }}

{{/* Two names of one value must not say different things. */}}
{{- define "hami.guardAliases" -}}
{{- range $name := list "deviceSplitCount" "deviceMemoryScaling" "deviceCoreScaling" -}}
{{- $own := get $.Values.kubeletPlugin $name -}}
{{- $alias := get $.Values.devicePlugin $name -}}
{{- if and (include "hami.given" $own) (include "hami.given" $alias) (ne (toString $own) (toString $alias)) -}}
{{- fail (printf "kubeletPlugin.%s is %v and devicePlugin.%s, HAMi's name of the same, is %v: set one of them" $name $own $name $alias) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.kubeletPlugin.hamiDirectoryPath .Values.global.gpuHookPath -}}
{{- fail "kubeletPlugin.hamiDirectoryPath and global.gpuHookPath, HAMi's name for the folder above it, are both set: set one of them" -}}
{{- end -}}
{{- if and (include "hami.given" .Values.legacyMetrics) (hasKey .Values.kubeletPlugin.options "legacy-metrics") -}}
{{- fail "kubeletPlugin.options.legacy-metrics and legacyMetrics, HAMi's name of it, are both set: set one of them" -}}
{{- end -}}
{{- range $name := keys (omit (.Values.scheduler | default dict) "service") | sortAlpha -}}
{{- fail (printf "scheduler.%s: hami-dra has no scheduler of its own, Kubernetes' own does it all. Take it out; what HAMi's settings are here stands in docs/migrating-from-hami.md" $name) -}}
{{- end -}}
{{- range $name := keys (omit (get (.Values.scheduler | default dict) "service" | default dict) "monitorPort") | sortAlpha -}}
{{- fail (printf "scheduler.service.%s: hami-dra has no scheduler of its own, so no Service of it. Take it out" $name) -}}
{{- end -}}
{{- end }}

{{- define "hami.guardValues" -}}
{{- range $where, $labels := dict "commonLabels" .Values.commonLabels "kubeletPlugin.podLabels" .Values.kubeletPlugin.podLabels "webhook.podLabels" .Values.webhook.podLabels -}}
{{- range $key := keys ($labels | default dict) | sortAlpha -}}
{{- if has $key (list "app.kubernetes.io/name" "hami.io/node-profile" "app.kubernetes.io/managed-by" "app.kubernetes.io/instance" "app.kubernetes.io/version" "helm.sh/chart") -}}
{{- fail (printf "%s: the label %s is the chart's own, by which pods and objects are found: use another name" $where $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if eq (toString (get (.Values.webhook.options | default dict) "port")) "0" -}}
{{- fail "webhook.options.port: 0 would be any free port, which neither the probes nor the Service could know: say which" -}}
{{- end -}}
{{- $metrics := .Values.kubeletPlugin.metrics -}}
{{- if and $metrics.tokenSecretName (not $metrics.tlsSecretName) -}}
{{- fail "kubeletPlugin.metrics.tokenSecretName needs tlsSecretName: without TLS the token could be read on its way" -}}
{{- end -}}
{{- if and (not $metrics.enabled) (or $metrics.tlsSecretName (include "hami.monitoring" .) .Values.monitoring.hamiNames) -}}
{{- fail "kubeletPlugin.metrics.enabled is false, so there is nothing for monitoring to read, and no port for a certificate" -}}
{{- end -}}
{{- $webhook := .Values.webhook -}}
{{- if and $webhook.enabled (eq $webhook.tls.mode "secret") (or (not $webhook.tls.secretName) (not $webhook.tls.caBundle)) -}}
{{- fail "webhook.tls.mode is secret: set webhook.tls.secretName (with tls.crt and tls.key) and webhook.tls.caBundle (the CA, PEM), or API servers would not trust the webhook" -}}
{{- end -}}
{{- if and (ne $webhook.tls.mode "secret") (or $webhook.tls.secretName $webhook.tls.caBundle) -}}
{{- fail (printf "webhook.tls.secretName and webhook.tls.caBundle are for webhook.tls.mode=secret, and it is %s" $webhook.tls.mode) -}}
{{- end -}}
{{- if and .Values.webhook.podDisruptionBudget.enabled (gt (int $webhook.replicas) 1) (ge (int $webhook.podDisruptionBudget.minAvailable) (int $webhook.replicas)) -}}
{{- fail (printf "webhook.podDisruptionBudget.minAvailable is %v of %v replicas: no node with one of them could be drained" $webhook.podDisruptionBudget.minAvailable $webhook.replicas) -}}
{{- end -}}
{{- $resources := include "hami.resources" . | fromJson -}}
{{- if ne (values $resources | uniq | len) (len $resources) -}}
{{- fail (printf "webhook.resources: two of them have the same name: %s" (values $resources | sortAlpha | join ", ")) -}}
{{- end -}}
{{- end }}

{{/* Two daemons on one node would take turns by a lock, with settings that depend on who came first. */}}
{{- define "hami.guardProfiles" -}}
{{- $profiles := .Values.nodeProfiles -}}
{{- $names := keys $profiles | sortAlpha -}}
{{- range $i, $name := $names -}}
{{- $one := (get $profiles $name).nodeSelector -}}
{{- range $other := slice $names (int (add $i 1)) -}}
{{- $two := (get $profiles $other).nodeSelector -}}
{{- $apart := false -}}
{{- range $key, $value := $one }}{{ if and (hasKey $two $key) (ne (get $two $key) $value) }}{{ $apart = true }}{{ end }}{{ end -}}
{{- if not $apart -}}
{{- fail (printf "nodeProfiles.%s and nodeProfiles.%s: a node could be in both. Give their nodeSelectors one label in common with different values" $name $other) -}}
{{- end -}}
{{- end -}}
{{- range $key, $value := $one -}}
{{- if and (hasKey $.Values.kubeletPlugin.nodeSelector $key) (ne (get $.Values.kubeletPlugin.nodeSelector $key) $value) -}}
{{- fail (printf "nodeProfiles.%s.nodeSelector wants %s=%s, and kubeletPlugin.nodeSelector, which counts for all, another value" $name $key $value) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Who gives out the same GPUs, as far as the cluster says; `helm template` asks nobody. */}}
{{- define "hami.guardOthers" -}}
{{- if and (not .Values.confirm.gpuCluster) (.Capabilities.APIVersions.Has "nvidia.com/v1alpha1/GPUCluster") -}}
{{- range (lookup "nvidia.com/v1alpha1" "GPUCluster" "" "").items -}}
{{- fail (printf "there is a GPUCluster %s of NVIDIA's GPU operator: its DRA driver gives out the same GPUs as gpu.nvidia.com. Use a ClusterPolicy with devicePlugin.enabled=false instead; or keep it off the nodes of this driver, by the label nvidia.com/gpu.deploy.dra-driver=false on them, and set confirm.gpuCluster=true" .metadata.name) -}}
{{- end -}}
{{- end -}}
{{- if not .Values.confirm.devicePlugin -}}
{{- range (lookup "apps/v1" "DaemonSet" "" "").items -}}
{{- $status := .status | default dict -}}
{{- if gt (int ($status.desiredNumberScheduled | default 0)) 0 -}}
{{- $found := include "hami.devicePluginIn" . -}}
{{- if $found -}}
{{- fail (printf "DaemonSet %s/%s is a device plugin (%s) and runs on %d nodes: GPUs that it gives out are not published here, so that none is given out twice. Remove it (GPU operator: devicePlugin.enabled=false), or keep it and this driver on different nodes, or go node by node (docs/migrating-from-hami.md), and set confirm.devicePlugin=true" .metadata.namespace .metadata.name $found (int $status.desiredNumberScheduled)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* The image or program by which a DaemonSet is known as a device plugin for GPUs: NVIDIA's, HAMi's, Volcano's. Other programs of NVIDIA's
image give nothing out: GPU feature discovery, which the GPU operator runs without its device plugin, too, and what goes with that. */}}
{{- define "hami.devicePluginIn" -}}
{{- $found := "" -}}
{{- range .spec.template.spec.containers -}}
{{- $command := .command | default list -}}
{{- $beside := and $command (has (base (first $command)) (list "gpu-feature-discovery" "config-manager" "mps-control-daemon")) -}}
{{- $words := concat (list .image) $command -}}
{{- if $beside }}{{ $words = list }}{{ end -}}
{{- range $words -}}
{{- if and (not $found) (regexMatch "(k8s-device-plugin|nvidia-device-plugin|volcano-vgpu-device-plugin)(:|@|$)" .) }}{{ $found = . }}{{ end -}}
{{- end -}}
{{- end -}}
{{- $found -}}
{{- end }}
