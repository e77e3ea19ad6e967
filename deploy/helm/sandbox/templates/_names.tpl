{{/* What names of objects begin with: the release, and the chart where the release does not say it. */}}
{{- define "sandbox.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-{{ .Chart.Name }}{{ end }}
{{- end }}

{{- define "sandbox.namespace" -}}
{{ .Values.sandboxes.namespace | default .Release.Namespace }}
{{- end }}

{{- define "sandbox.secret" -}}
{{ .Values.secret.existing | default (include "sandbox.name" .) }}
{{- end }}

{{/* Keys of a section of the service's configuration: JSON's strings, numbers, booleans and lists are TOML's, too. */}}
{{- define "sandbox.keys" -}}
{{- range $key, $value := . }}
    {{ $key }} = {{ $value | toJson }}
{{- end }}
{{- end }}

{{/* Labels of an object. Called with a list: the chart's scope, and the component. */}}
{{- define "sandbox.labels" -}}
{{- $ := index . 0 -}}
{{ include "sandbox.selector" . }}
app.kubernetes.io/version: {{ $.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $.Release.Service }}
app.kubernetes.io/part-of: sandbox
helm.sh/chart: {{ printf "%s-%s" $.Chart.Name $.Chart.Version | quote }}
{{- end }}

{{- define "sandbox.selector" -}}
{{- $ := index . 0 -}}
app.kubernetes.io/name: {{ printf "sandbox-%s" (index . 1) }}
app.kubernetes.io/instance: {{ $.Release.Name }}
{{- end }}

{{/* The name of a component's service account. Called likewise, with the component's values as the third. */}}
{{- define "sandbox.account" -}}
{{- $values := index . 2 -}}
{{ ($values.serviceAccount).name | default (printf "%s-%s" (include "sandbox.name" (index . 0)) (index . 1)) }}
{{- end }}

{{/* The account as an object, unless it is named and so there already. */}}
{{- define "sandbox.accountObject" -}}
{{- $ := index . 0 -}}
{{- $values := index . 2 -}}
{{- if not ($values.serviceAccount).name -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "sandbox.account" . }}
  namespace: {{ $.Release.Namespace }}
  labels: {{- include "sandbox.labels" . | nindent 4 }}
  {{- with ($values.serviceAccount).annotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Labels of a component's pods. */}}
{{- define "sandbox.podLabels" -}}
{{- include "sandbox.labels" . }}
{{- with (index . 2).podLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* What the pods of all components share. Called likewise, with the component's values as the third. */}}
{{- define "sandbox.pod" -}}
{{- $ := index . 0 -}}
{{- $values := index . 2 -}}
serviceAccountName: {{ include "sandbox.account" . }}
{{- if hasKey $values "hostUsers" }}
{{- if kindIs "bool" $values.hostUsers }}
hostUsers: {{ $values.hostUsers }}
{{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
{{- with $.Values.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{ include "sandbox.selector" . | nindent 8 }}
{{- with $values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with $values.affinity }}
affinity: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* What their containers share. */}}
{{- define "sandbox.container" -}}
{{- $ := index . 0 -}}
{{- $values := index . 2 -}}
image: {{ $values.image | quote }}
imagePullPolicy: {{ $.Values.imagePullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
resources: {{ toYaml $values.resources | nindent 2 }}
env:
  - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
  {{- with include "sandbox.memory" (($values.resources).limits).memory }}
  # The rest is for what the Go runtime does not count. It collects more often before it has more.
  - {name: GOMEMLIMIT, value: {{ . | quote }}}
  {{- end }}
{{- end }}

{{/* 90 % of a quantity of memory, in bytes; empty for none, and for one with an exponent. */}}
{{- define "sandbox.memory" -}}
{{- $units := dict "" 1 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 }}
{{- $text := ternary (toString .) (toString (int64 .)) (kindIs "string" .) }}
{{- $number := regexFind "^[0-9.]+" $text }}
{{- $unit := trimPrefix $number $text }}
{{- if and . (hasKey $units $unit) }}{{ mulf $number (get $units $unit) 0.9 | int64 }}{{ end }}
{{- end }}
