package conformance

import (
	"maps"
	"net/http"
	"strings"
	"testing"
)

func testRefusedCreates(t *testing.T, s *Service) {
	type fields = map[string]any
	volume := func(change fields) fields {
		v := fields{"name": "data", "mountPath": "/data", "host": fields{"path": "/srv"}}
		for key, value := range change {
			v[key] = value
		}
		maps.DeleteFunc(v, func(_ string, value any) bool { return value == nil })
		return fields{"volumes": []any{v}}
	}
	for name, c := range map[string]struct {
		change fields
		words  []string
	}{
		"no image":   {fields{"image": nil}, []string{"image", "required"}},
		"no timeout": {fields{"timeout": nil}, []string{"timeout", "required"}},
		"no limits": {fields{"resourceLimits": nil},
			[]string{"resourceLimits", "required"}},
		"no entrypoint":    {fields{"entrypoint": nil}, []string{"entrypoint", "required"}},
		"empty entrypoint": {fields{"entrypoint": []string{}}, []string{"entrypoint", "1"}},
		"empty executable": {fields{"entrypoint": []string{""}},
			[]string{"entrypoint", "executable"}},
		"entrypoint a string": {fields{"entrypoint": "sleep 1"}, []string{"entrypoint", "array"}},
		"entrypoint of numbers": {fields{"entrypoint": []any{"sleep", 1}},
			[]string{"entrypoint/1", "string"}},
		"image a string":    {fields{"image": "busybox"}, []string{"image", "object"}},
		"image without uri": {fields{"image": fields{}}, []string{"image/uri", "required"}},
		"image uri empty":   {fields{"image": fields{"uri": ""}}, []string{"image/uri", "1"}},
		"image uri blank":   {fields{"image": fields{"uri": " "}}, []string{"image.uri"}},
		"auth without password": {fields{"image": fields{"uri": "a",
			"auth": fields{"username": "u"}}}, []string{"image/auth/password", "required"}},
		"auth empty password": {fields{"image": fields{"uri": "a",
			"auth": fields{"username": "u", "password": ""}}}, []string{"image.auth"}},
		"timeout 59":         {fields{"timeout": 59}, []string{"timeout", "60"}},
		"timeout 86401":      {fields{"timeout": 86401}, []string{"timeout", "86400"}},
		"timeout a string":   {fields{"timeout": "60"}, []string{"timeout", "integer"}},
		"timeout a fraction": {fields{"timeout": 60.5}, []string{"timeout", "integer"}},
		"cpu 500": {fields{"resourceLimits": fields{"cpu": "500"}},
			[]string{"resourceLimits.cpu", "500m"}},
		"cpu a number": {fields{"resourceLimits": fields{"cpu": 1}},
			[]string{"resourceLimits/cpu", "string"}},
		"cpu a word": {fields{"resourceLimits": fields{"cpu": "much"}},
			[]string{"resourceLimits/cpu"}},
		"memory 512": {fields{"resourceLimits": fields{"memory": "512"}},
			[]string{"resourceLimits.memory", "512Mi"}},
		"memory in the units of docker": {fields{"resourceLimits": fields{"memory": "1g"}},
			[]string{"resourceLimits/memory", "must be a number with one of the units", "512Mi"}},
		"memory too small": {fields{"resourceLimits": fields{"memory": "1Mi"}},
			[]string{"resourceLimits.memory", "16Mi"}},
		"gpu x": {fields{"resourceLimits": fields{"gpu": "x"}},
			[]string{"resourceLimits/gpu"}},
		"gpu 0": {fields{"resourceLimits": fields{"gpu": "0"}},
			[]string{"resourceLimits.gpu", "count"}},
		"unknown limit": {fields{"resourceLimits": fields{"disk": "1Gi"}},
			[]string{"resourceLimits", "disk"}},
		"unknown field":         {fields{"entryPoint": []string{"x"}}, []string{"entryPoint"}},
		"field in another case": {fields{"Timeout": 5}, []string{"Timeout"}},
		"env of numbers":        {fields{"env": fields{"A": 1}}, []string{"env/A", "string"}},
		"env name":              {fields{"env": fields{"A=B": "x"}}, []string{"env", "A=B"}},
		"env of the daemon": {fields{"env": fields{"EXECD_ACCESS_TOKEN": "x"}},
			[]string{"env.EXECD_ACCESS_TOKEN", "reserved"}},
		"metadata of numbers": {fields{"metadata": fields{"A": 1}},
			[]string{"metadata/A", "string"}},
		"metadata reserved": {fields{"metadata": fields{"sandbox.internal/id": "x"}},
			[]string{"metadata", "reserved"}},
		"metadata key too long": {fields{"metadata": fields{strings.Repeat("k", 257): "x"}},
			[]string{"metadata", "256"}},
		"metadata too long": {fields{"metadata": fields{"k": strings.Repeat("v", 4097)}},
			[]string{"metadata.k", "4096"}},
		"row lifecycle/networking/rule 3: no sidecar": {fields{"networkPolicy": fields{"defaultAction": "deny"}}, []string{"a network policy requires bridge mode and egress image configuration"}},
		"row lifecycle/networkPolicy/defaultAction":   {fields{"networkPolicy": fields{"defaultAction": "maybe"}}, []string{"networkPolicy/defaultAction", "allow"}},
		"row lifecycle/networkPolicy/egress: action":  {fields{"networkPolicy": fields{"egress": []any{fields{"action": "x", "target": "a.example"}}}}, []string{"networkPolicy/egress/0/action"}},
		"row lifecycle/networkPolicy/egress: target":  {fields{"networkPolicy": fields{"egress": []any{fields{"action": "deny"}}}}, []string{"networkPolicy/egress/0/target", "required"}},
		"volume without name": {volume(fields{"name": ""}),
			[]string{"volumes/0/name"}},
		"volume name": {volume(fields{"name": "A b"}),
			[]string{"volumes[0].name"}},
		"volume two sources": {volume(
			fields{"pvc": fields{"claimName": "work"}}),
			[]string{"volumes[0]", "exactly one of host and pvc"}},
		"volume relative mount": {volume(fields{"mountPath": "data"}),
			[]string{"volumes[0].mountPath", "absolute"}},
		"volume over the daemon": {volume(fields{"mountPath": "/opt"}),
			[]string{"volumes[0].mountPath", "/opt/sandbox"}},
		"volume relative path": {volume(
			fields{"host": fields{"path": "../etc"}}),
			[]string{"volumes[0].host.path", "absolute"}},
		"volume sub path": {volume(fields{"subPath": "../x"}),
			[]string{"volumes[0].subPath"}},
		"volume over /proc": {volume(fields{"mountPath": "/proc/sys"}),
			[]string{"volumes[0].mountPath", "overlaps /proc"}},
		"volume over /sys": {volume(fields{"mountPath": "/sys"}),
			[]string{"volumes[0].mountPath", "overlaps /sys"}},
		"volume over /dev": {volume(fields{"mountPath": "/dev/shm"}),
			[]string{"volumes[0].mountPath", "overlaps /dev"}},
		"volume over everything": {volume(fields{"mountPath": "/"}),
			[]string{"volumes[0].mountPath", "not /"}},
		"volume upwards": {volume(fields{"mountPath": "/data/../etc"}),
			[]string{"volumes[0].mountPath", ".. parts"}},
		"volume of the host": {volume(fields{"host": fields{"path": "/"}}),
			[]string{"volumes[0].host.path", "not /"}},
		"volume of the daemon": {volume(fields{"host": nil,
			"pvc": fields{"claimName": "sandbox-execd-0123"}}),
			[]string{"volumes[0].pvc.claimName", "reserved"}},
		"volumes an object": {fields{"volumes": fields{}},
			[]string{"volumes", "array"}},
		"extensions an array": {fields{"extensions": []any{}},
			[]string{"extensions", "object"}},
	} {
		t.Run(name, func(t *testing.T) {
			WantProblem(t, s.Send(t, http.MethodPost, "/v1/sandboxes", s.Body(t, c.change)), 400,
				"INVALID_REQUEST_BODY", c.words...)
		})
	}
	for name, c := range map[string]struct {
		body    string
		headers []string
		words   []string
	}{
		"empty":      {"", nil, []string{"body", "required"}},
		"malformed":  {`{"timeout":60,`, nil, []string{"body", "JSON"}},
		"two values": {`{} {}`, nil, []string{"body", "more after the first value"}},
		"an array":   {`[]`, nil, []string{"body", "object"}},
		"null":       {`null`, nil, []string{"body"}},
		"no JSON by header": {`{}`, []string{"Content-Type", "text/plain"},
			[]string{"Content-Type", "application/json"}},
		"empty idempotency": {s.Body(t, nil), []string{"Idempotency-Key", strings.Repeat("k", 256)},
			[]string{"Idempotency-Key", "255"}},
	} {
		t.Run(name, func(t *testing.T) {
			WantProblem(t, s.Send(t, http.MethodPost, "/v1/sandboxes", c.body, c.headers...), 400,
				"INVALID_REQUEST_BODY", c.words...)
		})
	}
}
